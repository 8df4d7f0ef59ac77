// token.cu - ladder: one token through a whole model, from a launch per operation to one kernel.
//
// Bound by memory: every weight (2 bytes) and the cache's keys and values are read once. GPT-2 124M
// has 248 MB, and 37 MB of cache at position 1000: 95 us at 3 TB/s, about an H100's copy bandwidth.
// A token's operations depend on each other: memory idles while one launch ends and the next begins
// to load.
//
// The one kernel has a block on each multiprocessor. All blocks run the same phases with a grid
// barrier after each, five a layer: norm and qkv; attention over the cache; projection; norm and
// the ffn's first product; its second product. Final norm and head follow. Weights do not depend on
// the token, so each warp has a ring of pieces in shared memory, which bulk copies fill in the
// order of their use, across phases: loads continue during a barrier. An H100's rings hold up to 21
// MB, which memory delivers in 7 us: a shorter barrier costs nothing.
//
// On an H200 (2026-11-27), at position 1000, this kernel takes 388 us for a token of GPT-2 and the
// captured chain 290; for Llama 3.2 1B 1285 and 1042. Counts had predicted 120 to 180 us, and
// little more than memory's 830: a barrier is an atomic and a read in L2, a phase also has the
// latency of a norm or a merge and of a few rows of w. GPT-2 has 60 phases, 6 us each; Llama has
// 80, which the rings should have hidden. The cause is unknown. By its instructions, a warp needs
// some 200 cycles for a piece of 2 KB, so a multiprocessor's 8 warps take a piece every 25 cycles;
// memory delivers one every 136.
//
// Thread mapping: warp o % (blocks WARPS) has output o of a product, and neighbours are in
// different blocks, so all have equal shares. One warp sums a row: the bits do not depend on the
// order of blocks. Attention: the keys of a key/value head are split among blocks, and there among
// warps; HS / 8 lanes hold a row. Each block merges all splits itself, in order.
#include "layers/activation.cuh"
#include "layers/ptx/hopper.cuh"
#include "layers/matmul/norm_rows.cuh"
#include "layers/rope.cuh"
#include "token.h"

