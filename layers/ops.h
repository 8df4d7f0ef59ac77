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
// Destination of a weight matrix's gradient, which is added to the content of p or replaces it.
template <class G> struct GradTarget {
    G* p;
    bool add;
    template <class X>
    requires std::is_convertible_v<X, G*> GradTarget(X&& to, bool adds) : p(to), add(adds) {}
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
    int64_t first = 0;    // batch index of the first element (attention: sequence)
    // A number whose 32 random bits (layers/dropout.h) are at least this is kept, times factor().
    HOST_DEVICE uint32_t keep_threshold() const { return uint32_t(rate * 0x1p32f); }
    HOST_DEVICE float factor() const { return 1 / (1 - rate); }
};

// Attention without softmax. A key/value head has a state (HS,HS) that each query reads:
//     S_t = a_t S_(t-1) + f(k_t) v_t^T,    y_t = n_t f(q_t)^T S_t    with a scalar n_t.
// In other words, query i weights key j <= i by f(q_i) . f(k_j) exp(b_i - b_j), where b is the
// cumulative sum of log a. A decay a_t has one number per row of the state: per channel of the key.
//   elu        f(x) = elu(x) + 1, no decay; n = 1 / (f(q) . z), z_t = z_(t-1) + f(k_t).
//              Katharopoulos et al. 2020
//   retention  f(x) = x, a head's decay is a constant (retention_decay); scores have the factor
//              Heads::scale; n makes the mean square of y 1. Sun et al. 2023
//   gated      as retention, but log a = max(log sigmoid(gate) / 16, -2) with the layer's gates.
//              Yang et al. 2023. At the bound -2, less than 1/7 of a state remains after each
//              position. It keeps the exponents of a chunk of 36 positions within fp32.
//   performer  f(q) = exp(w q') / r, f(k) = min(exp(w k' - |k'|^2 / 2), 1e26) + 1e-6 with
//              x' = x sqrt(scale), no decay; n = 1 / (f(q) . z). Heads::features has w, which is
//              random. r is the largest element of exp(w q'), which n cancels. On average over w,
//              exp(w q' - |q'|^2 / 2) . exp(w k' - |k'|^2 / 2) / HS is softmax's exp(scale q . k).
//              The bounds of f(k) keep z finite and above 0.
//              Choromanski et al. 2021, lemma 1
enum class LinearAttention { none, elu, retention, gated, performer };
constexpr float LINEAR_ATTENTION_EPS = 1e-5f;                  // added to elu's f(q) . z or the mean square
constexpr float FEATURE_MIN = 1e-6f, FEATURE_MAX = 1e26f;      // performer: bounds of f(k)
constexpr float GATE_SCALE = 1 / 16.0f, LOG_DECAY_MIN = -2;    // gated: factor of log sigmoid; lower bound
// Retention's log a for head i of n: a = 1 - 2^x, x from -5 to -9 in equal steps.
inline double retention_decay(int i, int n) { return std::log1p(-std::exp2(-5 - 4.0 * i / (n > 1 ? n - 1 : 1))); }

