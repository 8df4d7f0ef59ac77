// test_scan.cpp - the scanners of the known patterns against the published regular expressions.
#include <string>

#include "base/console.h"
#include "base/philox.h"
#include "data/bpe.h"
#include "data/pretokenize.h"
#include "test.h"

extern "C" const uint16_t gpt2_merges[100000];

namespace {
uint32_t draw(uint64_t stream, uint64_t i, uint32_t below) { return philox(5, stream, i).v[0] % below; }

using Pieces = std::vector<std::string_view>;
Pieces by_regex(const PatternRow& row, const std::string& text) {
    const Result<Pretokenizer> published = Pretokenizer::compile(row.splits);
    REQUIRE(published.ok());
    Splitter s(published.value);
    s.start(text);
    Pieces all;
    for (std::string_view piece; s.next(piece);) all.push_back(piece);
    return all;
}
// `most`: pieces of one call.
Pieces by_scan(const PatternRow& row, const std::string& text, size_t most) {
    Pieces all, some(most);
    const bool gaps = row.splits[0].behavior == Split::Behavior::removed;
    for (size_t at = 0; at < text.size();) {
        const size_t n = row.scan(std::string_view(text).substr(at), some.data(), most);
        if (gaps && n == 0) break;
        REQUIRE(n > 0);
        for (size_t i = 0; i < n; i++) {
            if (!gaps) REQUIRE(some[i].data() == text.data() + at);
            at = size_t(some[i].data() + some[i].size() - text.data());
            all.push_back(some[i]);
        }
    }
    return all;
}
// The first piece that differs, with the text around; empty: none.
std::string difference(const Pieces& a, const Pieces& b, const std::string& text) {
    for (size_t i = 0; i < std::max(a.size(), b.size()); i++)
        if (i >= a.size() || i >= b.size() || a[i].size() != b[i].size()) {
            const std::string_view piece = i < b.size() ? b[i] : a[i];
            const size_t at = size_t(piece.data() - text.data());
            return std::string(i < a.size() ? a[i] : "") + "|" + std::string(i < b.size() ? b[i] : "") + "| in " +
                   escape_control(text.substr(at - std::min<size_t>(at, 20), 90));
        }
    return "";
}
}    // namespace

TEST_CASE("scan: every character is of the class that the published pattern gives it") {
    std::string text;
    for (uint32_t c = 1; c < 0x110000; c++) {
        if (c == 0xD800) c = 0xE000;
        if (c == 0x32400) c = 0xE0000;    // nothing between is assigned
        if (c == 0xE0200) break;
        for (const char* before : {"a", " ", "\n"}) {
            text += before;
            append_utf8(text, c);
        }
        text += "B";
    }
    append_utf8(text, 0x10FFFF);
    for (const PatternRow& row : pattern_rows())
        if (row.scan) {
            // utf8proc, which knows BERT's punctuation, has Unicode 15; PCRE2 has 14.
            const std::string some = text.substr(0, row.pattern == Pattern::bert ? text.find("\U00011000") : text.npos);
            CHECK_MESSAGE(difference(by_scan(row, some, 100), by_regex(row, some), some) == "", row.name);
        }
}

TEST_CASE("scan: blocks of ASCII, and what interrupts them, have the pieces of the published pattern") {
    const std::vector<std::string> parts = {"a",   "word", "B",   "UP",  "Cam",  "1",   "23",   "4567",  " ",
                                            " ",   " ",    "  ",  "\n",  "\n\n", "\t",  "\r",   ".",     ",",
                                            "(",   "((",   "/",   "\n/", "'",    "'s",  "'t",   "'LL",   "'Re",
                                            "'ve", "'m",   "'dx", "'sS", "  \n", "\n ", "!\n/", "\v \f", "=="};
    const std::vector<std::string> wide = {
        "\u00e9", "\u6f22\u5b57", "\u00a0", "\u3000", "'\u017f", "\u0301", "\u00bd", "\U0001F600",
        // Invalid: no first byte, cut short, longer than necessary, surrogates, beyond U+10FFFF.
        "\xFF", "\x80", "\xE2\x82", "\xF0\x9F\x98", "\xC0\x80", "\xC1\xA1", "\xE0\x9F\x8A", "\xF0\x86\xBC\xA2",
        "\xED\xA0\x80", "\xED\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80"};
    for (const PatternRow& row : pattern_rows()) {
        if (!row.scan) continue;
        std::string why;
        for (uint64_t i = 0; i < 1500 && why.empty(); i++) {
            std::string text;
            for (uint64_t k = 0; k < 100; k++) {
                const bool ascii = i % 3 == 0 || draw(i, 3 * k, 40) > 0;
                const auto& from = ascii ? parts : wide;
                text += from[draw(i, 3 * k + 1, uint32_t(from.size()))];
            }
            why = difference(by_scan(row, text, 1 + i % 90), by_regex(row, text), text);
        }
        CHECK_MESSAGE(why == "", row.name);
    }
}

TEST_CASE("scan: ids do not depend on the pieces that were encoded before") {
    std::vector<std::pair<int, int>> merges;
    for (int i = 0; i < 300; i++) merges.emplace_back(gpt2_merges[2 * i], gpt2_merges[2 * i + 1]);
    auto fresh = [&] { return Tokenizer::from_merges(merges, Pattern::gpt2, {}); };
    const Tokenizer warm = fresh();
    std::string all;
    std::vector<int> expected;
    for (uint64_t part = 0; part < 60; part++) {    // a thousand words each: more than a thread keeps
        std::string text;
        for (uint64_t i = 0; i < 1000; i++) {
            text += ' ';
            const uint32_t length = i % 2 ? 120 : 1 + draw(part, i, 30);
            for (uint32_t k = 0; k < length; k++) text += char('a' + draw(part + 100, i * 200 + k, 26));
            if (i % 50 == 0) text += std::string(140, 'x');
        }
        const std::vector<int> ids = fresh().encode(text);
        expected.insert(expected.end(), ids.begin(), ids.end());
        all += text;
    }
    CHECK(warm.encode(all) == expected);
    CHECK(warm.encode(all) == expected);
    CHECK(warm.decode(expected) == all);
}
