// buffer.h - a file's text in memory, from the first unread byte on; notes invalid UTF-8.
#pragma once
#include <string>
#include <string_view>

#include "files/text_file.h"

class TextBuffer {
  public:
    // watch: whether invalid UTF-8 is noted.
    TextBuffer(std::string path, TextFile file, bool watch)
        : name(std::move(path)), input(std::move(file)), checked(watch ? 0 : bytes.npos) {}
    // Reads until there are `wanted` unread bytes, or the file ends.
    Status fill(size_t wanted);
    std::string_view unread() const { return std::string_view(bytes).substr(at); }
    bool ended() const { return end; }    // unread() has all that is left
    void consume(size_t n) { at += n; }
    int64_t offset() const { return before + int64_t(at); }    // the first unread byte's, in the text
    int64_t file_bytes() const { return input.file_bytes(); }
    const std::string& path() const { return name; }
    const std::string& not_utf8() const { return invalid; }    // file, offset, byte; empty: none

  private:
    std::string name;
    TextFile input;
    std::string bytes;
    size_t at = 0;         // first unread byte
    size_t checked;        // bytes known as UTF-8; npos: no longer checked
    int64_t before = 0;    // text before bytes[0]
    bool end = false;
    std::string invalid;

    void check_encoding();
};

// Offset of the first byte of `text` that is no UTF-8, or npos; from: bytes known as UTF-8. whole:
// nothing follows; otherwise *checked is set where a character is incomplete.
size_t find_not_utf8(std::string_view text, size_t from, bool whole, size_t* checked);
std::string not_utf8_note(const std::string& where, int64_t offset, char byte);
