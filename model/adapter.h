// adapter.h - low-rank adapters (Adapter in config.h): their matrices in a model, and their names.
#pragma once
#include "model/tensors.h"

// A matrix of files that has an adapter of its own.
struct AdaptedMatrix {
    Adapter::Product product;
    int block;              // index in the model; an encoder's come first
    int piece;              // index of the matrix among the product's
    std::string tensor;     // name of the product's tensor: "0.qkvw"
    std::string module;     // name in files without ".weight": "model.layers.0.self_attn.q_proj"
    int64_t first, rows;    // rows of the product's tensor that are this matrix
    int64_t cols;
    int64_t column;    // first row of the adapter's matrix a, and first column of b
    int rank;          // 0: it has no adapter
};
// The matrices of all blocks' products. A block of experts alone has no ffn, and so no fc and fc2.
std::vector<AdaptedMatrix> adapted_matrices(const Config& c);
// Elements that a run with this configuration trains: all, those of the named tensors, or adapters.
int64_t trained_parameters(const Config& c);
// The parts of the adapters' matrices b that are not zero, by the model's blocks and products.
std::vector<std::array<RowBlocks, Adapter::PRODUCTS>> adapter_blocks(const Config& c);
// Names of an adapter's tensors, "0.qkv_a", "0.qkv_b" and "0.qkv_m", from the product's, "0.qkvw".
std::string adapter_tensor(const std::string& product, char which);

// Returns an adapter of one rank for targets: "all", "attention", or names separated by commas. A
// name is one of our products (qkv, proj, fc, fc2) or a matrix's in files, such as q_proj. Exit 2:
// the model has no such matrix; names those that it has.
Result<Adapter> adapter_for(const Config& c, int rank, const std::string& targets);