// Attention's heads and mask. If there are spans, a query attends to the keys of its span. Else it
// attends to all keys up to its own position, or to the last `window` of them.
struct Heads {
    int NH, NKV, HS;    // query head h uses kv head h / (NH / NKV)
    int window = 0;     // 0: no limit
    // (B,S), or both null. keys: range of keys that each query attends to; queries: range of
    // queries that attend to each key. Each position attends to itself, and neither end of a range
    // decreases along a sequence. Documents, prefixes and bidirectional attention are expressed as
    // spans. A window shortens spans: of a query at i to the keys j with |i - j| < window.
    const Span *keys = nullptr, *queries = nullptr;
    // Sparse attention: beyond its window, but within its span, a query also attends to the first
    // `global_tokens` keys of the sequence, and to keys whose position is a multiple of `stride`.
    // The first `global_tokens` queries have no window. Requires a window; with spans, excludes
    // biases. Child et al. 2019, Beltagy et al. 2020.
    int stride = 0, global_tokens = 0;
    float scale = 0;       // factor of the scores; 0: 1/sqrt(HS)
    float softcap = 0;     // scores become softcap * tanh(score / softcap); 0: unchanged
    bool alibi = false;    // score - alibi_slope() * (query's position - key's)
    // (NH, 2*max_distance+1) or null: score += bias[head][max_distance + key's position - query's];
    // larger distances count as max_distance. Excludes softcap and alibi. In the reference table
    // these are doubles, as its parameter gradients (Grad<double>) are.
    const float* bias = nullptr;
    int max_distance = 0;
    // Elements between the biases of adjacent queries, if each query has its own: bias is then
    // (B,S,NH,2*max_distance+1). 0: all queries share one array.
    int bias_step = 0;
    Dropout dropout = {};    // for the probabilities
    // Cross-attention (cross_attention_*): positions of each source, the sequence that has the keys
    // and values; 0: self-attention. Without spans a query attends to its whole source. With them,
    // `keys` (B,S) has the range of it that each query sees, and `queries` (B,source) the queries
    // that see each position. On CPUs a query may see none: its y and lse are then any bytes.
    // Excludes windows and sparse patterns.
    int source = 0;
    int HV = 0;    // elements of a value and of y per head; 0: HS
    // Replaces softmax. The fields above are then unused, except for scale (which elu's division
    // cancels) and spans. Spans are documents, and each begins with an empty state.
    LinearAttention linear = LinearAttention::none;
    const float* features = nullptr;    // (2,HS,HS) or null: performer's w, its transpose

    float score_scale() const { return scale != 0 ? scale : 1 / std::sqrt(float(HS)); }
    HOST_DEVICE int value_size() const { return HV ? HV : HS; }
    HOST_DEVICE int distances() const { return 2 * max_distance + 1; }    // biases of a head
    HOST_DEVICE int width() const { return NH * value_size(); }           // elements in a row of attention's output
    HOST_DEVICE int qkv_width() const { return NH * HS + NKV * (HS + value_size()); }    // in a row of q, k, v
    // Elements in a row of the array that has the queries, and of the array that has keys and
    // values. Without a source both are the packed array qkv.
    HOST_DEVICE int q_row() const { return source ? NH * HS : qkv_width(); }
    HOST_DEVICE int kv_row() const { return source ? NKV * (HS + value_size()) : qkv_width(); }
    HOST_DEVICE int first_k() const { return source ? 0 : NH * HS; }    // offsets in such a row
    HOST_DEVICE int first_v() const { return first_k() + NKV * HS; }
    HOST_DEVICE int keys_of(int S) const { return source ? source : S; }    // keys per sequence of S queries
    HOST_DEVICE int gates() const { return linear == LinearAttention::gated ? NKV * HS : 0; }    // gates per position
    // Kinds of linear attention that divide by f(q) . z, and have no decay.
    HOST_DEVICE bool has_z() const { return linear == LinearAttention::elu || linear == LinearAttention::performer; }
    // Elements of a sequence's state: (NKV,HS,HS), then with has_z() z (NKV,HS).
    HOST_DEVICE int64_t state() const { return int64_t(NKV) * HS * (HS + has_z()); }
};

// ALiBi's slope of head i of NH (Press et al. 2022). If NH is no power of two, p is the largest
// power of two below NH. As in the authors' code, the first p heads then get the slopes of p heads,
// and the other heads get every second slope of 2p heads.
inline double alibi_slope(int i, int NH) {
    int p = 1;
    while (2 * p <= NH) p *= 2;
    return i < p ? std::exp2(-8.0 * (i + 1) / p) : std::exp2(-4.0 * (2 * (i - p) + 1) / p);
}

