// ops.h - every operation of the model, as one table. Read this file first, then operations.inc.
//
// A table has two types: T of activations, P of parameters. There are three tables: reference
// (double, plain loops, the definition), cpu (float activations; float or bf16 parameters) and cuda
// (float or bf16 for both). Inputs of products have type I: T, or bf16 where the CPU's products
// would round them anyway.
// gpt.cpp is written once, over Table, which hides both types.
#pragma once
#include <type_traits>

#include "base/common.h"
#include "base/element.h"

template <class P> struct GradOf { typedef P type; };
template <> struct GradOf<bf16> { typedef float type; };
template <class P> using Grad = typename GradOf<P>::type;
template <class T, class P> struct InputOf { typedef T type; };
template <> struct InputOf<float, bf16> { typedef bf16 type; };
template <class T, class P> using InputType = typename InputOf<T, P>::type;
// Destination of a matrix's gradient: the gradient is added to its content, or replaces it.
template <class G> struct GradTarget {
    G* p;
    bool add;
    template <class X>
    requires std::is_convertible_v<X, G*> GradTarget(X&& to, bool add) : p(to), add(add) {}
};

// Positions from..to-1.
struct Span {
    int from, to;
};

// Dropout (Srivastava et al. 2014): a number becomes 0 with probability `rate`, else it is
// multiplied by 1 / (1 - rate). The choice depends only on the seed and on the number's index in
// the whole step's batch, so that a backward pass, other ranks and a resumed run draw the same.
struct Dropout {
    float rate = 0;
    uint64_t seed = 0;
    int64_t first = 0;    // index of the first element (in attention: sequence)
    // A number is kept if its random word (layers/dropout.h) is at least this. factor() scales it.
    HOST_DEVICE uint32_t keep_threshold() const { return uint32_t(rate * 0x1p32f); }
    HOST_DEVICE float factor() const { return 1 / (1 - rate); }
};

// Attention without softmax. A key/value head has a state (HS,HS) that each query reads:
//     S_t = a_t S_(t-1) + f(k_t) v_t^T,    y_t = n_t f(q_t)^T S_t    with a scalar n_t.
// In other words, query i weights key j <= i by f(q_i) . f(k_j) exp(b_i - b_j), where b is the
// cumulative sum of log a. A decay a has one number for each row of the state: the key's channels.
//   elu        f(x) = elu(x) + 1, no decay; n = 1 / (f(q) . z), z_t = z_(t-1) + f(k_t).
//              Katharopoulos et al. 2020
//   retention  f(x) = x, a head's decay is a constant (retention_decay); scores have Heads' scale;
//              n makes the mean square of y 1. Sun et al. 2023
//   gated      as retention, but log a = max(log sigmoid(gate) / 16, -2) with the layer's gates.
//              Yang et al. 2023. The bound (less than 1/7 of a state remains) keeps the exponents
//              of a chunk of 36 positions within fp32.
enum class LinearAttention { none, elu, retention, gated };
constexpr float LINEAR_ATTENTION_EPS = 1e-5f;                  // added to f(q) . z or the mean square
constexpr float GATE_SCALE = 1 / 16.0f, LOG_DECAY_MIN = -2;    // gated: factor of log sigmoid; lower bound
// log a of head i of n: a = 1 - 2^x, x from -5 to -9 in equal steps.
inline double retention_decay(int i, int n) { return std::log1p(-std::exp2(-5 - 4.0 * i / (n > 1 ? n - 1 : 1))); }

// Attention's heads and mask. A query attends to the keys at or before its position: to all, or to
// the last `window`, its own included; or to the keys of its span, if there are spans.
struct Heads {
    int NH, NKV, HS;    // query head h uses kv head h / (NH / NKV)
    int window = 0;     // 0: no limit
    // (B,S) or both null: the keys that each query attends to, and the queries that attend to each
    // key. Each position attends to itself, and neither end decreases along a sequence. Documents,
    // prefixes and bidirectional attention are spans. A window shortens causal spans.
    const Span *keys = nullptr, *queries = nullptr;
    // Beyond its window (which is required, and excludes spans) a query attends to the first
    // `global_tokens` keys, and to keys whose position is a multiple of `stride`. Child et al.
    // 2019, Beltagy et al. 2020.
    int stride = 0, global_tokens = 0;
    float scale = 0;       // factor of the scores; 0: 1/sqrt(HS)
    float softcap = 0;     // scores become softcap * tanh(score / softcap); 0: unchanged
    bool alibi = false;    // score - alibi_slope() * (query's position - key's)
    // (NH, 2*max_distance+1) or null: score += bias[head][max_distance + key's position - query's];
    // larger distances count as max_distance. Excludes a soft cap and slopes. The reference's
    // biases are double, as Grad<double> is.
    const float* bias = nullptr;
    int max_distance = 0;
    Dropout dropout = {};    // for the probabilities
    // Replaces softmax. Two of the fields above count then: scale (not with elu, whose division
    // cancels it), and spans, which are documents: each begins with an empty state.
    LinearAttention linear = LinearAttention::none;

