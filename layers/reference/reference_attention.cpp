// reference_attention.cpp - attention in double and plain loops: the definition. See reference.h.
#include "layers/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "layers/dropout.h"
#include "layers/reference/kv_rows.h"

namespace {
using namespace reference;
using T = double;

// A head of a query: head i of row n of the call's B * S queries.
struct QueryHead {
    int64_t n;
    int i;
};
// Offsets of query head i at position (b,s) in the array of queries and in y, and of the key and
// value that it uses at position (b,j) in the array of keys and values.
struct Offsets {
    int S;
    Heads h;
    int64_t row(int b, int j) const { return (int64_t(b) * h.keys_of(S) + j) * h.kv_row(); }
    int kv(int i) const { return i / (h.NH / h.NKV); }
    int64_t q(int b, int s, int i) const { return (int64_t(b) * S + s) * h.q_row() + int64_t(i) * h.HS; }
    int64_t k(int b, int j, int i) const { return row(b, j) + h.first_k() + int64_t(kv(i)) * h.HS; }
    int64_t v(int b, int j, int i) const { return row(b, j) + h.first_v() + int64_t(kv(i)) * h.value_size(); }
    int64_t y(int b, int s, int i) const { return ((int64_t(b) * S + s) * h.NH + i) * h.value_size(); }
    QueryHead query(int b, int s, int i) const { return {int64_t(b) * S + s, i}; }
};

// Whether the query at position i of sequence b attends to the key at position j. S: positions of a
// sequence, by which h.keys is indexed.
bool is_visible(Heads h, int S, int b, int i, int j) {
    const Span span = h.keys ? h.keys[b * S + i] : Span{0, h.source ? h.source : i + 1};
    const bool pattern = std::min(i, j) < h.global_tokens || (h.stride && j % h.stride == 0);
    return j >= span.from && j < span.to && (!h.window || std::abs(i - j) < h.window || pattern);
}

T scale_of(Heads h) { return h.scale != 0 ? T(h.scale) : 1 / std::sqrt(T(h.HS)); }
// Offset in the biases, and the bias, of a query's head for a distance: key's minus query's
// position.
int64_t bias_at(Heads h, QueryHead of, int distance) {
    const int at = h.max_distance + std::clamp(distance, -h.max_distance, h.max_distance);
    return of.n * h.bias_step + of.i * h.distances() + at;
}
T bias_of(Heads h, QueryHead of, int distance) {
    return h.bias ? reinterpret_cast<const T*>(h.bias)[bias_at(h, of, distance)] : 0;
}
// Score of a query's head for a key `back` positions before the query. product: their q . k.
// *slope: the score's derivative by `product`.
T score(T product, Heads h, QueryHead of, int back, T* slope = nullptr) {
    T s = product * scale_of(h), capped = h.softcap != 0 ? T(h.softcap) * std::tanh(s / T(h.softcap)) : s;
    if (slope) *slope = scale_of(h) * (h.softcap != 0 ? 1 - capped * capped / (T(h.softcap) * T(h.softcap)) : 1);
    return (h.alibi ? capped - alibi_slope(of.i, h.NH) * back : capped) + bias_of(h, of, -back);
}

// p[j] = softmax(score)[j] over the visible keys below n, 0 for the others. Returns the log-sum-exp
// of the scores. s: the query's position.
template <class Visible, class Key>
T probabilities_of(T* p, const T* q, int s, int n, Heads h, QueryHead of, Visible is_visible, Key key) {
    T top = -INFINITY, sum = 0;
    for (int j = 0; j < n; j++)
        top = std::fmax(top, p[j] = is_visible(j) ? score(dot(q, key(j), h.HS), h, of, s - j) : -INFINITY);
    for (int j = 0; j < n; j++) sum += p[j] = is_visible(j) ? std::exp(p[j] - top) : 0;
    for (int j = 0; j < n; j++) p[j] /= sum;
    return top + std::log(sum);
}
// y = sum_j factor(j) * p[j] * v_j; returns the log-sum-exp of the scores.
template <class Visible, class Key, class Value, class Factor> T attend(T* y, const T* q, int s, int n, Heads h,
                                                                        QueryHead of, Visible is_visible, Key key,
                                                                        Value value, Factor factor) {
    std::vector<T> p(static_cast<size_t>(n));
    const T lse = probabilities_of(p.data(), q, s, n, h, of, is_visible, key);
    for (int j = 0; j < n; j++) p[size_t(j)] *= factor(j);
    std::fill_n(y, h.value_size(), T(0));
    for (int j = 0; j < n; j++)
        if (is_visible(j)) add(y, p[size_t(j)], value(j), h.value_size());
    return lse;
}

// Returns a function: dropout's factor of key j's probability, for query s of head i, sequence b.
auto kept_keys(const Heads& h, int b, int i, int s) {
    return [=, row = pair_row(h.dropout, b, i, h.NH)](int j) {
        return h.dropout.rate > 0 ? reference::factor_of(h.dropout, is_pair_kept(h.dropout, row, s, j)) : 1;
    };
}
}    // namespace