// A layer's keys and values in generation, in pages. Position j of sequence b is row j % SIZE of
// each key/value head of page table[b][j / SIZE]. A page's heads are adjacent in memory.
struct Pages {
    static constexpr int SIZE = 16;    // positions per page
    Element type;                      // cache's element type: T, bf16, fp8 or int8
    void *k, *v;                       // (pages,NKV,SIZE,HS)
    float *k_scale, *v_scale;          // (pages,NKV,SIZE); null for types without scales
    int NKV;
    const int* table;    // (B,width): pages of each sequence
    int width;
    // Order in which attention sums up a row. On a CPU prefill and decode differ in the last bits.
    // by_length: decode if S == 1, else prefill. A caller whose results must have the same bits
    // however a text is divided into calls chooses prefill or decode.
    enum class SumOrder { by_length, prefill, decode } sum_order = SumOrder::by_length;
    static bool decode(SumOrder order, int S) {
        return order == SumOrder::by_length ? S == 1 : order == SumOrder::decode;
    }
    bool decode(int S) const { return decode(sum_order, S); }
    // The call starts at position 0 of each sequence, so qkv has all keys that its queries attend
    // to. Padding in qkv must then be finite, because a tile multiplies padding's values by 0. For
    // this reason every operation writes the outputs of padding.
    bool from_start = false;
    HOST_DEVICE int64_t row_of(int page, int kv, int i) const { return (int64_t(page) * NKV + kv) * SIZE + i; }
    HOST_DEVICE int64_t row(int b, int kv, int j) const {
        return row_of(table[int64_t(b) * width + j / SIZE], kv, j % SIZE);
    }
};

// A layer's states of linear attention in generation. Sequence b of the call has Heads::state()
// floats (doubles in the reference), at element of[b] * stride of p.
struct States {
    void* p;
    int64_t stride;
    const int* of;    // (B): index of each sequence's state
};

// Number of a row's first channels from which the gates of smear_* and value_embedding_* are
// computed (all C of a narrow one), and the factor of the values' gates (nanochat).
HOST_DEVICE constexpr int smear_channels(int C) { return C < 24 ? C : 24; }
HOST_DEVICE constexpr int value_gate_channels(int C) { return C < 12 ? C : 12; }
constexpr float VALUE_GATE_SCALE = 3;