    float score_scale() const { return scale != 0 ? scale : 1 / std::sqrt(float(HS)); }
    int width() const { return NH * HS; }                                // elements in a row of attention's output
    HOST_DEVICE int qkv_width() const { return (NH + 2 * NKV) * HS; }    // elements in a row of q, k, v
    HOST_DEVICE int gates() const { return linear == LinearAttention::gated ? NKV * HS : 0; }    // gates of a position
    // Elements of a sequence's state: (NKV,HS,HS), then for elu z (NKV,HS).
    HOST_DEVICE int64_t state() const { return int64_t(NKV) * HS * (HS + (linear == LinearAttention::elu)); }
};

// Slope of head i of NH (Press et al. 2022). If NH is no power of two, heads have, as in their
// code, the slopes of the next smaller power p, then every second slope of 2p heads.
inline double alibi_slope(int i, int NH) {
    int p = 1;
    while (2 * p <= NH) p *= 2;
    return i < p ? std::exp2(-8.0 * (i + 1) / p) : std::exp2(-4.0 * (2 * (i - p) + 1) / p);
}

// A layer's keys and values in generation, in pages. Position j of sequence b is row j % SIZE of
// each key/value head of page table[b][j / SIZE]. A page's heads are adjacent, one stream.
struct Pages {
    static constexpr int SIZE = 16;    // positions of a page
    Element type;                      // T, bf16, fp8 or int8
    void *k, *v;                       // (pages,NKV,SIZE,HS)
    float *k_scale, *v_scale;          // (pages,NKV,SIZE), one per row; null without scales
    int NKV;
    const int* table;    // (B,width)
    int width;
    // Summation order of a row: prefill and decode differ in the last bits on a CPU. A caller that
    // needs the same bits for any lengths of calls chooses one; by_length is decode if S == 1.
    enum class SumOrder { by_length, prefill, decode } sum_order = SumOrder::by_length;
    static bool decode(SumOrder order, int S) {
        return order == SumOrder::by_length ? S == 1 : order == SumOrder::decode;
    }
    bool decode(int S) const { return decode(sum_order, S); }
    // The call has each sequence's first S positions, so it has all keys that they attend to.
    // Padding must then be finite in qkv, as a tile multiplies its values by 0: no operation leaves
    // padding's outputs unwritten.
    bool from_start = false;
    HOST_DEVICE int64_t row_of(int page, int kv, int i) const { return (int64_t(page) * NKV + kv) * SIZE + i; }
    HOST_DEVICE int64_t row(int b, int kv, int j) const {
        return row_of(table[int64_t(b) * width + j / SIZE], kv, j % SIZE);
    }
};

// A layer's states in generation: sequence b of the call has Heads::state() floats (doubles in the
// reference) from p + of[b] * stride on.
struct States {
    void* p;
    int64_t stride;
    const int* of;    // (B)
};

// LayerNorm, or RMSNorm (Zhang & Sennrich 2019), without a mean: rstd = 1/sqrt(mean(x^2) + eps).
struct Norm {
    bool rms = false;
    float eps = 1e-5f;
    float plus = 0;    // added to the weights: Gemma stores w - 1
};
// Transformation of queries and keys before attention: QK-norm (an RMSNorm), then rotary positions.
struct QkNormRope {
    int dims = 0;                // rotated channels at a head's beginning; 0: none
    bool interleaved = false;    // pairs are (2i, 2i+1), else (i, i + dims/2)
    // head: over each head; all: over all query heads of a position, and over all key heads.
    enum class QkNorm { none, head, all } norm = {};
    float eps = 1e-6f, plus = 0;               // QK-norm's
    int rstd_count(int NH, int NKV) const {    // floats of rstd per position
        return norm == QkNorm::none ? 0 : norm == QkNorm::all ? 2 : NH + NKV;
    }
};
// The ffn's activation. gelu_tanh: Hendrycks & Gimpel 2016, the tanh form (gelu_new); gelu: with
// erf; silu: x sigmoid(x); relu2: relu(x)^2.
enum class Act { gelu_tanh, gelu, silu, relu, relu2 };
// A router assigns each position to K of E experts. Scores are softmax(z) of its logits z, or
// sigmoid(z). The K largest (the first of equal ones) are the experts' factors, as they are or
// divided by their sum.
struct Router {
    static constexpr int MAX_EXPERTS = 512;
    int E = 0, K = 0;
    bool sigmoid = false, normalise = true;
};
// Rows of each expert. Row n*K + k is position n's k-th choice. Experts read and write permuted
// rows: expert e's are offsets[e]..offsets[e+1]-1, in the order of their rows. No row is dropped.
struct Routes {
    int *expert, *permuted_row;    // (N,K), by row
    int* row;                      // (N*K), by permuted row
    int* counts;                   // (B,E): a sequence's rows for an expert
    int* offsets;                  // (E+1)
};
// Logits from the head's product x: cap * tanh(scale x / cap), or scale x if cap is 0.
struct Logits {
    float scale = 1, cap = 0;
};
// How a token is sampled: the fields of infer/sampling/sampler.h's Sampling (defined there) that a
// device can apply by itself.
struct SampleParams {
    static constexpr int MAX_VOCAB = 1 << 20;
    double temperature = 1;
    int top_k = 0;
    double top_p = 1, min_p = 0, repetition = 1, presence = 0, frequency = 0;
    uint64_t seed = 1;
    bool operator==(const SampleParams&) const = default;
    bool penalises() const { return repetition != 1 || presence != 0 || frequency != 0; }
};
// A text's next token: philox(seed, sequence, pos) is its random number, `text` its row of counts.
struct SampleState {
    uint64_t sequence, pos;
    int64_t text;
};

