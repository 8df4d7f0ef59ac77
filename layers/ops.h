// ops.h - every operation of the model, as one table. Read this file first, then operations.inc.
//
// A table has two types: T is that of activations, P that of parameters. Three exist: reference (double, plain loops,
// the definition), cpu (float activations; float or bf16 parameters) and cuda (float or bf16 for both). What is made
// for products to read has a type I: T, or bf16 where the CPU's products would round it anyway.
// gpt.cpp is written once, over Table: a table whose types it does not know.
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
// Where the gradient of a matrix goes: it is added to what is there, or assigned.
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

// Dropout (Srivastava et al. 2014): a number is 0 with probability `rate`, else times 1 / (1 - rate). What is dropped
// depends on the seed and on where the number lies in the whole step's batch alone: a backward pass, other ranks and a
// resumed run draw the same.
struct Dropout {
    float rate = 0;
    uint64_t seed = 0;
    int64_t first = 0;    // the number of the first element; in attention: of the first sequence
    // A number stays where its random word (layers/dropout.h) is at least this; then it is multiplied by factor().
    HOST_DEVICE uint32_t keep_threshold() const { return uint32_t(rate * 0x1p32f); }
    HOST_DEVICE float factor() const { return 1 / (1 - rate); }
};

// Attention without softmax. A key/value head has a state (HS,HS), S_t = a_t S_(t-1) + f(k_t) v_t^T; a query reads it:
// y_t = n_t f(q_t)^T S_t, with n_t one number. The same is f(q_i) . f(k_j) exp(b_i - b_j) over the keys j <= i, where b
// adds up log a. Decays a are one number for each of the state's rows: the key's channels.
//   elu        f(x) = elu(x) + 1, no decay; n = 1 / (f(q) . z), z the same recurrence of f(k). Katharopoulos et al 2020
//   retention  f(x) = x, a head's decay is a constant (retention_decay); scores have Heads' scale; n makes the mean
//              square of y 1. Sun et al. 2023
//   gated      as retention, but log a = max(log sigmoid(gate) / 16, -2), the gates are the layer's. Yang et al. 2023;
//              the bound, less than 1/7 left of a state, keeps the exponents of a chunk of 36 positions within fp32
enum class LinearAttention { none, elu, retention, gated };
constexpr float LINEAR_ATTENTION_EPS = 1e-5f;    // added to f(q) . z, or to the mean square, before the division
constexpr float GATE_SCALE = 1 / 16.0f, LOG_DECAY_MIN = -2;    // gated: the factor of log sigmoid, and the bound
// log a of head i of n: a = 1 - 2^x, x from -5 to -9 in equal steps.
inline double retention_decay(int i, int n) { return std::log1p(-std::exp2(-5 - 4.0 * i / (n > 1 ? n - 1 : 1))); }

// Attention's heads, and which keys a query sees: those at or before its position; of these the last `window`, its own
// included; or those of its span, where there are spans.
struct Heads {
    int NH, NKV, HS;    // query heads h share key/value head h / (NH / NKV)
    int window = 0;     // 0: no limit
    // (B,S) or both null: the keys that each query sees, and the queries that see each key. Each position sees itself,
    // and neither end decreases along a sequence. Documents, prefixes and bidirectional attention are spans. A window
    // cuts them, where they are causal.
    const Span *keys = nullptr, *queries = nullptr;
    // Beyond its window (which there must be, without spans) a query sees the first `global_tokens` keys, and those
    // whose position is a multiple of `stride`. Child et al. 2019, Beltagy et al. 2020.
    int stride = 0, global_tokens = 0;
    float scale = 0;       // the factor of the scores; 0: 1/sqrt(HS)
    float softcap = 0;     // scores become softcap * tanh(score / softcap); 0: they stay
    bool alibi = false;    // score - slope * (query's position - key's), with alibi_slope() of the head
    // (NH, 2*reach+1) or null: score += bias[head][reach + key's position - query's]; beyond reach, that at reach. Not
    // with a soft cap or slopes. The reference's are double, as Grad<double> is.
    const float* bias = nullptr;
    int max_distance = 0;
    Dropout dropout = {};    // for the probabilities
    // Instead of softmax. Two of the fields above count then: scale (not with elu, where the division would cancel it),
    // and spans, which are documents: each begins with an empty state.
    LinearAttention linear = LinearAttention::none;

