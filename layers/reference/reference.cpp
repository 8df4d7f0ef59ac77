// reference.cpp - every operation in double and plain loops: the maths, as code. Slow on purpose.
//
// This file is the definition that the fast tables are tested against. In double, gradient checks
// of whole models by central differences are exact to about 1e-6; in float they find few errors.
#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/philox.h"
#include "layers/dropout.h"
#include "layers/optimizer/muon.h"
#include "layers/optimizer/optimizer_state.h"
#include "layers/optimizer/step_verdict.h"
#include "kv_rows.h"
#include "reference.h"

namespace {
using namespace reference;
using T = double;

// ---- memory -------------------------------------------------------------------------------------

void* allocate(int64_t bytes) {
    void* p = aligned_alloc(64, static_cast<size_t>(round_up(bytes + 1, 64)));
    if (p) memset(p, 0, static_cast<size_t>(bytes));
    return p;
}
void release(void* p, int64_t) { free(p); }
void zero(void* p, int64_t bytes) { memset(p, 0, static_cast<size_t>(bytes)); }
void copy(void* to, const void* from, int64_t bytes) { memmove(to, from, static_cast<size_t>(bytes)); }

int64_t mark() { return 0; }
void wait(int64_t) {}
int64_t free_bytes() { return INT64_MAX; }

// Position of row n in B sequences of S.
int position(const int* pos, int n, int S) { return pos ? std::max(0, pos[n]) : n % S; }

// ---- embedding ----------------------------------------------------------------------------------

void embedding_forward(T* x, const int* tok, const T* wte, const T* wpe, int B, int S, int C, const int* pos) {
    for (int n = 0; n < B * S; n++)
        for (int c = 0; c < C; c++)
            x[int64_t(n) * C + c] = wte[int64_t(tok[n]) * C + c] +
                                    (wpe ? wpe[int64_t(position(pos, n, S)) * C + c] : 0);
}
void embedding_backward(T* dwte, T* dwpe, const T* dx, const int* tok, int B, int S, int C, int, const int* pos) {
    for (int b = 0; b < B; b++)
        for (int s = 0; s < S; s++)
            for (int c = 0; c < C; c++) {
                T d = dx[(int64_t(b) * S + s) * C + c];
                if (dwte) dwte[int64_t(tok[b * S + s]) * C + c] += d;
                if (dwpe) dwpe[int64_t(position(pos, b * S + s, S)) * C + c] += d;
            }
}

// ---- norm ---------------------------------------------------------------------------------------

void norm_forward(T* y, float* mean, float* rstd, const T* x, const T* w, const T* b, Norm norm, int N, int C) {
    for (int n = 0; n < N; n++) {
        const T* xn = x + int64_t(n) * C;
        T m = 0, v = 0;
        for (int c = 0; c < C && !norm.rms; c++) m += xn[c] / C;
        for (int c = 0; c < C; c++) v += (xn[c] - m) * (xn[c] - m) / C;
        T r = 1 / std::sqrt(v + T(norm.eps));
        for (int c = 0; c < C; c++)
            y[int64_t(n) * C + c] = (xn[c] - m) * r * (w ? w[c] + T(norm.plus) : 1) + (b ? b[c] : 0);
        if (mean) mean[n] = float(m);
        rstd[n] = float(r);
    }
}
void norm_backward(T* dx, T* dw, T* db, const T* dy, const T* x, const T* w, const float* mean, const float* rstd,
                   Norm norm, int N, int C) {
    for (int n = 0; n < N; n++) {
        const T *xn = x + int64_t(n) * C, *dyn = dy + int64_t(n) * C;
        T m = mean ? T(mean[n]) : 0, r = T(rstd[n]), g_mean = 0, gx_mean = 0;
        auto g = [&](int c) { return (w ? w[c] + T(norm.plus) : 1) * dyn[c]; };
        for (int c = 0; c < C; c++) {
            T xhat = (xn[c] - m) * r;
            if (!norm.rms) g_mean += g(c) / C;
            gx_mean += g(c) * xhat / C;
            if (dw) dw[c] += dyn[c] * xhat;
            if (db) db[c] += dyn[c];
        }
        for (int c = 0; c < C; c++) dx[int64_t(n) * C + c] += r * (g(c) - g_mean - (xn[c] - m) * r * gx_mean);
    }
}
void add_scaled(T* y, const T* x, const T* b, float scale, int64_t n, Dropout drop) {
    for (int64_t i = 0; i < n; i++)
        y[i] = (x ? x[i] : 0) + T(scale) * b[i] * (drop.rate > 0 ? factor_of(drop, is_kept(drop, i)) : 1);
}

// ---- linear -------------------------------------------------------------------------------------

void linear_forward(T* y, const T* x, const T* w, const T* b, const T* residual, int N, int C, int OC, Precision) {
    for (int n = 0; n < N; n++)
        for (int o = 0; o < OC; o++) {
            const T more = (b ? b[o] : 0) + (residual ? residual[int64_t(n) * OC + o] : 0);
            y[int64_t(n) * OC + o] = more + dot(x + int64_t(n) * C, w + int64_t(o) * C, C);
        }
}
void linear_backward(T* dx, GradTarget<T> dw, T* db, const T* dy, const T* x, const T* w, int N, int C, int OC,
                     Precision) {
    if (dw.p && !dw.add) zero(dw.p, int64_t(sizeof(T)) * OC * C);
    for (int n = 0; n < N; n++) {
        if (dx) zero(dx + int64_t(n) * C, int64_t(sizeof(T)) * C);
        for (int o = 0; o < OC; o++) {
            T d = dy[int64_t(n) * OC + o];
            if (db) db[o] += d;
            for (int c = 0; c < C; c++) {
                if (dx) dx[int64_t(n) * C + c] += d * w[int64_t(o) * C + c];
                if (dw.p) dw.p[int64_t(o) * C + c] += d * x[int64_t(n) * C + c];
            }
        }
    }
}

void keep_blocks(T* x, RowBlocks blocks, int rows, int cols) {
    for (int r = 0; r < rows; r++) {
        const int i = blocks.of(r);
        for (int c = 0; c < cols; c++)
            if (c < blocks.col[i] || c >= blocks.col[i + 1]) x[int64_t(r) * cols + c] = 0;
    }
}
void inverse_row_norms(float* inverse, const T* w, const T* a, const T* b, float scale, RowBlocks blocks, int C, int OC,
                       int R) {
    for (int o = 0; o < OC; o++) {
        T squares = 0;
        for (int c = 0; c < C; c++) {
            T v = w[int64_t(o) * C + c];
            for (int r = 0; r < R; r++) v += T(scale) * b[int64_t(o) * R + r] * a[int64_t(r) * C + c];
            squares += v * v;
        }
        inverse[o] = blocks.columns(o) && squares > 0 ? float(1 / std::sqrt(squares)) : 0;
    }
}
T column_factor(const T* magnitude, const float* inverse, int c) {
    return inverse[c] != 0 ? magnitude[c] * T(inverse[c]) : 1;
}
void scale_columns_forward(T* y, const T* x, const T* magnitude, const float* inverse, const T* b, const T* residual,
                           int N, int C) {
    for (int64_t i = 0; i < int64_t(N) * C; i++) {
        const int c = int(i % C);
        y[i] = x[i] * column_factor(magnitude, inverse, c) + (b ? b[c] : 0) + (residual ? residual[i] : 0);
    }
}
void scale_columns_backward(T* dx, T* dmagnitude, const T* dy, const T* x, const T* magnitude, const float* inverse,
                            int N, int C) {
    for (int64_t i = 0; i < int64_t(N) * C; i++) {
        const int c = int(i % C);
        if (dmagnitude) dmagnitude[c] += T(inverse[c]) * dy[i] * x[i];
        dx[i] = dy[i] * column_factor(magnitude, inverse, c);
    }
}
void drop_inputs(T* y, const T* x, int64_t n, Dropout drop) { add_scaled(y, nullptr, x, 1, n, drop); }

// ---- rope ---------------------------------------------------------------------------------------

// The heads over which head number `head` (queries are counted first, then keys) is normed: this
// head alone, or all query heads, or all key heads.
struct QkNorm {
    int first, count, sum;    // heads of the norm; index in rstd
    QkNorm(int head, Heads h, QkNormRope t) : first(head), count(1), sum(head) {
        if (t.norm != QkNormRope::QkNorm::all) return;
        const bool key = head >= h.NH;
        first = key ? h.NH : 0;
        count = key ? h.NKV : h.NH;
        sum = key;
    }
};
// Rotates the i-th pair of channels; back: by the opposite angle.
void rotate_pair(T* x, int i, const float* cos_sin, QkNormRope t, bool back) {
    T &u = x[t.interleaved ? 2 * i : i], &v = x[t.interleaved ? 2 * i + 1 : i + t.dims / 2];
    const T c = T(cos_sin[i]), s = (back ? -1 : 1) * T(cos_sin[t.dims / 2 + i]), u0 = u, v0 = v;
    u = u0 * c - v0 * s;
    v = v0 * c + u0 * s;
}

void rope_forward(T* y, float* rstd, const T* x, const T* qw, const T* kw, const float* cos_sin, int B, int S,
                  const int* pos, Heads h, QkNormRope t) {
    const int width = h.qkv_width(), heads = h.NH + h.NKV, rstd_count = t.rstd_count(h.NH, h.NKV);
    for (int n = 0; n < B * S; n++) {
        const T* xn = x + int64_t(n) * width;
        T* yn = y + int64_t(n) * width;
        if (y != x) copy(yn, xn, int64_t(sizeof(T)) * width);
        for (int i = 0; i < heads; i++) {
            T* head = yn + i * h.HS;
            if (rstd_count) {
                const QkNorm over(i, h, t);
                const int size = over.count * h.HS, at = i * h.HS - over.first * h.HS;
                T square = 0;
                for (int c = 0; c < size; c++) square += xn[over.first * h.HS + c] * xn[over.first * h.HS + c] / size;
                const T r = 1 / std::sqrt(square + T(t.eps));
                rstd[int64_t(n) * rstd_count + over.sum] = float(r);
                const T* w = i < h.NH ? qw : kw;
                for (int c = 0; c < h.HS; c++) head[c] *= r * (w ? w[(over.count > 1 ? at : 0) + c] + T(t.plus) : 1);
            }
            const int64_t at = position(pos, n, S);
            for (int c = 0; c < t.dims / 2; c++) rotate_pair(head, c, cos_sin + at * t.dims, t, false);
        }
    }
}
void rope_backward(T* d, T* dqw, T* dkw, const T* x, const T* qw, const T* kw, const float* cos_sin, const float* rstd,
                   int B, int S, Heads h, QkNormRope t) {
    const int width = h.qkv_width(), heads = h.NH + h.NKV, rstd_count = t.rstd_count(h.NH, h.NKV);
    for (int n = 0; n < B * S; n++) {
        T* dn = d + int64_t(n) * width;
        for (int i = 0; i < heads; i++)
            for (int c = 0; c < t.dims / 2; c++)
                rotate_pair(dn + i * h.HS, c, cos_sin + int64_t(n % S) * t.dims, t, true);
        for (int i = 0; i < heads && rstd_count;) {
            const QkNorm over(i, h, t);
            const bool all = t.norm == QkNormRope::QkNorm::all;
            const int size = over.count * h.HS;
            const T *xn = x + int64_t(n) * width + over.first * h.HS, *w = i < h.NH ? qw : kw;
            T *dx = dn + over.first * h.HS, *dw = i < h.NH ? dqw : dkw;
            const T r = T(rstd[int64_t(n) * rstd_count + (all ? over.sum : i)]);
            T mean = 0;
            auto factor = [&](int c) { return w ? w[c] + T(t.plus) : 1; };
            for (int c = 0; c < size; c++) mean += factor(c) * dx[c] * xn[c] * r / size;
            for (int c = 0; c < size; c++) {
                if (dw) dw[c] += dx[c] * xn[c] * r;
                dx[c] = r * (factor(c) * dx[c] - xn[c] * r * mean);
            }
            i += over.count;
        }
    }
}

// ---- attention: layers/reference/reference_attention.cpp, reference_recurrent.cpp ---------------

void cache_rotate(Pages cache, const int* pages, int n, const float* cos_sin, Heads h, QkNormRope t) {
    const CachedRows keys = cached_keys(cache, h.HS), values = cached_values(cache, h.HS);
    for (int i = 0; i < n; i++)
        for (int kv = 0; kv < h.NKV; kv++)
            for (int r = 0; r < Pages::SIZE; r++) {
                const int64_t to = cache.row_of(pages[2 * i], kv, r), from = cache.row_of(pages[2 * i + 1], kv, r);
                std::vector<T> k = keys.get(from);
                for (int c = 0; c < t.dims / 2; c++) rotate_pair(k.data(), c, cos_sin + int64_t(i) * t.dims, t, false);
                keys.put(to, k.data());
                values.put(to, values.get(from).data());
            }
}

// ---- ffn ----------------------------------------------------------------------------------------

const T SQRT_2_PI = 0.7978845608028653558798921198687637369517;    // sqrt(2/pi)

// act(x), and its derivative.
T act(T x, Act kind, T* slope) {
    const T t = std::tanh(SQRT_2_PI * (x + 0.044715 * x * x * x)), sigmoid = 1 / (1 + std::exp(-x));
    const T below = std::erfc(-x / std::sqrt(T(2))) / 2;    // the normal distribution's share below x
    const T density = std::exp(-x * x / 2) * SQRT_2_PI / 2;
    switch (kind) {
        case Act::gelu_tanh:
            *slope = (1 + t) / 2 + x / 2 * (1 - t * t) * SQRT_2_PI * (1 + 3 * 0.044715 * x * x);
            return x / 2 * (1 + t);
        case Act::gelu: *slope = below + x * density; return x * below;
        case Act::silu: *slope = sigmoid * (1 + x * (1 - sigmoid)); return x * sigmoid;
        case Act::relu: *slope = x > 0; return std::fmax(x, T(0));
        case Act::relu2: *slope = 2 * std::fmax(x, T(0)); return std::fmax(x, T(0)) * std::fmax(x, T(0));
        case Act::tanh: *slope = 1 - std::tanh(x) * std::tanh(x); return std::tanh(x);
    }
    return 0;
}
void activation_forward(T* y, const T* x, Act kind, bool gated, int N, int F) {
    for (int n = 0; n < N; n++)
        for (int f = 0; f < F; f++) {
            const T* gate = x + (gated ? 2 : 1) * int64_t(n) * F + f;
            T slope = 0;
            y[int64_t(n) * F + f] = act(*gate, kind, &slope) * (gated ? gate[F] : 1);
        }
}
void stream_activation_forward(T* y, const T* x, Act kind, int N, int F) {
    activation_forward(y, x, kind, false, N, F);
}
void activation_backward(T* dx, const T* dy, const T* x, Act kind, bool gated, int N, int F) {
    for (int n = 0; n < N; n++)
        for (int f = 0; f < F; f++) {
            const int64_t at = (gated ? 2 : 1) * int64_t(n) * F + f;
            const T d = dy[int64_t(n) * F + f];
            T slope = 0;
            const T value = act(x[at], kind, &slope);
            dx[at] = d * slope * (gated ? x[at + F] : 1);
            if (gated) dx[at + F] = d * value;
        }
}

// ---- lm_head ------------------------------------------------------------------------------------

void cross_entropy(float* loss, T* dlogits, const T* logits, const int* target, const float* weights, float scale,
                   LossPenalties more, Logits z, int N, int V, int Vp) {
    std::vector<T> l(static_cast<size_t>(V));
    for (int n = 0; n < N; n++) {
        if (target[n] < 0) {
            loss[n] = 0;
            if (dlogits) zero(dlogits + int64_t(n) * Vp, int64_t(sizeof(T)) * Vp);
            continue;
        }
        T top = -INFINITY, sum = 0;
        for (int v = 0; v < V; v++) {
            const T x = T(z.scale) * logits[int64_t(n) * Vp + v];
            top = std::fmax(top, l[size_t(v)] = z.cap != 0 ? T(z.cap) * std::tanh(x / T(z.cap)) : x);
        }
        for (T x : l) sum += std::exp(x - top);
        const T lse = top + std::log(sum), even = T(more.label_smoothing);
        loss[n] = float(lse - l[size_t(target[n])]);    // finite where -log(p) is not
        if (!dlogits) continue;
        const T factor = T(scale) * (weights ? T(weights[n]) : 1);
        for (int v = 0; v < Vp; v++) {
            const T x = v < V ? l[size_t(v)] : 0, inner = z.cap != 0 ? 1 - x * x / (T(z.cap) * T(z.cap)) : 1;
            const T p = std::exp(x - top) / sum, label = (v == target[n] ? 1 - even : 0) + even / V;
            const T d = factor * (p * (1 + 2 * T(more.z_loss) * lse) - label) * inner * T(z.scale);
            dlogits[int64_t(n) * Vp + v] = v < V ? d : 0;
        }
    }
}

void value_loss(float* loss, T* dlogits, const T* logits, const int* target, float scale, bool binary, int N, int Vp) {
    for (int n = 0; n < N; n++) {
        const T x = logits[int64_t(n) * Vp], y = T(std::bit_cast<float>(target[n]));
        const bool given = !std::isnan(y);
        const T slope = binary ? 1 / (1 + std::exp(-x)) - y : 2 * (x - y);
        loss[n] = !given ? 0
                         : float(binary ? std::fmax(x, T(0)) + std::log1p(std::exp(-std::fabs(x))) - y * x
                                        : (x - y) * (x - y));
        if (!dlogits) continue;
        zero(dlogits + int64_t(n) * Vp, int64_t(sizeof(T)) * Vp);
        dlogits[int64_t(n) * Vp] = given ? T(scale) * slope : 0;
    }
}

T shaped(T x, Logits z) {
    x *= T(z.scale);
    return z.cap != 0 ? T(z.cap) * std::tanh(x / T(z.cap)) : x;
}
// log softmax(x / temperature)
std::vector<T> log_softmax(std::vector<T> x, T temperature) {
    const T top = *std::max_element(x.begin(), x.end());
    T sum = 0;
    for (T& v : x) sum += std::exp(v = (v - top) / temperature);
    for (T& v : x) v -= std::log(sum);
    return x;
}
void distill_loss(float* loss, T* dlogits, const T* logits, const T* teacher, const int* target, float scale,
                  Distillation how, Logits z, Logits teacher_z, int N, int V, int Vp) {
    const T temperature = T(how.temperature), mix = T(how.mix);
    for (int n = 0; n < N; n++) {
        const int64_t at = int64_t(n) * Vp;
        if (target[n] < 0) {
            loss[n] = 0;
            if (dlogits) zero(dlogits + at, int64_t(sizeof(T)) * Vp);
            continue;
        }
        std::vector<T> own(static_cast<size_t>(V)), other(own);
        for (int v = 0; v < V; v++) {
            own[size_t(v)] = shaped(logits[at + v], z);
            other[size_t(v)] = shaped(teacher[at + v], teacher_z);
        }
        const std::vector<T> q = log_softmax(own, temperature), p = log_softmax(other, temperature);
        const std::vector<T> plain = log_softmax(own, 1);
        T kl = 0;
        for (size_t v = 0; v < size_t(V); v++) kl += std::exp(p[v]) * (p[v] - q[v]);
        loss[n] = float(mix * temperature * temperature * kl - (1 - mix) * plain[size_t(target[n])]);
        for (int v = 0; dlogits && v < Vp; v++) {
            const size_t i = size_t(v);
            if (v >= V) {
                dlogits[at + v] = 0;
                continue;
            }
            const T slope = T(z.scale) * (z.cap != 0 ? 1 - own[i] * own[i] / (T(z.cap) * T(z.cap)) : 1);
            dlogits[at + v] = T(scale) * slope *
                              (mix * temperature * (std::exp(q[i]) - std::exp(p[i])) +
                               (1 - mix) * (std::exp(plain[i]) - (v == target[n] ? 1 : 0)));
        }
    }
}
void lm_head_backward(T* dx, GradTarget<T> dw, T* db, const T* dy, const T* x, const T* w, int N, int C, int OC,
                      Precision precision) {
    linear_backward(dx, dw, db, dy, x, w, N, C, OC, precision);
}

void add_losses(double* total, const float* loss, int64_t n) {
    for (int64_t i = 0; i < n; i++) *total += double(loss[i]);
}

// ---- the end of a step --------------------------------------------------------------------------

void sum_of_squares(double* out, const T* x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    *out = sum;
}
void step_verdict(Step* step, const double* loss_total, double loss_scale, const double* squares, const uint8_t* groups,
                  int n, OptimizerParams a, Limits limits) {
    double sum = 0, of_group[GroupFactors::MOST] = {};
    for (int i = 0; i < n; i++) sum += squares[i];
    for (int i = 0; i < n && groups; i++) of_group[groups[i]] += squares[i];
    decide_step(step, loss_scale * *loss_total, sum, groups ? of_group : nullptr, a, limits);
}
// ---- optimizers ---------------------------------------------------------------------------------

// Element i of a state.
template <int BITS> T get_state(const StateArray& s, int64_t i) {
    static const StateValues values;
    if (s.type == Element::f32) return T(static_cast<float*>(s.p)[i]);
    if (s.type == Element::bf16) return T(to_float(static_cast<bf16*>(s.p)[i]));
    const uint8_t code = static_cast<uint8_t*>(s.p)[i];
    return T(s.scales[i / STATE_BLOCK]) * T((BITS == 7 ? values.of_m : values.of_v)[code]);
}
// The nearest code of x in 0..1: codes rise with their numbers.
template <int BITS> int nearest_code(double x) {
    int best = 0;
    for (int j = 1; j <= StateCode<BITS>::TOP; j++)
        if (std::fabs(double(StateCode<BITS>::value(j)) - x) < std::fabs(double(StateCode<BITS>::value(best)) - x))
            best = j;
    return BITS == 8 && x > 0 ? std::max(best, 1) : best;
}
// Writes a block of a state from x. bf16: `random` are 16 bits each.
template <int BITS>
void put_state(const StateArray& s, int64_t first, const std::vector<T>& x, uint64_t seed, int64_t updates) {
    float largest = 0;
    for (const T v : x) largest = std::max(largest, float(std::fabs(v)));
    if (s.type == Element::uint8) s.scales[first / STATE_BLOCK] = largest;
    for (size_t k = 0; k < x.size(); k++) {
        const int64_t i = first + int64_t(k);
        const float value = float(x[k]);
        if (s.type == Element::f32) static_cast<float*>(s.p)[i] = value;
        if (s.type == Element::bf16) {
            const uint32_t word = philox(seed + 1, uint64_t(updates), uint64_t(i / 4)).v[i % 4];
            uint32_t bits;
            memcpy(&bits, &value, 4);
            bits += BITS == 7 ? word >> 16 : word & 0xffff;
            static_cast<bf16*>(s.p)[i] = {uint16_t(bits >> 16)};
        }
        if (s.type == Element::uint8) {
            const int code = nearest_code<BITS>(largest > 0 ? std::fabs(x[k]) / T(largest) : 0);
            static_cast<uint8_t*>(s.p)[i] = uint8_t(code | (BITS == 7 && x[k] < 0 ? 128 : 0));
        }
    }
}
T sign(T x) { return T((x > 0) - (x < 0)); }

void update_weights(T* w, float*, StateArray m, StateArray v, const T* dw, const uint8_t* groups, int64_t n,
                    const Step* step, UpdateRule rule, OptimizerParams a, uint64_t seed) {
    if (step->skipped) return;
    const T b1 = T(a.beta1), b2 = T(a.beta2);
    for (int64_t first = 0; first < n; first += STATE_BLOCK) {
        const ParamGroup group = a.groups.of[groups[first / STATE_BLOCK]];
        std::vector<T> mean(STATE_BLOCK), square(STATE_BLOCK);
        for (int k = 0; k < STATE_BLOCK; k++) {
            const int64_t i = first + k;
            const T g = rule == UpdateRule::given ? dw[i] : T(step->scale_of(groups[first / STATE_BLOCK])) * dw[i];
            T &m1 = mean[size_t(k)], &v1 = square[size_t(k)], move = g;
            if (m.p) m1 = get_state<7>(m, i);
            if (v.p) v1 = get_state<8>(v, i);
            if (rule == UpdateRule::lion) move = sign(b1 * m1 + (1 - b1) * g);
            m1 = rule == UpdateRule::lion ? b2 * m1 + (1 - b2) * g : b1 * m1 + (1 - b1) * g;
            v1 = b2 * v1 + (1 - b2) * g * g;
            if (rule == UpdateRule::signum) move = sign(m1);
            if (rule == UpdateRule::adamw)
                move = m1 * T(step->m_correction) / (std::sqrt(v1 * T(step->v_correction)) + T(a.eps));
            const T decay = a.cautious && move * w[i] <= 0 ? 0 : T(a.weight_decay) * T(group.decay);
            w[i] -= T(a.lr) * T(group.lr) * (move + decay * w[i]);
        }
        if (m.p) put_state<7>(m, first, mean, seed, step->updates);
        if (v.p) put_state<8>(v, first, square, seed, step->updates);
    }
}
void nesterov_momentum(T* dw, StateArray m, const uint8_t* groups, int64_t n, const Step* step, OptimizerParams a,
                       uint64_t seed) {
    if (step->skipped) return;
    const T b = T(a.momentum);
    for (int64_t first = 0; first < n; first += STATE_BLOCK) {
        std::vector<T> mean(STATE_BLOCK);
        for (int k = 0; k < STATE_BLOCK; k++) {
            const T g = T(step->scale_of(groups[first / STATE_BLOCK])) * dw[first + k];
            T& m1 = mean[size_t(k)];
            m1 = b * get_state<7>(m, first + k) + (1 - b) * g;
            dw[first + k] = b * m1 + (1 - b) * g;
        }
        put_state<7>(m, first, mean, seed, step->updates);
    }
}
// c (M,N) = a (M,K) b (K,N)
std::vector<T> product(const std::vector<T>& a, const std::vector<T>& b, int M, int N, int K) {
    std::vector<T> c(size_t(M) * size_t(N));
    for (int i = 0; i < M; i++)
        for (int k = 0; k < K; k++)
            for (int j = 0; j < N; j++) c[size_t(i * N + j)] += a[size_t(i * K + k)] * b[size_t(k * N + j)];
    return c;
}
void orthogonalize(T* x, T*, float scale, int rows, int cols) {
    const int64_t size = int64_t(rows) * cols;
    T norm = 0;
    for (int64_t i = 0; i < size; i++) norm += x[i] * x[i];
    std::vector<T> X(x, x + size), transposed(X);
    for (T& v : X) v /= std::sqrt(norm) + T(NewtonSchulz::eps);
    for (int step = 0; step < NEWTON_SCHULZ_STEPS; step++) {
        for (int r = 0; r < rows; r++)
            for (int c = 0; c < cols; c++) transposed[size_t(c * rows + r)] = X[size_t(r * cols + c)];
        const std::vector<T> A = product(X, transposed, rows, rows, cols), AX = product(A, X, rows, cols, rows),
                             AAX = product(A, AX, rows, cols, rows);
        for (size_t i = 0; i < X.size(); i++)
            X[i] = T(NewtonSchulz::a) * X[i] + T(NewtonSchulz::b) * AX[i] + T(NewtonSchulz::c) * AAX[i];
    }
    for (int64_t i = 0; i < size; i++) x[i] = T(scale) * X[size_t(i)];
}
void normalize_rows(T* x, float* v, float scale, const Step* step, OptimizerParams a, int rows, int cols) {
    if (step->skipped) return;
    T norm = 0;
    for (int r = 0; r < rows; r++) {
        T* row = x + int64_t(r) * cols;
        const T square = std::inner_product(row, row + cols, row, T(0));
        v[r] = float(T(a.beta2) * T(v[r]) + (1 - T(a.beta2)) * square / cols);
        for (int c = 0; c < cols; c++) norm += std::pow(row[c] /= std::sqrt(T(v[r])) + T(a.eps), 2);
    }
    const int64_t size = int64_t(rows) * cols;
    for (int64_t i = 0; i < size && norm > 0; i++) x[i] *= T(scale) * std::sqrt(T(size) / norm);
}
void average_weights(float* average, const T* w, const float*, float rate, int64_t n, const Step* step) {
    for (int64_t i = 0; i < n && !step->skipped; i++)
        average[i] = float(T(average[i]) + T(rate) * (w[i] - T(average[i])));
}
void from_floats(T* to, const float* from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = T(from[i]);
}
void to_floats(float* to, const T* from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = float(from[i]);
}

int64_t scratch_bytes(const CallSizes&) { return 0; }
constexpr auto stream_norm_forward = norm_forward;
constexpr auto upload = copy, download = copy, upload_async = copy, use_uploaded = copy, download_async = copy;

Ops<double> make_table() {
    Ops<double> op;
    op.name = "reference (double)";
    op.allocate = op.allocate_host = allocate;
    op.release = op.release_host = release;
    op.mark = mark;
    op.wait = wait;
    op.logits_bytes = 1 << 20;
    op.scratch_bytes = scratch_bytes;
    op.free_bytes = free_bytes;
    // Optional operations stay null: they are defined by the operations that they combine. Those
    // that combine none have a definition here.
    op.sample = sample;
#define required(name) op.name = name;
#define optional(name)
#define OPERATION(name, need, arguments, ...) need(name)
#include "layers/operations.inc"
#undef OPERATION
#undef optional
#undef required
    return op;
}
}    // namespace

const Ops<double>& reference_ops() {
    static const Ops<double> table = make_table();
    return table;
}
