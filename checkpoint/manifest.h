// manifest.h - MANIFEST: size and CRC-32C of each file of a checkpoint, then of the lines themselves.
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
bool checksum_parse(const std::string& line, FileChecksum* s);    // a line without its end
std::string manifest_text(const std::vector<FileChecksum>& sums);
// exit 3: what differs from a MANIFEST as we write it, or which file it should list.
Result<std::vector<FileChecksum>> manifest_parse(const std::string& text, const std::string& path);
Result<std::vector<FileChecksum>> manifest_read(const std::string& dir);
// The file has these bytes; contents: and this checksum. Read in pieces by all cores. exit 3: what differs.
Status checksum_verify(const std::string& path, const FileChecksum& expected, bool contents = true);

// Checksums of the pieces of files that were read, by file: threads add them, check() joins them.
class ReadChecksums {
  public:
    void add(const SafetensorsFile* file, int64_t at, const void* data, int64_t bytes);
    // Reads the bytes that loading skipped (such as the header), then compares the checksum of the whole file.
    Status check(const SafetensorsFile& file, const FileChecksum& expected);

  private:
    struct Piece {
        int64_t at, bytes;
        uint32_t crc;
    };
    std::map<const SafetensorsFile*, std::vector<Piece>> pieces;
};
