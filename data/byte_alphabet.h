// byte_alphabet.h - GPT-2's spelling of bytes as visible characters, which vocabulary files use.
#pragma once
#include <array>
#include <string>
#include <string_view>

std::array<unsigned char, 256> gpt2_byte_order();    // [i]: the byte of GPT-2's token i < 256

// Visible bytes stand for themselves, the other 68 for U+0100 and up, in GPT-2's byte order.
struct ByteAlphabet {
    std::string spelling[256];    // by byte: UTF-8
    int byte_of[512];             // by code point; -1: stands for no byte
    ByteAlphabet();
    std::string spell(std::string_view bytes) const;
    bool bytes(std::string_view spelled, std::string& out) const;    // false: a character that stands for no byte
};
const ByteAlphabet& byte_alphabet();
