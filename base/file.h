// file.h - reading files that may be anything: regular files only, whole reads, errors with name and offset.
#pragma once
#include <functional>
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
    const std::string& path() const { return name; }
    int fd() const { return descriptor; }
    int64_t bytes() const { return size; }           // when it was opened
    int64_t modified() const { return mtime; }       // nanoseconds

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
// By way of path.tmp, fsync and rename: the old text or the new one, never a part. Exit 2: path is no regular file; 4.
Status replace_file(const std::string& path, const std::string& text);
// The same of bytes that come in pieces: `produce` hands each of them to its argument, and may fail.
typedef std::function<Status(const void* data, int64_t bytes)> FileSink;
Status replace_file(const std::string& path, const std::function<Status(const FileSink& sink)>& produce);
