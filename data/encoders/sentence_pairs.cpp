// sentence_pairs.cpp - see sentence_pairs.h.
#include "data/encoders/sentence_pairs.h"

#include <algorithm>

#include "base/console.h"
#include "base/philox.h"
#include "data/objective.h"

Result<PairTemplate> pair_template(const Tokenizer& tokenizer, double fraction, uint64_t seed) {
    const Vocabulary& v = tokenizer.vocabulary();
    PairTemplate t;
    std::vector<int>* to = &t.before;
    for (const TemplatePart& part : v.pair) {
        if (part.id == TemplatePart::FIRST) to = &t.between;
        else if (part.id == TemplatePart::SECOND) to = &t.after;
        else to->push_back(part.id);
        t.second += to == &t.between && part.id >= 0 && part.segment == 0;
    }
    t.begin = document_begin(tokenizer);
    t.skip = std::max(1, int(v.before.size()));
    t.pad = std::max(0, v.pad);
    t.fraction = fraction;
    t.seed = seed;
    if (t.before.empty() || t.between.empty() || t.begin < 0)
        return fail(Exit::usage,
                    "next-sentence prediction: expected a tokenizer that writes a pair as [CLS] A [SEP] B [SEP], as "
                    "BERT's does; give --tokenizer such a one");
    return t;
}

namespace {
class SentencePairs : public SampleSource {
  public:
    std::vector<Shard> files;
    std::vector<int64_t> before = {0};           // tokens before shard i; last entry: all tokens
    std::vector<int64_t> starts, lengths;        // the documents' texts
    std::vector<int64_t> first_samples = {0};    // documents' first samples; last entry: all samples
    PairTemplate around;
    int S = 0, vocab = 0;

    int room() const { return S - around.size(); }    // tokens of both texts
    void add(int64_t start, int64_t length) {
        const int64_t pieces = length / room() + (length % room() >= 2);
        if (pieces == 0) return;
        starts.push_back(start), lengths.push_back(length);
        first_samples.push_back(first_samples.back() + pieces);
    }

    // The texts of a sample: first tokens and lengths of A and B.
    struct Drawn {
        int64_t a, b;
        int a_tokens, b_tokens;
        bool random;
    };
    Drawn draw(int64_t sample) const {
        constexpr uint64_t STREAM = 0x4E53ull << 48;    // random stream of its own
        const Philox4 r = philox(around.seed, STREAM, uint64_t(sample));
        const auto document = std::ranges::upper_bound(first_samples, sample) - first_samples.begin() - 1;
        const int64_t at = (sample - first_samples[size_t(document)]) * room();
        const int n = int(std::min<int64_t>(room(), lengths[size_t(document)] - at));
        const int64_t a = starts[size_t(document)] + at;
        const int a_tokens = 1 + int(uint64_t(r.v[0]) * uint64_t(n - 1) >> 32), rest = n - a_tokens;
        if (r.v[1] >> 31 == 0) return {a, a + a_tokens, a_tokens, rest, false};
        const Philox4 more = philox(around.seed, STREAM | 1, uint64_t(sample));
        const auto others = uint64_t(starts.size() - 1);
        size_t other = size_t((uint64_t(r.v[2]) << 32 | r.v[3]) % others);
        other += other >= size_t(document);
        const int64_t last = std::max<int64_t>(0, lengths[other] - rest);    // offset of B, at most
        const int64_t from = int64_t((uint64_t(more.v[0]) << 32 | more.v[1]) % uint64_t(last + 1));
        return {a, starts[other] + from, a_tokens, int(std::min<int64_t>(rest, lengths[other])), true};
    }

    int64_t samples() const override { return first_samples.back(); }
    int64_t tokens() const override { return before.back(); }
    const std::vector<Shard>& shards() const override { return files; }
    int64_t targets(int64_t sample) const override {
        const Drawn d = draw(sample);
        return masked_tokens(around.fraction, d.a_tokens + d.b_tokens);
    }
    std::string text() const override {
        return formatted("%s tokens in %s, %s from %s", human_count(double(tokens())).c_str(),
                         counted(int64_t(files.size()), "shard").c_str(), counted(samples(), "pair").c_str(),
                         counted(int64_t(starts.size()), "document").c_str());
    }
    uint64_t fingerprint() const override {
        const int64_t rule[] = {around.begin, around.skip, around.size(), int64_t(around.seed), samples()};
        return fnv1a_words(shards_fingerprint(files, S), rule, sizeof rule);
    }
    Status read_text(int64_t first, int n, int* to) const {
        const size_t k = size_t(std::ranges::upper_bound(before, first) - before.begin() - 1);
        return shard_read(files[k], first - before[k], n, vocab, to);
    }
    Status read(int64_t sample, int* tokens, int* targets, std::vector<Text>* texts) const override {
        const Drawn d = draw(sample);
        const int a = int(around.before.size()), b = a + d.a_tokens + int(around.between.size()), end = b + d.b_tokens;
        std::fill_n(tokens, S, around.pad);
        std::ranges::copy(around.before, tokens);
        TRY(read_text(d.a, d.a_tokens, tokens + a));
        std::ranges::copy(around.between, tokens + a + d.a_tokens);
        TRY(read_text(d.b, d.b_tokens, tokens + b));
        std::ranges::copy(around.after, tokens + end);
        std::fill_n(targets, S, -1);
        std::copy_n(tokens + a, d.a_tokens, targets + a);
        std::copy_n(tokens + b, d.b_tokens, targets + b);
        const int used = end + int(around.after.size());
        *texts = {{.second = a + d.a_tokens + around.second, .label = int(d.random)}};
        if (used < S) texts->push_back({used});
        return {};
    }
};
}    // namespace

Result<std::shared_ptr<const SampleSource>> sentence_pairs(std::vector<Shard> shards, const PairTemplate& around, int S,
                                                           int vocab) {
    auto pairs = std::make_shared<SentencePairs>();
    pairs->around = around;
    pairs->S = S;
    pairs->vocab = vocab;
    if (pairs->room() < 2)
        return fail(Exit::usage,
                    "--seq-len %d: expected at least %d, for a pair of texts and the tokenizer's own tokens", S,
                    around.size() + 2);
    for (const Shard& shard : shards) {
        const int64_t base = pairs->before.back();
        int64_t open = -1;    // start of the document that has not ended
        auto end = [&](int64_t at) {
            if (open >= 0) pairs->add(base + open + around.skip, std::max<int64_t>(0, at - open - around.skip));
            open = at;
        };
        TRY(shard_find(shard, around.begin, end));
        end(shard.tokens);
        pairs->before.push_back(base + shard.tokens);
    }
    if (pairs->starts.size() < 2)
        return fail(Exit::input,
                    "%s: next-sentence prediction: expected two documents at least (token %d begins one), of two "
                    "tokens each, found %zu",
                    shards[0].path.c_str(), around.begin, pairs->starts.size());
    pairs->files = std::move(shards);
    return std::shared_ptr<const SampleSource>(pairs);
}
