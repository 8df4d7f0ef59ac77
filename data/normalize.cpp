// normalize.cpp - see normalize.h. utf8proc computes Unicode's normalization forms.
#include "normalize.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/console.h"
#include "tokenizer_models/charsmap.h"

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

utf8proc_category_t category(uint32_t c) { return utf8proc_category(utf8proc_int32_t(c)); }
bool is_mark(uint32_t c) {
    const auto kind = category(c);
    return kind == UTF8PROC_CATEGORY_MN || kind == UTF8PROC_CATEGORY_MC || kind == UTF8PROC_CATEGORY_ME;
}
// Calls step(its text, its code point) for each character; invalid bytes have code UINT32_MAX.
template <class Step> void each_character(std::string_view text, Step step) {
    for (size_t i = 0, n = 0; i < text.size(); i += n) {
        bool whole = true;
        n = text[i] >= 0 ? 1 : utf8_character(text.substr(i), whole);
        step(text.substr(i, n), whole ? code_point(text.substr(i, n)) : UINT32_MAX);
    }
}
void append_lower(std::string& out, uint32_t c) {
    if (c == 0x130) out += "i\u0307";    // no other lower case has two characters
    else append_utf8(out, uint32_t(utf8proc_tolower(utf8proc_int32_t(c))));
}
std::string lower_case(std::string_view text) {
    std::string out;
    each_character(text, [&](std::string_view character, uint32_t c) {
        if (c == UINT32_MAX) out += character;
        else append_lower(out, c);
    });
    return out;
}
std::string without_marks(std::string_view text) {
    std::string out;
    each_character(text, [&](std::string_view character, uint32_t c) {
        if (c == UINT32_MAX || !is_mark(c)) out += character;
    });
    return out;
}

// BertNormalizer: removes control characters and makes white space ' ' (BERT_CLEAN), puts spaces
// around CJK ideographs, decomposes and removes non-spacing marks, makes lower case; in this order.
struct BertSteps {
    bool clean, chinese, accents, lower;
    std::string out = {};
    std::vector<uint32_t> run = {};    // decomposed characters since the last ASCII one
    bool ordered = true;               // no character of `run` has a combining class

    explicit BertSteps(const std::string& steps)
        : clean(has(steps, BERT_CLEAN)), chinese(has(steps, BERT_CHINESE)), accents(has(steps, BERT_ACCENTS)),
          lower(has(steps, BERT_LOWERCASE)) {}
    static bool has(const std::string& steps, Bert step) { return steps.find(step) != std::string::npos; }
    static bool removed(uint32_t c) {
        const auto kind = category(c);
        return kind == UTF8PROC_CATEGORY_CC || kind == UTF8PROC_CATEGORY_CF || kind == UTF8PROC_CATEGORY_CO ||
               c == 0xFFFD;
    }
    static bool ideograph(uint32_t c) {
        if (c < 0x3400) return false;
        constexpr struct {
            uint32_t first, last;
        } RANGES[] = {{0x4E00, 0x9FFF},   {0x3400, 0x4DBF}, {0x20000, 0x2A6DF}, {0x2A700, 0x2B81F},
                      {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF}, {0x2F800, 0x2FA1F}};
        return std::any_of(std::begin(RANGES), std::end(RANGES), [c](auto& r) { return c >= r.first && c <= r.last; });
    }
    static int rank(uint32_t c) { return utf8proc_get_property(utf8proc_int32_t(c))->combining_class; }
    void end_run() {
        if (!ordered)
            for (auto from = run.begin(), to = from; from != run.end(); from = to == run.end() ? to : to + 1) {
                to = std::find_if(from, run.end(), [](uint32_t c) { return rank(c) == 0; });
                std::stable_sort(from, to, [](uint32_t a, uint32_t b) { return rank(a) < rank(b); });
            }
        for (uint32_t c : run) lower ? append_lower(out, c) : append_utf8(out, c);
        run.clear();
        ordered = true;
    }
    void add(uint32_t c) {
        if (!accents) return lower ? append_lower(out, c) : append_utf8(out, c);
        utf8proc_int32_t parts[32];    // Unicode has at most 4
        int boundary = 0;
        const auto count = utf8proc_decompose_char(utf8proc_int32_t(c), parts, std::ssize(parts),
                                                   utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &boundary);
        for (utf8proc_ssize_t i = 0; i < count; i++) {
            const auto part = uint32_t(parts[i]);
            if (category(part) == UTF8PROC_CATEGORY_MN) continue;
            ordered &= rank(part) == 0;
            run.push_back(part);
        }
    }
    std::string apply(std::string_view text) {
        out.reserve(text.size() + text.size() / 8);
        each_character(text, [&](std::string_view character, uint32_t c) {
            if (c < 0x80 || c == UINT32_MAX) {
                end_run();
                const bool blank = c == '\t' || c == '\n' || c == '\r';
                if (c == UINT32_MAX) out += character;
                else if (clean && (c < 0x20 || c == 0x7F)) out.append(blank, ' ');
                else out += char(lower && c >= 'A' && c <= 'Z' ? c | 0x20 : c);
                return;
            }
            if (clean && removed(c)) return;
            const bool wide = chinese && ideograph(c), space = clean && space_length(character);
            if (!wide && !space) return add(c);
            end_run();
            out += ' ';
            if (space) return;
            add(c);    // a compatibility ideograph decomposes
            end_run();
            out += ' ';
        });
        end_run();
        return std::move(out);
    }
};

