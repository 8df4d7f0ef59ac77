// cached_sequences.h - a cache's sequences, reused for one text after another; shared prefixes.
#pragma once
#include <algorithm>
#include <vector>

#include "model/decoder.h"

// Maximum tokens per sequence of one forward pass. Rolling caches and recurrent layers get a length
// that does not depend on `running`: which positions are evicted, or how a state rounds, depends on
// it.
int chunk_length(const Model& model, const KvCache& cache, size_t running);

typedef std::vector<int> Ids;
inline size_t common_length(const Ids& a, const Ids& b) {
    return size_t(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// A sequence keeps its prompt until another text replaces it, so later prompts can reuse a common
// prefix. Results depend only on a sequence's own tokens, to the bit where matrix products compute
// rows independently (on a CPU): not on the other sequences, on chunking, or on whose prompt the
// prefix was computed for.
class CachedSequences {
  public:
    // share_decoded: positions from decode steps may be reused too. Their bits differ from
    // prefill's.
    explicit CachedSequences(Model& model, bool share_decoded = false) : model(model), share_decoded(share_decoded) {}
    Status open(int count, int positions, const CacheOptions& kind);    // exit 5: no memory
    int count() const { return cache.table.sequences(); }
    int length(int seq) const { return cache.table[seq].length(); }
    // Pages can be shared up to any position. Recurrent states summarize all tokens so far, a
    // rolling cache's evictions depend on chunking, and with bidirectional prompts a prefix sees
    // later tokens.
    bool can_share_prefix() const {
        return cache.kind.evicts ? false
                                 : model.c.linear == LinearAttention::none && model.c.mask_kind == MaskKind::causal;
    }

    // The cached sequence with the longest common prefix, always without the last token, whose
    // logits are needed.
    struct Prefix {
        int seq = -1;
        size_t length = 0;
    };
    Prefix longest_prefix(const Ids& tokens) const;
    void begin(int seq, const Prefix& from);    // starts with a copy of that prefix
    void copy(int from, int to);                // the whole sequence
    void empty(int seq) { begin(seq, {}); }
    void drop_last(int seq, int n);    // n: tokens

    // Feeds each sequence its tokens, in chunks that fit the activations. logits (seqs,V): after
    // each one's last token. is_prompt: prefill's sum order (Pages::SumOrder), else decode's.
    void prefill(const std::vector<int>& seqs, const std::vector<Ids>& tokens, float* logits, bool is_prompt = true);
    // Feeds each sequence a few tokens in one pass. logits (all tokens,V), sequence by sequence.
    void step(const std::vector<int>& seqs, const std::vector<Ids>& tokens, float* logits);

    KvCache cache;

  private:
    bool fits(const std::vector<Ids>& tokens) const;
    PendingHead extend(const std::vector<int>& seqs, const std::vector<Ids>& tokens, Pages::SumOrder sum_order);
    Model& model;
    const bool share_decoded;
    std::vector<Ids> prefixes;    // reusable tokens of each sequence
};
