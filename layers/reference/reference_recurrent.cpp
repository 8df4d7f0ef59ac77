// reference_recurrent.cpp - attention without softmax, in double: over whole sequences by its
// definition as a sum over pairs of positions, in generation by the recurrence. The tests compare
// the two. See layers/ops.h: LinearAttention.
#include <algorithm>
#include <cmath>
#include <vector>

#include "layers/reference/reference.h"

namespace {
using T = double;

T scale_of(Heads h) {
    if (h.has_z()) return 1;
    return h.scale != 0 ? T(h.scale) : 1 / std::sqrt(T(h.HS));
}
// Feature map f (ops.h: LinearAttention) of a head's query or key x (HS).
struct FeatureMap {
    const Heads h;
    const bool is_key;
    T root() const { return std::sqrt(h.scale != 0 ? T(h.scale) : 1 / std::sqrt(T(h.HS))); }
    // Logarithms of performer's features. For a query they lack the largest one, which is
    // subtracted.
    std::vector<T> logs(const T* x) const {
        std::vector<T> all(size_t(h.HS));
        T squares = 0, most = -INFINITY;
        for (int d = 0; d < h.HS; d++) squares += std::pow(x[d] * root(), 2);
        for (int i = 0; i < h.HS; i++) {
            for (int d = 0; d < h.HS; d++) all[size_t(i)] += T(h.features[i * h.HS + d]) * x[d] * root();
            most = std::max(most, all[size_t(i)]);
        }
        for (T& log : all) log -= is_key ? squares / 2 : most;
        return all;
    }
    void forward(T* f, const T* x) const {
        if (h.linear == LinearAttention::performer) {
            const std::vector<T> all = logs(x);
            for (int i = 0; i < h.HS; i++)
                f[i] = std::min(std::exp(all[size_t(i)]), T(FEATURE_MAX)) + (is_key ? T(FEATURE_MIN) : 0);
            return;
        }
        for (int d = 0; d < h.HS; d++)
            f[d] = h.linear != LinearAttention::elu ? x[d] : x[d] > 0 ? x[d] + 1 : std::exp(x[d]);
    }
    // Replaces df (HS), the gradient of f(x), by the gradient of x. The factor that all features of
    // a query have in common is no function of x here: n cancels it.
    void backward(T* df, const T* x) const {
        if (h.linear == LinearAttention::elu)
            for (int d = 0; d < h.HS; d++) df[d] *= x[d] > 0 ? 1 : std::exp(x[d]);
        if (h.linear != LinearAttention::performer) return;
        const std::vector<T> all = logs(x);
        std::vector<T> dx(size_t(h.HS));
        for (int i = 0; i < h.HS; i++) {
            const T f = std::exp(all[size_t(i)]), dlog = f < T(FEATURE_MAX) ? df[i] * f : 0;
            for (int d = 0; d < h.HS; d++)
                dx[size_t(d)] += dlog * root() * (T(h.features[i * h.HS + d]) - (is_key ? x[d] * root() : 0));
        }
        std::copy(dx.begin(), dx.end(), df);
    }
};
// Calls f(map, element) for each query and key of n positions; element: its first one's index in
// qkv.
template <class F> void each_feature(int64_t n, Heads h, F f) {
    for (int64_t s = 0; s < n; s++)
        for (int head = 0; head < h.NH + h.NKV; head++)
            f(FeatureMap{h, head >= h.NH}, s * h.qkv_width() + int64_t(head) * h.HS);
}
// Returns qkv of n positions with f(q) and f(k) in place of q and k.
std::vector<T> featured(const T* qkv, int64_t n, Heads h) {
    std::vector<T> all(qkv, qkv + n * h.qkv_width());
    each_feature(n, h, [&](const FeatureMap& map, int64_t at) { map.forward(&all[size_t(at)], qkv + at); });
    return all;
}
T log_sigmoid(T x) { return std::min(x, T(0)) - std::log1p(std::exp(-std::abs(x))); }

// Inputs of the definition for key/value head kv of sequence b, and query head i.
struct Head {
    const T *f, *gates;    // f: featured()
    int S, b, kv, i;
    Heads h;
    int64_t row(int s) const { return (int64_t(b) * S + s) * h.qkv_width(); }
    int64_t q(int s) const { return row(s) + int64_t(i) * h.HS; }
    int64_t k(int s) const { return row(s) + int64_t(h.NH + kv) * h.HS; }
    int64_t v(int s) const { return k(s) + int64_t(h.NKV) * h.HS; }
    int64_t y(int s) const { return ((int64_t(b) * S + s) * h.NH + i) * h.HS; }
    int64_t gate(int s) const { return ((int64_t(b) * S + s) * h.NKV + kv) * h.HS; }
    int64_t norm(int s) const { return (int64_t(b) * h.NH + i) * S + s; }
    int first(int s) const { return h.keys ? h.keys[int64_t(b) * S + s].from : 0; }    // document's first position
    T log_decay(int s, int d) const {
        if (h.has_z()) return 0;
        if (h.linear == LinearAttention::retention) return retention_decay(kv, h.NKV);
        return std::max(log_sigmoid(gates[gate(s) + d]) * T(GATE_SCALE), T(LOG_DECAY_MIN));
    }
    // Factor from the gradient of log a to the gradient of its gate.
    T gate_slope(int s, int d) const {
        const T x = gates[gate(s) + d];
        return log_sigmoid(x) * T(GATE_SCALE) > T(LOG_DECAY_MIN) ? T(GATE_SCALE) / (1 + std::exp(x)) : 0;
    }
    // Calls use(j, w) for the keys visible to the query at s, from s backwards.
    // w (HS): scale * exp(b_s - b_j)
    template <class F> void each_key(int s, F use) const {
        std::vector<T> w(size_t(h.HS), scale_of(h));
        for (int j = s; j >= first(s); j--) {
            use(j, w.data());
            for (int d = 0; d < h.HS; d++) w[size_t(d)] *= std::exp(log_decay(j, d));
        }
    }
};
template <class F> void each_head(const T* features, const T* gates, int B, int S, Heads h, F f) {
    for (int b = 0; b < B; b++)
        for (int i = 0; i < h.NH; i++) f(Head{features, gates, S, b, i / (h.NH / h.NKV), i, h});
}
// Factor n of a row y (HS). weight: f(q) . z, with has_z().
T row_factor(const T* y, T weight, Heads h) {
    T squares = 0;
    for (int d = 0; d < h.HS; d++) squares += y[d] * y[d];
    if (h.has_z()) return 1 / (weight + (h.linear == LinearAttention::elu ? T(LINEAR_ATTENTION_EPS) : 0));
    return 1 / std::sqrt(squares / h.HS + T(LINEAR_ATTENTION_EPS));
}
// Multiplies y (HS) by its factor n, and returns n.
T normed(T* y, T weight, Heads h) {
    const T n = row_factor(y, weight, h);
    for (int d = 0; d < h.HS; d++) y[d] *= n;
    return n;
}
}    // namespace

