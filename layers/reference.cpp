// reference.cpp - every operation in double and plain loops: the maths, as code. Slow on purpose.
//
// This file is the definition that the fast tables are tested against, and what makes whole-model gradient checks by
// central differences exact to about 1e-6 (in float they are nearly blind).
#include <algorithm>
#include <cstring>
#include <vector>

#include "gate.h"

namespace {
using T = double;

// ---- memory ---------------------------------------------------------------------------------------------------------

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

// ---- embedding ------------------------------------------------------------------------------------------------------

void embedding_forward(T* x, const int* tok, const T* wte, const T* wpe, int B, int S, int C,
                       const int* pos) {
    const int p = pos ? *pos : 0;
    for (int b = 0; b < B; b++)
        for (int s = 0; s < S; s++)
            for (int c = 0; c < C; c++)
                x[(int64_t(b) * S + s) * C + c] = wte[int64_t(tok[b * S + s]) * C + c] + wpe[int64_t(p + s) * C + c];
}
void embedding_backward(T* dwte, T* dwpe, const T* dx, const int* tok, int B, int S, int C, int) {
    for (int b = 0; b < B; b++)
        for (int s = 0; s < S; s++)
            for (int c = 0; c < C; c++) {
                T d = dx[(int64_t(b) * S + s) * C + c];
                dwte[int64_t(tok[b * S + s]) * C + c] += d;
                dwpe[int64_t(s) * C + c] += d;
            }
}

// ---- layernorm ------------------------------------------------------------------------------------------------------

void layernorm_forward(T* y, float* mean, float* rstd, const T* x, const T* w, const T* b, float eps, int N, int C) {
    for (int n = 0; n < N; n++) {
        const T* xn = x + int64_t(n) * C;
        T m = 0, v = 0;
        for (int c = 0; c < C; c++) m += xn[c] / C;
        for (int c = 0; c < C; c++) v += (xn[c] - m) * (xn[c] - m) / C;
        T r = 1 / std::sqrt(v + T(eps));
        for (int c = 0; c < C; c++) y[int64_t(n) * C + c] = (xn[c] - m) * r * w[c] + b[c];
        mean[n] = float(m);
        rstd[n] = float(r);
    }
}
void layernorm_backward(T* dx, T* dw, T* db, const T* dy, const T* x, const T* w, const float* mean, const float* rstd,
                        int N, int C) {
    for (int n = 0; n < N; n++) {
        const T *xn = x + int64_t(n) * C, *dyn = dy + int64_t(n) * C;
        T m = T(mean[n]), r = T(rstd[n]), g_mean = 0, gx_mean = 0;
        for (int c = 0; c < C; c++) {
            T xhat = (xn[c] - m) * r;
            g_mean += w[c] * dyn[c] / C;
            gx_mean += w[c] * dyn[c] * xhat / C;
            dw[c] += dyn[c] * xhat;
            db[c] += dyn[c];
        }
        for (int c = 0; c < C; c++)
            dx[int64_t(n) * C + c] += r * (w[c] * dyn[c] - g_mean - (xn[c] - m) * r * gx_mean);
    }
}

// ---- linear ---------------------------------------------------------------------------------------------------------

void linear_forward(T* y, const T* x, const T* w, const T* b, const T* residual, int N, int C, int OC) {
    for (int n = 0; n < N; n++)
        for (int o = 0; o < OC; o++) {
            T sum = (b ? b[o] : 0) + (residual ? residual[int64_t(n) * OC + o] : 0);
            for (int c = 0; c < C; c++) sum += x[int64_t(n) * C + c] * w[int64_t(o) * C + c];
            y[int64_t(n) * OC + o] = sum;
        }
}
void linear_backward(T* dx, T* dw, T* db, const T* dy, const T* x, const T* w, int N, int C, int OC) {
    for (int n = 0; n < N; n++) {
        if (dx) zero(dx + int64_t(n) * C, int64_t(sizeof(T)) * C);
        for (int o = 0; o < OC; o++) {
            T d = dy[int64_t(n) * OC + o];
            if (db) db[o] += d;
            for (int c = 0; c < C; c++) {
                if (dx) dx[int64_t(n) * C + c] += d * w[int64_t(o) * C + c];
                dw[int64_t(o) * C + c] += d * x[int64_t(n) * C + c];
            }
        }
    }
}

// ---- attention ------------------------------------------------------------------------------------------------------

// Row pointers into packed qkv: q head h, k and v of the group that h belongs to, at position (b,s).
struct Packed {
    int S; Heads h;
    int64_t row(int b, int s) const { return (int64_t(b) * S + s) * (h.NH + 2 * h.NKV) * h.HS; }
    int64_t q(int b, int s, int i) const { return row(b, s) + int64_t(i) * h.HS; }
    int64_t k(int b, int s, int i) const { return row(b, s) + int64_t(h.NH + i / (h.NH / h.NKV)) * h.HS; }
    int64_t v(int b, int s, int i) const { return k(b, s, i) + int64_t(h.NKV) * h.HS; }
};

T dot(const T* a, const T* b, int n) {
    T sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

// The first key that the query at (b,s) sees.
int first_key(Heads h, int S, int b, int s) {
    const int window = h.window ? std::max(0, s - h.window + 1) : 0;
    return h.doc_start ? std::max(window, h.doc_start[b * S + s]) : window;
}

// y = sum_j softmax(score)[j] * v_j over keys from..to-1; returns the log-sum-exp of the scaled scores.
template <class Key, class Value> T attend(T* y, const T* q, int from, int to, int HS, Key key, Value value) {
    std::vector<T> p(static_cast<size_t>(to));
    T top = -INFINITY, sum = 0;
    for (int j = from; j < to; j++) top = std::fmax(top, p[size_t(j)] = dot(q, key(j), HS) / std::sqrt(T(HS)));
    for (int j = from; j < to; j++) sum += p[size_t(j)] = std::exp(p[size_t(j)] - top);
    for (int d = 0; d < HS; d++) {
        y[d] = 0;
        for (int j = from; j < to; j++) y[d] += p[size_t(j)] / sum * value(j)[d];
    }
    return top + std::log(sum);
}

void attention_forward(T* y, float* lse, const T* qkv, int B, int S, Heads h) {
    Packed at{S, h};
    for (int b = 0; b < B; b++)
        for (int i = 0; i < h.NH; i++)
            for (int s = 0; s < S; s++) {
                T* out = y + ((int64_t(b) * S + s) * h.NH + i) * h.HS;    // y[b,s,i,:]
                T l = attend(out, qkv + at.q(b, s, i), first_key(h, S, b, s), s + 1, h.HS,
                             [&](int j) { return qkv + at.k(b, j, i); }, [&](int j) { return qkv + at.v(b, j, i); });
                lse[(int64_t(b) * h.NH + i) * S + s] = float(l);
            }
}
void attention_backward(T* dqkv, const T* dy, const T* y, const T* qkv, const float* lse, int B, int S, Heads h) {
    Packed at{S, h};
    const T scale = 1 / std::sqrt(T(h.HS));
    zero(dqkv, int64_t(sizeof(T)) * at.row(B, 0));
    for (int b = 0; b < B; b++)
        for (int i = 0; i < h.NH; i++)
            for (int s = 0; s < S; s++) {
                int64_t o = ((int64_t(b) * S + s) * h.NH + i) * h.HS, q = at.q(b, s, i);
                T delta = dot(dy + o, y + o, h.HS);    // sum_j p_j dp_j
                for (int j = first_key(h, S, b, s); j <= s; j++) {
                    int64_t k = at.k(b, j, i), v = at.v(b, j, i);
                    T p = std::exp(dot(qkv + q, qkv + k, h.HS) * scale - T(lse[(int64_t(b) * h.NH + i) * S + s]));
                    T ds = p * (dot(dy + o, qkv + v, h.HS) - delta) * scale;
                    for (int d = 0; d < h.HS; d++) {
                        dqkv[q + d] += ds * qkv[k + d];
                        dqkv[k + d] += ds * qkv[q + d];
                        dqkv[v + d] += p * dy[o + d];
                    }
                }
            }
}
void attention_cached(T* y, T* k_cache, T* v_cache, const T* qkv, int B, int S, const int* p, int maxT,
                      Heads h) {
    Packed at{S, h};
    const int pos = *p;
    const int group = h.NH / h.NKV;
    auto cache = [&](int b, int kv, int t) { return ((int64_t(b) * h.NKV + kv) * maxT + t) * h.HS; };
    for (int b = 0; b < B; b++)
        for (int s = 0; s < S; s++)
            for (int kv = 0; kv < h.NKV; kv++) {
                copy(k_cache + cache(b, kv, pos + s), qkv + at.k(b, s, kv * group), int64_t(sizeof(T)) * h.HS);
                copy(v_cache + cache(b, kv, pos + s), qkv + at.v(b, s, kv * group), int64_t(sizeof(T)) * h.HS);
            }
    for (int b = 0; b < B; b++)
        for (int s = 0; s < S; s++)
            for (int i = 0; i < h.NH; i++)
                attend(y + ((int64_t(b) * S + s) * h.NH + i) * h.HS, qkv + at.q(b, s, i),
                       h.window ? std::max(0, pos + s - h.window + 1) : 0, pos + s + 1, h.HS,
                       [&](int j) { return k_cache + cache(b, i / group, j); },
                       [&](int j) { return v_cache + cache(b, i / group, j); });
}

// ---- ffn ------------------------------------------------------------------------------------------------------------

const T SQRT_2_PI = 0.7978845608028653558798921198687637369517;    // sqrt(2/pi)

void gelu_forward(T* y, const T* x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] / 2 * (1 + std::tanh(SQRT_2_PI * (x[i] + 0.044715 * x[i] * x[i] * x[i])));
}
void gelu_backward(T* dx, const T* dy, const T* x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        T t = std::tanh(SQRT_2_PI * (x[i] + 0.044715 * x[i] * x[i] * x[i]));
        dx[i] = dy[i] * ((1 + t) / 2 + x[i] / 2 * (1 - t * t) * SQRT_2_PI * (1 + 3 * 0.044715 * x[i] * x[i]));
    }
}

