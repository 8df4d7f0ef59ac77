// seq2seq.cpp - see seq2seq.h.
#include "data/seq2seq/seq2seq.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/philox.h"
#include "base/pool.h"
#include "data/loader.h"
#include "data/objective.h"

// Random streams that nothing else draws from this seed.
constexpr uint64_t CORRUPTED = 0x75A1ull << 48, KEPT = 0x75A2ull << 48, SPANS = 0xBA27ull << 48,
                   SLOTS = 0xBA28ull << 48, SENTENCES = 0xBA29ull << 48;
constexpr double T5_DENSITY = 0.15, BART_DENSITY = 0.3;
constexpr int MULTIPLE = 8;    // lengths of a cut batch

namespace {
int end_token(const Tokenizer& t) { return t.vocabulary().eos >= 0 ? t.vocabulary().eos : t.end_of_text(); }
void append(std::vector<int>& to, const std::vector<int>& ids) { to.insert(to.end(), ids.begin(), ids.end()); }
}    // namespace

std::vector<int> seq2seq_encode(const Tokenizer& t, std::string_view text, int most, size_t* length, bool special) {
    const int end = t.vocabulary().after.empty() ? end_token(t) : -1;
    EncodedText e = t.encode_text(text, most > 0 ? std::max(1, most - (end >= 0)) : 0, special);
    *length = e.whole + (end >= 0);
    if (end >= 0) e.ids.push_back(end);
    return std::move(e.ids);
}

// ---- sizes --------------------------------------------------------------------------------------

// As many tokens of text as leave a source of source_S tokens: the kept ones, a sentinel for each
// span, and the end (as t5's random_spans_helper).
Status Seq2Seq::size_spans() {
    for (int n = 2;; n++) {
        const int bad = std::clamp(int(std::nearbyint(n * o.density)), 1, n - 1);
        const int parts = std::clamp(int(std::nearbyint(bad / o.mean_span)), 1, std::min(bad, n - bad));
        if (n - bad + parts + 1 > o.source_S) break;
        text = n;
        corrupted = bad;
        spans = parts;
    }
    if (text == 0)
        return fail(Exit::usage, "sources of %d tokens: expected at least 3 for span corruption", o.source_S);
    const int length = corrupted + spans + 1;
    if (o.S > 0 && o.S < length)
        return fail(Exit::usage, "--seq-len %d: sources of %d tokens have targets of %d", o.S, o.source_S, length);
    o.S = length;
    if (size_t(spans) > sentinels.size())
        return fail(
            Exit::usage,
            "sources of %d tokens: expected a tokenizer with %d sentinels <extra_id_0>, <extra_id_1>, ... for the "
            "spans, found %zu: expected shorter sources, or a tokenizer with more",
            o.source_S, spans, sentinels.size());
    return {};
}

Result<Seq2Seq> Seq2Seq::make(const Seq2SeqOptions& options, const Tokenizer& tokenizer) {
    constexpr int MOST = 1 << 24;
    Seq2Seq s;
    s.o = options;
    CHECK(options.source_S > 0 && options.source_S <= MOST && options.S >= 0 && options.S <= MOST);
    if (options.kind == Seq2SeqKind::pairs) {
        CHECK(options.S > 0);
        return s;
    }
    const bool t5 = options.kind == Seq2SeqKind::span_corruption;
    const Vocabulary& v = tokenizer.vocabulary();
    if (s.o.density == 0) s.o.density = t5 ? T5_DENSITY : BART_DENSITY;
    if (!(s.o.density > 0 && s.o.density <= 0.9))
        return fail(Exit::usage, "expected a share of corrupted tokens above 0 and up to 0.9, found %g", s.o.density);
    if (!(s.o.mean_span >= 1 && s.o.mean_span <= 100))
        return fail(Exit::usage, "expected a mean length of spans from 1 to 100, found %g", s.o.mean_span);
    s.before = t5 ? std::vector<int>{} : v.before;
    s.after = v.after;
    if (s.after.empty() && end_token(tokenizer) >= 0) s.after = {end_token(tokenizer)};
    if (s.after.empty() || (t5 && s.after.size() != 1))
        return fail(Exit::usage, "expected a tokenizer with an end token (EOS) behind texts, found %zu tokens",
                    s.after.size());
    if (t5) {
        std::map<std::string, int> names;
        for (const AddedToken& a : v.added) names[v.name(a)] = a.id;
        auto sentinel = [&] { return names.find(formatted("<extra_id_%zu>", s.sentinels.size())); };
        for (auto found = sentinel(); found != names.end(); found = sentinel()) s.sentinels.push_back(found->second);
        TRY(s.size_spans());
        return s;
    }
    s.mask = mask_token(tokenizer);
    if (s.mask < 0) return fail(Exit::usage, "expected a tokenizer with a mask token (<mask>), found none");
    s.text = s.o.S - int(s.before.size() + s.after.size());
    if (s.text < 2)
        return fail(Exit::usage, "--seq-len %d: expected at least %zu for a text of two tokens", s.o.S,
                    s.before.size() + s.after.size() + 2);
    if (s.o.source_S < s.o.S)
        return fail(Exit::usage, "sources of %d tokens: expected at least %d, as a source may be as long as its text",
                    s.o.source_S, s.o.S);
    s.corrupted = std::clamp(int(std::nearbyint(s.text * s.o.density)), 1, s.text);
    return s;
}

