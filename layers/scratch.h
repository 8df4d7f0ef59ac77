// scratch.h - sizes and layout of each CUDA operation's scratch memory. Launchers use it, and
// train/gpu_plan.cpp, which plans for absent GPUs. Plain C++ without CUDA headers. Sizes are bytes
// unless stated otherwise.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <string>

#include "ops.h"

// Bytes of the logits that the LM head computes at once. 512 MiB hold 5,300 rows of GPT-2 in bf16,
// enough for the head's products to fill a GPU. But each chunk reads and writes the gradient of the
// head's weights in fp32, so larger chunks are faster where there is memory.
inline int64_t cuda_logits_bytes(int64_t memory) {
    const int64_t GIB = int64_t(1) << 30;
    return memory >= 40 * GIB ? 2 * GIB : memory >= 20 * GIB ? GIB : GIB / 2;
}

// embedding_backward's scratch: the positions sorted by token (two buffers of the radix sort), the
// offset of each digit in each tile, and two rows of sums for each piece of the sorted positions.
struct EmbeddingScratch {
    static constexpr int DIGITS = 256, TILE = 2048;    // values of a digit; positions per tile
    // MAX_PIECES pieces fill a GPU, and one thread can still add up their sums.
    static constexpr int MAX_PIECES = 1024, SHORTEST = 16;
    int length, pieces;    // positions per piece; number of pieces
    int64_t order, digit_offset, partial;
    EmbeddingScratch(int64_t N, int64_t C)
        : length(int(std::max<int64_t>(ceil_div(N, MAX_PIECES), SHORTEST))), pieces(int(ceil_div(N, length))),
          order(round_up(4 * N, 256)), digit_offset(round_up(4 * DIGITS * ceil_div(N, TILE), 256)),
          partial(8 * pieces * C) {}
    int64_t bytes() const { return 2 * order + digit_offset + partial; }
};

// Scratch of router_forward. For each part of a sequence and each expert: the number of the part's
// rows for the expert, later the first permuted row of these; the sum of the expert's shares. For
// each part: the sum of lse^2. For each expert: its number of rows and its term of the balance.
struct RouterScratch {
    static constexpr int PART = 128;    // positions per part
    int per_sequence, parts;
    int64_t part_rows, shares, squares, rows, balance, bytes;    // offsets of the arrays; total
    RouterScratch(int B, int S, int E) : per_sequence(int(ceil_div(S, PART))), parts(B * per_sequence), part_rows(0) {
        shares = part_rows + round_up(4 * int64_t(E) * parts, 256);
        squares = shares + round_up(4 * int64_t(E) * parts, 256);
        rows = squares + round_up(8 * int64_t(parts), 256);
        balance = rows + round_up(4 * E, 256);
        bytes = balance + 8 * E;
    }
};

constexpr int NORM_PARTS = 512;    // blocks: four per multiprocessor of the largest GPUs
inline int64_t norm_scratch(int64_t N, int64_t C) { return std::min<int64_t>(NORM_PARTS, N) * 2 * C * 4; }

// value_embedding_backward's scratch: the gradient of each gate's sum, and for each block of
// threads the gradient of the gates' weights.
struct ValueEmbeddingScratch {
    int64_t sums, bytes;    // bytes of the gates' gradients; total
    ValueEmbeddingScratch(int64_t N, int C, int64_t NKV)
        : sums(round_up(4 * N * NKV, 256)),
          bytes(sums + 4 * std::min<int64_t>(NORM_PARTS, N) * NKV * value_gate_channels(C)) {}
};

// rope_backward's scratch: for each block of threads, the gradients of QK-norm's weights.
constexpr int ROPE_PARTS = 512;
inline int64_t rope_scratch(int64_t N, Heads h, QkNormRope t) {
    return t.norms() ? std::min<int64_t>(ROPE_PARTS, N) * (h.NH + h.NKV) * h.HS * 4 : 0;
}

