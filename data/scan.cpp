// scan.cpp - see scan.h.
//
// A piece begins where the last one ends, and its first one or two characters say which rule of the
// pattern matches. Runs of ASCII letters are measured eight bytes at a time. Characters beyond
// ASCII are decoded and looked up in a table. Where 64 bytes are ASCII, the beginnings of all
// pieces in them are computed at once, in a word with a bit for each byte.
#include "scan.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "character_class.h"

namespace {
constexpr std::array<uint8_t, 128> ASCII = [] {
    std::array<uint8_t, 128> kinds{};
    for (int c = 0; c < 128; c++) {
        const bool upper = c >= 'A' && c <= 'Z', lower = c >= 'a' && c <= 'z';
        const bool line_end = c == '\n' || c == '\r', space = c == ' ' || (c >= 9 && c <= 13);
        uint8_t kind = upper ? LETTER | UPPER : lower ? LETTER | LOWER : SYMBOL;
        if (c >= '0' && c <= '9') kind = NUMBER;
        if (space) kind = line_end ? SPACE | LINE_END : SPACE;
        kinds[size_t(c)] = kind;
    }
    return kinds;
}();

struct Character {
    unsigned kind = 0;    // 0: no UTF-8, or the end of the text
    size_t bytes = 0;
};

// Decodes a character that begins with a byte above 0x7F.
[[gnu::noinline]] Character wide_character(const char* p, const char* end) {
    const uint8_t* classes = character_classes();
    auto byte = [p](size_t i) { return uint32_t(static_cast<unsigned char>(p[i])); };
    const uint32_t first = byte(0);
    const size_t n = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    if (first < 0xC2 || first > 0xF4 || size_t(end - p) < n) return {0, 1};
    uint32_t code = first & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((byte(i) & 0xC0) != 0x80) return {0, 1};
        code = code << 6 | (byte(i) & 0x3F);
    }
    const bool overlong = (n == 3 && code < 0x800) || (n == 4 && code < 0x10000);
    if (overlong || code > 0x10FFFF || code >> 11 == 0xD800 >> 11) return {0, 1};
    return {classes[code], n};
}
inline Character character(const char* p, const char* end) {
    if (p == end) return {};
    const auto c = static_cast<unsigned char>(*p);
    return c < 0x80 ? Character{ASCII[c], 1} : wide_character(p, end);
}

// Skips ASCII letters whose class has a bit of `kinds`.
template <unsigned kinds> inline const char* skip_ascii(const char* p, const char* end) {
    static_assert(std::endian::native == std::endian::little);
    constexpr uint64_t ONES = 0x0101010101010101u, HIGH = 0x80 * ONES;
    // With both cases, a letter and its other case differ in bit 0x20 alone.
    constexpr uint64_t fold = kinds & LETTER ? 0x20 : 0, first = kinds & (LETTER | LOWER) ? 'a' : 'A';
    for (; end - p >= 8; p += 8) {
        uint64_t eight;
        memcpy(&eight, p, 8);
        const uint64_t low = (eight | fold * ONES) & ~HIGH;    // sums below stay within their bytes
        const uint64_t letters = (low + (0x80 - first) * ONES) & ~(low + (0x80 - first - 26) * ONES) & ~eight & HIGH;
        if (letters != HIGH) return p + std::countr_zero(letters ^ HIGH) / 8;
    }
    return p;
}
// Returns the end of the run of characters of `kinds` from p on.
template <unsigned kinds> inline const char* run(const char* p, const char* end) {
    for (;;) {
        if constexpr ((kinds & (LETTER | UPPER | LOWER)) != 0) p = skip_ascii<kinds>(p, end);
        const Character c = character(p, end);
        if (!(c.kind & kinds)) return p;
        p += c.bytes;
    }
}

