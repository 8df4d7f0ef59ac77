// file.cpp - see file.h.
#include "file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

File::~File() {
    if (descriptor >= 0) close(descriptor);
}
File& File::operator=(File&& other) noexcept {
    std::swap(name, other.name);
    std::swap(descriptor, other.descriptor);
    std::swap(size, other.size);
    std::swap(mtime, other.mtime);
    return *this;
}

Result<File> File::open(const std::string& path) {
    File f;
    f.name = path;
    // Without O_NONBLOCK, opening a FIFO waits for a writer.
    do f.descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    while (f.descriptor < 0 && errno == EINTR);
    if (f.descriptor < 0) {
        bool input = errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == ELOOP || errno == ENAMETOOLONG;
        if (errno == ENOENT) return fail(Exit::input, "%s: no such file or directory", path.c_str());
        return fail(input ? Exit::input : Exit::io, "%s: cannot be opened: %s", path.c_str(), strerror(errno));
    }
    struct stat s;
    if (fstat(f.descriptor, &s)) return fail(Exit::io, "%s: fstat: %s", path.c_str(), strerror(errno));
    if (!S_ISREG(s.st_mode))
        return fail(Exit::input, "%s: expected a regular file, found a %s", path.c_str(),
                    S_ISDIR(s.st_mode) ? "directory" : S_ISFIFO(s.st_mode) ? "FIFO" : "device or socket");
    f.size = s.st_size;
    f.mtime = int64_t(s.st_mtim.tv_sec) * 1000000000 + s.st_mtim.tv_nsec;
    return f;
}

Status File::read(int64_t offset, void* to, int64_t bytes) const {
    for (int64_t done = 0; done < bytes;) {
        ssize_t n = pread(descriptor, static_cast<char*>(to) + done, size_t(bytes - done), offset + done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return fail(Exit::io, "%s: offset %lld: %s", name.c_str(), (long long)(offset + done), strerror(errno));
        if (n == 0)
            return fail(Exit::input, "%s: expected %lld bytes at offset %lld, the file ends at %lld", name.c_str(),
                        (long long)bytes, (long long)offset, (long long)(offset + done));
        done += n;
    }
    return {};
}

Result<std::string> read_file(const std::string& path, int64_t max_bytes) {
    const File file = TRY(File::open(path));
    int64_t bytes = file.bytes();
    if (bytes > max_bytes)
        return fail(Exit::input, "%s: expected at most %lld bytes, found %lld", path.c_str(), (long long)max_bytes,
                    (long long)bytes);
    std::string text(size_t(bytes), '\0');
    TRY(file.read(0, text.data(), bytes));
    return text;
}

Status check_writable(const std::string& path, const char* flag) {
    struct stat s;
    const bool there = stat(path.c_str(), &s) == 0;
    if (path.ends_with('/') || (there && S_ISDIR(s.st_mode)))
        return fail(Exit::usage, "%s: expected the name of a file, found the directory %s", flag, path.c_str());
    if (there && !S_ISREG(s.st_mode))
        return fail(Exit::usage, "%s %s: expected a new name or a regular file", flag, path.c_str());
    const std::string temporary = path + ".tmp";    // left as it is where it is there already
    const int f = open(temporary.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    if (f < 0 && errno != EEXIST)
        return fail(Exit::io, "%s: %s cannot be written: %s", flag, path.c_str(), strerror(errno));
    if (f >= 0) close(f), unlink(temporary.c_str());
    return {};
}
std::string without_slashes(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
}

Status replace_file(const std::string& path, const std::string& text) {
    return replace_file(path, [&](const FileSink& sink) { return sink(text.data(), int64_t(text.size())); });
}

Status replace_file(const std::string& path, const std::function<Status(const FileSink& sink)>& produce) {
    struct stat s;
    if (stat(path.c_str(), &s) == 0 && !S_ISREG(s.st_mode))    // the rename would put a file in a device's place
        return fail(Exit::usage, "%s: expected a new name or a regular file", path.c_str());
    const std::string temporary = path + ".tmp";
    auto failed = [&] { return fail(Exit::io, "%s: cannot be written: %s", path.c_str(), strerror(errno)); };
    FILE* f = fopen(temporary.c_str(), "wb");
    if (!f) return failed();
    Status status = produce([&](const void* data, int64_t bytes) {
        return fwrite(data, 1, size_t(bytes), f) == size_t(bytes) ? Status{} : failed();
    });
    if (status.ok() && (fflush(f) != 0 || fsync(fileno(f)) != 0)) status = failed();
    if (fclose(f) != 0 && status.ok()) status = failed();
    if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) status = failed();
    if (!status.ok()) remove(temporary.c_str());
    return status;
}
