// reader.h - reads weights in place, a few rows at a time: from files, or from a model's memory.
#pragma once
#include <functional>
#include <vector>

#include "base/common.h"
#include "model/tensors.h"

struct Model;
struct ModelSource;

// A run of rows that is contiguous both in a file's piece and in memory.
struct FileRows {
    int64_t file, memory, count;
};
// Renames a tensor of a file as Family::renames says, then strips the family's longest matching
// prefix. The Hub's own gpt2 has no prefix.
std::string bare_name(std::string name, const Family& family);
std::vector<FileRows> file_rows(const Config& c, const Tensor& t, const Piece& p);

// Reads elements [first, first + n) of a tensor as floats, in the model's order. Threads may call
// it at once. Exit 3, 4.
typedef std::function<Status(const Tensor& t, int64_t first, int64_t n, float* to)> ReadElements;
struct WeightsReader {
    Config c;
    std::vector<Tensor> tensors;
    ReadElements read;
};
// Returns a reader of the weights in files, which are first checked as by checkpoint_weights, or of
// a model that runs on one rank. The source or the model must outlive the reader.
Result<WeightsReader> weights_reader(const ModelSource& m, const Config& c);
// Reads the average of the weights, which a run with --ema or --average-tail keeps. Exit 2: the
// checkpoint has none.
Result<WeightsReader> average_reader(const ModelSource& m, const Config& c);
WeightsReader weights_reader(const Model& g);