// Bytes of 's, 't, 'd, 'm, 're, 've or 'll, in any case if `fold`; 0: none of these. The long s,
// U+017F, is a case of s.
template <bool fold> inline size_t suffix(const char* p, const char* end) {
    if (p == end || *p != '\'' || end - p < 2) return 0;
    const char a = char(fold ? p[1] | 0x20 : p[1]), b = char(end - p < 3 ? 0 : fold ? p[2] | 0x20 : p[2]);
    if (a == 's' || a == 't' || a == 'd' || a == 'm') return 2;
    const bool two = (b == 'e' && (a == 'r' || a == 'v')) || (a == 'l' && b == 'l');
    const bool long_s = fold && end - p >= 3 && p[1] == '\xC5' && p[2] == '\xBF';
    return two || long_s ? 3 : 0;
}

// The rules by which patterns differ.
struct Rules {
    // after_space: a piece is a run of letters, numbers or symbols with one space before it.
    // after_any: letters follow one character of almost any kind, and line ends follow symbols.
    // cased: as after_any, but words begin with upper case and end with lower case.
    enum Words { after_space, after_any, cased } words;
    int digits = 0;    // most numbers of a piece; 0: any number
    bool suffix = true;
    unsigned letters = LETTER;
    unsigned symbols = SYMBOL | MARK;
    bool slash = false;    // slashes continue line ends after symbols
};

// \s*[\r\n]+|\s+(?!\S)|\s+: a run of spaces up to its last line end, else without its last
// character if text follows.
template <Rules R> const char* spaces(const char* p, const char* end) {
    const char *at = p, *last = p, *line = nullptr;
    Character c;
    for (; (c = character(at, end)).kind & SPACE; at += c.bytes) {
        last = at;
        if (c.kind & LINE_END) line = at + c.bytes;
    }
    if (R.words != Rules::after_space && line) return line;
    const bool parted = R.words == Rules::after_space && R.digits == 1 && c.kind & NUMBER;
    return c.kind && !parted && last > p ? last : at;
}

template <Rules R> const char* numbers(const char* p, const char* end) {
    if (R.digits == 0) return run<NUMBER>(p, end);
    Character c;
    for (int i = 0; i < R.digits && (c = character(p, end)).kind & NUMBER; i++) p += c.bytes;
    return p;
}

// ...UPPER*LOWER+, where both classes share characters: the end of the longest match that ends with
// a character of LOWER; null: none.
const char* upper_then_lower(const char* p, const char* end) {
    const char* both = nullptr;
    for (;;) {
        p = skip_ascii<UPPER>(p, end);
        const Character c = character(p, end);
        if (!(c.kind & UPPER)) return c.kind & LOWER ? run<LOWER>(p, end) : both;
        p += c.bytes;
        if (c.kind & LOWER) both = p;
    }
}
// A word of o200k that begins at p with `c`; null: none. The pattern tries lower case at the end
// with one character before the word, then without it, then upper case alone.
template <Rules R> const char* cased_word(const char* p, Character c, const char* end) {
    const char* begin = c.kind & (LETTER | NUMBER | LINE_END) ? p : p + c.bytes;
    const char* word = upper_then_lower(begin, end);
    if (!word && c.kind & MARK) word = upper_then_lower(p, end);
    if (!word) {
        word = run<UPPER>(begin, end);
        if (word == begin) return nullptr;
    }
    return R.suffix ? word + suffix<true>(word, end) : word;
}

template <Rules R> inline const char* symbols(const char* p, const char* end) {
    p = run<R.symbols>(p, end);
    if (R.words == Rules::after_space) return p;
    while (p < end && (*p == '\n' || *p == '\r' || (R.slash && *p == '/'))) p++;
    return p;
}