int Seq2Seq::width() const { return o.kind == Seq2SeqKind::pairs ? std::max(o.source_S, o.S) : text; }
int Seq2Seq::source_length() const {
    return o.kind == Seq2SeqKind::span_corruption ? text - corrupted + spans + 1 : o.source_S;
}
std::string Seq2Seq::summary() const {
    if (o.kind == Seq2SeqKind::pairs) return "";
    const std::string of_text = formatted("%d of %d tokens", corrupted, text);
    return o.kind == Seq2SeqKind::span_corruption
               ? formatted("span corruption, %s in %d spans; sources of %d tokens, targets of %d", of_text.c_str(),
                           spans, source_length(), o.S)
               : formatted("infilling, %s in spans of about %g%s", of_text.c_str(), o.mean_span,
                           o.sentence_end >= 0 ? ", sentences permuted" : "");
}
int64_t Seq2Seq::targets(int64_t n, int64_t given) const { return o.kind == Seq2SeqKind::pairs ? given : n * o.S; }

// ---- T5 -----------------------------------------------------------------------------------------

namespace {
// Cuts n items into `parts` parts of at least one, all cuts being equally likely.
std::vector<int> random_parts(uint64_t seed, int64_t number, int n, int parts) {
    std::vector<int> lengths = {1};
    for (int i = 0; i + 1 < n; i++)
        if (shuffled(seed, number, n - 1, i) < parts - 1) lengths.push_back(1);
        else lengths.back()++;
    return lengths;
}
}    // namespace

// Kept and corrupted spans alternate, and a kept one is first (t5's random_spans_noise_mask).
SequencePair Seq2Seq::corrupt_spans(int64_t number, const int* tokens) const {
    const std::vector<int> kept = random_parts(o.seed ^ KEPT, number, text - corrupted, spans),
                           bad = random_parts(o.seed ^ CORRUPTED, number, corrupted, spans);
    SequencePair p;
    for (size_t i = 0; i < size_t(spans); i++) {
        p.source.insert(p.source.end(), tokens, tokens + kept[i]);
        tokens += kept[i];
        p.source.push_back(sentinels[i]);
        p.target.push_back(sentinels[i]);
        p.target.insert(p.target.end(), tokens, tokens + bad[i]);
        tokens += bad[i];
    }
    append(p.source, after);
    append(p.target, after);
    return p;
}

// ---- BART ---------------------------------------------------------------------------------------

namespace {
// A number of Poisson's distribution, by inversion.
int poisson(double mean, uint32_t bits) {
    const double u = (bits + 0.5) * 0x1p-32;
    double p = std::exp(-mean), sum = p;
    int k = 0;
    while (u > sum && k < 1000) sum += p *= mean / ++k;
    return k;
}
}    // namespace

// A sentence ends behind the last of adjacent end tokens.
std::vector<int> Seq2Seq::permuted_sentences(int64_t number, const int* tokens) const {
    std::vector<int> begins = {0}, all;
    for (int i = 0; i + 1 < text; i++)
        if (tokens[i] == o.sentence_end && tokens[i + 1] != o.sentence_end) begins.push_back(i + 1);
    const int64_t n = int64_t(begins.size());
    begins.push_back(text);
    for (int64_t i = 0; i < n; i++) {
        const size_t k = size_t(shuffled(o.seed ^ SENTENCES, number, n, i));
        all.insert(all.end(), tokens + begins[k], tokens + begins[k + 1]);
    }
    return all;
}

