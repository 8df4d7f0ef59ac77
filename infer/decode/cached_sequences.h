// cached_sequences.h - a cache's places for sequences that come and go: what each holds, and who shares it.
#pragma once
#include <algorithm>
#include <vector>

#include "model/decoder.h"

// The most tokens that each of so many sequences may be fed at once. What a rolling cache gives up before a position
// depends on it, and so does the rounding of a state: there it is the same however many run.
int chunk_length(const Model& model, const KvCache& cache, size_t running);

typedef std::vector<int> Ids;
inline size_t common_length(const Ids& a, const Ids& b) {
    return size_t(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// A slot is a sequence of the cache. It holds its prompt until another one takes its place, so that what begins alike
// finds it. What is computed of a sequence depends on its own tokens alone, to the bit where products of rows do (on
// the CPU): not on the others, on how its prompt was cut, or on whether its beginning was computed for another one.
class CachedSequences {
  public:
    // share_decoded: what was computed step by step counts as beginning, too. It has other bits than a prompt.
    explicit CachedSequences(Model& model, bool share_decoded = false) : model(model), share_decoded(share_decoded) {}
    Status open(int count, int positions, const CacheOptions& kind);    // exit 5: no memory
    int count() const { return cache.table.sequences(); }
    int length(int seq) const { return cache.table[seq].length(); }
    // Pages can be shared from any position back. A state stands for all tokens so far, what a rolling cache gives up
    // depends on where the prompt is cut, and tokens of a prefix see those after them.
    bool can_share_prefix() const {
        return cache.kind.evicts ? false
                                 : model.c.linear == LinearAttention::none && model.c.mask_kind == MaskKind::causal;
    }

    // The slot that holds most of these tokens' beginning, but for the last one, whose logits are asked for.
    struct Prefix {
        int seq = -1;
        size_t length = 0;
    };
    Prefix longest_prefix(const Ids& tokens) const;
    void begin(int seq, const Prefix& from);    // with a copy of it, and nothing else
    void copy(int from, int to);                // all of it
    void empty(int seq) { begin(seq, {}); }
    void drop_last(int seq, int n);    // the last n tokens

    // Each of these slots gets its tokens, in pieces that the activations can hold. logits (which,V): after each one's
    // last token. prompt: as a prompt's (Pages::sum_order), else one by one.
    void prefill(const std::vector<int>& seqs, const std::vector<Ids>& tokens, float* logits, bool is_prompt = true);
    // Few tokens for each, at once. logits (tokens of all,V): after each token, slot by slot.
    void step(const std::vector<int>& seqs, const std::vector<Ids>& tokens, float* logits);

    KvCache cache;

  private:
    bool fits(const std::vector<Ids>& tokens) const;
    PendingHead extend(const std::vector<int>& seqs, const std::vector<Ids>& tokens, Pages::SumOrder sum_order);
    Model& model;
    const bool share_decoded;
    std::vector<Ids> prefixes;    // the beginnings that can be shared
};