// LayerNorm, or RMSNorm (Zhang & Sennrich 2019), which has no mean: rstd = 1/sqrt(mean(x^2) + eps).
struct Norm {
    bool rms = false;
    float eps = 1e-5f;
    float plus = 0;    // added to the weights: Gemma stores w - 1
};
// Transformation of queries and keys before attention: QK-norm (an RMSNorm), then rotary positions.
struct QkNormRope {
    int dims = 0;                // rotated channels at a head's beginning; 0: none
    bool interleaved = false;    // pairs are (2i, 2i+1), else (i, i + dims/2)
    // head: one norm per head. all: one over a position's query heads, one over its key heads.
    enum class QkNorm { none, head, all } norm = {};
    float eps = 1e-6f, plus = 0;    // QK-norm's, as in Norm
    bool norms() const { return norm != QkNorm::none; }
    int rstd_count(int NH, int NKV) const {    // floats of rstd per position
        return norm == QkNorm::none ? 0 : norm == QkNorm::all ? 2 : NH + NKV;
    }
    // Number of weights of the queries' norm if there are `heads` query heads; for keys likewise.
    int weights(int heads, int HS) const { return norm == QkNorm::none ? 0 : norm == QkNorm::all ? heads * HS : HS; }
};
// The ffn's activation function. gelu_tanh: Hendrycks & Gimpel 2016, the tanh form (gelu_new);
// gelu: with erf; silu: x sigmoid(x); relu2: relu(x)^2.
enum class Act { gelu_tanh, gelu, silu, relu, relu2, tanh };
// A router assigns each position to K of E experts. Scores are softmax(z) of its logits z, or
// sigmoid(z). The experts with the K largest scores are chosen, of equal scores the first. An
// expert's output is multiplied by its score or, with `normalise`, its score / the sum of the K
// scores.
struct Router {
    static constexpr int MAX_EXPERTS = 512;
    int E = 0, K = 0;
    bool sigmoid = false, normalise = true;
};
// Assignment of rows to experts. Row n*K + k is position n's k-th choice. Permuted rows are the
// rows sorted by expert: expert e reads and writes permuted rows offsets[e]..offsets[e+1]-1, in
// ascending order of row. No row is dropped.
struct Routes {
    int *expert, *permuted_row;    // (N,K), indexed by row
    int* row;                      // (N*K), indexed by permuted row
    int* counts;                   // (B,E): rows per sequence and expert
    int* offsets;                  // (E+1)
};
// Knowledge distillation (Hinton et al. 2015): weights of a loss on a teacher's probabilities at a
// temperature T, mix * T^2 KL(teacher || student), and of the loss on tokens, 1 - mix.
struct Distillation {
    float temperature = 1, mix = 0.5f;
};
// Terms beside cross entropy. Only gradients include these terms; reported losses do not.
// z_loss: factor of lse(z)^2, which keeps the sum of the logits' exponentials near 1
// (Chowdhery et al. 2022, section 5). label_smoothing e: the target has the probability 1 - e, and
// all tokens share e evenly (Szegedy et al. 2016).
struct LossPenalties {
    float z_loss = 0, label_smoothing = 0;
};
// Logits from the head's product x: cap * tanh(scale x / cap), or scale x if cap is 0.
struct Logits {
    float scale = 1, cap = 0;
};
// Parameters of sampling: the fields of Sampling (defined in infer/sampling/sampler.h) that
// operation `sample` can apply on a device.
struct SampleParams {
    static constexpr int MAX_VOCAB = 1 << 20;
    double temperature = 1;
    int top_k = 0;
    double top_p = 1, min_p = 0, repetition = 1, presence = 0, frequency = 0;
    uint64_t seed = 1;
    bool operator==(const SampleParams&) const = default;
    bool penalises() const { return repetition != 1 || presence != 0 || frequency != 0; }
};
// State of one text: its next token is drawn with the random number philox(seed, sequence, pos),
// and row `text` of token_counts has the counts for penalties.
struct SampleState {
    uint64_t sequence, pos;
    int64_t text;
};

// Blocks along the diagonal of a matrix: block i has rows row[i] to row[i+1]-1 and columns col[i]
// to col[i+1]-1, and the blocks together cover all rows and columns.
struct RowBlocks {
    static constexpr int MOST = 3;
    int count = 0;
    int row[MOST + 1] = {}, col[MOST + 1] = {};
    HOST_DEVICE int of(int64_t r) const {    // the block that has row r
        int i = 0;
        while (r >= row[i + 1]) i++;
        return i;
    }
    int rows() const { return row[count]; }
    HOST_DEVICE int columns(int64_t r) const { return col[of(r) + 1] - col[of(r)]; }    // size of row r's block
};

