// byte_alphabet.cpp - see byte_alphabet.h.
#include "byte_alphabet.h"

#include <algorithm>

#include "base/console.h"

std::array<unsigned char, 256> gpt2_byte_order() {
    std::array<unsigned char, 256> order;
    size_t n = 0;
    auto visible = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b != 173); };
    for (int pass = 0; pass < 2; pass++)
        for (int b = 0; b < 256; b++)
            if (visible(b) == (pass == 0)) order[n++] = static_cast<unsigned char>(b);
    return order;
}

ByteAlphabet::ByteAlphabet() {
    std::fill(std::begin(byte_of), std::end(byte_of), -1);
    auto order = gpt2_byte_order();
    for (int i = 0; i < 256; i++) {
        int c = i < 188 ? order[size_t(i)] : 256 + i - 188;
        byte_of[c] = order[size_t(i)];
        append_utf8(spelling[order[size_t(i)]], uint32_t(c));
    }
}
std::string ByteAlphabet::spell(std::string_view bytes) const {
    std::string s;
    for (char c : bytes) s += spelling[static_cast<unsigned char>(c)];
    return s;
}
bool ByteAlphabet::bytes(std::string_view spelled, std::string& out) const {
    out.clear();
    for (size_t i = 0; i < spelled.size(); i++) {
        auto at = [&](size_t k) { return k < spelled.size() ? static_cast<unsigned char>(spelled[k]) : 0; };
        int c = at(i);
        if (c >= 0x80) {    // two bytes of UTF-8: U+0080 to U+01FF
            if (c < 0xC2 || c > 0xC7 || (at(++i) & 0xC0) != 0x80) return false;
            c = (c & 0x1F) << 6 | (at(i) & 0x3F);
        }
        if (byte_of[c] < 0) return false;
        out += char(byte_of[c]);
    }
    return true;
}
const ByteAlphabet& byte_alphabet() {
    static const ByteAlphabet a;
    return a;
}
