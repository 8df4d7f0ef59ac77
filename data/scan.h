// scan.h - the known patterns as hand-written scanners. Their pieces equal those of the published
// regular expressions, which test_scan.cpp compares on all characters and on random texts.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

// Fills in the first pieces of a text, at most `most`, and returns their number. They cover the
// text from its beginning on without gaps. A run of bytes that are not UTF-8 is a piece.
using ScanPieces = size_t (*)(std::string_view text, std::string_view* pieces, size_t most);

size_t scan_gpt2(std::string_view text, std::string_view* pieces, size_t most);
size_t scan_smollm(std::string_view text, std::string_view* pieces, size_t most);
size_t scan_cl100k(std::string_view text, std::string_view* pieces, size_t most);
size_t scan_qwen2(std::string_view text, std::string_view* pieces, size_t most);
size_t scan_qwen35(std::string_view text, std::string_view* pieces, size_t most);
size_t scan_o200k(std::string_view text, std::string_view* pieces, size_t most);
size_t scan_tekken(std::string_view text, std::string_view* pieces, size_t most);

// Classes of characters: bits of character_classes(). UPPER and LOWER are o200k's classes of cased
// letters, which share all letters without case and all marks.
enum CharacterClass : uint8_t {
    LETTER = 1,
    MARK = 2,
    NUMBER = 4,
    SPACE = 8,    // Unicode's White_Space
    LINE_END = 16,
    SYMBOL = 32,    // any other character
    UPPER = 64,
    LOWER = 128
};
// The class of each code point, by PCRE2's version of Unicode.
const uint8_t* character_classes();