// ---- lm_head --------------------------------------------------------------------------------------------------------

void cross_entropy(float* loss, T* dlogits, const T* logits, const int* target, float scale, int N, int V, int Vp) {
    for (int n = 0; n < N; n++) {
        const T* l = logits + int64_t(n) * Vp;
        T top = -INFINITY, sum = 0;
        for (int v = 0; v < V; v++) top = std::fmax(top, l[v]);
        for (int v = 0; v < V; v++) sum += std::exp(l[v] - top);
        loss[n] = float(top + std::log(sum) - l[target[n]]);    // lse - logit: finite where -log(p) is not
        if (!dlogits) continue;
        for (int v = 0; v < Vp; v++)
            dlogits[int64_t(n) * Vp + v] =
                v < V ? T(scale) * (std::exp(l[v] - top) / sum - (v == target[n] ? 1 : 0)) : 0;
    }
}

void add_losses(double* total, const float* loss, int64_t n) {
    for (int64_t i = 0; i < n; i++) *total += double(loss[i]);
}

// ---- adamw ----------------------------------------------------------------------------------------------------------

void sum_of_squares(double* out, const T* x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    *out = sum;
}
void gate(Step* step, const double* loss_total, double loss_scale, const double* squares, int n, AdamW a,
          Limits limits) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += squares[i];
    gate_step(step, loss_scale * *loss_total, sum, a, limits);
}
void adamw(T* w, float*, float* m, float* v, const T* dw, const uint8_t* decays, int64_t n, const Step* step, AdamW a,
           uint64_t) {
    if (step->skipped) return;
    for (int64_t i = 0; i < n; i++) {
        T g = T(step->scale) * dw[i], decay = decays[i / 64] ? T(a.weight_decay) : 0;
        m[i] = float(T(a.beta1) * T(m[i]) + (1 - T(a.beta1)) * g);
        v[i] = float(T(a.beta2) * T(v[i]) + (1 - T(a.beta2)) * g * g);
        const T slope = T(m[i]) * T(step->m_scale) / (std::sqrt(T(v[i]) * T(step->v_scale)) + T(a.eps));
        w[i] -= T(a.lr) * (slope + decay * w[i]);
    }
}
void from_floats(T* to, const float* from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = T(from[i]);
}
void to_floats(float* to, const T* from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = float(from[i]);
}

int64_t scratch_bytes(const CallSizes&) { return 0; }
constexpr auto upload = copy, download = copy, upload_ahead = copy, take = copy, download_later = copy;

Ops<double> make_table() {
    Ops<double> op;
    op.name = "reference (double)";
    op.allocate = op.allocate_host = allocate;
    op.release = op.release_host = release;
    op.mark = mark, op.wait = wait;
    op.logits_bytes = 1 << 20, op.scratch_bytes = scratch_bytes, op.free_bytes = free_bytes;
    // Optional operations stay null: what the model composes is what defines them.
#define required(name) op.name = name;
#define optional(name)
#define OPERATION(name, need, arguments, ...) need(name)
#include "operations.inc"
#undef OPERATION
#undef optional
#undef required
    return op;
}
}   // namespace

const Ops<double>& reference_ops() {
    static const Ops<double> table = make_table();
    return table;
}