// How a step changes a weight w that has the gradient g, the states m and v, the rate r and the
// decay d. b1, b2: OptimizerParams::beta1, beta2.
enum class UpdateRule {
    adamw,     // Loshchilov & Hutter 2019, algorithm 2
    lion,      // w -= r (sign(b1 m + (1 - b1) g) + d w), then m = b2 m + (1 - b2) g. Chen et al. 2023
    signum,    // m = b1 m + (1 - b1) g, w -= r (sign(m) + d w). Bernstein et al. 2018, algorithm 2
    given      // w -= r (g + d w): g is the step's direction, and Step::scale does not multiply it
};
// A group of tensors has factors of the learning rate and of the weight decay.
struct ParamGroup {
    float lr = 1, decay = 1;
    bool operator==(const ParamGroup&) const = default;
};
struct GroupFactors {
    static constexpr int MOST = 16;
    ParamGroup of[MOST];    // by group
};
// Parameters of all optimizers. Each optimizer uses only those that its step needs.
struct OptimizerParams {
    float lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
    float momentum = 0;        // Muon's, for matrices
    float average_rate = 0;    // average_weights' rate
    // Weights decay only where their update has their sign (cautious weight decay, Chen et al.
    // 2025).
    bool cautious = false;
    GroupFactors groups = {};
};
// An optimizer's state, one number per parameter: f32, bf16 that is rounded stochastically, or
// uint8, codes of 8 bits (layers/optimizer/optimizer_state.h) with a scale for each 64 of them.
struct StateArray {
    void* p = nullptr;
    float* scales = nullptr;    // codes only
    Element type = Element::f32;
};
// A step whose loss or gradient norm exceeds these limits is not applied. Gradients whose norm
// exceeds clip are scaled down to it; clip 0: never.
struct Limits {
    double clip = 0, loss = INFINITY, norm = INFINITY;
};
// Factors of the gradients by group, where each group's norm is clipped by itself.
struct GroupScales {
    float of[GroupFactors::MOST];
};
// Outcome of a step, in device memory: step_verdict writes it, the optimizer reads it.
struct Step {
    double loss, norm;                   // mean loss; global gradient norm before clipping
    int64_t updates;                     // applied updates, this one included
    float scale;                         // factor on gradients: 1, less if clipped
    float m_correction, v_correction;    // 1 / (1 - beta^updates)
    // 1 if loss or norm is not finite or exceeds its limit; the optimizer then changes nothing.
    int skipped;
    GroupScales groups = {{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}};
    HOST_DEVICE float scale_of(int group) const { return scale * groups.of[group]; }
};

// How a product rounds its factors and orders its sums. Tables that lack a precision use `normal`.
enum class Precision {
    normal,
    // Factors have 8 bits (layers/matmul/fp8.cuh). With Dtype::fp8, x and w are E4M3, dy is E5M2,
    // and each tensor is scaled so that its largest number becomes the type's largest. An infinity
    // or a NaN in a factor makes the whole product NaN. With Dtype::fp8_block all factors are E4M3
    // and scaled by blocks: 128x128 of w, 128 neighbours along the summed dimension of x and dy. An
    // infinity or a NaN reaches only the sums of its block. If N, C or OC is no multiple of 16,
    // `normal` is used.
    fp8,
    // For a prompt's rows. The order of a row's sums may differ from that of a row computed alone
    // (Pages::SumOrder), but does not depend on the call's other rows. residual must not be y.
    prefill,
};
enum class Operation {
#define OPERATION(name, need, arguments, ...) name,
#include "operations.inc"
#undef OPERATION
    count
};
// Sizes and options of a call, on which its cost depends. Sizes that the operation lacks are 0.
struct CallSizes {
    Operation operation = Operation::count;
    // N, C and OC of a product; N and C of a norm or the embedding; N and V of the head's loss.
    int rows = 0, in = 0, out = 0;
    bool bias = false;                    // linear operations: bias or its gradient is given
    Precision precision = {};             // linear operations only
    int B = 0, S = 0, p = 0, maxT = 0;    // p, maxT: attention_cached only
    bool decode = false;                  // attention_cached: Pages::decode()
    uint32_t formats = 0;                 // one bit per BlockType of packed weights
    Element cache = Element::f32;         // type of the kv cache
    Heads heads = {};
    QkNormRope rope = {};
};

// A table's functions and properties besides its operations. None depends on T or P.
struct Backend {
    const char* name = "";    // display name: "reference", "cpu bf16 (AMX)"

    // Allocates zeroed device memory, 64-byte aligned (256 on a GPU). Returns null if none is left.
    void* (*allocate)(int64_t bytes) = nullptr;
    void (*release)(void* p, int64_t bytes) = nullptr;
    void* (*allocate_host)(int64_t bytes) = nullptr;    // pinned: copies need not wait for the host
    void (*release_host)(void* p, int64_t bytes) = nullptr;
    int64_t (*free_bytes)() = nullptr;    // free memory of this device
    int64_t (*mark)() = nullptr;
    void (*wait)(int64_t mark) = nullptr;    // wait(mark()) waits for all operations called before mark
    // Optional (CUDA graphs). Operations called between begin_capture and end_capture are recorded,
    // not run; launch_graph runs them with the recorded pointers and sizes. Each operation must
    // have run once before it is recorded.
    void (*begin_capture)() = nullptr;
    void* (*end_capture)() = nullptr;
    void (*launch_graph)(void* graph) = nullptr;
    void (*release_graph)(void* graph) = nullptr;

