// file.h - safe file reading: regular files only, whole reads, errors with name and offset.
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
    static Result<File> open(const std::string& path);    // exit 3: missing, not allowed, not a regular file
    // Reads exactly `bytes` from offset on; exit 3: the file is too short; 4: the disk fails.
    Status read(int64_t offset, void* to, int64_t bytes) const;
    // Maps the file's bytes; null: the system refuses. If the file becomes shorter or its disk
    // fails, an access raises SIGBUS, which main() turns into a message and exit 4.
    std::shared_ptr<const char> map() const;
    const std::string& path() const { return name; }
    int fd() const { return descriptor; }
    int64_t bytes() const { return size; }        // at open
    int64_t modified() const { return mtime; }    // nanoseconds

  private:
    std::string name;
    int descriptor = -1;
    int64_t size = 0, mtime = 0;
};

// Reads a whole file; exit 3: more than max_bytes.
Result<std::string> read_file(const std::string& path, int64_t max_bytes);
// Checks that replace_file can write, before minutes of work. flag: names the path's option in
// messages. Exit 2: a directory, or no regular file; 4.
Status check_writable(const std::string& path, const char* flag);
std::string without_slashes(std::string path);    // strips trailing slashes

// ---- writing ------------------------------------------------------------------------------------
//
// A file or directory is written under a temporary name beside its own,
// PATH.flatgpt-0123456789abcdef.tmp, and renamed when complete. The digits are random, so no other
// user's file is opened, and the mark is flatgpt's: no name without it is ever removed. The writer
// holds a lock on it, so a free lock identifies leftovers of a killed process.

std::string temporary_name(const std::string& path);
// Calls `remove` on each temporary name of this path, or of all paths with this prefix, whose lock
// is free. Symbolic links stay.
enum class Paths { one, with_prefix };
Status remove_leftovers(const std::string& path, Paths paths,
                        const std::function<Status(const std::string& left)>& remove);

// Locks a temporary directory during this object's lifetime. NFS cannot lock directories, so there
// the lock is a file inside. Without lock support there is no lock.
class TemporaryLock {
  public:
    static constexpr const char* FILE_NAME = ".flatgpt-lock";
    explicit TemporaryLock(const std::string& directory);
    ~TemporaryLock();
    TemporaryLock(const TemporaryLock&) = delete;
    void renamed(const std::string& directory) const;    // call after the rename: removes the lock file

  private:
    int descriptor = -1;
    bool in_file = false;
};
extern int (*lock_call)(int descriptor, int operation);    // flock; a test simulates NFS

// Whether an existing target may be replaced.
enum class Overwrite { no, yes };
// rename, but EEXIST if `to` exists. Without file system support (NFS) the check comes first.
int rename_new(const char* from, const char* to);

// A new file that commit() renames to its final name, replacing an old one; else it is removed.
class NewFile {
  public:
    NewFile() = default;
    ~NewFile();
    NewFile(NewFile&& other) noexcept { *this = std::move(other); }
    NewFile& operator=(NewFile&& other) noexcept;
    // Removes leftovers of killed processes for this name. Exit 2: path is no regular file; 4.
    static Result<NewFile> create(const std::string& path);
    Status write(int64_t offset, const void* from, int64_t bytes);    // exit 4
    Status sync() const;                                              // exit 4
    // fsync, rename, fsync of the directory; exit 4; with Overwrite::no 2 if the name exists.
    Status commit(Overwrite overwrite = Overwrite::yes);

  private:
    Status failed() const;
    std::string name, temporary;
    int descriptor = -1;
};

// Writes the file atomically. Exit 2: path is no regular file; 4.
Status replace_file(const std::string& path, const std::string& text, Overwrite overwrite = Overwrite::yes);
// replace_file with bytes in pieces: `produce` passes each piece to its argument, and may fail.
typedef std::function<Status(const void* data, int64_t bytes)> FileSink;
Status replace_file(const std::string& path, const std::function<Status(const FileSink& sink)>& produce,
                    Overwrite overwrite = Overwrite::yes);
