// pairs.h - an encoder-decoder's scores on pairs of a source and a target: loss, BLEU, exact match.
#pragma once
#include "data/seq2seq/pairs_file.h"
#include "model/model.h"

// Mean loss of the targets of `most` pairs, evenly spaced (all, if there are fewer). Batches have
// similar lengths.
struct PairsLoss {
    double loss = 0;
    int64_t targets = 0;
};
PairsLoss pairs_loss(Model& model, const PairsFile& file, const Seq2Seq& seq2seq, int64_t most);
// The batch of the pairs with these numbers, in any order. cut: as in Seq2Seq::batch.
Seq2SeqBatch pairs_batch(const PairsFile& file, const Seq2Seq& seq2seq, const std::vector<int64_t>& numbers, bool cut);
void upload_batch(Model& model, const Seq2SeqBatch& batch);
