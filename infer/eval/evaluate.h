// evaluate.h - mean loss over shards.
#pragma once
#include <functional>

#include "data/bpe.h"
#include "data/loader.h"
#include "files/json_write.h"
#include "model/model.h"
#include "data/objective.h"

struct Evaluation {
    double loss = 0;             // mean, nats per target
    int64_t tokens = 0;          // targets
    double bits_per_byte = 0;    // over the target tokens' bytes; 0: tokenizer unknown
    // Decisions between two classes, whether B follows A (Config::next_sentence) or whether a token
    // was replaced: their number, the mean loss of the former, the share of right ones, F1 of the
    // second class.
    int64_t decisions = 0;
    double next_loss = 0, accuracy = 0, f1 = 0;
};
// Gathers what all ranks have computed for `samples` samples, on every rank, in the loader's order.
// Ranks take turns: each read every ranks-th batch of B samples. `mine` has, for each sample that
// this rank has read, sample_bytes. Rings of `ring` successive ranks read the same samples: a batch
// then has as many parts, in the order of the ranks.
std::string gather_batches(const std::string& mine, int64_t samples, int B, size_t sample_bytes,
                           Coordinator& coordinator, int ring = 1);
// Adds the decisions' scores, if there are any; `prefix` comes before the name of the loss.
void set_decisions(Json& to, const Evaluation& e, const Config& c, const char* prefix = "");
typedef std::function<void(int64_t done, int64_t windows)> EvaluationProgress;
// Receives the losses and targets (rows,S) of each batch that this rank computes.
typedef std::function<void(int rows, const float* losses, const int* targets)> EachBatch;
// Returns the mean loss over every window of the loader's epoch, in forward passes of B windows of
// S tokens. Losses are summed in the loader's order, so B and the number of ranks change the result
// only through the matrix products' rounding. With a `coordinator`, the ranks split the batches as
// their loaders do. The objective draws its random numbers by a window's index in the epoch.
// `progress` and `each` may be empty; `each` excludes rings (Plan::cp).
Result<Evaluation> evaluate(Model& model, Loader& loader, const Tokenizer& tokenizer, int B, int S,
                            const EvaluationProgress& progress = {}, Coordinator* coordinator = nullptr,
                            const Objective& objective = {}, const EachBatch& each = {});
// Uploads `rows` rows of the loader to the model as a batch; `first` is the number of the first row
// in the epoch. It may overwrite tokens and targets. Returns the batch's targets (rows,S), where S
// may be any length up to the model's.
typedef std::function<std::vector<int>(int64_t first, int rows, std::vector<int>& tokens, std::vector<int>& targets,
                                       const std::vector<std::vector<Text>>& texts)>
    UploadRows;
// evaluate() for batches that `upload` makes. width: tokens of a loader's row.
Result<Evaluation> evaluate(Model& model, Loader& loader, const Tokenizer& tokenizer, int B, int width,
                            const EvaluationProgress& progress, Coordinator* coordinator, const UploadRows& upload,
                            const EachBatch& each = {});