template <Rules R> inline const char* piece_end(const char* p, const char* end) {
    const Character c = character(p, end);
    if (R.words != Rules::cased && R.suffix && *p == '\'')
        if (const size_t n = suffix<R.words == Rules::after_any>(p, end)) return p + n;
    if (R.words == Rules::after_any && c.kind & R.letters) return run<R.letters>(p, end);
    const char* second = p + c.bytes;
    const Character next = character(second, end);
    if (R.words == Rules::after_any && next.kind & R.letters && c.kind && !(c.kind & (NUMBER | LINE_END)))
        return run<R.letters>(second, end);
    if (R.words == Rules::cased && c.kind)
        if (const char* word = cased_word<R>(p, c, end)) return word;
    const bool blank = *p == ' ' && !(next.kind & SPACE);
    const char* first = blank ? second : p;
    const unsigned kind = blank ? next.kind : c.kind;
    if (R.words == Rules::after_space && kind & LETTER) return run<LETTER>(first, end);
    if (kind & R.symbols) return symbols<R>(first, end);
    if (c.kind & NUMBER || (kind & NUMBER && R.digits == 0)) return numbers<R>(first, end);
    if (c.kind) return spaces<R>(p, end);
    while (p < end && character(p, end).kind == 0) p++;
    return p;
}

// ---- ASCII, 64 bytes at a time ------------------------------------------------------------------

constexpr int BLOCK = 64;
// Bits of a block's bytes of some kind; the first byte's is bit 0.
struct Masks {
    uint64_t letters = 0, upper = 0, numbers = 0, spaces = 0, blanks = 0, line_ends = 0, quotes = 0, wide = 0;
};
}    // namespace

#if defined(__SSE2__)
#include <emmintrin.h>
static Masks masks_of(const char* p) {
    Masks m;
    for (int i = 0; i < BLOCK; i += 16) {
        const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i));
        auto bits = [i](__m128i bytes) { return uint64_t(uint32_t(_mm_movemask_epi8(bytes))) << i; };
        auto is = [x](char c) { return _mm_cmpeq_epi8(x, _mm_set1_epi8(c)); };
        // Adding 127 - last puts the range at the end of the signed bytes.
        auto in = [](__m128i bytes, char first, char last) {
            return _mm_cmpgt_epi8(_mm_add_epi8(bytes, _mm_set1_epi8(char(127 - last))),
                                  _mm_set1_epi8(char(126 - last + first)));
        };
        m.letters |= bits(in(_mm_or_si128(x, _mm_set1_epi8(0x20)), 'a', 'z'));
        m.upper |= bits(in(x, 'A', 'Z'));
        m.numbers |= bits(in(x, '0', '9'));
        m.blanks |= bits(is(' '));
        m.spaces |= bits(_mm_or_si128(in(x, 9, 13), is(' ')));
        m.line_ends |= bits(_mm_or_si128(is('\n'), is('\r')));
        m.quotes |= bits(is('\''));
        m.wide |= bits(x);
    }
    return m;
}
#else
static Masks masks_of(const char* p) {
    Masks m;
    for (int i = 0; i < BLOCK; i++) {
        const auto c = static_cast<unsigned char>(p[i]);
        const unsigned kind = c < 0x80 ? ASCII[c] : 0;
        auto add = [i](uint64_t& mask, bool set) { mask |= uint64_t(set) << i; };
        add(m.letters, kind & LETTER);
        add(m.upper, (kind & LETTER) && (kind & UPPER));
        add(m.numbers, kind & NUMBER);
        add(m.blanks, c == ' ');
        add(m.spaces, kind & SPACE);
        add(m.line_ends, kind & LINE_END);
        add(m.quotes, c == '\'');
        add(m.wide, c > 0x7F);
    }
    return m;
}
#endif