// Lengths of spans are drawn until they have all tokens to be corrupted; a span of length 0 inserts
// a mask. All orders of spans and kept tokens are equally likely.
SequencePair Seq2Seq::infill(int64_t number, const int* tokens) const {
    const std::vector<int> texts = o.sentence_end >= 0 ? permuted_sentences(number, tokens)
                                                       : std::vector<int>(tokens, tokens + text);
    std::vector<int> lengths;
    for (int left = corrupted, draw = 0; left > 0; draw++) {
        const uint32_t bits = philox(o.seed, SPANS ^ uint64_t(number), uint64_t(draw)).v[0];
        int length = std::min(left, poisson(o.mean_span, bits));
        // With at most as many masks as corrupted tokens, no source is longer than its text.
        if (length == 0 && int(lengths.size()) + left >= corrupted) length = 1;
        lengths.push_back(length);
        left -= length;
    }
    SequencePair p = {before, before};
    const int64_t slots = text - corrupted + int64_t(lengths.size());
    size_t at = 0, span = 0;
    for (int64_t i = 0; i < slots; i++) {
        if (shuffled(o.seed ^ SLOTS, number, slots, i) < int64_t(lengths.size())) {
            p.source.push_back(mask);
            at += size_t(lengths[span++]);
        } else {
            p.source.push_back(texts[at++]);
        }
    }
    append(p.source, after);
    p.target.insert(p.target.end(), tokens, tokens + text);
    append(p.target, after);
    return p;
}

// ---- batches ------------------------------------------------------------------------------------

SequencePair Seq2Seq::pair(int64_t number, const int* tokens, const int* targets,
                           const std::vector<Text>& texts) const {
    if (o.kind == Seq2SeqKind::span_corruption) return corrupt_spans(number, tokens);
    if (o.kind == Seq2SeqKind::infilling) return infill(number, tokens);
    const int n = texts.size() > 1 ? texts[1].from : width();    // the source's padding begins there
    return {{tokens, tokens + n}, {targets, std::find(targets, targets + width(), -1)}};
}

Seq2SeqBatch Seq2Seq::batch(int64_t first, const int* tokens, const int* targets,
                            const std::vector<std::vector<Text>>& texts, int B, bool cut) const {
    std::vector<SequencePair> pairs(static_cast<size_t>(B));
    each_chunk(B, [&](int64_t b, int) {
        const int64_t row = b * width();
        pairs[size_t(b)] = pair(first + b, tokens + row, targets + row, texts[size_t(b)]);
    });
    Seq2SeqBatch all;
    all.B = B, all.S = cut ? 1 : o.S, all.source_S = cut ? 1 : o.source_S;
    for (const SequencePair& p : pairs) {
        all.source_S = std::max(all.source_S, int(p.source.size()));
        all.S = std::max(all.S, int(p.target.size()));
    }
    CHECK(all.source_S <= o.source_S && all.S <= o.S, "%d and %d tokens", all.source_S, all.S);
    all.source_S = std::min(o.source_S, int(round_up(all.source_S, MULTIPLE)));
    all.S = std::min(o.S, int(round_up(all.S, MULTIPLE)));
    all.source.assign(size_t(B) * size_t(all.source_S), o.pad);
    all.tokens.assign(size_t(B) * size_t(all.S), o.pad);
    all.targets.assign(all.tokens.size(), -1);
    for (int b = 0; b < B; b++) {
        const SequencePair& p = pairs[size_t(b)];
        all.source_lengths.push_back(int(p.source.size()));
        std::copy(p.source.begin(), p.source.end(), all.source.begin() + int64_t(b) * all.source_S);
        const int64_t row = int64_t(b) * all.S;
        all.tokens[size_t(row)] = o.start;
        std::copy(p.target.begin(), p.target.end() - 1, all.tokens.begin() + row + 1);
        std::copy(p.target.begin(), p.target.end(), all.targets.begin() + row);
    }
    return all;
}