namespace reference {

void linear_attention_forward(T* y, float* norms, const T* qkv, const T* gates, int B, int S, Heads h) {
    const std::vector<T> f = featured(qkv, int64_t(B) * S, h);
    each_head(f.data(), gates, B, S, h, [&](const Head& at) {
        for (int s = 0; s < S; s++) {
            T* out = y + at.y(s);
            T weight = 0;
            std::fill_n(out, h.HS, T(0));
            at.each_key(s, [&](int j, const T* w) {
                T score = 0;
                for (int d = 0; d < h.HS; d++) score += at.f[at.q(s) + d] * at.f[at.k(j) + d] * w[d];
                weight += score;
                for (int d = 0; d < h.HS; d++) out[d] += score * at.f[at.v(j) + d];
            });
            norms[at.norm(s)] = float(normed(out, weight, h));
        }
    });
}

void linear_attention_backward(T* dqkv, T* dgates, const T* dy, const T* y, const T* qkv, const T* gates, const float*,
                               int B, int S, Heads h) {
    const int HS = h.HS;
    std::fill_n(dqkv, int64_t(B) * S * h.qkv_width(), T(0));
    std::fill_n(dgates, int64_t(B) * S * h.gates(), T(0));
    const std::vector<T> f = featured(qkv, int64_t(B) * S, h);
    each_head(f.data(), gates, B, S, h, [&](const Head& at) {
        std::vector<T> g(static_cast<size_t>(HS)), by_b(size_t(S) * size_t(HS));    // by_b: gradient of b
        for (int s = 0; s < S; s++) {
            // n is computed again, as the rounding of norms to float would be the largest error.
            T weight = 0, both = 0;
            std::vector<T> sum(size_t(HS), 0);
            at.each_key(s, [&](int j, const T* w) {
                T score = 0;
                for (int d = 0; d < HS; d++) score += at.f[at.q(s) + d] * at.f[at.k(j) + d] * w[d];
                weight += score;
                for (int d = 0; d < HS; d++) sum[size_t(d)] += score * at.f[at.v(j) + d];
            });
            const bool divides = h.has_z();
            const T n = row_factor(sum.data(), weight, h);
            for (int d = 0; d < HS; d++) both += dy[at.y(s) + d] * y[at.y(s) + d];
            for (int d = 0; d < HS; d++)
                g[size_t(d)] = n * (dy[at.y(s) + d] - (divides ? 0 : y[at.y(s) + d] * both / HS));
            at.each_key(s, [&](int j, const T* w) {
                T score = 0, p = divides ? -n * both : 0;
                for (int d = 0; d < HS; d++) p += g[size_t(d)] * at.f[at.v(j) + d];
                for (int d = 0; d < HS; d++) {
                    const T fq = at.f[at.q(s) + d], fk = at.f[at.k(j) + d];
                    score += fq * fk * w[d];
                    dqkv[at.q(s) + d] += p * w[d] * fk;
                    dqkv[at.k(j) + d] += p * w[d] * fq;
                    by_b[size_t(s * HS + d)] += p * w[d] * fq * fk;
                    by_b[size_t(j * HS + d)] -= p * w[d] * fq * fk;
                }
                for (int d = 0; d < HS; d++) dqkv[at.v(j) + d] += score * g[size_t(d)];
            });
        }
        for (int d = 0; d < HS && h.gates(); d++) {
            T sum = 0;    // adds up to 0 over a document
            for (int s = S - 1; s >= 0; s--)
                dgates[at.gate(s) + d] += (sum += by_b[size_t(s * HS + d)]) * at.gate_slope(s, d);
        }
    });
    each_feature(int64_t(B) * S, h, [&](const FeatureMap& map, int64_t at) { map.backward(dqkv + at, qkv + at); });
}

void linear_attention_cached(T* y, States states, const T* qkv, const T* gates, int B, int S, const int* pos, Heads h) {
    const int HS = h.HS, group = h.NH / h.NKV;
    const std::vector<T> f = featured(qkv, int64_t(B) * S, h);
    for (int b = 0; b < B; b++) {
        T* all = static_cast<T*>(states.p) + states.of[b] * states.stride;
        if (pos[int64_t(b) * S] == 0) std::fill_n(all, h.state(), T(0));
        for (int64_t n = int64_t(b) * S; n < int64_t(b + 1) * S; n++)
            if (pos[n] < 0) std::fill_n(y + n * h.width(), h.width(), T(0));
        for (int s = 0; s < S && pos[int64_t(b) * S + s] >= 0; s++)
            for (int kv = 0; kv < h.NKV; kv++) {
                Head at = {f.data(), gates, S, b, kv, 0, h};
                T *state = all + int64_t(kv) * HS * HS, *z = all + (int64_t(h.NKV) * HS + kv) * HS;
                for (int d = 0; d < HS; d++) {
                    const T a = std::exp(at.log_decay(s, d)), k = f[size_t(at.k(s) + d)];
                    for (int c = 0; c < HS; c++) state[d * HS + c] = a * state[d * HS + c] + k * f[size_t(at.v(s) + c)];
                    if (h.has_z()) z[d] += k;
                }
                for (at.i = kv * group; at.i < (kv + 1) * group; at.i++) {
                    T* out = y + at.y(s);
                    T weight = 0;
                    std::fill_n(out, HS, T(0));
                    for (int d = 0; d < HS; d++) {
                        const T q = f[size_t(at.q(s) + d)] * scale_of(h);
                        for (int c = 0; c < HS; c++) out[c] += q * state[d * HS + c];
                        if (h.has_z()) weight += q * z[d];
                    }
                    normed(out, weight, h);
                }
            }
    }
}

}    // namespace reference