namespace {
// The beginnings of pieces in a block, a bit for each byte, without the block's first byte.
struct Block {
    uint64_t starts = 0;
    int ascii = 0;    // bytes before the first one above 0x7F
};

int lowest(uint64_t bits) { return std::countr_zero(bits); }
constexpr uint64_t bit(int i) { return uint64_t(1) << i; }
constexpr uint64_t up_to(int last) { return UINT64_MAX >> (63 - last); }

// Corrects `starts` for the suffixes at `quotes`, which are starts, and returns the last byte whose
// bit is then known.
template <Rules R> int part_suffixes(const char* p, uint64_t quotes, int known, uint64_t& starts) {
    for (int word = -1; quotes; quotes &= quotes - 1) {    // word: where a word of `cased` may not end
        const int q = lowest(quotes);
        if (q > BLOCK - 4) return std::min(known, R.words == Rules::cased ? q - 1 : q);
        const int n = int(suffix<R.words != Rules::after_space>(p + q, p + BLOCK));
        if (n == 0 || q == word) continue;
        starts &= ~(bit(q + 1) | (n == 3 ? bit(q + 2) : 0));
        starts |= bit(q + n);
        if (R.words != Rules::cased) continue;
        starts &= ~bit(q);
        word = q + n;
    }
    return known;
}

// The starts of spaces in a pattern with rule \s*[\r\n]+: of each run, of the blanks behind its
// last line end, and of its last blank, which `last` gets.
uint64_t space_starts(uint64_t spaces, uint64_t line_ends, uint64_t& last) {
    const uint64_t blanks = spaces & ~line_ends, indents = blanks & line_ends << 1;
    last = blanks & ~(spaces >> 1);
    uint64_t starts = (spaces & ~(spaces << 1)) | last | indents;
    if ((blanks + indents) & ~blanks & line_ends)    // some run has another line end behind blanks
        for (uint64_t left = indents; left; left &= left - 1) {
            const uint64_t behind = ~blanks & ~up_to(lowest(left));
            if (behind & -behind & line_ends) starts &= ~(left & -left);
        }
    return starts;
}

// The starts in 64 bytes, of which the first begins a piece. The bits up to the last character that
// is no space do not depend on the bytes behind.
template <Rules R> Block block_at(const char* p) {
    const Masks m = masks_of(p);
    Block block{0, m.wide ? lowest(m.wide) : BLOCK};
    const uint64_t L = m.letters, N = m.numbers, symbols = ~(L | N | m.spaces | m.wide);
    const uint64_t text = block.ascii ? ~m.spaces & up_to(block.ascii - 1) : 0;
    if (!text) return block;
    int known = 63 - std::countl_zero(text);
    const uint64_t unspaced = ~(m.blanks << 1);    // without ' ' before
    uint64_t starts = symbols & ~(symbols << 1) & unspaced;
    if constexpr (R.words == Rules::after_space) {
        const uint64_t last = m.spaces & ~(m.spaces >> 1), parted = R.digits == 1 ? N >> 1 : 0;
        starts |= (m.spaces & ~(m.spaces << 1)) | (last & ~parted);
        starts |= (L & ~(L << 1) & unspaced) | (R.digits == 1 ? N : N & ~(N << 1) & unspaced);
    } else {
        // Line ends behind symbols belong to these. Adding the first of a run clears all of it.
        const uint64_t first = symbols << 1 & m.line_ends, cleared = m.line_ends + first;
        const uint64_t taken = m.line_ends & ~cleared;
        for (uint64_t behind = R.slash ? cleared & ~m.line_ends & symbols : 0; behind; behind &= behind - 1)
            if (p[lowest(behind)] == '/') known = std::min(known, lowest(behind) - 1);
        uint64_t last_blank = 0;
        starts |= space_starts(m.spaces & ~taken, m.line_ends & ~taken, last_blank);
        const uint64_t single = starts & symbols & ~(symbols >> 1);
        starts |= L & ~(L << 1) & ~((last_blank | single) << 1);
        if (R.words == Rules::cased) starts |= m.upper & (L & ~m.upper) << 1;
        uint64_t group = R.digits == 1 ? N : N & ~(N << 1);
        const uint64_t three_before = N & N << 1 & N << 2 & N << 3;
        for (; group; group = R.digits == 1 ? 0 : group << 3 & three_before) starts |= group;
    }
    const uint64_t quotes = m.quotes & starts & (R.words == Rules::cased ? L << 1 : UINT64_MAX);
    if (R.suffix && quotes) known = part_suffixes<R>(p, quotes, known, starts);
    block.starts = known > 0 ? starts & up_to(known) & ~bit(0) : 0;
    return block;
}
template <Rules R> size_t scan(std::string_view text, std::string_view* pieces, size_t most) {
    const char *p = text.data(), *end = p + text.size(), *slow = p;    // slow: end of a part with other bytes
    size_t n = 0;
    while (n < most && p < end) {
        Block block;
        if (p >= slow && end - p >= BLOCK) {
            block = block_at<R>(p);
            if (block.ascii < BLOCK && !block.starts) slow = p + block.ascii + 16;
        }
        const char* begin = p;
        for (; block.starts && n < most; block.starts &= block.starts - 1) {
            const char* next = begin + std::countr_zero(block.starts);
            pieces[n++] = {p, size_t(next - p)};
            p = next;
        }
        if (p > begin) continue;
        p = piece_end<R>(begin, end);
        pieces[n++] = {begin, size_t(p - begin)};
    }
    return n;
}
}    // namespace

