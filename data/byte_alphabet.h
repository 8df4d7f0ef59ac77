// byte_alphabet.h - GPT-2's mapping of bytes to visible characters, used by vocabulary files.
#pragma once
#include <array>
#include <string>
#include <string_view>

std::array<unsigned char, 256> gpt2_byte_order();    // [i]: byte of GPT-2's token i < 256

// Visible bytes map to themselves, the other 68 to U+0100 and following, in the order of bytes.
struct ByteAlphabet {
    std::string spelling[256];    // by byte: UTF-8
    int byte_of[512];             // by code point; -1: not in the alphabet
    ByteAlphabet();
    std::string spell(std::string_view bytes) const;
    bool bytes(std::string_view spelled, std::string& out) const;    // false: a character is not in the alphabet
};
const ByteAlphabet& byte_alphabet();
