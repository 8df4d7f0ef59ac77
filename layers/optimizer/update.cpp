// update.cpp - an optimizer's step in one pass over all tensors, and the sum of squares of the
// gradients, from which their norm follows.
//
// Bound by memory. A step of AdamW moves 28 bytes per parameter: it reads the weight, m, v and the
// gradient, and writes all but the gradient. A bf16 weight takes 30 bytes with an fp32 master, 24
// without one. States of 8 bits take 12 bytes less. The sum of squares reads 4 bytes. Square root
// and division are not approximated (IEEE 754).
#include "layers/optimizer/optimizer_state.h"
#include "layers/optimizer/squares.h"
#include "layers/simd/philox_vec.h"

namespace ISA {
constexpr int64_t BLOCK = 8192, PARTS = 2048;
constexpr int ROW = STATE_BLOCK;    // elements that share a group, and a scale of 8-bit states

// Adds up eight sums in the same order for every instruction set. The square of a float is exact in
// double, so an FMA changes nothing, and all instruction sets give the same bits.
double block_squares(const float* x, int64_t n) {
    typedef double Sums __attribute__((vector_size(64)));
    typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));
    Sums s = {};
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const Sums d = __builtin_convertvector(*reinterpret_cast<const Eight*>(x + i), Sums);
        s += d * d;
    }
    for (; i < n; i++) s[i % 8] += double(x[i]) * double(x[i]);
    double total = 0;
    for (int k = 0; k < 8; k++) total += s[k];
    return total;
}
void sum_of_squares(double* out, const float* x, int64_t n) {
    double part[PARTS];
    const int64_t size = BLOCK * (1 + n / (BLOCK * PARTS)), parts = (n + size - 1) / size;
    each_item(parts, n / 4, [&](int64_t p) { part[p] = block_squares(x + p * size, least64(size, n - p * size)); });
    double total = 0;
    for (int64_t p = 0; p < parts; p++) total += part[p];
    *out = total;
}

// ---- states -------------------------------------------------------------------------------------

// Returns one of the two bf16 next to x, the nearer one more likely: adding 16 random bits to the
// lower half of x carries into the upper half with the right probability. Infinities and NaN stay.
INLINE vf rounded_at_random(vf x, vu random) {
    const vu u = reinterpret_cast<vu>(x);
    return (u & 0x7f800000) == 0x7f800000 ? x : reinterpret_cast<vf>((u + random) & 0xffff0000);
}
enum class Half { upper, lower };    // half of each random word
template <Half half> INLINE void put_at_random(bf16* to, const float* row, const uint32_t* random) {
    for (int i = 0; i < ROW; i += VW) {
        vu bits;
        __builtin_memcpy(&bits, random + i, sizeof bits);
        store(to + i, rounded_at_random(load(row + i), half == Half::upper ? bits >> 16 : bits & 0xffff));
    }
}

template <int BITS> INLINE void put_codes(uint8_t* to, float* scale, const float* row) {
    typedef StateCode<BITS> Code;
    vf most = {};
    for (int i = 0; i < ROW; i += VW) {
        const vf x = load(row + i), a = x < 0 ? -x : x;
        most = a > most ? a : most;
    }
    float top = 0;
    for (int i = 0; i < VW; i++) top = most[i] > top ? most[i] : top;
    *scale = top;
    const float divisor = top > 0 ? top : 1;
    for (int i = 0; i < ROW; i += VW) {
        const vf signed_x = load(row + i) / divisor, x = signed_x < 0 ? -signed_x : signed_x;
        vf factor = set1(Code::factor(0)), low = set1(1);
        find_decade<BITS>(x, factor, low);
        const vf high = low + low - 1;
        vf j = x * factor + Code::HALF * low;
        j = j < low ? low : j > high + 0.5f ? high + 0.5f : j;    // is then rounded down
        const vf least = BITS == 7 ? set1(Code::SMALLEST / 2) : vf{};
        vi code = __builtin_convertvector(BITS == 7 ? (x < least ? vf{} : j) : (x > least ? j : vf{}), vi);
        if constexpr (BITS == 7) code |= signed_x < 0 ? vi{} + 128 : vi{};
        store_bytes(to + i, code);
    }
}