// An optimizer leaves unused what its step does not need.
struct OptimizerParams {
    float lr, beta1, beta2, eps, weight_decay;
};
// A step whose loss or norm exceeds these limits is not applied. Gradients with a norm above clip
// are scaled down; clip 0: never.
struct Limits {
    double clip = 0, loss = INFINITY, norm = INFINITY;
};
// Outcome of a step, in device memory: step_verdict writes it, the optimizer reads it.
struct Step {
    double loss, norm;                   // mean loss; global gradient norm before clipping
    int64_t updates;                     // applied updates, this one included
    float scale;                         // factor on gradients: 1, less if clipped
    float m_correction, v_correction;    // 1 / (1 - beta^updates)
    // 1 if loss or norm is not finite or exceeds its limit; the optimizer then changes nothing.
    int skipped;
};

// How a product rounds its factors and orders its sums. Tables without a precision use `normal`.
enum class Precision {
    normal,
    // Factors have 8 bits (layers/matmul/fp8.cuh). Dtype::fp8: x and w are E4M3, dy is E5M2, and
    // each tensor is scaled so that its largest number becomes the type's largest; an infinity or a
    // NaN in a factor makes the whole product NaN. Dtype::fp8_block: all are E4M3, scaled by
    // blocks, 128x128 of w, 128 along the sum of the others; an infinity or a NaN reaches the sums
    // of its block. If N, C or OC is no multiple of 16, `normal` is used.
    fp8,
    // Rows of a prompt: sums may differ from the sums of a row computed alone (Pages::SumOrder). A
    // row's bits do not depend on the other rows. residual is not y.
    prefill,
};
enum class Operation {
#define OPERATION(name, need, arguments, ...) name,
#include "operations.inc"
#undef OPERATION
    count
};
// A call without its pointers: all that its cost depends on. Sizes that the operation lacks are 0.
struct CallSizes {
    Operation operation = Operation::count;
    // N, C and OC; for a norm, the embedding and the head's loss N and C or V.
    int rows = 0, in = 0, out = 0;
    bool bias = false;                    // a linear operation's bias or its gradient
    Precision precision = {};             // a linear operation's
    int B = 0, S = 0, p = 0, maxT = 0;    // p, maxT: attention_cached only
    bool decode = false;                  // attention_cached: Pages::decode()
    uint32_t formats = 0;                 // one bit per BlockType of packed weights
    Element cache = Element::f32;         // type of the kv cache
    Heads heads = {};
    QkNormRope rope = {};
};

// Entries of a device besides operations. None depends on types.
struct Backend {
    const char* name = "";    // display name: "reference", "cpu bf16 (AMX)"

    // Memory of this device, zeroed and 64-byte aligned (256 on a GPU), or null if there is none.
    void* (*allocate)(int64_t bytes) = nullptr;
    void (*release)(void* p, int64_t bytes) = nullptr;
    void* (*allocate_host)(int64_t bytes) = nullptr;    // pinned: copies need not wait for the host
    void (*release_host)(void* p, int64_t bytes) = nullptr;
    int64_t (*free_bytes)() = nullptr;    // free memory of this device
    int64_t (*mark)() = nullptr;
    void (*wait)(int64_t mark) = nullptr;    // wait(mark()) waits for all operations called before mark
    // Optional (CUDA graphs). Operations called between begin_capture and end_capture are recorded,
    // not run; launch_graph runs them with the recorded pointers and sizes. Each must have run
    // once.
    void (*begin_capture)() = nullptr;
    void* (*end_capture)() = nullptr;
    void (*launch_graph)(void* graph) = nullptr;
    void (*release_graph)(void* graph) = nullptr;

