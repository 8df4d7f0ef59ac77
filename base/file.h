// file.h - safe reading and writing of files; errors have name and offset.
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
    static Result<File> open(const std::string& path);    // exit 3: missing, not allowed, or not a regular file
    // Reads exactly `bytes` from offset on. Exit 3: the file is too short; 4: reading fails.
    Status read(int64_t offset, void* to, int64_t bytes) const;
    // Maps the whole file; null: the system cannot. If the file is truncated later or its disk
    // fails, an access raises SIGBUS, which main() turns into a message and exit 4.
    std::shared_ptr<const char> map() const;
    const std::string& path() const { return name; }
    int fd() const { return descriptor; }
    int64_t bytes() const { return size; }        // size when opened
    int64_t modified() const { return mtime; }    // nanoseconds

  private:
    std::string name;
    int descriptor = -1;
    int64_t size = 0, mtime = 0;
};

// Reads a whole file. Exit 3: it has more than max_bytes.
Result<std::string> read_file(const std::string& path, int64_t max_bytes);
// Checks, before minutes of work, that replace_file will be able to write. flag: option that
// messages name. Exit 2: path is a directory or no regular file; 4: not writable.
Status check_writable(const std::string& path, const char* flag);
std::string without_slashes(std::string path);    // strips trailing slashes

// ---- writing ------------------------------------------------------------------------------------
//
// A file or directory is written under a temporary name beside its final one,
// PATH.flatgpt-0123456789abcdef.tmp, and renamed when complete. The digits are random, so that no
// other user's file is opened. Only names with this mark are ever removed. The writer holds a lock
// on the temporary; if the lock is free, the temporary is a leftover of a killed process.

std::string temporary_name(const std::string& path);
// remove_leftovers calls `remove` on each temporary, of this path or of all paths with this prefix,
// whose lock is free. Symbolic links are left alone.
enum class Paths { one, with_prefix };
Status remove_leftovers(const std::string& path, Paths paths,
                        const std::function<Status(const std::string& left)>& remove);

// Locks a temporary directory during this object's lifetime. NFS cannot lock directories, so a file
// inside is locked there. On file systems without locks, nothing is locked.
class TemporaryLock {
  public:
    static constexpr const char* FILE_NAME = ".flatgpt-lock";
    explicit TemporaryLock(const std::string& directory);
    ~TemporaryLock();
    TemporaryLock(const TemporaryLock&) = delete;
    void renamed(const std::string& directory) const;    // after the rename: removes the lock file

  private:
    int descriptor = -1;
    bool in_file = false;
};
extern int (*lock_call)(int descriptor, int operation);    // flock; tests replace it to simulate NFS

// Whether an existing target may be replaced.
enum class Overwrite { no, yes };
// Renames like rename(), but fails with EEXIST if `to` exists. Where the file system cannot do both
// in one call (NFS), a check for `to` precedes the rename.
int rename_new(const char* from, const char* to);

// A new file under a temporary name. commit() renames it to its final name, replacing an old file.
// Without commit() the destructor removes it.
class NewFile {
  public:
    NewFile() = default;
    ~NewFile();
    NewFile(NewFile&& other) noexcept { *this = std::move(other); }
    NewFile& operator=(NewFile&& other) noexcept;
    // Opens a temporary file, after removing leftovers of killed processes for this name. Exit 2:
    // path exists, but is no regular file; 4: not writable.
    static Result<NewFile> create(const std::string& path);
    // Takes up the temporary that a killed process left for this name, cut to `bytes`. Exit 2:
    // another process writes it; 4: there is none, or it is shorter.
    static Result<NewFile> reopen(const std::string& path, int64_t bytes);
    void keep();                                                      // leaves the temporary to `reopen`
    Status write(int64_t offset, const void* from, int64_t bytes);    // exit 4
    Status sync() const;                                              // exit 4
    // Flushes, renames and flushes the directory. Exit 4: failure; with Overwrite::no, 2: the name
    // exists.
    Status commit(Overwrite overwrite = Overwrite::yes);

  private:
    Status failed() const;
    std::string name, temporary;
    int descriptor = -1;
};

// Writes the file atomically. Exit 2: path is no regular file; 4: writing fails.
Status replace_file(const std::string& path, const std::string& text, Overwrite overwrite = Overwrite::yes);
// Writes the file atomically, in pieces: `produce` calls its argument with each, and may fail.
typedef std::function<Status(const void* data, int64_t bytes)> FileSink;
Status replace_file(const std::string& path, const std::function<Status(const FileSink& sink)>& produce,
                    Overwrite overwrite = Overwrite::yes);
