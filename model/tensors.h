// tensors.h - one row per tensor of the parameters, and the buckets they are reduced, sharded and saved in.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "config.h"

template <class T> struct Block {
    T *ln1w, *ln1b, *qkvw, *qkvb, *projw, *projb, *ln2w, *ln2b, *fcw, *fcb, *fc2w, *fc2b;
};
template <class T> struct Params {
    T *wte, *wpe;
    std::vector<Block<T>> block;
    T *lnfw, *lnfb;
};
enum class Init { zero, one, normal, normal_residual };    // normal: N(0, 0.02); residual: 0.02 / sqrt(2 L)

// One row per tensor, in memory order: wte | wpe | block 0 | ... | block L-1 | ln_f. The rows drive allocation, init,
// decay, checkpoint names and tests.
struct Tensor {
    std::string name;      // Hugging Face's: "transformer.h.0.attn.c_attn.weight"
    int64_t offset;        // in elements, a multiple of 64
    int64_t rows, cols;    // in memory; a vector has rows = 1
    int64_t file_rows;     // rows that a file holds: V where memory has Vp
    Init init;
    bool decay;
    bool transposed;    // files hold (cols, rows): GPT-2's Conv1D weights are (in, out), ours are (out, in)
    int bucket;         // that it lies in
    bool vector;        // files hold shape [cols], not [rows, cols]
    int64_t size() const { return rows * cols; }
};
// Named pointers to them: place(tensor); null to one of size 0.    T: Parameter or Gradient
template <class T> Params<T> bind(const Config& c, int ranks, const std::function<T*(const Tensor&)>& place);
// What is reduced, sharded and saved together, in memory order: the embeddings; each block, the last one with ln_f. A
// bucket divides into one part for each rank; with one rank the padding for that is none.
struct Bucket {
    int64_t offset, size;    // elements, multiples of 64 * ranks
};
std::vector<Tensor> config_tensors(const Config& c, int ranks = 1);
std::vector<Bucket> config_buckets(const Config& c, int ranks = 1);
std::vector<int> config_owners(const Config& c, int ranks);         // the rank that saves each bucket
int64_t config_parameters(const Config& c);                         // numbers that a file holds
int64_t config_flat_size(const Config& c, int ranks = 1);           // elements of the flat buffer, padding included
// FLOPs of one token's forward and backward: 6 per parameter + 12*L*C*S for attention, counted full (Chowdhery et al.
// 2022, appendix B; llm.c counts 6*L*C*S).
double config_flops_per_token(const Config& c, int S);