namespace {
// ---- one kernel ---------------------------------------------------------------------------------

constexpr int WARPS = 8, PIECE = 1024, AHEAD = 10;    // elements per piece; pieces per ring
constexpr int MOST_HS = 128;

struct Call {
    Shape s;
    Weights<bf16> w;
    Pages cache[MOST_LAYERS];
    NormOf<bf16> norm;    // the final norm
    RopeCall rope;
    Act act;
    float scale;    // q . k to scores in log2 units
    const int *tok, *pos;
    bf16 *x, *x2, *qkv, *h, *logits;
    float* partial;    // (NH,splits,HS+2): weighted values, maximum, sum
    unsigned* count;
    __device__ NormOf<bf16> normed_by(const bf16* w, const bf16* b) const {
        NormOf<bf16> n = norm;
        n.w = w, n.b = b;
        return n;
    }
};

// The i-th product of a token: rows of w (parts,outputs,K).
struct Product {
    const bf16* w;
    int K, outputs, parts;
    __device__ static Product of(const Call& c, int i) {
        const Shape& s = c.s;
        if (i == 4 * s.L) return {c.w.wte, s.C, s.Vp, 1};
        const Layer<bf16>& p = c.w.layer[i / 4];
        return i % 4 == 0   ? Product{p.qkvw, s.C, s.qkv(), 1}
               : i % 4 == 1 ? Product{p.projw, s.NH * s.HS, s.C, 1}
               : i % 4 == 2 ? Product{p.fcw, s.C, s.F, s.llama ? 2 : 1}
                            : Product{p.fc2w, s.F, s.C, 1};
    }
};

struct alignas(128) Rings {
    bf16 piece[WARPS][AHEAD][PIECE];
    uint64_t full[WARPS][AHEAD];
};

// Streams a warp's rows of all products through its ring. If ACROSS, copies run ahead into later
// products; otherwise they stop at the end of the current one.
template <bool ACROSS> struct Stream {
    const Call& c;
    bf16 (*const piece)[PIECE];
    uint64_t* const full;
    const int first, warps;      // first output; step to the next
    int slot = 0, parity = 0;    // the next piece to read
    Product next;                // the next to copy
    int product = 0, output, part = 0, from = 0, end;

    __device__ Stream(const Call& c, Rings& r)
        : c(c), piece(r.piece[threadIdx.x / 32]), full(r.full[threadIdx.x / 32]),
          first(int(blockIdx.x + gridDim.x * (threadIdx.x / 32))), warps(int(gridDim.x) * WARPS),
          next(Product::of(c, 0)), output(first), end(ACROSS ? 4 * c.s.L + 1 : 0) {
        if (ACROSS) fill();
    }
    __device__ void begin(int i) {
        if (ACROSS) return;
        end = i + 1;
        fill();
    }
    __device__ void fill() {
        for (int i = 0; i < AHEAD; i++) fetch((slot + i) % AHEAD);
    }
    // Starts copying the next piece, if there is one.
    __device__ void fetch(int to) {
        while (output >= next.outputs) {
            if (product + 1 >= 4 * c.s.L + 1) return;
            next = Product::of(c, ++product), output = first;
        }
        if (product >= end) return;
        const int n = min(PIECE, next.K - from), bytes = n * int(sizeof(bf16));
        if (threadIdx.x % 32 == 0) {
            mbarrier_arrive_expect(&full[to], bytes);
            bulk_load(piece[to], next.w + (part * int64_t(next.outputs) + output) * next.K + from, bytes, &full[to]);
        }
        if ((from += PIECE) < next.K) return;
        from = 0;
        if (++part < next.parts) return;
        part = 0, output += warps;
    }
    // Product of the next row of weights with x (K), which is in shared memory.
    __device__ float row(const bf16* x, int K) {
        float sum = 0;
        for (int c0 = 0; c0 < K; c0 += PIECE) {
            mbarrier_wait(&full[slot], parity);
            const int n = min(PIECE, K - c0);
#pragma unroll
            for (int k = 0; k < PIECE / 256; k++)
                if (const int i = k * 256 + int(threadIdx.x % 32) * 8; i < n) {
                    const Vec<bf16> a = load<8>(piece[slot] + i), b = load<8>(x + c0 + i);
#pragma unroll
                    for (int e = 0; e < 8; e++) sum += a[e] * b[e];
                }
            __syncwarp();    // all lanes have read the piece
            fetch(slot);
            if (++slot == AHEAD) slot = 0, parity ^= 1;
        }
        return warp_sum(sum);
    }
    // Calls finish(o, sum, other) in one lane for each of the warp's outputs of product i. other is
    // the product with the same row of the matrix's second half (gated ffn), or 0.
    template <class F> __device__ void multiply(int i, const bf16* x, const bf16* b, F finish) {
        const Product p = Product::of(c, i);
        begin(i);
        for (int o = first; o < p.outputs; o += warps) {
            const float bias = b ? to_float(b[o]) : 0, sum = row(x, p.K) + bias, other = p.parts > 1 ? row(x, p.K) : 0;
            if (threadIdx.x % 32 == 0) finish(o, sum, other);
        }
    }
};

// Grid barrier: writes before it are visible to all blocks after it. After its last barrier a block
// arrives once more, which resets *count to 0 for the next launch.
struct Meeting {
    unsigned *count, arrivals, last;
    __device__ void arrive() {
        __syncthreads();
        if (threadIdx.x == 0) grid_arrive(count, last);
    }
    __device__ void meet() {
        arrive();
        if (threadIdx.x == 0) grid_wait(count, arrivals += gridDim.x);
        __syncthreads();
    }
};

// State of an online softmax: the largest score so far in log2 units; sum and o are relative to it.
struct Softmax {
    float top, sum, o;
};
__device__ inline float weight(float top, float of_all) { return top == -INFINITY ? 0 : exp2f(top - of_all); }
__device__ inline Softmax added(Softmax a, Softmax b) {
    const float top = fmaxf(a.top, b.top), x = weight(a.top, top), y = weight(b.top, top);
    return {top, a.sum * x + b.sum * y, a.o * x + b.o * y};
}
// Merges n results of splits, part (n,stride): sums of HS channels, then top and sum.
__device__ inline Softmax merged(const float* part, int n, int stride, int HS, int d) {
    Softmax all = {-INFINITY, 0, 0};
#pragma unroll 4
    for (int i = 0; i < n; i++, part += stride) all = added(all, {part[HS], part[HS + 1], part[d]});
    return all;
}

// The splits of a head's keys.
struct Splits {
    int keys, count, each;
    __device__ Splits(const Call& c) : keys(*c.pos + 1) {
        count = max(1, min(int(gridDim.x) / c.s.NKV, (keys + LEAST_KEYS - 1) / LEAST_KEYS));
        each = (keys + count - 1) / count;
    }
};

// own (G+1,HS) = the queries of key/value head kv and the new key, rotated.
template <int G> __device__ inline void rope_heads(bf16* own, const Call& c, int kv) {
    const int lane = int(threadIdx.x) % c.rope.lanes, i = int(threadIdx.x) / c.rope.lanes, HS = c.s.HS;
    if (i > G) return;
    RopeVector<8, false> piece(c.rope, lane);
    const Rotation<8> rotation(c.rope, piece, c.rope.rotation(0));
    piece.load(c.qkv + (i < G ? kv * G + i : c.s.NH + kv) * HS);
    rotation.rotate(piece);
    piece.store(own + i * HS);
}

// Attention over the warp's share of keys from..to-1, written to part (G,MOST_HS+2).
template <int G> __device__ inline void attend(float (*part)[MOST_HS + 2], const bf16* own, const Call& c,
                                               const Pages& cache, int kv, int from, int to) {
    constexpr int U = 4;    // rows in flight
    const int HS = c.s.HS, lanes = HS / 8, lane = int(threadIdx.x) % 32, d = lane % lanes * 8, p = *c.pos;
    const int rows = 32 / lanes;
    const bf16 *new_k = own + G * HS, *new_v = c.qkv + (c.s.NH + c.s.NKV + kv) * HS;
    float q[G][8], o[G][8] = {}, top[G], sum[G] = {};
#pragma unroll
    for (int g = 0; g < G; g++) {
        const Vec<bf16> x = load<8>(own + g * HS + d);
        top[g] = -INFINITY;
#pragma unroll
        for (int e = 0; e < 8; e++) q[g][e] = x[e] * c.scale;
    }
    // The number of rounds is equal for all lanes, because they exchange sums.
    for (int first = from + int(threadIdx.x) / 32 * rows; first < to; first += U * WARPS * rows) {
        Vec<bf16> k[U], v[U];
#pragma unroll
        for (int u = 0; u < U; u++) {    // past the end: last key, weight 0
            const int key = min(first + lane / lanes + u * WARPS * rows, to - 1);
            const int64_t at = cache.row(0, kv, key) * HS;
            k[u] = load<8>((key == p ? new_k : static_cast<const bf16*>(cache.k) + at) + d);
            v[u] = load<8>((key == p ? new_v : static_cast<const bf16*>(cache.v) + at) + d);
        }
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int g = 0; g < G; g++) {
                float score = 0;
#pragma unroll
                for (int e = 0; e < 8; e++) score += q[g][e] * k[u][e];
                score = sum_over(score, lanes);
                if (first + lane / lanes + u * WARPS * rows >= to) score = -INFINITY;
                const float now = fmaxf(top[g], score), old = weight(top[g], now), w = weight(score, now);
                top[g] = now, sum[g] = sum[g] * old + w;
#pragma unroll
                for (int e = 0; e < 8; e++) o[g][e] = o[g][e] * old + w * v[u][e];
            }
    }
#pragma unroll
    for (int g = 0; g < G; g++) {    // reduces over the warp's rows
        const float all = [&] {
            float t = top[g];
            for (int bit = lanes; bit < 32; bit *= 2) t = fmaxf(t, __shfl_xor_sync(0xffffffff, t, bit));
            return t;
        }();
        const float own_weight = weight(top[g], all);
        auto across = [&](float x) {
            x *= own_weight;
            for (int bit = lanes; bit < 32; bit *= 2) x += __shfl_xor_sync(0xffffffff, x, bit);
            return x;
        };
        sum[g] = across(sum[g]);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const float x = across(o[g][e]);
            if (lane < lanes) part[g][d + e] = x;
        }
        if (lane == 0) part[g][HS] = all, part[g][HS + 1] = sum[g];
    }
}

