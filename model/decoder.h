// decoder.h - generation: tokens go through the model over a cache of keys and values; then logits, or drawn tokens.
#pragma once
#include "model/kv_cache.h"
#include "model/model.h"

// A forward pass as far as `extend` ran it, and what the head still has to do for the rows whose logits are wanted.
// Those of a prompt are few: the last block after its attention, the final norm and the head compute only them.
struct PendingHead {
    Pass pass;
    std::vector<int> lengths;    // (B): how many of the S positions each sequence has
    bool last_block = false;     // the last block has stopped after its attention
};

// A cache for a model's sequences, which must end before the model. exit 5: no memory
Status allocate_cache(Model& model, KvCache& cache, int sequences, int positions, const CacheOptions& kind = {});

// S more tokens for B of the cache's sequences, or all; lengths (B): how many of the S each has, the rest is padding;
// none: all S.     tok (B,S), host; null: those that the last step has drawn for the same sequences
// drawing: S is 1, and cache.tok (B) gets the next tokens. The caller uploads sample_args.at before the first step.
PendingHead extend(Model& model, KvCache& cache, const int* tok, int S, const std::vector<int>& sequences = {},
                   const std::vector<int>& lengths = {}, Pages::SumOrder sum_order = Pages::SumOrder::by_length,
                   const SampleArgs* sample_args = nullptr);
// After Gpt::forward: the batch's rows.
PendingHead whole_batch(const Model& model);
// Logits of these rows of (B,S), which rise; none: each sequence's last position. Once for each pass.
void compute_logits(Model& model, const PendingHead& head, float* out,
                    const std::vector<int>& rows = {});    // (rows,V), host
