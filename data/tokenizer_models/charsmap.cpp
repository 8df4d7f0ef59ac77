#include "charsmap.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "base/console.h"

namespace {
uint32_t word_at(std::string_view bytes, size_t at) {
    uint32_t word = 0;
    for (size_t i = 0; i < 4; i++) word |= uint32_t(static_cast<unsigned char>(bytes[at + i])) << 8 * i;
    return word;
}
}    // namespace

bool Charsmap::fits(std::string_view blob) {
    if (blob.size() < 8) return false;
    const size_t size = word_at(blob, 0);
    return size >= 4 && size % 4 == 0 && size <= blob.size() - 4;
}
Charsmap::Charsmap(std::string_view blob) {
    if (blob.empty()) return;
    trie = blob.substr(4, word_at(blob, 0));
    replacements = blob.substr(4 + trie.size());
}
// Beyond the array's end, where only a damaged file leads, all units match nothing.
uint32_t Charsmap::unit(size_t i) const { return i < trie.size() / 4 ? word_at(trie, 4 * i) : 0x80000000u; }

// A unit has the byte that leads to it (bits 0 to 7; bit 31: none), whether an entry ends there
// (bit 8), and the distance to its children (bits 10 to 30, times 256 if bit 9 is set). An entry's
// value is in the child for byte 0.
size_t Charsmap::find(std::string_view text, bool longest, std::string_view& replacement) const {
    if (trie.empty()) return 0;
    auto offset = [](uint32_t u) { return size_t(u >> 10) << ((u & 0x200) >> 6); };
    constexpr size_t MOST = 1024;    // bytes of a key or a replacement; only a damaged file has more
    size_t at = offset(unit(0)), found = 0;
    for (size_t i = 0; i < std::min(text.size(), MOST) && text[i]; i++) {
        const auto byte = static_cast<unsigned char>(text[i]);
        at ^= byte;
        const uint32_t u = unit(at);
        if ((u & 0x800000FFu) != byte) break;
        at ^= offset(u);
        if (!(u >> 8 & 1)) continue;
        const size_t value = unit(at) & 0x7FFFFFFF;
        if (value > replacements.size()) continue;
        const std::string_view rest = replacements.substr(value, MOST);
        replacement = rest.substr(0, rest.find('\0'));
        found = i + 1;
        if (!longest) break;
    }
    return found;
}

std::string mapped_longest(std::string_view text, std::string_view blob) {
    const Charsmap map(blob);
    std::string out;
    for (size_t i = 0, n = 0; i < text.size(); i += n) {
        std::string_view to;
        bool whole = true;
        n = map.find(text.substr(i), true, to);
        if (n) out += to;
        else out.append(text, i, n = utf8_character(text.substr(i), whole));
    }
    return out;
}

std::string mapped_graphemes(std::string_view text, std::string_view blob) {
    const Charsmap map(blob);
    std::string out;
    out.reserve(text.size() + text.size() / 8);
    auto decoded = [&](size_t at, size_t& n) {    // -1: no character
        utf8proc_int32_t c = -1;
        bool whole = true;
        n = utf8_character(text.substr(at), whole);
        if (whole)
            utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at), utf8proc_ssize_t(n), &c);
        return c;
    };
    auto map_one = [&](std::string_view part) {
        std::string_view to;
        const bool found = map.find(part, false, to) > 0;
        if (found) out += to;
        return found;
    };
    for (size_t at = 0, end = 0; at < text.size(); at = end) {
        size_t n = 1;
        const bool ascii = text[at] >= 0 && text[at] != '\r' && (at + 1 == text.size() || text[at + 1] >= 0);
        const utf8proc_int32_t first = ascii ? text[at] : decoded(at, n);
        end = at + n;
        utf8proc_int32_t state = 0, before = first;
        for (size_t more = 0; !ascii && before >= 0 && end < text.size(); end += more) {
            const utf8proc_int32_t c = decoded(end, more);
            if (c < 0 || utf8proc_grapheme_break_stateful(before, c, &state)) break;
            before = c;
        }
        if (end - at < 6 && first >= 0 && map_one(text.substr(at, end - at))) continue;
        for (size_t i = at; i < end; i += n) {
            decoded(i, n);
            const std::string_view part = text.substr(i, n);
            if (!map_one(part)) out += part;
        }
    }
    return out;
}
