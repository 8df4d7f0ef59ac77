// bleu.cpp - see bleu.h.
#include "infer/eval/bleu.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>

#include "base/common.h"
#include "data/normalize.h"
#include "infer/jinja/value.h"

// ---- words --------------------------------------------------------------------------------------

namespace {
std::vector<std::string_view> words_of(std::string_view text) {
    std::vector<std::string_view> words;
    size_t begin = jinja::after_spaces(text, 0);
    for (size_t at = begin; at < text.size();) {
        const size_t next = jinja::after_spaces(text, ++at);
        if (next == at && at < text.size()) continue;
        words.push_back(text.substr(begin, at - begin));
        at = begin = next;
    }
    return words;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_stop(char c) { return c == '.' || c == ','; }
bool is_mark(char c) {    // ASCII punctuation and symbols but ' , - .
    return c > ' ' && c < 0x7F && !isalnum(static_cast<unsigned char>(c)) && !strchr("',-.", c);
}
// Puts a space before and behind some characters of adjacent pairs that `fits` accepts; a pair
// begins behind the last one.
template <class Fits> std::string split_pairs(const std::string& text, const char* form, Fits fits) {
    std::string out;
    for (size_t i = 0; i < text.size(); i++) {
        if (i + 1 == text.size() || !fits(text[i], text[i + 1])) {
            out += text[i];
            continue;
        }
        for (const char* f = form; *f; f++) out += *f == '1' ? text[i] : *f == '2' ? text[i + 1] : ' ';
        i++;
    }
    return out;
}
}    // namespace

// Bytes will do: all characters that matter are ASCII.
std::string split_13a(std::string_view text) {
    constexpr auto REPLACE = Normalization::Kind::replace;
    const std::string line = normalized(text,
                                        {{REPLACE, "<skipped>", ""},
                                         {REPLACE, "-\n", ""},
                                         {REPLACE, "\n", " "},
                                         {REPLACE, "&quot;", "\""},
                                         {REPLACE, "&amp;", "&"},
                                         {REPLACE, "&lt;", "<"},
                                         {REPLACE, "&gt;", ">"}},
                                        false);
    std::string spaced = " ";
    for (char c : line) is_mark(c) ? spaced.append({' ', c, ' '}) : spaced.append(1, c);
    spaced += ' ';
    spaced = split_pairs(spaced, "1 2 ", [](char a, char b) { return !is_digit(a) && is_stop(b); });
    spaced = split_pairs(spaced, " 1 2", [](char a, char b) { return is_stop(a) && !is_digit(b); });
    spaced = split_pairs(spaced, "1 2 ", [](char a, char b) { return is_digit(a) && b == '-'; });
    std::string out;
    for (std::string_view word : words_of(spaced)) out.append(out.empty() ? "" : " ").append(word);
    return out;
}

// ---- scores -------------------------------------------------------------------------------------

namespace {
// Counts of each n-gram of orders 1 to ORDER; words by number, -1 behind shorter ones.
typedef std::map<std::array<int, BleuScore::ORDER>, int64_t> Ngrams;
Ngrams ngrams_of(const std::vector<std::string_view>& words, std::map<std::string_view, int>& numbers) {
    std::vector<int> ids;
    for (std::string_view word : words) ids.push_back(numbers.emplace(word, int(numbers.size())).first->second);
    Ngrams all;
    for (size_t i = 0; i < ids.size(); i++) {
        std::array<int, BleuScore::ORDER> gram;
        gram.fill(-1);
        for (size_t n = 0; n < gram.size() && i + n < ids.size(); n++) {
            gram[n] = ids[i + n];
            all[gram]++;
        }
    }
    return all;
}
void add_matches(BleuScore& s, const std::string& text, const std::string& reference) {
    const std::vector<std::string_view> words = words_of(text), expected = words_of(reference);
    std::map<std::string_view, int> numbers;
    const Ngrams found = ngrams_of(words, numbers), known = ngrams_of(expected, numbers);
    s.length += int64_t(words.size());
    s.reference_length += int64_t(expected.size());
    for (auto& [gram, count] : found) {
        const size_t order = size_t(std::ranges::find(gram, -1) - gram.begin()) - 1;
        const auto match = known.find(gram);
        s.totals[order] += count;
        s.counts[order] += match == known.end() ? 0 : std::min(count, match->second);
    }
}
}    // namespace

BleuScore bleu(const std::vector<std::string>& texts, const std::vector<std::string>& references, bool lowercase) {
    CHECK(texts.size() == references.size());
    auto prepared = [&](const std::string& text) {
        const std::vector<Normalization> steps = {{Normalization::Kind::lowercase, "", ""}};
        const std::string line = lowercase ? normalized(text, steps, false) : text;
        return split_13a(jinja::strip(line, {}, false));
    };
    BleuScore s;
    for (size_t i = 0; i < texts.size(); i++) add_matches(s, prepared(texts[i]), prepared(references[i]));
    if (s.length < s.reference_length)
        s.brevity_penalty = s.length > 0 ? std::exp(1 - double(s.reference_length) / double(s.length)) : 0;
    if (std::ranges::all_of(s.counts, [](int64_t count) { return count == 0; })) return s;
    // A text too short for an order has precision 0 there, and so the score 0.
    double logs = 0, smooth = 1;
    for (int n = 0; n < BleuScore::ORDER && s.totals[n] > 0; n++) {
        if (s.counts[n] == 0) smooth *= 2;
        s.precisions[n] = 100 * (s.counts[n] ? double(s.counts[n]) : 1 / smooth) / double(s.totals[n]);
        logs += std::log(s.precisions[n]) / BleuScore::ORDER;
    }
    s.score = s.totals[BleuScore::ORDER - 1] > 0 ? s.brevity_penalty * std::exp(logs) : 0;
    return s;
}

std::string bleu_text(const BleuScore& s) {
    const double ratio = s.reference_length ? double(s.length) / double(s.reference_length) : 0;
    return formatted("BLEU = %.2f %.1f/%.1f/%.1f/%.1f (BP = %.3f ratio = %.3f hyp_len = %lld ref_len = %lld)", s.score,
                     s.precisions[0], s.precisions[1], s.precisions[2], s.precisions[3], s.brevity_penalty, ratio,
                     (long long)s.length, (long long)s.reference_length);
}
std::string bleu_signature(bool lowercase) {
    return formatted("nrefs:1|case:%s|eff:no|tok:13a|smooth:exp|version:flatgpt", lowercase ? "lc" : "mixed");
}

double exact_match(const std::vector<std::string>& texts, const std::vector<std::string>& references) {
    CHECK(texts.size() == references.size());
    size_t equal = 0;
    for (size_t i = 0; i < texts.size(); i++) equal += jinja::strip(texts[i]) == jinja::strip(references[i]);
    return texts.empty() ? 0 : double(equal) / double(texts.size());
}
