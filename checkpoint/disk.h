// disk.h - writes, renames and removes the files and directories of checkpoints.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "checkpoint.h"
#include "manifest.h"

template <class Call> int64_t retry_eintr(Call call) {
    int64_t rc;
    do rc = call();
    while (rc == -EINTR);
    return rc;
}
Status disk_status(const std::string& path, const char* call, int64_t rc);    // rc: a result of Disk's calls

// Sorted names of the files and directories directly in a directory; none if `dir` is missing or is
// no directory. Exit 4: the directory cannot be read.
Result<std::vector<std::string>> names_in(const std::string& dir);
std::string step_directory(const std::string& run, int64_t step);
bool exists(const std::string& path);
bool is_directory(const std::string& path);
Status remove_directory(const std::string& dir, const Disk& disk);    // with the files directly in it
Status rename_directory(const Disk& disk, const std::string& from, const std::string& to, Overwrite overwrite);
// Creates a file, lets `produce` write it, and flushes it to disk. Appends the file's checksum to
// `sums`. A failed fsync is final: a second one may succeed although data is lost.
Status write_file(const Disk& disk, const std::string& dir, const std::string& name, std::vector<FileChecksum>* sums,
                  const std::function<Status(const FileSink&)>& produce);