    // Bytes of the logits that the LM head computes at once: enough to keep the device busy.
    int64_t logits_bytes = 0;
    // Bytes of scratch that the device holds after this call, if no other call needs more.
    int64_t (*scratch_bytes)(const CallSizes& call) = nullptr;
    // Whether attention_forward and attention_backward of a table with T = float round q, k, v, dy,
    // probabilities and their gradients to bf16 before multiplying them.
    bool attention_rounds_to_bf16 = false;
    bool fp8 = false;    // Precision::fp8 really rounds to 8 bits
};

// All operations (read operations.inc next). If an optional operation is null, callers use others.
template <class T, class P = T> struct Ops : Backend {
    typedef InputType<T, P> I;
#define OPERATION(name, need, arguments, ...) void(*name) arguments = nullptr;
#include "operations.inc"
#undef OPERATION
};

// Returns the name of a required operation that is null, or null if the table is complete.
template <class T, class P> const char* missing_operation(const Ops<T, P>& op) {
    enum { required, optional };
#define OPERATION(name, need, arguments, ...) \
    if (need == required && !op.name) return #name;
#include "operations.inc"
#undef OPERATION
    return nullptr;
}

// ---- tables without types -----------------------------------------------------------------------

// Incomplete types of the model's pointers. Only a Table knows the element types behind them.
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
        // The casts are safe: every supported ABI passes pointers to all object types alike, also
        // within a GradTarget.
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
    // Bytes of n elements, and a pointer to the i-th. A type that is not one of those above
    // (Activation to Gradient), such as int, has its C++ size.
    template <class X> int64_t bytes(const X* p, int64_t n) const {
        if constexpr (requires { sizeof(X); }) return n * int64_t(sizeof(X));
        else return n * element_bytes(element(p));
    }
    template <class X> X* at(X* p, int64_t i) const {
        return reinterpret_cast<X*>(reinterpret_cast<char*>(p) + bytes(p, i));
    }
    bool has_input_type() const { return input != activation; }    // products' inputs have another type
    // y (n) = x, rounded to the type of products' inputs. If the types are equal, y and x are the
    // same array, and nothing is done.
    void round_inputs(Input* y, const Activation* x, int64_t n) const {
        if (has_input_type())    // floats become the parameters' type
            this->from_floats(reinterpret_cast<Parameter*>(y), reinterpret_cast<const float*>(x), n);
    }
    // Whether several threads of this process may write device memory at once: it is host memory.
    bool on_host() const { return upload == copy; }
};

// tf32: fp32 whose products a GPU computes with 10-bit mantissas. fp8, fp8_block: bf16, with 8-bit
// products (Precision::fp8) that are scaled per tensor or per block.
enum class Dtype { fp32, tf32, bf16, fp8, fp8_block };
inline bool is_fp8(Dtype d) { return d == Dtype::fp8 || d == Dtype::fp8_block; }

const Ops<double>& reference_ops();
// Activations and sums are float. If P is bf16, parameters and products' inputs (I) are bf16, too,
// and products round the gradients that they read to bf16. On a CPU that multiplies bf16, attention
// also rounds q, k, v and the probabilities.
template <class P> const Ops<float, P>& cpu_ops();
// Table for inference from quantised weights, which stay in their files' formats
// (layers/quant/packed.h). Operations that need gradients are null.
struct PackedWeight;
const Ops<float, PackedWeight>& cpu_packed_ops();
// Whether the instruction set in use multiplies bf16 (AVX512-BF16, AMX). If not, fp32 is as fast.
bool cpu_has_bf16();
void cpu_set_threads(int threads);    // 0: all usable cores (affinity, cgroup quota, hyper-threads)
int cpu_threads();
