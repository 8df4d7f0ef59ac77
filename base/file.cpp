// file.cpp - see file.h.
#include "file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include "interrupt.h"

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
    // Without O_NONBLOCK, opening a FIFO would wait for a writer.
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
                    S_ISDIR(s.st_mode)    ? "directory"
                    : S_ISFIFO(s.st_mode) ? "FIFO"
                                          : "device or socket");
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

std::shared_ptr<const char> File::map() const {
    void* p = size > 0 ? mmap(nullptr, size_t(size), PROT_READ, MAP_PRIVATE, descriptor, 0) : MAP_FAILED;
    if (p == MAP_FAILED) return nullptr;
    return {static_cast<const char*>(p),
            [bytes = size_t(size)](const char* at) { munmap(const_cast<char*>(at), bytes); }};
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
    if (path == "-")
        return fail(Exit::usage,
                    "%s -: expected a file's name, it is not written to standard output; a file that is "
                    "called so is ./-",
                    flag);
    struct stat s;
    const bool there = stat(path.c_str(), &s) == 0;
    if (path.ends_with('/') || (there && S_ISDIR(s.st_mode)))
        return fail(Exit::usage, "%s: expected the name of a file, found the directory %s", flag, path.c_str());
    if (there && !S_ISREG(s.st_mode))
        return fail(Exit::usage, "%s %s: expected a new name or a regular file", flag, path.c_str());
    const Status created = NewFile::create(path).status;
    return created.ok() ? created : fail(created.code, "%s: %s", flag, created.message.c_str());
}
std::string without_slashes(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
}

// ---- writing ------------------------------------------------------------------------------------

namespace {
constexpr const char *MARK = ".flatgpt-", *ENDING = ".tmp";
constexpr size_t DIGITS = 16, MARK_LENGTH = 9 + DIGITS + 4;

// Splits a path into directory ("DIR/", or "" for the current one) and name. The name is cut so
// that it fits into 255 bytes together with the temporary's mark.
std::pair<std::string, std::string> split(const std::string& path) {
    const size_t slash = path.rfind('/') + 1;    // npos + 1 = 0: no slash
    return {path.substr(0, slash), path.substr(slash, 255 - MARK_LENGTH)};
}
bool is_temporary(const std::string& name) {
    if (name.size() <= MARK_LENGTH || !name.ends_with(ENDING)) return false;
    const std::string mark = name.substr(name.size() - MARK_LENGTH);
    return mark.starts_with(MARK) && mark.find_first_not_of("0123456789abcdef", 9) == 9 + DIGITS;
}
// Result of take_lock. elsewhere: another process has it. none: no open file, or no lock support.
enum class Lock { ours, elsewhere, none };
Lock take_lock(int descriptor) {
    if (descriptor < 0) return Lock::none;
    if (lock_call(descriptor, LOCK_EX | LOCK_NB) == 0) return Lock::ours;
    return errno == EWOULDBLOCK ? Lock::elsewhere : Lock::none;
}
}    // namespace

int (*lock_call)(int descriptor, int operation) = flock;

int rename_new(const char* from, const char* to) {
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return -1;
    struct stat s;
    if (lstat(to, &s) != 0) return rename(from, to);
    errno = EEXIST;
    return -1;
}

std::string temporary_name(const std::string& path) {
    uint64_t digits = 0;
    CHECK(getrandom(&digits, sizeof digits, 0) == sizeof digits, "%s", strerror(errno));
    const auto [dir, name] = split(path);
    const std::string made = dir + name + MARK + formatted("%016llx", (unsigned long long)digits) + ENDING;
    note_temporary(made);
    return made;
}

Status remove_leftovers(const std::string& path, Paths paths,
                        const std::function<Status(const std::string& left)>& remove) {
    const auto [dir, start] = split(path);
    std::vector<std::string> names;
    std::error_code error;
    for (std::filesystem::directory_iterator it(dir.empty() ? "." : dir, error), end; !error && it != end;
         it.increment(error)) {
        const std::string name = it->path().filename().string();
        const bool longer = name.size() > start.size() + MARK_LENGTH;    // temporary of a path with a longer name
        if (name.starts_with(start) && is_temporary(name) && !(longer && paths == Paths::one))
            names.push_back(dir + name);
    }
    for (const std::string& name : names) {
        constexpr int FLAGS = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
        int f = open(name.c_str(), O_RDWR | FLAGS), inside = -1;    // NFS locks only files open for writing
        const bool directory = f < 0 && errno == EISDIR;
        if (directory) f = open(name.c_str(), O_RDONLY | O_DIRECTORY | FLAGS);
        Lock lock = take_lock(f);
        if (f >= 0 && lock == Lock::none) {
            inside = openat(f, TemporaryLock::FILE_NAME, O_RDWR | FLAGS);
            lock = take_lock(inside);
        }
        if (inside >= 0) close(inside);    // else NFS keeps it renamed, and the directory
        // Without lock support, a file may be in use and stays. A directory is removed even so: the
        // caller removes leftovers before it creates directories, so it has none in use.
        const bool left = lock == Lock::ours || (lock == Lock::none && directory);
        const Status removed = f >= 0 && left ? remove(name) : Status{};
        if (f >= 0) close(f);
        TRY(removed);
    }
    return {};
}

