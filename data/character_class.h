// character_class.h - classes of Unicode's characters, as the known patterns tell them apart.
#pragma once
#include <cstdint>

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
