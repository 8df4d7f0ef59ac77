// pairs.h - batches of pairs of a source and a target for an encoder-decoder.
#pragma once
#include "data/seq2seq/pairs_file.h"
#include "infer/eval/evaluate.h"

void upload_batch(Model& model, const Seq2SeqBatch& batch);
// Uploads rows of a loader as the pairs that seq2seq makes of them.
UploadRows upload_pairs(Model& model, const Seq2Seq& seq2seq);