TemporaryLock::TemporaryLock(const std::string& directory)
    : descriptor(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)) {
    if (descriptor < 0 || take_lock(descriptor) != Lock::none) return;
    const int file = openat(descriptor, FILE_NAME, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    in_file = file >= 0;
    if (!in_file) return;
    (void)take_lock(file);
    close(std::exchange(descriptor, file));
}
void TemporaryLock::renamed(const std::string& directory) const {
    if (in_file) unlink((directory + "/" + FILE_NAME).c_str());
}
TemporaryLock::~TemporaryLock() {
    if (descriptor >= 0) close(descriptor);
}

NewFile::~NewFile() {
    if (descriptor < 0) return;
    unlink(temporary.c_str());
    close(descriptor);
}
NewFile& NewFile::operator=(NewFile&& other) noexcept {
    std::swap(name, other.name);
    std::swap(temporary, other.temporary);
    std::swap(descriptor, other.descriptor);
    return *this;
}
Status NewFile::failed() const { return fail(Exit::io, "%s cannot be written: %s", name.c_str(), strerror(errno)); }

Result<NewFile> NewFile::create(const std::string& path) {
    NewFile file;
    struct stat s;
    if (stat(path.c_str(), &s) == 0 && !S_ISREG(s.st_mode))    // rename would replace a device by a file
        return fail(Exit::usage, "%s: expected a new name or a regular file", path.c_str());
    (void)remove_leftovers(path, Paths::one, [&](const std::string& left) {
        unlink(left.c_str());
        return Status{};
    });
    // Before the file is locked, another process may remove it as a leftover: hence several tries.
    for (int tries = 0; tries < 10; tries++) {
        file = NewFile();
        file.name = path;
        file.temporary = temporary_name(path);
        file.descriptor = open(file.temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (file.descriptor < 0 && errno != EINTR) return file.failed();
        if (take_lock(file.descriptor) == Lock::elsewhere) continue;
        if (fstat(file.descriptor, &s) == 0 && s.st_nlink > 0) return file;
    }
    errno = EBUSY;
    return file.failed();
}

Result<NewFile> NewFile::reopen(const std::string& path, int64_t bytes) {
    NewFile file;
    TRY(remove_leftovers(path, Paths::one, [&](const std::string& left) {
        file.temporary = left;
        return Status{};
    }));
    if (file.temporary.empty())
        return fail(Exit::io, "%s: expected its temporary file of an interrupted run, found none that is not in use",
                    path.c_str());
    file.name = path;
    const int f = open(file.temporary.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    struct stat s {};
    if (f < 0) return file.failed();
    const bool locked = take_lock(f) != Lock::elsewhere, regular = fstat(f, &s) == 0 && S_ISREG(s.st_mode);
    const bool long_enough = regular && s.st_size >= bytes;
    const bool cut = locked && long_enough && ftruncate(f, bytes) == 0;
    if (cut) {
        file.descriptor = f;
        return file;
    }
    const int error = errno;
    close(f);    // without `descriptor`, the file stays
    if (!locked) return fail(Exit::usage, "%s: another process writes it", path.c_str());
    if (long_enough)
        return fail(Exit::io, "%s: cannot be cut to %lld bytes: %s", file.temporary.c_str(), (long long)bytes,
                    strerror(error));
    return fail(Exit::io, "%s: expected at least %lld bytes, found %lld", file.temporary.c_str(), (long long)bytes,
                (long long)s.st_size);
}
void NewFile::keep() {
    if (descriptor >= 0) close(std::exchange(descriptor, -1));
}
Status NewFile::write(int64_t offset, const void* from, int64_t bytes) {
    for (int64_t done = 0; done < bytes;) {
        const ssize_t n =
            pwrite(descriptor, static_cast<const char*>(from) + done, size_t(bytes - done), offset + done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return failed();
        done += n;
    }
    return {};
}

Status NewFile::sync() const { return fsync(descriptor) == 0 ? Status{} : failed(); }

Status NewFile::commit(Overwrite overwrite) {
    TRY(sync());
    const auto give_name = overwrite == Overwrite::yes ? rename : rename_new;
    if (give_name(temporary.c_str(), name.c_str()) != 0) {
        if (errno != EEXIST) return failed();
        return fail(Exit::usage, "%s: expected a new name, it is there by now; give another name, or --overwrite",
                    name.c_str());
    }
    close(std::exchange(descriptor, -1));
    const std::string dir = split(name).first;
    const int f = open(dir.empty() ? "." : dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool synced = f >= 0 &&
                        (fsync(f) == 0 || errno == EINVAL);    // EINVAL: file system without fsync of directories
    const Status status = synced ? Status{} : failed();
    if (f >= 0) close(f);
    return status;
}

Status replace_file(const std::string& path, const std::string& text, Overwrite overwrite) {
    return replace_file(
        path, [&](const FileSink& sink) { return sink(text.data(), int64_t(text.size())); }, overwrite);
}

Status replace_file(const std::string& path, const std::function<Status(const FileSink& sink)>& produce,
                    Overwrite overwrite) {
    NewFile file = TRY(NewFile::create(path));
    std::string waiting;
    int64_t offset = 0;    // file offset of the buffered bytes
    auto flush = [&]() -> Status {
        TRY(file.write(offset, waiting.data(), int64_t(waiting.size())));
        offset += int64_t(waiting.size());
        waiting.clear();
        return {};
    };
    TRY(produce([&](const void* data, int64_t bytes) {
        waiting.append(static_cast<const char*>(data), size_t(bytes));
        return waiting.size() >= 1 << 20 ? flush() : Status{};
    }));
    TRY(flush());
    return file.commit(overwrite);
}
