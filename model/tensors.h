// tensors.h - one row per parameter tensor, and the buckets that are reduced and saved as units.
#pragma once
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "config.h"

template <class T> struct Block {
    T *ln1w, *ln1b, *qkvw, *qkvb, *qw, *kw, *decayw, *decayb, *projw, *projb, *post1w, *post1b;
    T* relative_keyw;                                      // (2*bias_distance()+1,HS): the key of each distance
    T *global_qw, *global_qb, *global_kvw, *global_kvb;    // Config::global_projections
    // Attention to an encoder's output: (NH*HS,C), (2*NKV*HS,C), (C,NH*HS), norms before and after.
    T *lncw, *lncb, *cross_qw, *cross_qb, *cross_kvw, *cross_kvb, *cross_projw, *cross_projb, *postcw, *postcb;
    T *ln2w, *ln2b, *fcw, *fcb, *fc2w, *fc2b, *post2w, *post2b;
    T *routerw, *expert_upw, *expert_downw, *shared_gatew;    // (E,C), (E,F or 2*F,C), (E,C,F), (1,C)
    T *value_embedw, *value_gatew;                            // (V,NKV*HS), (NKV,value_gate_channels(C))
    // Low-rank adapters (config.h), and their magnitudes.
    T *qkv_a, *proj_a, *fc_a, *fc2_a, *cross_q_a, *cross_kv_a, *cross_proj_a;
    T *qkv_b, *proj_b, *fc_b, *fc2_b, *cross_q_b, *cross_kv_b, *cross_proj_b;
    T *qkv_m, *proj_m, *fc_m, *fc2_m, *cross_q_m, *cross_kv_m, *cross_proj_m;
    T* low_a(Adapter::Product p) const {
        return std::array{qkv_a, proj_a, fc_a, fc2_a, cross_q_a, cross_kv_a, cross_proj_a}[p];
    }
    T* low_b(Adapter::Product p) const {
        return std::array{qkv_b, proj_b, fc_b, fc2_b, cross_q_b, cross_kv_b, cross_proj_b}[p];
    }
    T* magnitude(Adapter::Product p) const {
        return std::array{qkv_m, proj_m, fc_m, fc2_m, cross_q_m, cross_kv_m, cross_proj_m}[p];
    }
};
template <class T> struct Params {
    T *wte, *wpe, *relw, *lnew, *lneb, *headw, *headb;
    T *segw, *embed_projw, *embed_projb;                     // (segments,E), (C,E), (C)
    T *transformw, *transformb, *head_normw, *head_normb;    // (head_width(),C), then (head_width())
    T *poolw, *poolb, *nextw, *nextb;                        // (C,C), (C), (2,C), (2): Config::next_sentence
    T *residw, *x0w, *smearw, *smear_lambda, *backoutw;      // (L), (L), (1,smear_channels(C)), (1), (1)
    std::vector<Block<T>> block;
    T *lnfw, *lnfb;
    std::vector<Params> encoder;    // its own, besides wte, which both have; empty: no encoder
};
// normal: N(0, 0.02); residual: 0.02 / sqrt(2 L); uniform: between -1/sqrt(cols) and 1/sqrt(cols);
// row_norms: the norms of the rows of the product's matrix, once that is there; resid_lambda,
// x0_lambda, backout_lambda: nanochat's factors of the residual stream (from 1.15 to 1.05, layer by
// layer), of the embeddings (from 0.2 to 0.05) and of the middle block (0.2)
enum class Init { zero, one, normal, normal_residual, uniform, row_norms, resid_lambda, x0_lambda, backout_lambda };

// Layout of a tensor in files. straight: as in memory; transposed: (cols, rows); by_head: rows
// (NH,3,HS), so that the query, key and value of a head are adjacent; row: a vector that files have
// as (1, rows), under a name without .bias.
enum class FileLayout { straight, transposed, by_head, row };
// Consecutive rows of our tensor that are a tensor of their own in a file.
struct Piece {
    std::string name;    // "transformer.h.0.attn.c_attn.weight"
    int64_t first, rows;
};
// One row per tensor, in order: wte | wpe | rel | lne | head | block 0 | ... | block L-1 | ln_f.
// An encoder's blocks and its ln_f come before the decoder's, its other tensors behind the head.
// Allocation, initial values, weight decay, files and tests are derived from these rows. A tensor
// that a model lacks has no row and is null in Params. In memory, trained tensors come first and
// frozen ones follow them, each in this order.
struct Tensor {
    std::string name;              // "0.qkvw"
    int64_t offset = 0;            // elements, a multiple of 64
    int64_t rows = 0, cols = 0;    // in memory; a vector's cols: 1
    int64_t file_rows = 0;         // rows in files: V where rows is Vp
    Init init = Init::zero;
    bool decay = false, vector = false;    // vector: shape [rows] in files
    FileLayout layout = FileLayout::straight;
    bool product = false;                    // a matrix product writes its gradient first (ParamStore::into)
    bool lookup = false, gate = false;       // rows belong to tokens; computes gates (layers/shortcuts.cpp)
    bool of_positions = false;               // rows belong to positions or distances
    bool frozen = false, adapter = false;    // has no gradient; belongs to an adapter
    int bucket = 0;
    int experts = 1;                    // copies of `parts`, one after the other
    std::vector<int64_t> parts = {};    // rows of its matrices: query, key, value; gate, up
    std::vector<Piece> pieces = {};
    int64_t size() const { return rows * cols; }
};
// Pointers by name: pointer_to(tensor), or null if the model lacks it. T: Parameter or Gradient.
template <class T> Params<T> bind(const Config& c, int ranks, const std::function<T*(const Tensor&)>& pointer_to);
// Trained tensors that are reduced, partitioned and saved together. The first bucket has the
// embeddings and the head. Each block is a bucket of its own, an encoder's before the decoder's,
// and ln_f belongs to the last one of its blocks.
// Buckets are padded, so that ranks get equal parts of each. A bucket may be empty.
struct Bucket {
    int64_t offset, size;    // elements, multiples of 64 * ranks
};
std::vector<Tensor> config_tensors(const Config& c, int ranks = 1);
std::vector<Bucket> config_buckets(const Config& c, int ranks = 1);
std::vector<int> config_owners(const Config& c, int ranks);    // rank that saves each bucket
int64_t config_parameters(const Config& c);                    // elements in files
int64_t config_used(const Config& c);                          // elements used per token: chosen experts only
// Elements of the flat buffer of trained tensors, with padding, and of the frozen ones behind it.
int64_t config_flat_size(const Config& c, int ranks = 1);
int64_t config_frozen_size(const Config& c, int ranks = 1);
// Exit 2: a pattern of Config::trained names no tensor, or only a part of one.
Status check_trained(const Config& c);
// Whether a pattern with * and ? matches the tensor's name, or the name of one of its pieces.
bool tensor_named(const std::string& pattern, const Tensor& t);
// Exit 2: the pattern of this flag matches some pieces of the tensor, but not all.
Status named_whole(const std::string& pattern, const Tensor& t, const char* flag);
