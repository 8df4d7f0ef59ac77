// normalize.cpp - see normalize.h. utf8proc computes Unicode's normalization forms.
#include "normalize.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/console.h"

namespace {
using Kind = Normalization::Kind;

uint32_t code_point(std::string_view c) {    // c: one whole character
    auto at = [&](size_t i) { return uint32_t(static_cast<unsigned char>(c[i])); };
    if (c.size() == 1) return at(0);
    uint32_t code = at(0) & (0x7F >> c.size());
    for (size_t i = 1; i < c.size(); i++) code = code << 6 | (at(i) & 0x3F);
    return code;
}

// Common letters and signs, in contiguous ranges, that NFC and NFKC never change and that never
// combine with the character before: NFC_Quick_Check=Yes and combining class 0. compatible: NFKC.
bool stable(uint32_t c, bool compatible) {
    if (c < 0x80) return true;
    if (c < 0x300) return !compatible;    // NFKC changes some, such as no-break spaces
    struct {
        uint32_t first, last;
    } static constexpr ranges[] = {{0x400, 0x482},   {0x48A, 0x52F},   {0x3041, 0x3096},
                                   {0x30A1, 0x30FA}, {0x4E00, 0x9FA5}, {0xAC00, 0xD7A3}};
    for (auto& r : ranges)
        if (c >= r.first && c <= r.last) return true;
    return !compatible && ((c >= 0x2010 && c <= 0x205E) || (c >= 0x3000 && c <= 0x3020) ||
                           (c >= 0xFF01 && c <= 0xFF60) || (c >= 0x1F300 && c <= 0x1F64F));
}

// Normalizes whole characters. utf8proc_map is not used: it sorts a run of marks in quadratic time.
std::string form_of(std::string_view text, int flags) {
    const auto options = utf8proc_option_t(flags);
    std::vector<utf8proc_int32_t> codes;
    for (size_t i = 0, n = 0; i < text.size(); i += n) {
        bool whole = true;
        n = utf8_character(text.substr(i), whole);
        utf8proc_int32_t parts[32];    // Unicode has at most 18
        int boundary = 0;
        const auto count = utf8proc_decompose_char(utf8proc_int32_t(code_point(text.substr(i, n))), parts,
                                                   std::ssize(parts), options, &boundary);
        CHECK(count >= 0 && count <= std::ssize(parts), "a character of %d parts", int(count));
        codes.insert(codes.end(), parts, parts + count);
    }
    auto rank = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
    for (auto from = codes.begin(), to = from; from != codes.end(); from = to) {
        to = std::find_if(from, codes.end(), [&](auto c) { return rank(c) == 0; });
        std::stable_sort(from, to, [&](auto a, auto b) { return rank(a) < rank(b); });
        if (to != codes.end()) ++to;
    }
    const auto size = utf8proc_normalize_utf32(codes.data(), std::ssize(codes), options);
    CHECK(size >= 0, "%s", utf8proc_errmsg(size));
    std::string out;
    for (utf8proc_ssize_t i = 0; i < size; i++) append_utf8(out, uint32_t(codes[size_t(i)]));
    return out;
}

std::string unicode_form(std::string_view text, Kind kind) {
    const bool composes = kind == Kind::nfc || kind == Kind::nfkc;
    const bool compatible = kind == Kind::nfkc || kind == Kind::nfkd;
    const int options = UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                        (compatible ? UTF8PROC_COMPAT : 0);
    std::string out;
    size_t done = 0, last = std::string_view::npos;    // bytes emitted; start of the segment being collected
    auto convert = [&](size_t end) {                   // a segment begins at a stable character, if any
        if (last == std::string_view::npos) return;
        out.append(text, done, last - done);
        out += form_of(text.substr(last, end - last), options);
        done = end;
        last = std::string_view::npos;
    };
    size_t base = std::string_view::npos;    // previous character, at which a segment may begin
    for (size_t i = 0; i < text.size();) {
        bool whole = true;
        const size_t n = text[i] >= 0 ? 1 : utf8_character(text.substr(i), whole);
        if (!whole) {
            convert(i);
            base = std::string_view::npos;
        } else if (!(composes || n == 1) || !stable(code_point(text.substr(i, n)), compatible)) {
            if (last == std::string_view::npos) last = base == std::string_view::npos ? i : base;
        } else {
            convert(i);
            base = i;
        }
        i += n;
    }
    convert(text.size());
    return out.append(text, done);
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
    std::string out;
    out.reserve(text.size() + text.size() / 2);
    for (size_t at = 0;;) {
        const size_t found = from.size() == 1 ? text.find(from[0], at) : text.find(from, at);
        out.append(text, at, found - at);
        if (found == std::string_view::npos) return out;
        out += to;
        at = found + from.size();
    }
}
}    // namespace

bool is_normalized(std::string_view text, const std::vector<Normalization>& steps, bool follows) {
    for (const Normalization& step : steps) {
        if (step.kind == Kind::prepend   ? !text.empty() && !follows
            : step.kind == Kind::replace ? text.find(step.from) != std::string_view::npos
                                         : false)
            return false;
        if (step.kind == Kind::prepend || step.kind == Kind::replace) continue;
        const unsigned char limit =
            step.kind == Kind::nfc ? 0xCC : 0x80;    // NFC leaves text below U+0300 (0xCC ...) unchanged
        for (unsigned char c : text)
            if (c >= limit) return false;
    }
    return true;
}

std::string normalized(std::string_view text, const std::vector<Normalization>& steps, bool follows) {
    std::string out(text);
    for (const Normalization& step : steps) {
        if (step.kind == Kind::prepend) {
            if (!out.empty() && !follows) out.insert(0, step.to);
        } else if (step.kind == Kind::replace) {
            out = replaced(out, step.from, step.to);
        } else {
            out = unicode_form(out, step.kind);
        }
    }
    return out;
}

std::string marked(std::string_view text, Spaces spaces, bool beginning, bool follows) {
    if (spaces == Spaces::prefixed) {
        const bool adds = !text.empty() && !follows && text[0] != ' ';
        return (adds ? " " : "") + std::string(text);
    }
    std::string out = replaced(text, " ", SPACE_MARK);
    const bool adds = spaces == Spaces::marked_always || (spaces == Spaces::marked_first && beginning);
    if (adds && !follows && !out.empty() && !out.starts_with(SPACE_MARK)) out.insert(0, SPACE_MARK);
    return out;
}
