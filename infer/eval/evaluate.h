// evaluate.h - the loss over shards.
#pragma once
#include <functional>

#include "data/bpe.h"
#include "data/loader.h"
#include "model/model.h"
#include "data/objective.h"

struct Evaluation {
    double loss = 0;             // mean, nats per target
    int64_t tokens = 0;          // targets
    double bits_per_byte = 0;    // over the bytes that the target tokens stand for; 0: the tokenizer is unknown
};
// The mean loss over every window of the loader's epoch, in forward passes of B windows of S tokens. Losses are added
// in the loader's order, so the result does not depend on B or the number of ranks, except for the products' rounding.
// watch: the ranks divide the batches, as their loaders do. progress may be empty. A window's number, by which the
// objective draws, is its place in the epoch. each: is given every batch's losses and targets (rows,S); may be empty.
Result<Evaluation> evaluate(Model& model, Loader& loader, const Tokenizer& tokenizer, int B, int S,
                            const std::function<void(int64_t done, int64_t windows)>& progress = {},
                            Coordinator* coordinator = nullptr, const Objective& objective = {},
                            const std::function<void(int rows, const float* losses, const int* targets)>& each = {});
