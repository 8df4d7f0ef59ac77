// decoder.h - generation: forward passes over a key/value cache, then logits or sampled tokens.
#pragma once
#include "model/kv_cache.h"
#include "model/model.h"

// The unfinished end of a forward pass. A prompt needs few rows of logits, so `extend` stops after
// the last block's attention; compute_logits runs the rest of the block and the head on those rows.
struct PendingHead {
    Pass pass;
    std::vector<int> lengths;    // (B): positions of each sequence, padding excluded
    bool last_block = false;     // the last block stopped after its attention
};

// Allocates a cache, which must be destroyed before the model. exit 5: no memory
Status allocate_cache(Model& model, KvCache& cache, int sequences, int positions, const CacheOptions& kind = {});

// Appends S tokens to B of the cache's sequences (empty: to all) and runs them. lengths (B): each
// sequence's tokens, followed by padding; empty: all have S.
// tok (B,S), host; null: the tokens that the last step sampled for the same sequences.
// sample_args: S is 1, and the next tokens are sampled into cache.tok (B). The caller uploads
// sample_args.at before the first step.
PendingHead extend(Model& model, KvCache& cache, const int* tok, int S, const std::vector<int>& sequences = {},
                   const std::vector<int>& lengths = {}, Pages::SumOrder sum_order = Pages::SumOrder::by_length,
                   const SampleArgs* sample_args = nullptr);
// After Gpt::forward: the rows of the whole batch.
PendingHead whole_batch(const Model& model);
// Logits of these rows of (B,S), in ascending order; none given: each sequence's last position. At
// most once per pass, because it overwrites activations.
void compute_logits(Model& model, const PendingHead& head, float* out,
                    const std::vector<int>& rows = {});    // (rows,V), host
