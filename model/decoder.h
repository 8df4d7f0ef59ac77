// decoder.h - generation: forward passes over a key/value cache, then logits or sampled tokens.
#pragma once
#include "model/kv_cache.h"
#include "model/model.h"

// A forward pass that still lacks logits. A prompt needs few rows of logits, so `extend` stops
// after the last block's attention, and compute_logits runs the rest of the block and the head on
// those rows alone.
struct PendingHead {
    Pass pass;
    std::vector<int> lengths;    // (B): positions per sequence, without padding
    bool last_block = false;     // the last block stopped after its attention
};

// Allocates a cache, which must be destroyed before the model. Exit 5: not enough memory.
Status allocate_cache(Model& model, KvCache& cache, int sequences, int positions, const CacheOptions& kind = {});

// Encoder-decoders: runs the encoder on a source of n tokens, and stores its keys and values for a
// sequence of the cache, which attends to them until it gets another source.
void encode_source(Model& model, KvCache& cache, int seq, const int* tok, int n);

// Appends S tokens to each of B sequences of the cache, and runs the model on them. sequences: the
// indices of these sequences; empty: all sequences of the cache. lengths (B): number of tokens of
// each sequence, without padding; empty: all have S. tok (B,S) lies on the host; null: the tokens
// that the last step sampled for these sequences. sample_args, only if S = 1: samples the next
// tokens into cache.tok (B). The caller uploads sample_args.at before the first step.
PendingHead extend(Model& model, KvCache& cache, const int* tok, int S, const std::vector<int>& sequences = {},
                   const std::vector<int>& lengths = {}, Pages::SumOrder sum_order = Pages::SumOrder::by_length,
                   const SampleArgs* sample_args = nullptr);
// PendingHead with all positions of the batch, for compute_logits after Gpt::forward.
PendingHead whole_batch(const Model& model);
// Computes the logits of the given rows of (B,S), which must ascend. If `rows` is empty, computes
// them for the last position of each sequence. Overwrites activations, so it can be called only
// once per pass.
void compute_logits(Model& model, const PendingHead& head, float* out,
                    const std::vector<int>& rows = {});    // (rows,V), host

// A token whose log-probability is wanted, as the next one after row `row` of (B,S).
struct RowTarget {
    int row, token;
};
struct TokenScore {
    float logprob = 0;
    bool likeliest = false;    // the first of the most probable tokens
};
// Scores tokens, like compute_logits once per pass. `wanted` ascends by row; a row may have several
// tokens, for which its logits are computed once. Only if `ranked` is TokenScore::likeliest filled
// in: a GPU then sends all logits to the host.
void score_tokens(Model& model, const PendingHead& head, const std::vector<RowTarget>& wanted, bool ranked,
                  TokenScore* out);
