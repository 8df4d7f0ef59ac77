// file.h - reading files that may be anything: regular files only, whole reads, errors with name and offset.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "common.h"

class File {
  public:
    File() = default;
    ~File();
    File(File&& other) noexcept { *this = std::move(other); }
    File& operator=(File&& other) noexcept;
    static Result<File> open(const std::string& path);    // exit 3: not there, not allowed, not a regular file
    // All the bytes from offset on; exit 3 where the file ends before that, 4 where the disk fails.
    Status read(int64_t offset, void* to, int64_t bytes) const;
    // The file's bytes, which are read when they are touched; null where the system refuses. If the file becomes
    // shorter or its disk fails, touching them raises SIGBUS, which main() turns into a message and exit 4.
    std::shared_ptr<const char> map() const;
    const std::string& path() const { return name; }
    int fd() const { return descriptor; }
    int64_t bytes() const { return size; }        // when it was opened
    int64_t modified() const { return mtime; }    // nanoseconds

  private:
    std::string name;
    int descriptor = -1;
    int64_t size = 0, mtime = 0;
};

// A whole file of at most max_bytes; exit 3 where it is longer.
Result<std::string> read_file(const std::string& path, int64_t max_bytes);
// Whether replace_file can write there, asked before minutes of work. flag: whose value the path is, for messages. Exit
// 2: it is a directory, or no regular file; 4.
Status check_writable(const std::string& path, const char* flag);
std::string without_slashes(std::string path);    // those at its end

// ---- writing --------------------------------------------------------------------------------------------------------
//
// A file or directory is written under a temporary name beside its own, PATH.flatgpt-0123456789abcdef.tmp, and renamed
// when it is whole. The digits are random, so no file of another's is opened, and the name is our mark: nothing that
// lacks it is ever removed. Whoever writes holds a lock on it, so what a killed process left is known by its free lock.

std::string temporary_name(const std::string& path);
// Calls `remove` on each temporary name of this path, or of all paths that begin so, whose lock is free. Links stay.
enum class Paths { one, with_prefix };
Status remove_leftovers(const std::string& path, Paths paths,
                        const std::function<Status(const std::string& left)>& remove);

// The lock on a temporary directory while this object lives. NFS locks no directories: there it is a file in it. Where
// nothing can be locked there is none.
class TemporaryLock {
  public:
    static constexpr const char* FILE_NAME = ".flatgpt-lock";
    explicit TemporaryLock(const std::string& directory);
    ~TemporaryLock();
    TemporaryLock(const TemporaryLock&) = delete;
    void renamed(const std::string& directory) const;    // the directory is whole: the lock file in it goes

  private:
    int descriptor = -1;
    bool in_file = false;
};
extern int (*lock_call)(int descriptor, int operation);    // flock; a test puts NFS's in its place

// Whether what has a name already may lose it.
enum class Overwrite { no, yes };
// As rename, but EEXIST where `to` is there. Where the file system cannot do both at once (NFS) it looks first.
int rename_new(const char* from, const char* to);

// A file that takes its name with commit(); without that it goes, and what was there before stays.
class NewFile {
  public:
    NewFile() = default;
    ~NewFile();
    NewFile(NewFile&& other) noexcept { *this = std::move(other); }
    NewFile& operator=(NewFile&& other) noexcept;
    // Removes what killed processes left for this name. Exit 2: path is there, and no regular file; 4.
    static Result<NewFile> create(const std::string& path);
    Status write(int64_t offset, const void* from, int64_t bytes);    // exit 4
    Status sync() const;                                              // exit 4
    // fsync, rename, fsync of the directory; exit 4, with Overwrite::no 2 where the name is taken.
    Status commit(Overwrite overwrite = Overwrite::yes);

  private:
    Status failed() const;
    std::string name, temporary;
    int descriptor = -1;
};

// The old text or the new one, never a part. Exit 2: path is no regular file; 4.
Status replace_file(const std::string& path, const std::string& text, Overwrite overwrite = Overwrite::yes);
// The same of bytes that come in pieces: `produce` hands each of them to its argument, and may fail.
typedef std::function<Status(const void* data, int64_t bytes)> FileSink;
Status replace_file(const std::string& path, const std::function<Status(const FileSink& sink)>& produce,
                    Overwrite overwrite = Overwrite::yes);
