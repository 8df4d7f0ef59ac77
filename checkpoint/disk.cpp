// disk.cpp - see disk.h.
#include "disk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

namespace fs = std::filesystem;

// ---- the disk -----------------------------------------------------------------------------------

const Disk& real_disk() {
    static const Disk disk = {
        [](const char* path) {
            int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
            return fd < 0 ? -errno : fd;
        },
        [](int fd, const void* data, int64_t bytes) {
            ssize_t n = write(fd, data, size_t(bytes));
            return n < 0 ? -int64_t(errno) : int64_t(n);
        },
        [](int fd) { return fsync(fd) ? -errno : 0; },
        [](int fd) { return close(fd) ? -errno : 0; },
        [](const char* from, const char* to, Overwrite overwrite) {
            if (overwrite == Overwrite::no) return rename_new(from, to) ? -errno : 0;
            if (rename(from, to) == 0) return 0;
            bool exists = errno == ENOTEMPTY || errno == EEXIST;
            if (exists && renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0) return 0;
            return -errno;
        },
        [](const char* path) { return mkdir(path, 0777) ? -errno : 0; },
        [](const char* path) { return remove(path) ? -errno : 0; },
        [](const char* path) {
            int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            if (fd < 0) return -errno;
            int rc = fsync(fd) ? -errno : 0;
            close(fd);
            return rc;
        },
    };
    return disk;
}

Status disk_status(const std::string& path, const char* call, int64_t rc) {
    return rc < 0 ? fail(Exit::io, "%s: %s: %s", path.c_str(), call, strerror(int(-rc))) : Status{};
}

// ---- directories --------------------------------------------------------------------------------

Result<std::vector<std::string>> names_in(const std::string& dir) {
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error))
        names.push_back(it->path().filename().string());
    if (error == std::errc::not_enough_memory) out_of_memory();
    if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
        return fail(Exit::io, "%s: its files cannot be listed: %s", dir.c_str(), error.message().c_str());
    std::sort(names.begin(), names.end());
    return names;
}
std::string step_directory(const std::string& run, int64_t step) {
    return run + formatted("/step_%08lld", (long long)step);
}
bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }
bool is_directory(const std::string& path) {
    struct stat s;
    return stat(path.c_str(), &s) == 0 && S_ISDIR(s.st_mode);
}

Status remove_directory(const std::string& dir, const Disk& disk) {
    if (!exists(dir)) return {};
    for (const std::string& name : TRY(names_in(dir))) {
        std::string path = dir + "/" + name;
        TRY(disk_status(path, "remove", retry_eintr([&] { return disk.remove(path.c_str()); })));
    }
    return disk_status(dir, "remove", retry_eintr([&] { return disk.remove(dir.c_str()); }));
}
Status rename_directory(const Disk& disk, const std::string& from, const std::string& to, Overwrite overwrite) {
    const int64_t rc = retry_eintr([&] { return disk.rename(from.c_str(), to.c_str(), overwrite); });
    if (rc != -EEXIST || overwrite == Overwrite::yes) return disk_status(to, "rename", rc);
    return fail(Exit::usage, "%s: expected a new directory, it is there by now; give another name", to.c_str());
}

// ---- files --------------------------------------------------------------------------------------

Status write_file(const Disk& disk, const std::string& dir, const std::string& name, std::vector<FileChecksum>* sums,
                  const std::function<Status(const FileSink&)>& produce) {
    constexpr int64_t CHUNK = 1 << 20;    // bytes written at a time
    std::string path = dir + "/" + name, waiting;
    FileChecksum sum{name};
    int fd = int(retry_eintr([&] { return disk.open_write(path.c_str()); }));
    TRY(disk_status(path, "open", fd));
    auto flush = [&]() -> Status {
        for (int64_t done = 0, bytes = int64_t(waiting.size()); done < bytes;) {
            int64_t piece = std::min(CHUNK, bytes - done);
            int64_t n = retry_eintr([&] { return disk.write(fd, waiting.data() + done, piece); });
            if (n == 0) n = -ENOSPC;
            TRY(disk_status(path, "write", n));
            done += n;
        }
        waiting.clear();
        return {};
    };
    auto put = [&](const void* data, int64_t bytes) -> Status {
        sum.crc = crc32c(sum.crc, data, bytes);
        sum.bytes += bytes;
        waiting.append(static_cast<const char*>(data), size_t(bytes));
        return int64_t(waiting.size()) >= CHUNK ? flush() : Status{};
    };
    Status s = produce(put);
    if (s.ok()) s = flush();
    if (s.ok()) s = disk_status(path, "fsync", retry_eintr([&] { return disk.sync(fd); }));
    int closed = disk.close(fd);    // close releases fd even if it returns EINTR
    if (s.ok() && closed != -EINTR) s = disk_status(path, "close", closed);
    sums->push_back(sum);
    return s;
}