namespace reference {

void cross_attention_forward(T* y, float* lse, const T* q, const T* kv, int B, int S, Heads h) {
    Offsets at{S, h};
    for (int b = 0; b < B; b++)
        for (int i = 0; i < h.NH; i++)
            for (int s = 0; s < S; s++) {
                T l = attend(
                    y + at.y(b, s, i), q + at.q(b, s, i), s, h.keys_of(S), h, at.query(b, s, i),
                    [&](int j) { return is_visible(h, S, b, s, j); }, [&](int j) { return kv + at.k(b, j, i); },
                    [&](int j) { return kv + at.v(b, j, i); }, kept_keys(h, b, i, s));
                lse[(int64_t(b) * h.NH + i) * S + s] = float(l);
            }
}
void attention_forward(T* y, float* lse, const T* qkv, int B, int S, Heads h) {
    cross_attention_forward(y, lse, qkv, qkv, B, S, h);
}
void probabilities(T* p, int* visible, const T* qkv, int S, const Heads& h, int head) {
    Offsets at{S, h};
    for (int s = 0; s < S; s++) {
        auto seen = [&](int j) { return is_visible(h, S, 0, s, j); };
        probabilities_of(p + int64_t(s) * S, qkv + at.q(0, s, head), s, S, h, at.query(0, s, head), seen,
                         [&](int j) { return qkv + at.k(0, j, head); });
        visible[s] = 0;
        for (int j = 0; j < S; j++) visible[s] += seen(j);
    }
}
void cross_attention_backward(T* dqs, T* dkv, const T* dy, const T* y, const T* qs, const T* kv, const float* lse,
                              int B, int S, Heads h) {
    Offsets at{S, h};
    const int HV = h.value_size();
    std::fill_n(dqs, at.q(B, 0, 0), T(0));
    std::fill_n(dkv, at.row(B, 0), T(0));
    for (int b = 0; b < B; b++)
        for (int i = 0; i < h.NH; i++)
            for (int s = 0; s < S; s++) {
                int64_t o = at.y(b, s, i), q = at.q(b, s, i);
                T delta = dot(dy + o, y + o, HV);    // sum_j p_j dp_j
                const auto kept = kept_keys(h, b, i, s);
                for (int j = 0; j < h.keys_of(S); j++) {
                    if (!is_visible(h, S, b, s, j)) continue;
                    int64_t k = at.k(b, j, i), v = at.v(b, j, i);
                    const T factor = kept(j);
                    T slope = 0, z = score(dot(qs + q, kv + k, h.HS), h, at.query(b, s, i), s - j, &slope);
                    T p = std::exp(z - T(lse[(int64_t(b) * h.NH + i) * S + s]));
                    T ds = p * (factor * dot(dy + o, kv + v, HV) - delta) * slope;
                    add(dqs + q, ds, kv + k, h.HS);
                    add(dkv + k, ds, qs + q, h.HS);
                    add(dkv + v, factor * p, dy + o, HV);
                }
            }
}
void attention_backward(T* dqkv, const T* dy, const T* y, const T* qkv, const float* lse, int B, int S, Heads h) {
    cross_attention_backward(dqkv, dqkv, dy, y, qkv, qkv, lse, B, S, h);
}
void attention_merge(T* y, float* lse, const T* part, const float* part_lse, bool add, int B, int S, Heads h) {
    Offsets at{S, h};
    for (int b = 0; b < B; b++)
        for (int i = 0; i < h.NH; i++)
            for (int s = 0; s < S; s++) {
                if (h.keys && h.keys[b * S + s].from == h.keys[b * S + s].to) continue;
                const int64_t row = (int64_t(b) * h.NH + i) * S + s, o = at.y(b, s, i);
                const T old = add ? T(lse[row]) : -INFINITY, further = T(part_lse[row]), top = std::max(old, further);
                const T l = top + std::log(std::exp(old - top) + std::exp(further - top));
                for (int d = 0; d < h.value_size(); d++)
                    y[o + d] = (add ? std::exp(old - l) * y[o + d] : 0) + std::exp(further - l) * part[o + d];
                lse[row] = float(l);
            }
}
void copy_columns(T* to, int64_t to_row, const T* from, int64_t from_row, const int* rows, bool adds, int N, int C) {
    for (int n = 0; n < N; n++) {
        const int m = rows ? rows[n] : n;
        for (int c = 0; c < C && m >= 0; c++) {
            T& x = to[n * to_row + c];
            x = (adds ? x : 0) + from[m * from_row + c];
        }
    }
}
void bias_rows_forward(T* bias, const T* table, const int* bucket, int, int NH, int n) {
    for (int h = 0; h < NH; h++)
        for (int i = 0; i < n; i++) bias[h * n + i] = table[bucket[i] * NH + h];
}
void bias_rows_backward(T* dtable, const T* dbias, const int* bucket, int, int NH, int n) {
    for (int h = 0; h < NH; h++)
        for (int i = 0; i < n; i++) dtable[bucket[i] * NH + h] += dbias[h * n + i];
}
void attention_bias_backward(T* dbias, const T* dy, const T* y, const T* qkv, const float* lse, int B, int S, Heads h) {
    Offsets at{S, h};
    for (int b = 0; b < B; b++)
        for (int i = 0; i < h.NH; i++)
            for (int s = 0; s < S; s++) {
                const T* dy_row = dy + at.y(b, s, i);
                const T delta = dot(dy_row, y + (dy_row - dy), h.value_size());
                const auto kept = kept_keys(h, b, i, s);
                const QueryHead of = at.query(b, s, i);
                for (int j = 0; j < S; j++) {
                    if (!is_visible(h, S, b, s, j)) continue;
                    const T z = score(dot(qkv + at.q(b, s, i), qkv + at.k(b, j, i), h.HS), h, of, s - j);
                    const T p = std::exp(z - T(lse[(int64_t(b) * h.NH + i) * S + s]));
                    dbias[bias_at(h, of, j - s)] +=
                        p * (kept(j) * dot(dy_row, qkv + at.v(b, j, i), h.value_size()) - delta);
                }
            }
}
// Offsets of a query's head in qkv and in the biases, and of the key of the bias i.
struct RelativeKeys {
    Heads h;
    int64_t q(int64_t n, int head) const { return n * h.qkv_width() + int64_t(head) * h.HS; }
    int64_t bias(int64_t n, int head, int i) const { return (n * h.NH + head) * h.distances() + i; }
    int64_t key(int i) const { return int64_t(h.distances() - 1 - i) * h.HS; }
    // Calls f(row, head, number of the bias) for each bias.
    template <class F> void each(int N, F f) const {
        for (int64_t n = 0; n < N; n++)
            for (int head = 0; head < h.NH; head++)
                for (int i = 0; i < h.distances(); i++) f(n, head, i);
    }
};
void relative_keys_forward(T* bias, const T* qkv, const T* keys, int N, Heads h) {
    const RelativeKeys at{h};
    at.each(N, [&](int64_t n, int head, int i) {
        bias[at.bias(n, head, i)] = scale_of(h) * dot(qkv + at.q(n, head), keys + at.key(i), h.HS);
    });
}
void relative_keys_backward(T* dqkv, T* dkeys, const T* dbias, const T* qkv, const T* keys, int N, Heads h) {
    const RelativeKeys at{h};
    at.each(N, [&](int64_t n, int head, int i) {
        const T d = scale_of(h) * dbias[at.bias(n, head, i)];
        for (int c = 0; c < h.HS; c++) {
            dqkv[at.q(n, head) + c] += d * keys[at.key(i) + c];
            if (dkeys) dkeys[at.key(i) + c] += d * qkv[at.q(n, head) + c];
        }
    });
}
void cache_append(Pages cache, const T* kvs, int B, int S, const int* pos, Heads h) {
    if (h.source) h.source = S;
    Offsets at{S, h};
    const CachedRows keys = cached_keys(cache, h.HS), values = cached_values(cache, h.HS);
    for (int b = 0; b < B; b++)
        for (int s = 0; s < S; s++)
            for (int kv = 0; kv < h.NKV && pos[b * S + s] >= 0; kv++) {
                const int64_t row = cache.row(b, kv, pos[b * S + s]);
                keys.put(row, kvs + at.k(b, s, kv * (h.NH / h.NKV)));
                values.put(row, kvs + at.v(b, s, kv * (h.NH / h.NKV)));
            }
}
void cross_attention_cached(T* y, const T* q, Pages cache, int B, int S, const int* last, Heads h) {
    Offsets at{S, h};
    const CachedRows keys = cached_keys(cache, h.HS), values = cached_values(cache, h.HS);
    std::vector<std::vector<T>> k, v;
    for (int b = 0; b < B; b++)
        for (int s = 0; s < S; s++)
            for (int i = 0; i < h.NH; i++) {
                const int p = last[b * S + s];
                T* out = y + at.y(b, s, i);
                if (p < 0) {
                    std::fill_n(out, h.HS, T(0));
                    continue;
                }
                k.clear(), v.clear();
                for (int j = 0; j <= p; j++) {
                    const int64_t row = cache.row(b, at.kv(i), j);
                    k.push_back(keys.get(row)), v.push_back(values.get(row));
                }
                attend(
                    out, q + at.q(b, s, i), p, p + 1, h, at.query(b, s, i),
                    [&](int j) { return is_visible(h, S, b, p, j); }, [&](int j) { return k[size_t(j)].data(); },
                    [&](int j) { return v[size_t(j)].data(); }, [](int) { return 1; });
            }
}
void attention_cached(T* y, const T* qkv, Pages cache, int B, int S, const int* pos, Heads h) {
    cache_append(cache, qkv, B, S, pos, h);
    cross_attention_cached(y, qkv, cache, B, S, pos, h);
}

}    // namespace reference
