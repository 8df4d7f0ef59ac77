// plain.cu - attention forward by FMAs: for float, and for the head sizes that the tensor cores do not take.
//
// No score leaves its block: it keeps a running maximum and sum of each row and rescales y as they grow (Dao et al.
// 2022). FLOPs for each pair of query and key: 4 HS. Thread mapping and bound: plain.cuh.
#include "plain.cuh"

namespace {
using namespace plain;

// Turns a tile of products s into unnormalised probabilities p. Sums and outputs are rescaled to the new maximum.
// kept(row, key): dropout leaves the pair. It takes no part in the sums.
template <bool SHAPED, int U, class Kept>
__device__ inline void online_softmax(Tile& p, Sums (&o)[U], float (&top)[ROWS], float (&sum)[ROWS], Sums& s,
                                      const Sight& sight, const Stream& stream, int t0, const Scores& scores,
                                      const Tilt& slope, Kept kept) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float now = top[r];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const int t = t0 + tile_column(c), behind = sight.row0 + tile_row(r) - stream.key(t);
            const float x = score<SHAPED>(scores, s[r][c], slope, behind);
            s[r][c] = sight.sees(r, stream, t) ? x : -INFINITY;
            now = fmaxf(now, s[r][c]);
        }
        now = warp_max<16>(now);
        const float base = now == -INFINITY ? 0 : now, factor = exp2f(top[r] - base);    // -inf: no key seen so far
        top[r] = now, sum[r] *= factor;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const float e = exp2f(s[r][c] - base);
            sum[r] += e;
            p.x[tile_row(r)][tile_column(c)] = !SHAPED || kept(r, stream.key(t0 + tile_column(c))) ? e : 0;
#pragma unroll
            for (int u = 0; u < U; u++) o[u][r][c] *= factor;
        }
    }
}

// Where keys and values lie, in packed qkv or in a cache: elements from one row, head, sequence to the next.
template <class T> struct Keys { const T *k, *v; int64_t row, head, sequence; };

struct ForwardShared { Tile q, kv, p; };

// 64 queries of a head, at positions from *pos (null: 0) on. The last tiles, which see most keys, start first.
template <class T, int D, bool SHAPED>
__global__ void __launch_bounds__(THREADS, BLOCKS<D>)
forward_kernel(T* y, float* lse, const T* qkv, Keys<T> keys, int B, int S, const int* pos, Heads h, Scores scores) {
    ForwardShared& sh = dynamic_shared<ForwardShared>();
    const int HS = h.HS;
    const Work w = work<D>(B, h.NH, S, HS, true);
    const int p0 = pos ? *pos : 0, to = min(S, w.row + TILE);
    const Span first = keys_of(h, S, w.b, p0 + w.row), last = keys_of(h, S, w.b, p0 + to - 1);
    const Streams streams(h, p0 + S);
    const Head<T> at(h, S, w.b, w.head);
    const Rows<T> q = at.in_qkv(qkv, w.row, to);
    const int64_t keys_at = w.b * keys.sequence + w.head / (h.NH / h.NKV) * keys.head;
    const Rows<T> k = {keys.k + keys_at, keys.row, 0, at.vectors}, v = {keys.v + keys_at, keys.row, 0, at.vectors};
    const Sight sight(h, S, w.b, w.row, p0);
    const Tilt slope = SHAPED ? scores.slope(w.head) : Tilt{};

    auto stays = [&](int r, int key) { return keeps(h, w.b, w.head, p0 + w.row + tile_row(r), key); };
    Sums o[D / TILE] = {};
    float top[ROWS], sum[ROWS] = {};    // top: largest score in units of log 2; sum: over this thread's columns
#pragma unroll
    for (int r = 0; r < ROWS; r++) top[r] = -INFINITY;
    bool kept = false;
    for (int n = 0; n < streams.count; n++) {
        const Stream stream = streams.s[n];
        const int end = stream.of(last).to;
        for (int t0 = stream.of(first).from; t0 < end; t0 += TILE, kept = true) {
            Sums s = {};
            add_abt(s, Operand<T>{sh.q, q, kept}, Operand<T>{sh.kv, k.in(stream, end).from(t0), false}, HS);
            online_softmax<SHAPED>(sh.p, o, top, sum, s, sight, stream, t0, scores, slope, stays);
            add_ab(o, sh.p, Operand<T>{sh.kv, v.in(stream, end).from(t0), false}, w.column, HS);
        }
    }
    float inverse[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        sum[r] = warp_sum<16>(sum[r]);
        inverse[r] = h.dropout.factor() / sum[r];
        const int i = w.row + tile_row(r);
        if (lse && w.column == 0 && threadIdx.x % 16 == 0 && i < S) lse[at.lse + i] = (top[r] + log2f(sum[r])) * LN2;
    }
    auto keep = [&](int r) { return w.row + r < S; };
    store_sums(y + at.y + w.row * at.y_stride, at.y_stride, keep, w.column, HS, o, inverse);
}

template <class T>
void forward(T* y, float* lse, const T* qkv, Keys<T> keys, int B, int S, const int* pos, Heads h) {
    const Scores scores(h);
    for_shape(scores, [&](auto SHAPED) {
        const bool narrow = h.HS <= 64;
        const unsigned grid = narrow ? blocks<64>(B, h.NH, S, h.HS) : blocks<128>(B, h.NH, S, h.HS);
        launch(narrow ? forward_kernel<T, 64, SHAPED> : forward_kernel<T, 128, SHAPED>,
               {grid, THREADS, sizeof(ForwardShared)}, y, lse, qkv, keys, B, S, pos, h, scores);
    });
}

}   // namespace

// ---- entries --------------------------------------------------------------------------------------------------------

template <class T> void attention_forward_plain(T* y, float* lse, const T* qkv, int B, int S, Heads h) {
    const int64_t row = int64_t(h.NH + 2 * h.NKV) * h.HS;
    const T* k = qkv + int64_t(h.NH) * h.HS;
    forward(y, lse, qkv, Keys<T>{k, k + int64_t(h.NKV) * h.HS, row, h.HS, S * row}, B, S, nullptr, h);
}
template <class T>
void attention_prompt_plain(T* y, const T* k_cache, const T* v_cache, const T* qkv, int B, int S, const int* pos,
                            int maxT, Heads h) {
    const int64_t head = int64_t(maxT) * h.HS;
    forward<T>(y, nullptr, qkv, Keys<T>{k_cache, v_cache, h.HS, head, h.NKV * head}, B, S, pos, h);
}

#define INSTANCES(T)                                                              \
    template void attention_forward_plain(T*, float*, const T*, int, int, Heads); \
    template void attention_prompt_plain(T*, const T*, const T*, const T*, int, int, const int*, int, Heads);
INSTANCES(float)
INSTANCES(bf16)
