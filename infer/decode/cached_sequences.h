// cached_sequences.h - a cache's sequences, used for one text after another, with shared prefixes.
#pragma once
#include <algorithm>
#include <vector>

#include "model/decoder.h"

// Returns the most tokens of each sequence that one forward pass may compute. running: number of
// sequences in that pass. For caches that evict and for linear attention the result does not depend
// on `running`: evictions and the rounding of states depend on the chunk length, and a text must
// not depend on other texts.
int chunk_length(const Model& model, const KvCache& cache, size_t running);

typedef std::vector<int> Ids;
inline size_t common_length(const Ids& a, const Ids& b) {
    return size_t(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// A sequence keeps its prompt until another text replaces it, so that later prompts can reuse a
// common prefix. Results depend on a sequence's own tokens alone (bit-identical where matrix
// products compute rows independently, as on a CPU): not on other sequences, on chunking, or on the
// prompt for which a prefix was computed.
class CachedSequences {
  public:
    // `shares_decoded`: positions from decode steps may be reused, too, although their bits differ
    // from those of prefill.
    explicit CachedSequences(Model& g, bool shares_decoded = false) : model(g), share_decoded(shares_decoded) {}
    Status open(int count, int positions, CacheOptions kind);    // exit 5: not enough memory
    int count() const { return cache.table.sequences(); }
    int length(int seq) const { return cache.table[seq].length(); }
    // Whether prefixes of any length can be reused. There are four obstacles: the state of linear
    // attention sums up all tokens so far, the contents of a cache that evicts depend on chunking,
    // under bidirectional attention a prefix depends on later tokens, and beside an encoder on the
    // source.
    bool can_share_prefix() const {
        return cache.kind.evicts || model.encoder
                   ? false
                   : model.c.linear == LinearAttention::none && model.c.mask_kind == MaskKind::causal;
    }

    // The cached sequence that shares the longest prefix with `tokens`. The prefix never includes
    // the last of `tokens`, because its logits must be computed.
    struct Prefix {
        int seq = -1;
        size_t length = 0;
    };
    Prefix longest_prefix(const Ids& tokens) const;
    void begin(int seq, const Prefix& from);    // starts sequence with a copy of that prefix
    // Encoder-decoders: encodes the source to which the sequence attends until it gets another.
    void read_source(int seq, const Ids& source);
    void copy(int from, int to);    // copies a whole sequence
    void empty(int seq) { begin(seq, {}); }
    void drop_last(int seq, int n);    // drops the last n tokens

    // Runs each sequence's tokens, in chunks that fit the activations. logits (seqs,V): after the
    // last token of each sequence. is_prompt: attention sums in the order of prefill, otherwise in
    // that of decode (Pages::SumOrder, layers/ops.h).
    void prefill(const std::vector<int>& seqs, const std::vector<Ids>& tokens, float* logits, bool is_prompt = true);
    // Runs a few tokens of each sequence in one pass. logits (all tokens,V), sequence by sequence.
    void step(const std::vector<int>& seqs, const std::vector<Ids>& tokens, float* logits);

    KvCache cache;

  private:
    bool fits(const std::vector<Ids>& tokens) const;
    PendingHead extend(const std::vector<int>& seqs, const std::vector<Ids>& tokens, Pages::SumOrder sum_order);
    Model& model;
    const bool share_decoded;
    std::vector<Ids> prefixes;    // by sequence: cached tokens that can be reused
};
