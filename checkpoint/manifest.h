// manifest.h - MANIFEST: size and CRC-32C of each file of a checkpoint, then of the lines themselves.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "files/crc.h"
#include "files/safetensors.h"

struct Sum {
    std::string name;
    int64_t bytes = 0;
    uint32_t crc = 0;
};

std::string sum_line(const Sum& s);
bool sum_parse(const std::string& line, Sum* s);    // a line without its end
std::string manifest_text(const std::vector<Sum>& sums);
// exit 3: what differs from a MANIFEST as we write it, or which file it should list.
Result<std::vector<Sum>> manifest_parse(const std::string& text, const std::string& path);
Result<std::vector<Sum>> manifest_read(const std::string& dir);
// The file has these bytes; contents: and this checksum. Read in pieces by all cores. exit 3: what differs.
Status sum_check(const std::string& path, const Sum& expected, bool contents = true);

// Checksums of the pieces of files that were read, by file: threads add them, check() joins them.
class ReadSums {
  public:
    void add(const SafetensorsFile* file, int64_t at, const void* data, int64_t bytes);
    // Reads the bytes that loading skipped (such as the header), then compares the checksum of the whole file.
    Status check(const SafetensorsFile& file, const Sum& expected);

  private:
    struct Piece {
        int64_t at, bytes;
        uint32_t crc;
    };
    std::map<const SafetensorsFile*, std::vector<Piece>> pieces;
};