    float score_scale() const { return scale != 0 ? scale : 1 / std::sqrt(float(HS)); }
    int width() const { return NH * HS; }                                // elements in a row of attention's output
    HOST_DEVICE int qkv_width() const { return (NH + 2 * NKV) * HS; }    // in a row of its input: queries, keys, values
    HOST_DEVICE int gates() const { return linear == LinearAttention::gated ? NKV * HS : 0; }    // in a position's row
    // Numbers of a sequence's state: (NKV,HS,HS), then z (NKV,HS).
    HOST_DEVICE int64_t state() const { return int64_t(NKV) * HS * (HS + (linear == LinearAttention::elu)); }
};

// Head i's slope, of NH heads: Press et al. 2022, and for numbers that are no power of two as in their code: the next
// smaller power's slopes, then every other one of twice as many heads.
inline double alibi_slope(int i, int NH) {
    int p = 1;
    while (2 * p <= NH) p *= 2;
    return i < p ? std::exp2(-8.0 * (i + 1) / p) : std::exp2(-4.0 * (2 * (i - p) + 1) / p);
}

// A layer's keys and values in generation, in pages. Position j of sequence b is row j % SIZE of each key/value head of
// page table[b][j / SIZE]. A page's heads lie side by side: whoever reads them all reads one stream.
struct Pages {
    static constexpr int SIZE = 16;    // positions of a page
    Element type;                      // T's, bf16, fp8 or int8
    void *k, *v;                       // (pages,NKV,SIZE,HS)
    float *k_scale, *v_scale;          // (pages,NKV,SIZE): each row's; null where the type has none
    int NKV;
    const int* table;    // (B,width)
    int width;
    // Whether a position's sums are those of one that comes alone, or those of a prompt's: the CPU adds up in another
    // order. Whoever wants the same bits for any lengths of calls says which; else the length decides.
    enum class SumOrder { by_length, prefill, decode } sum_order = SumOrder::by_length;
    static bool decode(SumOrder order, int S) {
        return order == SumOrder::by_length ? S == 1 : order == SumOrder::decode;
    }
    bool decode(int S) const { return decode(sum_order, S); }
    // Every sequence's S positions of the call are its first ones, so the call has all that they see. Padding must then
    // be finite in qkv, as a tile multiplies its values by 0: no operation leaves padding's outputs unwritten.
    bool from_start = false;
    HOST_DEVICE int64_t row_of(int page, int kv, int i) const { return (int64_t(page) * NKV + kv) * SIZE + i; }
    HOST_DEVICE int64_t row(int b, int kv, int j) const {
        return row_of(table[int64_t(b) * width + j / SIZE], kv, j % SIZE);
    }
};

// A layer's states in generation: Heads::state() floats (the reference's are doubles) of sequence b of the call from
// p + of[b] * stride on.
struct States {
    void* p;
    int64_t stride;
    const int* of;    // (B)
};

// LayerNorm, or RMSNorm (Zhang & Sennrich 2019): no mean is taken off, rstd = 1/sqrt(mean(x^2) + eps).
struct Norm {
    bool rms = false;
    float eps = 1e-5f;
    float plus = 0;    // weights are w + plus: Gemma's are stored less 1
};
// What happens to queries and keys before attention: QK-norm (an RMSNorm), then rotation by their position.
struct QkNormRope {
    int dims = 0;                                       // the first dims of each head turn; 0: none
    bool interleaved = false;                           // pairs are (2i, 2i+1), else (i, i + dims/2)
    enum class QkNorm { none, head, all } norm = {};    // over each head, or over all query (key) heads of a position
    float eps = 1e-6f, plus = 0;                        // that norm's
    int rstd_count(int NH, int NKV) const {                   // its rstd: numbers for each position
        return norm == QkNorm::none ? 0 : norm == QkNorm::all ? 2 : NH + NKV;
    }
};
// The ffn's activation. gelu_tanh: Hendrycks & Gimpel 2016, the tanh form (gelu_new); gelu: with erf;
// silu: x sigmoid(x); relu2: relu(x)^2.
enum class Act { gelu_tanh, gelu, silu, relu, relu2 };
// A router gives each position to K of E experts. Its scores are softmax(z) of its logits z, or sigmoid(z). The K
// largest count (of equal ones the first), as they are or divided by their sum.
struct Router {
    static constexpr int MAX_EXPERTS = 512;    // experts
    int E = 0, K = 0;
    bool sigmoid = false, normalise = true;
};
// Which rows go to which expert. Row n*K + k is position n's k-th choice. Experts read and write slots: expert e's are
// offsets[e]..offsets[e+1]-1, with its rows in order. No row is dropped.
struct Routes {
    int *expert, *permuted_row;    // (N,K) of each row
    int* row;                      // (N*K) in each slot
    int* counts;                   // (B,E): a sequence's rows for an expert
    int* offsets;                  // (E+1)
};
// The head's logits are cap * tanh(scale x / cap) of its product x; cap 0: scale x.
struct Logits {
    float scale = 1, cap = 0;
};
// How a token is drawn: of infer/sampling/sampler.h's Sampling, which says what each field is, what a device can do by
// itself.
struct SampleParams {
    static constexpr int MAX_VOCAB = 1 << 20;    // tokens to choose from
    double temperature = 1;
    int top_k = 0;
    double top_p = 1, min_p = 0, repetition = 1, presence = 0, frequency = 0;
    uint64_t seed = 1;
    bool operator==(const SampleParams&) const = default;
    bool penalises() const { return repetition != 1 || presence != 0 || frequency != 0; }
};
// Which text's next token: its random number is philox(seed, sequence, place), its row of counts is `text`.
struct SampleState {
    uint64_t sequence, pos;
    int64_t text;
};

