// tensors.h - one row per tensor of the parameters, and the buckets they are reduced, sharded and saved in.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "config.h"

template <class T> struct Block {
    T *ln1w, *ln1b, *qkvw, *qkvb, *qw, *kw, *decayw, *decayb, *projw, *projb, *post1w, *post1b;
    T *ln2w, *ln2b, *fcw, *fcb, *fc2w, *fc2b, *post2w, *post2b;
    T *routerw, *expert_upw, *expert_downw, *shared_gatew;    // (E,C), (E,F or 2*F,C), (E,C,F) of experts, (1,C)
};
template <class T> struct Params {
    T *wte, *wpe, *relw, *lnew, *lneb, *headw, *headb;
    std::vector<Block<T>> block;
    T *lnfw, *lnfb;
};
enum class Init { zero, one, normal, normal_residual };    // normal: N(0, 0.02); residual: 0.02 / sqrt(2 L)

// How a file holds a tensor: as we do; as (cols, rows); with each head's query, key and value rows together: (NH,3,HS).
enum class FileLayout { straight, transposed, by_head };
// Rows of a tensor that form one tensor in a file, with its name there.
struct Piece {
    std::string name;    // "transformer.h.0.attn.c_attn.weight"
    int64_t first, rows;
};
// One row per tensor, in memory order: wte | wpe | rel | lne | head | block 0 | ... | block L-1 | ln_f. The rows drive
// allocation, init, decay, the content of files, and tests. A tensor that a model lacks has no row, and is null in
// Params.
struct Tensor {
    std::string name;              // "0.qkvw"
    int64_t offset = 0;            // in elements, a multiple of 64
    int64_t rows = 0, cols = 0;    // in memory; a vector has cols = 1
    int64_t file_rows = 0;         // rows that files hold: V where memory has Vp
    Init init = Init::zero;
    bool decay = false, vector = false;    // vector: its shape in files is [rows], not [rows, cols]
    FileLayout layout = FileLayout::straight;
    bool product = false;    // its gradient comes from products, or begins with one: ParamStore::into
    int bucket = 0;          // the bucket that it lies in
    int experts = 1;         // so many matrices, one after the other
    std::vector<Piece> pieces = {};
    int64_t size() const { return rows * cols; }
};
// Named pointers to the tensors, each pointer_to(tensor); null for one of size 0.    T: Parameter or Gradient
template <class T> Params<T> bind(const Config& c, int ranks, const std::function<T*(const Tensor&)>& pointer_to);
// Tensors that are reduced, sharded and saved together, in memory order: the embeddings and the head;
// each block, the last one with ln_f. A bucket divides into equal parts for the ranks; with one rank it has no padding.
struct Bucket {
    int64_t offset, size;    // elements, multiples of 64 * ranks
};
std::vector<Tensor> config_tensors(const Config& c, int ranks = 1);
std::vector<Bucket> config_buckets(const Config& c, int ranks = 1);
std::vector<int> config_owners(const Config& c, int ranks);    // the rank that saves each bucket
int64_t config_parameters(const Config& c);                    // numbers that a file holds
int64_t config_used(const Config& c);    // those that one token meets: of experts, the ones it is given to
int64_t config_flat_size(const Config& c, int ranks = 1);    // elements of the flat buffer, padding included