static constexpr StateValues VALUES;
// Returns a row of a state as floats: in place, or decoded into `buffer`.
template <int BITS> INLINE float* read_state(const StateArray& s, int64_t at, float* buffer) {
    if (s.type == Element::f32) return static_cast<float*>(s.p) + at;
    if (s.type == Element::bf16) {
        for (int i = 0; i < ROW; i += VW) store(buffer + i, load(static_cast<bf16*>(s.p) + at + i));
    } else {
        const uint8_t* code = static_cast<uint8_t*>(s.p) + at;
        for (int i = 0; i < ROW; i++) buffer[i] = s.scales[at / ROW] * (BITS == 7 ? VALUES.of_m : VALUES.of_v)[code[i]];
    }
    return buffer;
}
// seed, updates: of the random words that a row of bf16 is rounded with (operations.inc).
template <int BITS>
INLINE void write_state(const StateArray& s, int64_t at, const float* row, uint64_t seed, uint64_t updates) {
    if (s.type == Element::bf16) {
        uint32_t random[RANDOMS];
        static_assert(RANDOMS == ROW);
        random_words<4, 1>(random, seed + 1, updates, uint64_t(at / 4));
        put_at_random<BITS == 7 ? Half::upper : Half::lower>(static_cast<bf16*>(s.p) + at, row, random);
    }
    if (s.type == Element::uint8) put_codes<BITS>(static_cast<uint8_t*>(s.p) + at, s.scales + at / ROW, row);
}

// ---- rules --------------------------------------------------------------------------------------

INLINE float sign(float x) { return float((x > 0) - (x < 0)); }

// Updates a row, whose elements share a group. `a` and `step` are copies: with references the loop
// would read them again after each store, and take twice as long.
template <UpdateRule rule, bool cautious> INLINE void step_row(float* w, float* m, float* v, const float* dw,
                                                               float scale, Step step, OptimizerParams a,
                                                               ParamGroup group) {
    const float rm = step.m_correction, rv = step.v_correction, b1 = a.beta1, b2 = a.beta2, eps = a.eps,
                lr = a.lr * group.lr, decay = a.weight_decay * group.decay;
#pragma omp simd
    for (int i = 0; i < ROW; i++) {
        const float g = rule == UpdateRule::given ? dw[i] : scale * dw[i];
        float move = g;
        if constexpr (rule == UpdateRule::adamw) {
            m[i] = b1 * m[i] + (1 - b1) * g;
            v[i] = b2 * v[i] + (1 - b2) * (g * g);
            move = m[i] * rm / (__builtin_sqrtf(v[i] * rv) + eps);
        }
        if constexpr (rule == UpdateRule::lion) {
            move = sign(b1 * m[i] + (1 - b1) * g);
            m[i] = b2 * m[i] + (1 - b2) * g;
        }
        if constexpr (rule == UpdateRule::signum) {
            m[i] = b1 * m[i] + (1 - b1) * g;
            move = sign(m[i]);
        }
        const float pull = cautious && move * w[i] <= 0 ? 0 : decay;
        w[i] -= lr * (move + pull * w[i]);
    }
}

