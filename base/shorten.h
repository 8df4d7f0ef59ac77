// shorten.h - shortens texts from files for messages.
#pragma once
#include <string>

// Returns the text; if it exceeds `most` bytes, its beginning and end. UTF-8 characters stay whole.
inline std::string shorten(const std::string& text, size_t most) {
    if (text.size() <= most) return text;
    auto inside = [&](size_t at) { return (text[at] & 0xC0) == 0x80; };    // later byte of a character
    size_t begin = most / 2, end = text.size() - most / 2;
    while (begin > 0 && inside(begin)) begin--;
    while (end < text.size() && inside(end)) end++;
    return text.substr(0, begin) + " ... " + text.substr(end);
}