    // Bytes of a chunk of logits in the LM head: large enough to keep the device busy.
    int64_t logits_bytes = 0;
    // Bytes of scratch that the device holds after this call, if no other call needs more.
    int64_t (*scratch_bytes)(const CallSizes& call) = nullptr;
    // T float: attention_forward and attention_backward round q, k, v, dy, probabilities and their
    // gradients to bf16 before multiplying them.
    bool attention_rounds_to_bf16 = false;
    bool fp8 = false;    // Precision::fp8 rounds to 8 bits
};

// The operations (read operations.inc next). If an optional one is null, others replace it.
template <class T, class P = T> struct Ops : Backend {
    typedef InputType<T, P> I;
#define OPERATION(name, need, arguments, ...) void(*name) arguments = nullptr;
#include "operations.inc"
#undef OPERATION
};

// Name of a required entry that is null; a complete table gives null.
template <class T, class P> const char* missing_operation(const Ops<T, P>& op) {
    enum { required, optional };
#define OPERATION(name, need, arguments, ...) \
    if (need == required && !op.name) return #name;
#include "operations.inc"
#undef OPERATION
    return nullptr;
}

// ---- tables without types -----------------------------------------------------------------------

// Opaque types of the model's pointers. Only a table has the types behind them.
struct Activation;
struct Input;
struct Parameter;
struct Gradient;
template <> struct GradOf<Parameter> { typedef Gradient type; };
template <> struct InputOf<Activation, Parameter> { typedef Input type; };

// Ops<T, P> with its types hidden, as the model uses it.
struct Table : Ops<Activation, Parameter> {
    Element activation = Element::f32, input = Element::f32, parameter = Element::f32, gradient = Element::f32;

    Table() = default;
    template <class T, class P> Table(const Ops<T, P>& op)
        : activation(element_of<T>), input(element_of<InputType<T, P>>), parameter(element_of<P>),
          gradient(element_of<Grad<P>>) {
        static_cast<Backend&>(*this) = op;
        // Every supported ABI passes all pointers to objects alike, also in a GradTarget.
#define OPERATION(name, need, arguments, ...) \
    this->name = reinterpret_cast<decltype(this->name)>(reinterpret_cast<void (*)()>(op.name));
#include "operations.inc"
#undef OPERATION
    }
    Element element(const Activation*) const { return activation; }
    Element element(const Input*) const { return input; }
    Element element(const Parameter*) const { return parameter; }
    Element element(const Gradient*) const { return gradient; }
    static Element element(const float*) { return Element::f32; }
    // Bytes of n elements, and the i-th element. Types other than these four have their C++ size.
    template <class X> int64_t bytes(const X* p, int64_t n) const {
        if constexpr (requires { sizeof(X); }) return n * int64_t(sizeof(X));
        else return n * element_bytes(element(p));
    }
    template <class X> X* at(X* p, int64_t i) const {
        return reinterpret_cast<X*>(reinterpret_cast<char*>(p) + bytes(p, i));
    }
    bool has_input_type() const { return input != activation; }    // products read a type of their own
    // y (n) = x, rounded. Does nothing if both have one type: y is x then.
    void round_inputs(Input* y, const Activation* x, int64_t n) const {
        if (has_input_type())    // floats become the parameters' type
            this->from_floats(reinterpret_cast<Parameter*>(y), reinterpret_cast<const float*>(x), n);
    }
    // Whether its memory belongs to this process, so that several threads may write it at once.
    bool on_host() const { return upload == copy; }
};

// tf32: a GPU's fp32 products with 10-bit mantissas. fp8, fp8_block: bf16, and
// Precision::fp8 has a scale for each tensor, or for blocks of it.
enum class Dtype { fp32, tf32, bf16, fp8, fp8_block };
inline bool is_fp8(Dtype d) { return d == Dtype::fp8 || d == Dtype::fp8_block; }

const Ops<double>& reference_ops();
// Activations are float. With P bf16, parameters and inputs of products (I) are bf16, too; products
// round the gradients that they read to bf16, and attention rounds q, k, v and the probabilities
// where the CPU multiplies bf16. Sums are float.
template <class P> const Ops<float, P>& cpu_ops();
// Weights that are only read, in the formats of their files (layers/quant/packed.h). Operations
// that need gradients are null.
struct PackedWeight;
const Ops<float, PackedWeight>& cpu_packed_ops();
// Whether the instruction set in use multiplies bf16 (AVX512-BF16, AMX); without, bf16 is slower.
bool cpu_has_bf16();
void cpu_set_threads(int threads);    // 0: all available cores (affinity, cgroup quota)
int cpu_threads();