// Computes the block's splits of layer l's heads; one block writes the new key and value.
template <int G> __device__ inline void attention(const Call& c, int l) {
    SHARED(Vec<bf16>[(G + 1) * MOST_HS / 8], own);
    SHARED(float[WARPS][G][MOST_HS + 2], parts);
    const int HS = c.s.HS, NKV = c.s.NKV;
    const Splits splits(c);
    const Pages& cache = c.cache[l];
    for (int item = int(blockIdx.x); item < NKV * splits.count; item += int(gridDim.x)) {
        const int kv = item % NKV, split = item / NKV, from = split * splits.each, p = splits.keys - 1;
        const int to = min(splits.keys, from + splits.each), t = int(threadIdx.x);
        rope_heads<G>(own[0].v, c, kv);
        __syncthreads();
        attend<G>(parts[t / 32], own[0].v, c, cache, kv, from, to);
        if (from <= p && p < to && t < HS / 8) {
            const int64_t at = cache.row(0, kv, p) * HS + t * 8;
            store(static_cast<bf16*>(cache.k) + at, load<8>(own[0].v + G * HS + t * 8));
            store(static_cast<bf16*>(cache.v) + at, load<8>(c.qkv + (c.s.NH + NKV + kv) * HS + t * 8));
        }
        __syncthreads();
        for (int i = t; i < G * HS; i += WARPS * 32) {
            const int g = i / HS, d = i % HS;
            const Softmax all = merged(parts[0][g], WARPS, G * (MOST_HS + 2), HS, d);
            float* const out = c.partial + ((kv * G + g) * splits.count + split) * (HS + 2);
            out[d] = all.o;
            if (d == 0) out[HS] = all.top, out[HS + 1] = all.sum;
        }
        __syncthreads();    // own and parts are overwritten next
    }
}