std::string runs_replaced(std::string_view text, std::string_view by) {
    std::string out;
    for (size_t at = 0; at < text.size();) {
        const size_t found = text.find("  ", at), end = std::min(text.find_first_not_of(' ', found), text.size());
        out.append(text, at, found - at);
        if (found == text.npos) break;
        out += by;
        at = end;
    }
    return out;
}
std::string_view without_spaces(std::string_view text, bool left, bool right) {
    for (size_t n = 0; left && (n = space_length(text)) > 0;) text.remove_prefix(n);
    for (size_t n = 1; right && n <= 3 && n <= text.size(); n++)
        if (space_length(text.substr(text.size() - n)) == n) {
            text.remove_suffix(n);
            n = 0;
        }
    return text;
}

// SentencePiece's remove_extra_whitespaces, on spaces. A text that follows another one keeps a
// leading one.
std::string squeezed(std::string_view text, bool follows) {
    std::string out;
    for (char c : text)
        if (c != ' ' || (out.empty() ? follows : out.back() != ' ')) out += c;
    for (;;) {
        const size_t n = out.ends_with(' ') ? 1 : out.ends_with(SPACE_MARK) ? 3 : 0;
        if (n == 0) return out;
        out.resize(out.size() - n);
    }
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

std::string marked_words(std::string_view text, bool follows) {
    std::string out;
    out.reserve(text.size() + text.size() / 2);
    bool in_word = follows && !text.empty() && !space_length(text);
    for (size_t i = 0, n = 0; i < text.size(); i += n) {
        n = space_length(text.substr(i));
        if (n == 0) {
            if (!in_word && !text.substr(i).starts_with(SPACE_MARK)) out += SPACE_MARK;
            in_word = true;
            out += text[i];
            n = 1;
        } else {
            in_word = false;
        }
    }
    return out;
}
}    // namespace

bool ends_word(std::string_view text) {
    size_t n = 1;
    while (n < 4 && n < text.size() && (text[text.size() - n] & 0xC0) == 0x80) n++;
    bool whole = false;
    if (text.empty() || utf8_character(text.substr(text.size() - n), whole) != n || !whole) return false;
    const auto c = utf8proc_int32_t(code_point(text.substr(text.size() - n)));
    const utf8proc_category_t kind = utf8proc_category(c);
    const bool word = (kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO) ||
                      (kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO);
    return word && utf8proc_grapheme_break(c, ' ');
}
bool is_normalized(std::string_view text, const std::vector<Normalization>& steps, bool follows) {
    for (const Normalization& step : steps) {
        if (step.kind > Kind::replace) return text.empty();
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
    for (const Normalization& step : steps) switch (step.kind) {
            case Kind::prepend:
                if (!out.empty() && !follows) out.insert(0, step.to);
                break;
            case Kind::replace: out = replaced(out, step.from, step.to); break;
            case Kind::bert: out = BertSteps(step.to).apply(out); break;
            case Kind::strip_accents: out = without_marks(out); break;
            case Kind::lowercase: out = lower_case(out); break;
            case Kind::runs: out = runs_replaced(out, step.to); break;
            case Kind::strip_left: out = without_spaces(out, !follows, false); break;
            case Kind::strip_right: out = without_spaces(out, false, true); break;
            case Kind::charsmap: out = mapped_graphemes(out, step.from); break;
            case Kind::charsmap_sp: out = mapped_longest(out, step.from); break;
            case Kind::squeeze: out = squeezed(out, follows); break;
            case Kind::nfc:
            case Kind::nfd:
            case Kind::nfkc:
            case Kind::nfkd: out = unicode_form(out, step.kind);
        }
    return out;
}

std::string marked(std::string_view text, Spaces spaces, bool beginning, bool follows) {
    if (spaces == Spaces::prefixed) {
        const bool adds = !text.empty() && !follows && text[0] != ' ';
        return (adds ? " " : "") + std::string(text);
    }
    if (spaces == Spaces::marked_words) return marked_words(text, follows);
    std::string out = replaced(text, " ", SPACE_MARK);
    const bool adds = spaces == Spaces::marked_always || (spaces == Spaces::marked_first && beginning);
    if (adds && !follows && !out.empty() && !out.starts_with(SPACE_MARK)) out.insert(0, SPACE_MARK);
    return out;
}