struct AdamW {
    float lr, beta1, beta2, eps, weight_decay;
};
// A step whose loss or norm is above these is not applied. Gradients with a norm above clip (0: never) are scaled down.
struct Limits {
    double clip = 0, loss = INFINITY, norm = INFINITY;
};
// What a step came to. Lies on the device: gate writes it, adamw reads it.
struct Step {
    double loss, norm;                   // mean loss, global gradient norm before clipping
    int64_t updates;                     // applied so far, this one included
    float scale;                         // factor on the gradients: 1, or less where they are clipped
    float m_correction, v_correction;    // 1 / (1 - beta^updates)
    int skipped;                         // 1: loss or norm not finite, or over its limit. adamw then changes nothing
};

// How a product rounds its factors and orders its sums. A table that lacks a precision computes as with `normal`.
enum class Precision {
    normal,
    // Factors have 8 bits (layers/matmul/fp8.cuh). Dtype::fp8: x and w are E4M3, dy is E5M2, and each is scaled so that
    // its largest number becomes the type's largest; an infinity or a NaN in a factor makes all of the product NaN.
    // Dtype::fp8_block: all are E4M3, scaled by blocks, w's of 128x128, the others' of 128 along the sum; an infinity
    // or a NaN reaches what its block reaches. If N, C or OC is no multiple of 16, the product is computed as with
    // `normal`.
    fp8,
    // Rows of a prompt, whose sums may differ from those of a row that comes alone (Pages::SumOrder). A row's bits do
    // not depend on the other rows. residual is not y.
    prefill,
};
enum class Operation {
#define OPERATION(name, need, arguments, ...) name,
#include "operations.inc"
#undef OPERATION
    count
};
// A call without its pointers: what its cost depends on. Sizes that the operation does not have are 0.
struct CallSizes {
    Operation operation = Operation::count;
    int rows = 0, in = 0, out = 0;        // N, C and OC; of a norm, the embedding and the head's loss N and C or V
    bool bias = false;                    // a linear operation adds a bias, or sums up its gradient
    Precision precision = {};             // a linear operation's
    int B = 0, S = 0, p = 0, maxT = 0;    // p, maxT: of attention_cached
    bool decode = false;                  // likewise: as Pages::decode says
    uint32_t formats = 0;                 // a bit for each BlockType that a packed weight has
    Element cache = Element::f32;         // its type
    Heads heads = {};
    QkNormRope rope = {};
};

// What a device has besides operations. Nothing here depends on types.
struct Backend {
    const char* name = "";    // "reference", "cpu bf16 (AMX)": for people

    // Memory of this device. allocate gives null when there is none; it is zeroed and 64-byte aligned (256 on a GPU).
    void* (*allocate)(int64_t bytes) = nullptr;
    void (*release)(void* p, int64_t bytes) = nullptr;
    void* (*allocate_host)(int64_t bytes) = nullptr;    // pinned host memory: copies need not wait for the host
    void (*release_host)(void* p, int64_t bytes) = nullptr;
    int64_t (*free_bytes)() = nullptr;    // memory of this device that is free now
    int64_t (*mark)() = nullptr;
    void (*wait)(int64_t mark) = nullptr;    // wait(mark()) waits for all operations called before mark
    // Optional (CUDA graphs). Operations called between record and recorded are kept, not run; replay runs them, with
    // the pointers and sizes of the recording. Each must have been called once before it is recorded.
    void (*begin_capture)() = nullptr;
    void* (*end_capture)() = nullptr;
    void (*launch_graph)(void* graph) = nullptr;
    void (*release_graph)(void* graph) = nullptr;