size_t scan_gpt2(std::string_view text, std::string_view* pieces, size_t most) {
    return scan<Rules{Rules::after_space}>(text, pieces, most);
}
size_t scan_smollm(std::string_view text, std::string_view* pieces, size_t most) {
    return scan<Rules{Rules::after_space, 1}>(text, pieces, most);
}
size_t scan_cl100k(std::string_view text, std::string_view* pieces, size_t most) {
    return scan<Rules{Rules::after_any, 3}>(text, pieces, most);
}
size_t scan_qwen2(std::string_view text, std::string_view* pieces, size_t most) {
    return scan<Rules{Rules::after_any, 1}>(text, pieces, most);
}
size_t scan_qwen35(std::string_view text, std::string_view* pieces, size_t most) {
    return scan<Rules{Rules::after_any, 1, true, LETTER | MARK, SYMBOL}>(text, pieces, most);
}
size_t scan_o200k(std::string_view text, std::string_view* pieces, size_t most) {
    return scan<Rules{.words = Rules::cased, .digits = 3, .slash = true}>(text, pieces, most);
}
size_t scan_tekken(std::string_view text, std::string_view* pieces, size_t most) {
    return scan<Rules{.words = Rules::cased, .digits = 1, .suffix = false, .slash = true}>(text, pieces, most);
}

// ---- BERT and Metaspace -------------------------------------------------------------------------

namespace {
// Whether a character is punctuation: Unicode's, or ASCII's with its symbols.
bool is_punctuation(const Character& c, const char* p) {
    if (c.kind != SYMBOL || c.bytes == 0) return false;
    if (c.bytes == 1) return *p > ' ' && *p < 0x7F;
    utf8proc_int32_t code = 0;
    utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(p), utf8proc_ssize_t(c.bytes), &code);
    const utf8proc_category_t kind = utf8proc_category(code);
    return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO;
}
}    // namespace

size_t scan_bert(std::string_view text, std::string_view* pieces, size_t most) {
    const char *p = text.data(), *const end = p + text.size();
    size_t n = 0;
    for (const char* word = nullptr; n < most && (p < end || word);) {
        const Character c = character(p, end);
        const bool space = c.kind & SPACE, alone = is_punctuation(c, p), ends = p == end || space || alone;
        if (word && ends) {
            pieces[n++] = {word, size_t(p - word)};
            word = nullptr;
            continue;
        }
        if (!word && !ends) word = p;
        if (alone) pieces[n++] = {p, c.bytes};
        p += c.bytes;
    }
    return n;
}

size_t scan_metaspace(std::string_view text, std::string_view* pieces, size_t most) {
    constexpr std::string_view MARK_BYTES = "\xE2\x96\x81";
    size_t n = 0;
    for (size_t at = 0; n < most && at < text.size();) {
        const size_t end = std::min(text.find(MARK_BYTES, at + 1), text.size());
        pieces[n++] = text.substr(at, end - at);
        at = end;
    }
    return n;
}
