// reader.h - weights that are read where they lie, a few rows at a time: in files, or in a model's memory.
#pragma once
#include <functional>
#include <vector>

#include "base/common.h"
#include "model/tensors.h"

struct Model;
struct ModelSource;

// Numbers [first, first + n) of a tensor, in the model's order and as floats. Threads may read at once. Exit 3, 4.
typedef std::function<Status(const Tensor& t, int64_t first, int64_t n, float* to)> ReadElements;
struct WeightsReader {
    Config c;
    std::vector<Tensor> tensors;
    ReadElements read;
};
// Files are checked as checkpoint_weights checks them. What is read, a source or a model of one rank, must outlive it.
Result<WeightsReader> weights_reader(const ModelSource& m, const Config& c);
WeightsReader weights_reader(const Model& g);