// A product's scratch: cuBLASLt's workspace and one sum per column. The workspace is four times
// NVIDIA's advice for Hopper, because the gradient of a weight is a sum over all positions, which
// the library may split into parts (9 MB each for GPT-2). If the library does not compute column
// sums, a kernel does afterwards: it sums ranges of rows in float, in the workspace's memory.
constexpr int64_t WORKSPACE = 128 << 20;
inline int64_t column_sum_rows(int64_t N) { return std::max<int64_t>(64, ceil_div(N, 128)); }    // rows per range
inline int64_t linear_scratch(int64_t N, int64_t columns, int64_t sum_bytes) {
    return std::max(round_up(columns * sum_bytes, 256) + WORKSPACE, ceil_div(N, column_sum_rows(N)) * columns * 4);
}
// linear_*_fp8's scratch: the largest number that each block of threads found in a tensor, then
// each factor's scales and its 8-bit copy. The forward product has the factors x and w, the
// backward products have dy, dy^T, w^T and x^T. x^T overwrites w^T, which is then no longer used.
struct Fp8Scratch {
    static constexpr int PARTS = 512;    // blocks that find the maximum: 4 per multiprocessor
    static constexpr int BLOCK = 128;    // neighbours along k that share a scale
    static bool takes(int64_t N, int64_t C, int64_t OC) { return (N | C | OC) % 16 == 0; }    // required by cuBLASLt
    struct Factor {
        int64_t rows, k;
    };                              // k is the contiguous dimension
    int64_t scales[3], casts[3];    // offsets
    int64_t kept = PARTS * 4;       // bytes before the workspace
    // Sized for scales of 1x128 blocks. 128x128 blocks have fewer scales, which fit even with their
    // padding, because there are 16 rows or more.
    explicit Fp8Scratch(const Factor (&factors)[3]) {
        for (int i = 0; i < 3; i++) {
            scales[i] = kept;
            casts[i] = scales[i] + round_up(4 * factors[i].rows * ceil_div(factors[i].k, BLOCK), 256);
            kept = casts[i] + round_up(factors[i].rows * factors[i].k, 256);
        }
    }
    static Fp8Scratch forward(int64_t N, int64_t C, int64_t OC) { return Fp8Scratch({{N, C}, {OC, C}, {0, 0}}); }
    static Fp8Scratch backward(int64_t N, int64_t C, int64_t OC) {
        return Fp8Scratch({{N, OC}, {OC, N}, {C, std::max(N, OC)}});
    }
    int64_t bytes() const { return kept + WORKSPACE; }
};

// Scratch of `sample`, for up to ROWS rows at once. Each part of the vocabulary has a list of
// tokens: their scores, prefix sums of weights (exponentials), and ids. Each list has its largest
// score, the score to which its weights are relative, their sum, the likeliest token, and the
// number of tokens.
struct SampleScratch {
    static constexpr int PART = 1024, ROWS = 16;    // tokens per part; rows sampled at once
    int parts;
    int64_t lists, tokens, bytes;    // parts of these rows; tokens of these parts
    SampleScratch(int N, int V)
        : parts(int(ceil_div(V, PART))), lists(int64_t(std::min(N, ROWS)) * parts), tokens(lists * PART),
          bytes(tokens * (2 * 8 + 4) + lists * (3 * 8 + 2 * 4)) {}
};

inline int64_t normalize_rows_scratch(int64_t rows) { return 8 * (rows + 1); }    // each row's sum of squares, and all
constexpr int SQUARES_PARTS = 1024;    // blocks of sum_of_squares; each writes one double