template <class P> struct Update {
    P* w;
    float* master;
    StateArray m, v;
    const float* dw;
    const uint8_t* groups;
    Step step;
    OptimizerParams a;
    uint64_t seed;
};
template <UpdateRule rule, bool cautious, class P> static void update_row(const Update<P>& u, int64_t at) {
    constexpr bool has_v = rule == UpdateRule::adamw, has_m = rule != UpdateRule::given;
    float m_row[ROW], v_row[ROW], w_row[ROW];
    const uint64_t updates = uint64_t(u.step.updates);
    float *m = has_m ? read_state<7>(u.m, at, m_row) : nullptr, *v = has_v ? read_state<8>(u.v, at, v_row) : nullptr;
    float* w = u.master ? u.master + at : w_row;
    if constexpr (sizeof(P) == 4) w = u.w + at;
    else if (!u.master)
        for (int i = 0; i < ROW; i += VW) store(w + i, load(u.w + at + i));
    const int group = u.groups[at / ROW];
    step_row<rule, cautious>(w, m, v, u.dw + at, u.step.scale_of(group), u.step, u.a, u.a.groups.of[group]);
    if constexpr (sizeof(P) == 2) {
        if (u.master) {
            for (int i = 0; i < ROW; i += VW) store(u.w + at + i, load(w + i));
        } else {
            uint32_t random[RANDOMS];
            random_words<4, 1>(random, u.seed, updates, uint64_t(at / 4));
            put_at_random<Half::upper>(u.w + at, w, random);
        }
    }
    if (has_m) write_state<7>(u.m, at, m, u.seed, updates);
    if (has_v) write_state<8>(u.v, at, v, u.seed, updates);
}
template <UpdateRule rule, bool cautious, class P> static void update_rows(const Update<P>& u, int64_t n) {
    each_range(n, BLOCK, n / 4, [&](Range r, int) {
        for (int64_t at = r.from; at < r.to; at += ROW) update_row<rule, cautious>(u, at);
    });
}
// master: fp32 weights of which a bf16 w is the rounded copy, or null. Not used if w is float.
template <class P> static void update_weights(P* w, float* master, StateArray m, StateArray v, const float* dw,
                                              const uint8_t* groups, int64_t n, const Step* step, UpdateRule rule,
                                              OptimizerParams a, uint64_t seed) {
    if (step->skipped) return;
    const Update<P> u = {w, master, m, v, dw, groups, *step, a, seed};
    auto run = [&]<UpdateRule R>() { a.cautious ? update_rows<R, true>(u, n) : update_rows<R, false>(u, n); };
    switch (rule) {
        case UpdateRule::adamw: return run.template operator()<UpdateRule::adamw>();
        case UpdateRule::lion: return run.template operator()<UpdateRule::lion>();
        case UpdateRule::signum: return run.template operator()<UpdateRule::signum>();
        case UpdateRule::given: return run.template operator()<UpdateRule::given>();
    }
}

static void nesterov_momentum(float* dw, StateArray m, const uint8_t* groups, int64_t n, const Step* step,
                              OptimizerParams a, uint64_t seed) {
    if (step->skipped) return;
    const float beta = a.momentum;
    const uint64_t updates = uint64_t(step->updates);
    each_range(n, BLOCK, n / 4, [&](Range r, int) {
        for (int64_t at = r.from; at < r.to; at += ROW) {
            float m_row[ROW];
            float *mean = read_state<7>(m, at, m_row), *row = dw + at;
            const float scale = step->scale_of(groups[at / ROW]);
#pragma omp simd
            for (int i = 0; i < ROW; i++) {
                const float g = scale * row[i];
                mean[i] = beta * mean[i] + (1 - beta) * g;
                row[i] = beta * mean[i] + (1 - beta) * g;
            }
            write_state<7>(m, at, mean, seed, updates);
        }
    });
}

template <class P>
static void average_weights(float* average, const P* w, const float* master, float rate, int64_t n, const Step* step) {
    if (step->skipped) return;
    auto run = [&](const auto* weights) {
        each_range(n, ONE_THREAD, n, [&](Range r, int) {
            each_vector(r.to - r.from, [&](int64_t i, auto in) {
                const vf old = in.get(average + r.from + i);
                in.put(average + r.from + i, old + rate * (in.get(weights + r.from + i) - old));
            });
        });
    };
    master ? run(master) : run(w);
}

REGISTER_CPU(update_weights, update_weights<P>)
REGISTER_CPU(nesterov_momentum, nesterov_momentum)
REGISTER_CPU(average_weights, average_weights<P>)
REGISTER_CPU(sum_of_squares, sum_of_squares)
}    // namespace ISA
