// words.h - n-grams of a text's words, as hashes, which MinHash compares.
#pragma once
#include <algorithm>
#include <string_view>
#include <vector>

#include "base/common.h"

namespace words {
constexpr uint64_t BASE = 0x9E3779B97F4A7C15ull, PRIME = 0xD6E8FEB86659FD93ull;

// Length of the character at `at`, and its kind. A word is a run of letters: ASCII letters, digits,
// _ and all other characters but those below. alone: a word by itself (kana, CJK).
enum class Kind { gap, letter, alone };
inline size_t character(std::string_view text, size_t at, Kind* kind) {
    const auto first = static_cast<unsigned char>(text[at]);
    if (first < 0x80) {
        const bool letter = (first >= '0' && first <= '9') || ((first | 32) >= 'a' && (first | 32) <= 'z');
        *kind = letter || first == '_' ? Kind::letter : Kind::gap;
        return 1;
    }
    const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1;
    const auto second = at + 1 < text.size() ? static_cast<unsigned char>(text[at + 1]) : 0;
    *kind = Kind::letter;
    // U+0080..U+00BF, U+2000..U+207F and U+3000..U+303F hold spaces and punctuation.
    if (first == 0xC2 || (first == 0xE2 && second <= 0x81) || (first == 0xE3 && second == 0x80)) *kind = Kind::gap;
    else if ((first >= 0xE3 && first <= 0xE9) || (first == 0xF0 && second >= 0xA0)) *kind = Kind::alone;
    return std::min(length, text.size() - at);
}
}    // namespace words

// Calls f(hash) for each n-gram of words. ASCII letters count as lower case. A text of fewer than n
// words has one n-gram, all of them; a text without words has none.
template <class F> void each_ngram(std::string_view text, int n, F f) {
    using namespace words;
    std::vector<uint64_t> last(static_cast<size_t>(n), 0);    // hashes of the last n words, by number modulo n
    uint64_t power = 1, sum = 0;                              // PRIME^n; of the n-gram
    for (int i = 0; i < n; i++) power *= PRIME;
    size_t count = 0;
    auto word = [&](uint64_t hash) {
        hash = (hash ^ hash >> 29) * PRIME;
        uint64_t& oldest = last[count++ % size_t(n)];
        sum = sum * PRIME + hash - oldest * power;
        oldest = hash;
        if (count >= size_t(n)) f(sum);
    };
    uint64_t hash = BASE;
    bool inside = false;
    for (size_t at = 0, length; at < text.size(); at += length) {
        Kind kind;
        length = character(text, at, &kind);
        if (inside && kind != Kind::letter) word(hash);
        if (kind != Kind::letter || !inside) hash = BASE;
        inside = kind == Kind::letter;
        if (kind == Kind::gap) continue;
        for (size_t i = 0; i < length; i++) {
            auto b = static_cast<unsigned char>(text[at + i]);
            if (b >= 'A' && b <= 'Z') b |= 32;
            hash = (hash ^ b) * 0x100000001B3ull;
        }
        if (kind == Kind::alone) word(hash);
    }
    if (inside) word(hash);
    if (count > 0 && count < size_t(n)) f(sum);
}