__device__ inline void copy(bf16* to, const bf16* from, int n) {
    for (int i = int(threadIdx.x) * 8; i < n; i += WARPS * 32 * 8) store(to + i, load<8>(from + i));
    __syncthreads();
}
__device__ inline void embed(bf16* to, const Call& c) {
    const int C = c.s.C;
    const bf16 *e = c.w.wte + int64_t(*c.tok) * C, *position = c.w.wpe ? c.w.wpe + int64_t(*c.pos) * C : nullptr;
    for (int i = int(threadIdx.x); i < C; i += WARPS * 32)
        to[i] = to_bf16(to_float(e[i]) + (position ? to_float(position[i]) : 0));
    __syncthreads();
}

template <int G, bool ACROSS> __global__ void __launch_bounds__(WARPS * 32, 1)
    token_kernel(const __grid_constant__ Call c) {
    if constexpr (SM90A) {
        Rings& rings = dynamic_shared<Rings>();
        // x: the residual stream before the phase; in: the input of its product.
        bf16 *const x = reinterpret_cast<bf16*>(&rings + 1), *const in = x + c.s.C;
        if (const unsigned t = threadIdx.x; t < WARPS * AHEAD) mbarrier_init(&rings.full[t / AHEAD][t % AHEAD], 1);
        mbarrier_init_fence();
        __syncthreads();
        Stream<ACROSS> weights(c, rings);
        Meeting all = {c.count, 0, gridDim.x * unsigned(5 * c.s.L + 1) - 1};
        auto norm = [&](auto* w, auto* b) { norm_rows<WARPS, bf16, 8, 1>(in, x, c.normed_by(w, b), c.s.C); };
        embed(x, c);
        for (int l = 0; l < c.s.L; l++) {
            const Layer<bf16>& p = c.w.layer[l];
            norm(p.nw1, p.nb1);
            weights.multiply(4 * l, in, p.qkvb, [&](int o, float sum, float) { c.qkv[o] = to_bf16(sum); });
            all.meet();
            attention<G>(c, l);
            all.meet();
            const int HS = c.s.HS, splits = Splits(c).count, each = splits * (HS + 2);
            for (int i = int(threadIdx.x); i < c.s.NH * HS; i += WARPS * 32) {
                const Softmax head = merged(c.partial + i / HS * each, splits, HS + 2, HS, i % HS);
                in[i] = to_bf16(head.o / head.sum);
            }
            __syncthreads();
            weights.multiply(4 * l + 1, in, p.projb,
                             [&](int o, float sum, float) { c.x2[o] = to_bf16(sum + to_float(x[o])); });
            all.meet();
            copy(x, c.x2, c.s.C);
            norm(p.nw2, p.nb2);
            weights.multiply(4 * l + 2, in, p.fcb, [&](int o, float sum, float other) {
                if (!c.s.llama) c.h[o] = to_bf16(gelu(sum));
                else c.h[o] = to_bf16(activated(c.act, to_float(to_bf16(sum))) * to_float(to_bf16(other)));
            });
            all.meet();
            copy(in, c.h, c.s.F);
            weights.multiply(4 * l + 3, in, p.fc2b,
                             [&](int o, float sum, float) { c.x[o] = to_bf16(sum + to_float(x[o])); });
            all.meet();
            copy(x, c.x, c.s.C);
        }
        norm(c.norm.w, c.norm.b);
        weights.multiply(4 * c.s.L, in, nullptr, [&](int o, float sum, float) { c.logits[o] = to_bf16(sum); });
        all.arrive();
    }
}

