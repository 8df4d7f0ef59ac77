// text_file.h - text from files that may be compressed (gzip, zstd) or UTF-16; refuses files
// without text.
//
// The first bytes determine the format, not the name. All stages stream in bounded memory.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "base/common.h"

class TextFile {
  public:
    // Opens a file, or stdin for "-". Exit 3: the file is missing, or its decompressed beginning is
    // no text (the message names the format found and a remedy). Exit 4: the disk fails.
    static Result<TextFile> open(const std::string& path);
    // Reads UTF-8 (or bytes of an unknown encoding, unchanged), without a byte order mark. Returns
    // less than `bytes` only at the end. Exit 3 naming file and offset: the compressed stream is
    // damaged or cut short.
    Result<size_t> read(char* to, size_t bytes);
    // The first bytes that read will return: about 64 KiB, or all of a shorter text. Call only
    // before the first read.
    Result<std::string_view> head();
    int64_t file_bytes() const;    // bytes of the file read so far, compressed
    bool plain() const;            // true: read returns the file's bytes unchanged
    int fd() const;

  private:
    struct State;
    std::shared_ptr<State> s;    // shared by copies
};

// The name without .gz or .zst, in lower case: "a/X.JSONL.gz" is "a/x.jsonl".
std::string decompressed_name(std::string path);
// If the first bytes of a file, `head`, are no text, returns their format and a remedy, else "".
std::string not_text_reason(std::string_view head);