// attention_backward's scratch. simt: delta = dy . y of each query. sm80: lse and delta, padded to
// whole tiles of queries. sm90: dq in float, lse and delta per query tile, and counters that order
// the additions to dq.
struct Sm90Scratch {
    // The sm90 kernels lack sparse masks, biases and dropout, which would cost registers in every
    // call; the sm80 kernels have them.
    static bool takes(Heads h) {
        const bool size = h.HS <= 128 ? h.HS % 32 == 0 : h.HS == 192 || h.HS == 256;
        const bool plain = !h.stride && !h.global_tokens && !h.max_distance && h.dropout.rate == 0;
        return size && plain && h.value_size() == h.HS;
    }
    static constexpr int rows(int HS) { return HS <= 64 ? 128 : 64; }    // rows of a query tile
    int64_t lse2, delta, dq_order, bytes;                                // offsets (dq has 0); total
    Sm90Scratch(int B, int S, Heads h) {
        const int64_t tiles = B * int64_t(h.NH) * ceil_div(S, rows(h.HS));
        lse2 = tiles * 4 * rows(h.HS) * h.HS;
        delta = lse2 + tiles * 4 * rows(h.HS);
        dq_order = delta + tiles * 4 * rows(h.HS);
        bytes = dq_order + tiles * 4;
    }
};
enum class AttentionKernels { simt, sm80, sm90 };
// A pattern within spans is two-sided (visible_keys.h), for which only simt's kernels are made.
inline bool attention_fits_sm80(Heads h) {
    return h.HS % 8 == 0 && h.HS <= 256 && h.value_size() == h.HS && !(h.keys && (h.stride || h.global_tokens));
}
// The newest kernels that support these heads; or, for measurements and tests, the kernels that
// FLATGPT_ATTENTION=sm90, sm80 or plain (simt) selects. sm90: the GPU can run the sm_90 kernels.
inline AttentionKernels attention_kernels(int type_bytes, Heads h, bool sm90) {
    typedef AttentionKernels K;
    if (type_bytes != 2) return K::simt;    // sm80 and sm90 multiply bf16
    const bool fits_80 = attention_fits_sm80(h), fits_90 = sm90 && Sm90Scratch::takes(h);
    const char* asked = getenv("FLATGPT_ATTENTION");
    if (!asked) return fits_90 ? K::sm90 : fits_80 ? K::sm80 : K::simt;
    const std::string name = asked;
    CHECK(name == "plain" || name == "sm80" || name == "sm90", "FLATGPT_ATTENTION=%s: expected plain, sm80 or sm90",
          asked);
    CHECK((name != "sm80" || fits_80) && (name != "sm90" || fits_90),
          "FLATGPT_ATTENTION=%s: not for these heads (of size %d) on this GPU", asked, h.HS);
    return name == "sm90" ? K::sm90 : name == "sm80" ? K::sm80 : K::simt;
}
// attention_bias_backward's scratch: delta of each query, and, if all queries share the biases, the
// sums along the diagonals of each band of tiles.
struct BiasScratch {
    static constexpr int TILE = 64, DIAGONALS = 128;    // 127 diagonals are used
    int tiles, bands;
    int64_t partial, bytes;
    BiasScratch(int B, int S, Heads h)
        : tiles(int(ceil_div(S, TILE))), bands(h.keys ? 2 * tiles - 1 : tiles),
          partial(round_up(4 * int64_t(B) * h.NH * S, 256)),
          bytes(partial + (h.bias_step ? 0 : 4 * int64_t(B) * h.NH * bands * DIAGONALS)) {}
};
// relative_keys_backward's scratch: each part's sum (distances,HS) of dkeys. A part has one head's
// tiles of queries, those whose numbers are equal modulo `splits`.
struct RelativeKeysScratch {
    static constexpr int TILE = 64, MOST_SPLITS = 16;
    int tiles, splits, parts;
    int64_t bytes;
    RelativeKeysScratch(int N, Heads h)
        : tiles(int(ceil_div(N, TILE))), splits(std::min(tiles, MOST_SPLITS)), parts(h.NH * splits),
          bytes(4 * int64_t(parts) * h.distances() * h.HS) {}
};
// Scratch of linear_attention_*, counted in floats. rows: for each row of y, y before its factor n
// and, with has_z(), f(q) . z; in the backward pass the gradients of these. gates: the products q
// dq. features: f(q), f(k) and v of performer; in the backward pass their gradients follow.
struct LinearAttentionScratch {
    int64_t rows, gates, features;
    LinearAttentionScratch(int B, int S, Heads h)
        : rows(round_up(int64_t(B) * S * h.NH * (h.HS + h.has_z()), 64)), gates(int64_t(B) * S * h.gates()),
          features(h.linear == LinearAttention::performer ? round_up(int64_t(B) * S * h.qkv_width(), 64) : 0) {}
    int64_t forward() const { return 4 * (rows + features); }    // bytes
    int64_t backward() const { return 4 * (rows + gates + 2 * features); }
};
constexpr int SM80_STATS_ROWS = 128;
inline int64_t attention_scratch(AttentionKernels kernels, int B, int S, Heads h) {
    if (kernels == AttentionKernels::sm90) return Sm90Scratch(B, S, h).bytes;
    return 4 * int64_t(B) * h.NH * (kernels == AttentionKernels::sm80 ? 2 * round_up(S, SM80_STATS_ROWS) : S);
}

