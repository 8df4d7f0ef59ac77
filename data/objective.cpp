#include "objective.h"
#include "base/philox.h"

#include <algorithm>
#include <bit>

#include "data/loader.h"

// Random streams that nothing else draws from this seed.
constexpr uint64_t PREFIX = 0x9FE1ull << 48, MASK = 0x3A5Cull << 48, REPLACE = 0x5E1Full << 48;

int document_begin(const Tokenizer& tokenizer) {
    const std::vector<int>& before = tokenizer.vocabulary().before;
    return before.empty() ? tokenizer.end_of_text() : before[0];
}

int mask_token(const Tokenizer& tokenizer) {
    for (const AddedToken& added : tokenizer.vocabulary().added)
        for (const char* name : {"<mask>", "[MASK]", "<|mask|>"})
            if (tokenizer.vocabulary().name(added) == name) return added.id;
    return -1;
}

Result<Objective> objective_of(const Config& c, const Tokenizer& tokenizer, bool documents, double fraction,
                               uint64_t seed) {
    const int ids = tokenizer.vocab_size();
    const Objective o = {.mask_kind = c.mask_kind,
                         .begin = documents ? document_begin(tokenizer) : -1,
                         .mask = c.mask < 0 && c.mask_kind == MaskKind::all ? mask_token(tokenizer) : c.mask,
                         .choices = ids ? std::min(ids, c.V) : c.V,
                         .fraction = fraction,
                         .seed = seed,
                         .paired = c.predicts_next(),
                         .replaces = c.head == HeadKind::replaced};
    if (documents && o.begin < 0)
        return fail(Exit::usage,
                    "--documents: the tokenizer has no token that parts documents; give --tokenizer one "
                    "that has <|endoftext|>, EOS or BOS");
    for (auto [value, name] : {std::pair{c.stride, "--stride"}, {c.global_tokens, "--global-tokens"}})
        if (value && documents)
            return fail(Exit::usage,
                        "%s %d, --documents: what is seen beyond the window counts from the sequence's "
                        "start; expected one of them",
                        name, value);
    if (o.mask_kind == MaskKind::all && c.head == HeadKind::tokens && o.mask < 0)
        return fail(Exit::usage,
                    "the model learns masked tokens, but no token masks: expected a tokenizer with [MASK] or <mask>; "
                    "give --tokenizer such a one");
    if (o.mask_kind != MaskKind::all && fraction != Objective{}.fraction)
        return fail(Exit::usage, "--mask-fraction needs --objective mlm, mlm-nsp or replaced-tokens");
    if (documents && o.paired)
        return fail(Exit::usage,
                    "--documents: the model learns from pairs of texts (mlm-nsp), one in each sequence; leave it out");
    if (documents && o.mask_kind == MaskKind::prefix)
        return fail(Exit::usage,
                    "--documents, --objective prefix: a sequence has one prefix, whatever documents lie "
                    "in it; expected one of them");
    return o;
}

int masked_tokens(double fraction, int n) { return std::clamp(int(std::lround(fraction * n)), 1, n); }
int Objective::prefix(int64_t number, int S) const {
    const uint64_t bits = philox(seed, PREFIX, uint64_t(number)).v[0];
    return S < 2 ? 1 : 1 + int(bits * uint64_t(S - 1) >> 32);
}

int64_t Objective::targets(int64_t first, int64_t n, int S, int64_t given) const {
    if (mask_kind == MaskKind::causal || labelled || paired) return given;
    if (replaces) return n * S;
    if (mask_kind == MaskKind::all) return n * masked_tokens(fraction, S);
    int64_t all = 0;
    for (int64_t i = 0; i < n; i++) all += S - prefix(first + i, S) + 1;    // the prefix's last position has a target
    return all;
}

void Objective::mask_out(int64_t number, int* tokens, int* targets, int S) const {
    std::vector<int> at;    // positions that may be masked
    for (int s = 0; s < S; s++)
        if (!paired || targets[s] >= 0) at.push_back(s);
    std::fill_n(targets, S, -1);
    for (int i = 0, n = masked_tokens(fraction, int(at.size())); i < n; i++) {
        const int s = at[size_t(shuffled(seed ^ MASK, number, int64_t(at.size()), i))];
        const Philox4 r = philox(seed, MASK ^ uint64_t(number), uint64_t(s));
        targets[s] = tokens[s];
        const int kind = int(uint64_t(r.v[0]) * 10 >> 32);
        if (kind > 0) tokens[s] = kind == 1 ? int(uint64_t(r.v[1]) * uint64_t(choices) >> 32) : mask;
    }
}

void Objective::replace(int64_t number, int* tokens, int* targets, int S) const {
    std::fill_n(targets, S, std::bit_cast<int>(0.0f));
    for (int i = 0, n = masked_tokens(fraction, S); i < n; i++) {
        const int s = int(shuffled(seed ^ REPLACE, number, S, i));
        const Philox4 r = philox(seed, REPLACE ^ uint64_t(number), uint64_t(s));
        const uint64_t k = uint64_t(r.v[0]) * uint64_t(drawn ? int64_t(drawn->size()) : choices) >> 32;
        const int token = drawn ? (*drawn)[k] : int(k);
        targets[s] = std::bit_cast<int>(float(token != tokens[s]));
        tokens[s] = token;
    }
}

void Objective::apply(int64_t number, int* tokens, int* targets, int n, int S, Spans* spans,
                      std::vector<Text> texts) const {
    if (is_plain_causal()) return;
    for (int s = 1; s < n && begin >= 0; s++)
        if (tokens[s] == begin) texts.push_back({s});
    if (mask_kind == MaskKind::prefix) {
        CHECK(begin < 0, "prefixes of documents");
        texts[0].prefix = prefix(number, n);
        std::fill_n(targets, texts[0].prefix - 1, -1);
    }
    if (replaces) replace(number, tokens, targets, n);
    else if (mask_kind == MaskKind::all && !labelled) mask_out(number, tokens, targets, n);
    if (n < S) texts.push_back({n});
    spans->add(texts, S, mask_kind);
}