    int64_t logits_bytes = 0;    // size of a chunk of logits in the LM head: large enough to keep the device busy
    // Bytes of scratch that the device holds after this call, if it is the one that asks for most.
    int64_t (*scratch_bytes)(const CallSizes& call) = nullptr;
    // T float: attention_forward and _backward round q, k, v, dy, probabilities and their gradients to bf16 before they
    // multiply them.
    bool attention_rounds_to_bf16 = false;
    bool fp8 = false;    // Precision::fp8 rounds to 8 bits
};

// The operations (operations.inc: read it next). An optional one may be null; the model then composes it from others.
template <class T, class P = T> struct Ops : Backend {
    typedef InputType<T, P> I;
#define OPERATION(name, need, arguments, ...) void(*name) arguments = nullptr;
#include "operations.inc"
#undef OPERATION
};

// The name of a required entry that is null; null: the table is complete.
template <class T, class P> const char* missing_operation(const Ops<T, P>& op) {
    enum { required, optional };
#define OPERATION(name, need, arguments, ...) \
    if (need == required && !op.name) return #name;
#include "operations.inc"
#undef OPERATION
    return nullptr;
}

// ---- tables without types -------------------------------------------------------------------------------------------

// What the model's pointers point to. Only a table knows the types behind them.
struct Activation;
struct Input;
struct Parameter;
struct Gradient;
template <> struct GradOf<Parameter> { typedef Gradient type; };
template <> struct InputOf<Activation, Parameter> { typedef Input type; };

// Ops<T, P> as the model sees it, of whatever types.
struct Table : Ops<Activation, Parameter> {
    Element activation = Element::f32, input = Element::f32, parameter = Element::f32, gradient = Element::f32;

    Table() = default;
    template <class T, class P> Table(const Ops<T, P>& op)
        : activation(element_of<T>), input(element_of<InputType<T, P>>), parameter(element_of<P>),
          gradient(element_of<Grad<P>>) {
        static_cast<Backend&>(*this) = op;
        // Pointers to objects of any type are passed alike on every ABI that this runs on, in an Into, too.
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
    // Bytes of n elements, and the i-th element. Plain types are as C++ has them.
    template <class X> int64_t bytes(const X* p, int64_t n) const {
        if constexpr (requires { sizeof(X); }) return n * int64_t(sizeof(X));
        else return n * element_bytes(element(p));
    }
    template <class X> X* at(X* p, int64_t i) const {
        return reinterpret_cast<X*>(reinterpret_cast<char*>(p) + bytes(p, i));
    }
    bool has_input_type() const { return input != activation; }    // products read a type of their own
    // y = x, rounded. Nothing where both are of one type: there y is x.    (n)
    void round_inputs(Input* y, const Activation* x, int64_t n) const {
        if (has_input_type())    // floats become the parameters' type
            this->from_floats(reinterpret_cast<Parameter*>(y), reinterpret_cast<const float*>(x), n);
    }
    // Its memory is this process's, and several threads may write it at once.
    bool on_host() const { return upload == copy; }
};

// tf32: a GPU's fp32 products with 10-bit mantissas. fp8, fp8_block: bf16, and
// Precision::fp8 has a scale for each tensor, or for blocks of it.
enum class Dtype { fp32, tf32, bf16, fp8, fp8_block };
inline bool is_fp8(Dtype d) { return d == Dtype::fp8 || d == Dtype::fp8_block; }

const Ops<double>& reference_ops();
// Activations are float. P bf16: so are the parameters and what is made for products (I); gradients are rounded to bf16
// when a product reads them, in attention also q, k, v and the probabilities, where the CPU multiplies bf16. Sums are
// float.
template <class P> const Ops<float, P>& cpu_ops();
// Weights that are only read, in their files' formats (packed.h). Operations that need gradients are null.
struct PackedWeight;
const Ops<float, PackedWeight>& cpu_packed_ops();
bool cpu_has_bf16();    // the instruction set in use multiplies bf16 (AVX512-BF16, AMX); without, bf16 is slower
void cpu_set_threads(int threads);    // 0: the cores this process may use (affinity and cgroup quota)
int cpu_threads();
