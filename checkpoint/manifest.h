// manifest.h - MANIFEST: the size and CRC-32C of each file of a checkpoint, and in the last line
// the CRC-32C of the lines before it.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "files/crc.h"
#include "files/safetensors.h"

struct FileChecksum {
    std::string name;
    int64_t bytes = 0;
    uint32_t crc = 0;
};

std::string checksum_line(const FileChecksum& s);
bool checksum_parse(const std::string& line, FileChecksum* s);    // line: without newline
std::string manifest_text(const std::vector<FileChecksum>& sums);
// Exit 3: the file is missing, or its text is not one that manifest_text writes.
Result<std::vector<FileChecksum>> manifest_parse(const std::string& text, const std::string& path);
Result<std::vector<FileChecksum>> manifest_read(const std::string& dir);
// Checks a file's size and, with `contents`, its checksum: on all cores, or with Cores::one beside
// a computation that needs the others. Exit 3.
enum class Cores { one, all };
Status checksum_verify(const std::string& path, const FileChecksum& expected, bool contents = true,
                       Cores cores = Cores::all);

// Checksums of the parts of files that loading reads. Threads add them; check() combines them.
class ReadChecksums {
  public:
    void add(const SafetensorsFile* file, int64_t at, const void* data, int64_t bytes);
    // Reads the bytes that loading skipped (such as the header), then compares the file's checksum.
    Status check(const SafetensorsFile& file, const FileChecksum& expected);

  private:
    struct Piece {
        int64_t at, bytes;
        uint32_t crc;
    };
    std::map<const SafetensorsFile*, std::vector<Piece>> pieces;
};