// attention_cached divides the queries into items of G that share a kv head, and each item's keys
// into splits; a lane holds E elements of a head. Each split leaves a partial result in scratch.
// With S > 1, attention_forward may compute a prompt's first chunk: then scratch has its lse.
struct CachedPlan {
    static constexpr int THREADS = 128, BLOCKS = 4, MAX_ITEMS = 8192;    // BLOCKS: per multiprocessor
    // Calls with more positions are computed by the prompt's kernels. Their tiles have 64 queries,
    // so they do more work for each key that they read.
    static constexpr int MAX_POSITIONS = 16;
    static constexpr int unroll(int E) { return E == 8 ? 4 : 1; }
    bool takes;    // false: the prompt's kernels compute it
    int G, E, lanes = 1, items, splits;
    int64_t bytes;
    CachedPlan(int B, int S, int maxT, bool aligned, Heads h, int multiprocessors) {
        const int queries = S * (h.NH / h.NKV);    // queries that share a kv head's keys
        E = aligned && h.HS <= 256 ? 8 : 32;
        takes = S == 1 ? h.HS <= 1024 : S <= MAX_POSITIONS && E == 8;
        G = E == 32 || queries == 1 ? 1 : S == 1 && queries == 2 ? 2 : 4;
        while (lanes * E < h.HS) lanes *= 2;
        const int64_t all = int64_t(B) * h.NKV * ceil_div(queries, G);
        const int64_t rounds = ceil_div(maxT, std::max(THREADS / lanes, 1) * unroll(E));
        const int64_t fill = all > MAX_ITEMS ? 1 : ceil_div(int64_t(BLOCKS) * multiprocessors, all);
        items = int(all);
        splits = int(std::min(fill, rounds));
        bytes = std::max(takes && splits > 1 ? all * splits * G * lanes * (E + 2) * 4 : 0,
                         S > 1 ? 4 * int64_t(B) * h.NH * S : 0);
    }
};

// Bytes of a call's scratch on a GPU with this many multiprocessors. sm90: it runs sm_90 kernels.
inline int64_t cuda_call_scratch(const CallSizes& c, int type_bytes, int multiprocessors, bool sm90) {
    switch (c.operation) {
        case Operation::embedding_backward: return EmbeddingScratch(c.rows, c.in).bytes();
        case Operation::router_forward: return RouterScratch(c.B, c.S, c.in).bytes;
        case Operation::norm_backward: return norm_scratch(c.rows, c.in);
        case Operation::scale_columns_backward: return ceil_div(c.rows, column_sum_rows(c.rows)) * c.in * 4;
        case Operation::residual_mix_backward: return NORM_PARTS * 8;
        case Operation::smear_backward: return NORM_PARTS * (smear_channels(c.in) + 1) * 4;
        case Operation::value_embedding_backward: return ValueEmbeddingScratch(c.rows, c.in, c.heads.NKV).bytes;
        case Operation::rope_backward: return rope_scratch(c.rows, c.heads, c.rope);
        case Operation::linear_forward:
            if (c.precision != Precision::fp8 || !Fp8Scratch::takes(c.rows, c.in, c.out)) return WORKSPACE;
            return Fp8Scratch::forward(c.rows, c.in, c.out).bytes();
        case Operation::norm_linear_forward:
        case Operation::norm_ffn_forward:
        case Operation::linear_gelu_forward: return WORKSPACE;
        case Operation::linear_backward:
        case Operation::lm_head_backward: {
            const int64_t sums = linear_scratch(c.rows, c.bias ? c.out : 0, 4);    // column sums are computed last
            const bool takes = c.precision == Precision::fp8 && Fp8Scratch::takes(c.rows, c.in, c.out);
            return takes ? std::max(sums, Fp8Scratch::backward(c.rows, c.in, c.out).bytes()) : sums;
        }
        case Operation::linear_gelu_backward:    // dpre's sums have its type, db's are float
            return std::max(linear_scratch(c.rows, c.in, type_bytes), linear_scratch(c.rows, c.out, 4));
        case Operation::attention_backward:
        case Operation::cross_attention_backward:
            return attention_scratch(attention_kernels(type_bytes, c.heads, sm90), c.B, c.S, c.heads);
        case Operation::attention_bias_backward: return BiasScratch(c.B, c.S, c.heads).bytes;
        case Operation::relative_keys_backward: return RelativeKeysScratch(c.S, c.heads).bytes;
        case Operation::linear_attention_forward:
        case Operation::linear_attention_cached: return LinearAttentionScratch(c.B, c.S, c.heads).forward();
        case Operation::linear_attention_backward: return LinearAttentionScratch(c.B, c.S, c.heads).backward();
        case Operation::attention_cached:
        case Operation::cross_attention_cached:
        case Operation::rope_attention_cached:
            return CachedPlan(c.B, c.S, c.maxT, c.heads.HS % (16 / type_bytes) == 0, c.heads, multiprocessors).bytes;
        case Operation::sample: return SampleScratch(c.rows, c.in).bytes;
        case Operation::orthogonalize: return WORKSPACE;    // more than sum_of_squares needs
        case Operation::normalize_rows: return normalize_rows_scratch(c.rows);
        case Operation::sum_of_squares: return SQUARES_PARTS * 8;
        default: return 0;
    }
}
