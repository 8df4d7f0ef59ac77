// text_file.h - the text of a file that may be compressed (gzip, zstd) or UTF-16; files that hold no text are refused.
//
// What a file is shows in its first bytes, not in its name. All of it streams: memory does not grow with the text.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "base/common.h"

class TextFile {
  public:
    // "-" is stdin. Exit 3: not there; or its beginning, unpacked, is no text: the message says what it is and what
    // to do. Exit 4: the disk fails.
    static Result<TextFile> open(const std::string& path);
    // UTF-8 (or whatever bytes the text has), without a byte order mark. Fewer bytes than asked for only at the end.
    // Exit 3 naming file and offset: the compressed stream is damaged or cut short.
    Result<size_t> read(char* to, size_t bytes);
    // What read will give first: about 64 KiB, or all of a shorter text. Only before the first read.
    Result<std::string_view> head();
    int64_t file_bytes() const;    // how much of the file has been read, compressed as it is
    bool plain() const;            // what read gives are the file's own bytes
    int fd() const;

  private:
    struct State;
    std::shared_ptr<State> s;    // copies share it
};

// The name without .gz or .zst, in lower case: "a/X.JSONL.gz" is "a/x.jsonl".
std::string decompressed_name(std::string path);
// What a file that begins like this is, if it cannot be read as text, and what to do with it; "" for text.
std::string not_text_reason(std::string_view head);