template <bool ACROSS> void one_kernel(const Ops<bf16>&, Token<bf16>& t) {
    const Shape& s = t.s;
    Call c = {s,
              t.w,
              {},
              {t.w.nw, t.w.nb, s.norm(), s.C},
              RopeCall::of<8>(t.cos_sin, t.pos, 1, 1, s.heads(), s.rope()),
              s.act(),
              LOG2E * s.heads().score_scale(),
              t.tok,
              t.pos,
              t.x,
              t.x2,
              t.qkv,
              t.h,
              t.logits,
              t.partial,
              reinterpret_cast<unsigned*>(static_cast<int*>(t.count))};
    CHECK(s.HS <= MOST_HS && (s.NH == s.NKV || s.NH == 4 * s.NKV), "heads that the kernel does not take");
    std::copy(t.cache.begin(), t.cache.end(), c.cache);
    const int widest = std::max({s.C, s.F, s.NH * s.HS});
    const size_t shared = sizeof(Rings) + size_t(s.C + widest) * sizeof(bf16);
    auto run = [&](auto kernel) {
        int fit = 0;
        CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)));
        CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fit, kernel, WARPS * 32, shared));
        launch(
            kernel,
            {.grid = unsigned(fit * cuda_multiprocessors()), .block = WARPS * 32, .shared = shared, .together = true},
            c);
    };
    s.NH == s.NKV ? run(token_kernel<1, ACROSS>) : run(token_kernel<4, ACROSS>);
}

// ---- the ladder ---------------------------------------------------------------------------------

void climb(const Ops<bf16>& op, const Shape& s, const Shape& checked) {
    int64_t n;
    weights_at<bf16>(s, nullptr, &n);
    const int64_t read = n - (s.llama ? 0 : s.positions() - 1) * int64_t(s.C);    // wpe: one row is read
    Ladder ladder(std::string("a token of ") + s.name + " bf16 at position " + std::to_string(s.pos),
                  2.0 * double(read) + s.cache_bytes());
    const Sets<bf16> w(op, 1, n, 0.02);    // more than L2 holds
    Caches caches(Memory(op), s);
    Token<bf16> token(op, s, w[0], caches);
    token.set(5, s.pos);
    auto rung = [&](const char* name, TokenStep step) {
        ladder.rung(name, check_token(op, checked, step), [&](int) { step(op, token); });
    };
    rung("the operations in turn", in_turn<bf16>);
    rung("fused: five launches a layer", chain);
    op.begin_capture();
    chain(op, token);
    void* const graph = op.end_capture();
    ladder.rung("the same, replayed: production", check_token(op, checked, chain),
                [&](int) { op.launch_graph(graph); });
    op.release_graph(graph);
    if (cuda_capability() != 90) return void(printf("    one kernel: for sm_90\n"));
    rung("one kernel, loads within a phase", one_kernel<false>);
    rung("one kernel, loads across phases", one_kernel<true>);
}
}    // namespace

int main() {
    if (!ladder_open()) return int(Exit::device);
    const Ops<bf16>& op = cuda_ops<bf16>(Dtype::bf16);
    // Between them: rows of one piece and of several, positions of one split and of several.
    const Shape gpt2 = {"GPT-2", 101, 104, 72, 2, 3, 3, 32, 1104, 37, false};
    const Shape llama = {"Llama", 101, 104, 64, 2, 8, 2, 32, 88, 150, true};
    climb(op, ladder_size(Shape{"GPT-2 124M", 50257, 50304, 768, 12, 12, 12, 64, 3072, 1000, false}, gpt2), gpt2);
    climb(op, ladder_size(Shape{"Llama 3.2 1B", 128256, 128256, 2048, 16, 32, 8, 64, 8192, 1000, true}, llama), llama);
    return ladder_result();
}
