// gpt.h - the model: its configuration, one row per tensor, and the passes over Ops<T>. Knows no device and no file.
#pragma once
#include <vector>

#include "layers/layers.h"

// GPT-2: pre-LayerNorm, learned positions, GELU ffn, biases, tied head. Each further kind (RMSNorm, RoPE, SwiGLU,
// grouped-query heads, windows) is one more field here, its rows in gpt.cpp and one branch in forward and backward.
struct Config {
    int V = 50257;    // vocabulary
    int T = 1024;     // context: positions that wpe has
    int L = 12;       // blocks
    int NH = 12;      // heads
    int C = 768;      // channels; a multiple of NH
    int F = 3072;     // ffn width
    float norm_eps = 1e-5f;

    // Rows of wte in memory, the last ones zero: GEMMs like multiples of 128, a small model does not like the waste.
    int Vp() const { return int(round_up(V, V < 1024 ? 16 : 128)); }
    Heads heads() const { return {NH, NH, C / NH}; }
    bool operator==(const Config&) const = default;
};
Status config_check(const Config& c);                                    // exit 2: which size is impossible, and why
Result<Config> config_named(const std::string& name);                   // gpt2, gpt2-medium, gpt2-large, gpt2-xl, dN

// ---- parameters ----------------------------------------------------------------------------------------------------

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
    std::string name;          // Hugging Face's: "transformer.h.0.attn.c_attn.weight"
    int64_t offset;            // in elements, a multiple of 64
    int64_t rows, cols;        // in memory; a vector has rows = 1
    int64_t file_rows;         // rows that a file holds: V where memory has Vp
    Init init;
    bool decay;
    bool transposed;           // files hold (cols, rows): GPT-2's Conv1D weights are (in, out), ours are (out, in)
    int layer;                 // -1: not in a block
    bool vector;               // files hold shape [cols], not [rows, cols]
    int64_t size() const { return rows * cols; }
};
std::vector<Tensor> config_tensors(const Config& c);
int64_t config_parameters(const Config& c);         // numbers that a file holds
int64_t config_flat_size(const Config& c);          // elements of the flat buffer, padding included
// FLOPs of one token's forward and backward: 6 per parameter + 12*L*C*S for attention, counted full (Chowdhery et al.
// 2022, appendix B; llm.c counts 6*L*C*S).
double config_flops_per_token(const Config& c, int S);

// ---- the model -----------------------------------------------------------------------------------------------------

enum class Use { train, infer };    // infer: no gradients, no optimizer state, one block's activations

template <class T> struct Activations {
    T *x, *ln1, *qkv, *atty, *x2, *ln2, *fch, *fcg;    // see activation_rows in gpt.cpp for the shapes
    float *mean1, *rstd1, *mean2, *rstd2, *lse;
};

// Keys and values of generation: (L,B,NH,maxT,HS) each.
template <class T> struct Cache {
    T *k = nullptr, *v = nullptr;
    int B = 0, maxT = 0, pos = 0;    // pos: positions already held
};

template <class T> struct Gpt {
    Config c;
    const Ops<T>* op = nullptr;
    Use use = Use::infer;
    int B = 0, S = 0;                        // the largest batch that the activations hold
    std::vector<Tensor> tensors;
    T *params = nullptr, *grads = nullptr;   // flat, config_flat_size elements
    float *m = nullptr, *v = nullptr;        // AdamW moments, flat like params
    int64_t flat = 0;                        // elements of each of the four
    Params<T> w, dw;
    std::vector<Activations<T>> a;           // L of them for training, one for inference
    T *x_last, *lnf;                         // (N,C): the last block's output; normed
    float *mean_f, *rstd_f, *loss;           // (N)
    T *dx, *dt, *dwide, *logits;             // (N,C) (N,C) (N,max(F,3C)) (head_rows,Vp)
    int *tok, *target;                       // (N) on the device
    double* norm;                            // one partial sum of squares per tensor
    int head_rows = 0;                       // rows of logits that exist at a time
    std::vector<float> host_loss;            // (N), and g.norm on the host: a step allocates nothing
    std::vector<double> host_norm;
    void* arena = nullptr;
    int64_t arena_bytes = 0;
};

struct MemoryRow { const char* purpose; int64_t bytes; };
// What gpt_allocate will take, by purpose, the backend's scratch included. element: sizeof(T).
template <class T> std::vector<MemoryRow> gpt_memory(const Config& c, const Ops<T>& op, Use use, int B, int S);

// exit 2: impossible sizes; 5: no memory.
template <class T> Status gpt_allocate(Gpt<T>& g, const Config& c, const Ops<T>& op, Use use, int B, int S);
template <class T> void gpt_free(Gpt<T>& g);
template <class T> void gpt_init(Gpt<T>& g, uint64_t seed);

// Up to the final norm. With a cache: the B*S tokens continue it at cache->pos, which is moved on.   tok (B,S), host
template <class T> void gpt_forward(Gpt<T>& g, const int* tok, int B, int S, Cache<T>* cache = nullptr);
// Logits of each sequence's last position, after gpt_forward.                                 out (B,V), host, float
template <class T> void gpt_logits(Gpt<T>& g, float* out, int B, int S);
// Mean loss over the B*S targets, in double and in order; with train, also the head's gradients times scale (1 over
// the number of targets in the whole batch), chunk by chunk: (N,V) logits never exist.       losses (N) or null, host
template <class T>
double gpt_loss(Gpt<T>& g, const int* target, int B, int S, bool train, float scale, float* losses = nullptr);
// Gradients of everything, after gpt_forward and gpt_loss(train). Adds to grads.
template <class T> void gpt_backward(Gpt<T>& g, int B, int S);
template <class T> void gpt_zero_grad(Gpt<T>& g);
// Global gradient norm. per_tensor, if given, gets one norm per row of g.tensors.
template <class T> double gpt_grad_norm(Gpt<T>& g, std::vector<double>* per_tensor = nullptr);
template <class T> void gpt_update(Gpt<T>& g, AdamW a);    // decay only where the row says so

template <class T> Status cache_allocate(Gpt<T>& g, Cache<T>& cache, int B, int maxT);
template <class T> void cache_free(Gpt<T>& g, Cache<T>& cache);
