// attention.h - checks of attention.
#pragma once
#include <array>

#include "check.h"
#include "layers/attention/random_features.h"

// Visible keys (spans) of B sequences of S positions, found by testing every pair of positions. A
// position attends only to its own document, with the mask of a Kind.
struct TrueSpans {
    // A query attends to keys up to its own (causal), also to the first half of its document
    // (prefix), or to its whole document (all).
    enum Kind { causal, prefix, all };
    std::vector<Span> keys, queries;
    // Sequence b's documents begin at the positions places[b].
    TrueSpans(int S, const std::vector<std::vector<int>>& places, Kind kind = causal);
    // Each position begins a document with probability 1 / length.
    TrueSpans(int B, int S, int length, Kind kind = causal);
    Heads in(Heads h) const {
        h.keys = keys.data(), h.queries = queries.data();
        return h;
    }
};
// Spans of cross-attention. A sequence of S queries and its source are both divided into `pairs`
// texts; a query attends to its text's source. The source ends with padding: `pad` keys in the
// first sequence, and as many more in each further one.
struct CrossSpans {
    std::vector<Span> keys, queries;
    CrossSpans(int B, int S, int source, int pairs, int pad);
    Heads in(Heads h) const {
        h.keys = keys.data(), h.queries = queries.data();
        return h;
    }
};
// Sizes of a call of attention. If `document` is not 0, the sequences are divided into documents of
// about this length, masked by `kind`.
struct AttentionShape {
    int B, S;
    Heads h;
    int document = 0;
    TrueSpans::Kind kind = TrueSpans::causal;
    // Calls f(B, S, heads). The heads have spans, in host memory, if there are documents.
    template <class F> void call(F f) const {
        const TrueSpans spans(B, document ? S : 1, document ? document : 1, kind);
        f(B, S, document ? spans.in(h) : h);
    }
};
// Spans copied to a table's memory.
struct TableSpans {
    Array<int> keys, queries;
    TableSpans(Memory m, const TrueSpans& s) : TableSpans(m, s.in({}), int64_t(s.keys.size())) {}
    TableSpans(Memory m, Heads host, int64_t n)    // the spans of n queries, if any
        : keys(m, numbers(host.keys, n)), queries(m, numbers(host.queries, n)) {}
    TableSpans(Memory m, Heads host, int64_t n, int64_t key_count)
        : keys(m, numbers(host.keys, n)), queries(m, numbers(host.queries, key_count)) {}
    Heads in(Heads h) {
        h.keys = reinterpret_cast<const Span*>(static_cast<int*>(keys));
        h.queries = reinterpret_cast<const Span*>(static_cast<int*>(queries));
        return h;
    }

  private:
    static std::vector<int> numbers(const Span* spans, int64_t n) {
        const int* first = reinterpret_cast<const int*>(spans);
        return std::vector<int>(first, first + (spans ? 2 * n : 0));
    }
};
// Heads for a call with N positions, on the tested table and on the reference. The given heads may
// have spans in host memory. If their max_distance is not 0, they are given random position biases,
// of each query with a bias_step, and performer's heads are given its features.
struct DualHeads {
    Heads h;
    TableSpans spans;
    Dual<float> biases;
    Statistics features;
    DualHeads(Memory m, int64_t N, Heads heads) : DualHeads(m, N, N, heads) {}
    DualHeads(Memory m, int64_t queries, int64_t keys, Heads heads)
        : h(heads), spans(m, h, queries, keys),
          biases(m, random_normal(h.max_distance ? h.NH * h.distances() * (h.bias_step ? queries : 1) : 0, 9,
                                  h.bias_step ? 0.3 : 1)),
          features(m, h.linear == LinearAttention::performer ? random_features(h.HS) : std::vector<float>()) {}
    Heads host() { return with(h, reinterpret_cast<const float*>(biases.host()), features.host()); }
    Heads device() { return with(h.keys ? spans.in(h) : h, biases, features); }

  private:
    static Heads with(Heads heads, const float* bias, const float* features) {
        if (heads.max_distance) heads.bias = bias;
        if (heads.linear == LinearAttention::performer) heads.features = features;
        return heads;
    }
};
// Outputs of the reference's attention_forward, which are inputs of backward passes.
struct ReferenceAttention {
    Numbers y;
    std::vector<float> lse;
    ReferenceAttention(const Numbers& qkv, int B, int S, Heads h)
        : y(size_t(B) * size_t(S) * size_t(h.width())), lse(size_t(B) * size_t(h.NH) * size_t(S)) {
        reference_ops().attention_forward(y.data(), lse.data(), qkv.data(), B, S, h);
    }
};
Check attention_check(const char* op, int B, int S, Heads h);
// Returns columns from..from+n-1 of x, whose rows have `width` elements.
Numbers columns(const Numbers& x, int width, int from, int n);
// The columns of q, k or v in a row of qkv, with the name of the gradient there.
struct Columns {
    const char* name;
    int first, n;
};
inline std::array<Columns, 3> qkv_columns(Heads h) {
    const int q = h.NH * h.HS, kv = h.NKV * h.HS;
    return {Columns{"dq", 0, q}, {"dk", q, kv}, {"dv", q + kv, h.NKV * h.value_size()}};
}

// Limit of attention's errors. In bf16, probabilities and their gradients are rounded before they
// are multiplied, and sums are rounded when they are stored.
template <class T> constexpr double ATTENTION_LIMIT = sizeof(T) == 2 ? 5e-3 : 1e-5;
// Returns an error over its limit. rounds is the table's attention_rounds_to_bf16; half is whether
// the numbers are bf16. With cancels, rows are differences of terms of about size 1, and only
// rounding errors remain where a query has one visible key.
double attention_error(bool rounds, bool half, const Numbers& got, const Numbers& expected, int HS, bool cancels);
// Returns n random numbers, rounded to bf16 if the table's attention rounds its inputs to bf16.
template <class T, class P> Numbers attention_input(const Ops<T, P>& op, int64_t n, uint64_t stream, double scale = 1) {
    const Numbers x = random_normal(n, stream, scale);
    return op.attention_rounds_to_bf16 ? rounded<bf16>(x) : x;
}

// run(table, y, lse, at) computes y (N,width) and lse (N,NH) of queries of N positions.
template <class T, class P, class Run>
Check check_forward(Check check, const Ops<T, P>& op, int64_t N, const Heads& h, Run run) {
    Dual<InputType<T, P>> y(op, N * h.width());
    Statistics lse(op, N * h.NH);
    both(op, [&](auto& table, auto at) { run(table, at(y), at(lse), at); });
    check.note("y", y,
               attention_error(op.attention_rounds_to_bf16, sizeof(InputType<T, P>) == 2, y.read(), y.numbers,
                               h.value_size(), false));
    check.expect("lse", lse, ATTENTION_LIMIT<float>);
    return check;
}
// scale is the standard deviation of q, k and v.
template <class T, class P>
Check check_attention_forward(const Ops<T, P>& op, int B, int S, Heads h, double scale = 1) {
    const int64_t N = int64_t(B) * S;
    DualHeads heads(op, N, h);
    Dual<T> qkv(op, attention_input(op, N * h.qkv_width(), 1, scale));
    return check_forward(
        attention_check("attention_forward", B, S, h), op, N, h,
        [&](auto& table, auto y, auto lse, auto at) { table.attention_forward(y, lse, at(qkv), B, S, at(heads)); });
}
// Attention to another sequence; h.source is its length.
template <class T, class P> Check check_cross_attention_forward(const Ops<T, P>& op, int B, int S, Heads h) {
    const int64_t N = int64_t(B) * S, keys = int64_t(B) * h.source;
    DualHeads heads(op, N, keys, h);
    Dual<T> q(op, attention_input(op, N * h.q_row(), 1)), kv(op, attention_input(op, keys * h.kv_row(), 2));
    return check_forward(attention_check("cross_attention_forward", B, S, h), op, N, h,
                         [&](auto& table, auto y, auto lse, auto at) {
                             table.cross_attention_forward(y, lse, at(q), at(kv), B, S, at(heads));
                         });
}
template <class T, class P> Check check_cross_attention_backward(const Ops<T, P>& op, int B, int S, Heads h) {
    Check check = attention_check("cross_attention_backward", B, S, h);
    const int64_t N = int64_t(B) * S, keys = int64_t(B) * h.source;
    DualHeads heads(op, N, keys, h);
    Dual<T> q(op, attention_input(op, N * h.q_row(), 1)), kv(op, attention_input(op, keys * h.kv_row(), 2));
    Dual<T> dq(op, q.size()), dkv(op, kv.size()), dy(op, attention_input(op, N * h.width(), 3));
    Numbers exact(size_t(N * h.width()));
    std::vector<float> exact_lse(size_t(N * h.NH));
    reference_ops().cross_attention_forward(exact.data(), exact_lse.data(), q.numbers.data(), kv.numbers.data(), B, S,
                                            heads.host());
    Dual<InputType<T, P>> y(op, exact);
    Statistics lse(op, exact_lse);
    both(op, [&](auto& table, auto at) {
        table.cross_attention_backward(at(dq), at(dkv), at(dy), at(y), at(q), at(kv), at(lse), B, S, at(heads));
    });
    const bool rounds = op.attention_rounds_to_bf16, half = sizeof(T) == 2;
    check.note("dq", dq, attention_error(rounds, half, dq.read(), dq.numbers, h.HS, true));
    const Numbers got = dkv.read();
    for (auto [name, first, n, HS] : {std::tuple("dk", 0, h.first_v(), h.HS),
                                      std::tuple("dv", h.first_v(), h.NKV * h.value_size(), h.value_size())})
        check.note(name, attention_error(rounds, half, columns(got, h.kv_row(), first, n),
                                         columns(dkv.numbers, h.kv_row(), first, n), HS, HS == h.HS || !rounds));
    check.note("beyond dkv", dkv, 0);
    return check;
}

template <class T, class P>
Check check_attention_backward(const Ops<T, P>& op, int B, int S, Heads h, double scale = 1) {
    Check check = attention_check("attention_backward", B, S, h);
    const int64_t N = int64_t(B) * S;
    DualHeads heads(op, N, h);
    Dual<T> qkv(op, attention_input(op, N * h.qkv_width(), 1, scale)), dqkv(op, qkv.size());
    Dual<T> dy(op, attention_input(op, N * h.width(), 2));
    const ReferenceAttention forward(qkv.numbers, B, S, heads.host());
    Dual<InputType<T, P>> y(op, forward.y);
    Statistics lse(op, forward.lse);
    both(op, [&](auto& table, auto at) {
        table.attention_backward(at(dqkv), at(dy), at(y), at(qkv), at(lse), B, S, at(heads));
    });
    const Numbers got = dqkv.read();
    const bool rounds = op.attention_rounds_to_bf16;
    for (auto [name, first, n] : qkv_columns(h)) {
        const Numbers part = columns(got, h.qkv_width(), first, n),
                      expected = columns(dqkv.numbers, h.qkv_width(), first, n);
        const bool values = first == h.first_v();
        check.note(name, attention_error(rounds, sizeof(T) == 2, part, expected, values ? h.value_size() : h.HS,
                                         !values || !rounds));
    }
    check.note("beyond dqkv", dqkv, 0);
    return check;
}

// With h.keys, queries with an empty range keep y and lse; their part is NaN.
template <class T, class P> Check check_attention_merge(const Ops<T, P>& op, bool add, int B, int S, Heads h) {
    Check check = attention_check(add ? "attention_merge" : "attention_merge first", B, S, h);
    const int64_t N = int64_t(B) * S;
    DualHeads heads(op, N, h);
    Numbers given = random_normal(N * h.width(), 2), sums = random_normal(N * h.NH, 4, 3);
    for (int64_t n = 0; n < N && h.keys; n++) {
        if (h.keys[n].from < h.keys[n].to) continue;
        std::fill_n(given.begin() + n * h.width(), h.width(), NAN);
        for (int i = 0; i < h.NH; i++) sums[size_t((n / S * h.NH + i) * S + n % S)] = NAN;
    }
    Dual<T> y(op, random_normal(N * h.width(), 1));
    Dual<InputType<T, P>> part(op, given);
    Statistics lse(op, random_normal(N * h.NH, 3, 3)), part_lse(op, sums);
    both(op, [&](auto& table, auto at) {
        table.attention_merge(at(y), at(lse), at(part), at(part_lse), add, B, S, at(heads));
    });
    check.expect("y", y, 2 * ROUNDING<T>);
    check.expect("lse", lse, ROUNDING<float>);
    return check;
}
// Columns from..from+C-1 of rows of `width` elements: to dense rows, and from dense rows in another
// order.
template <class T, class P> Check check_copy_columns(const Ops<T, P>& op, int N, int C, int width, int from, bool add) {
    Check check("copy_columns", {{"N", N}, {"C", C}, {"width", width}, {"from", from}}, add ? " add" : "");
    Dual<T> wide(op, random_normal(int64_t(N) * width, 1)), dense(op, random_normal(int64_t(N) * C, 2));
    Dual<T> to(op, random_normal(int64_t(N) * C, 3));
    // Row n is copied from row N - 1 - n, and every third row is kept.
    std::vector<int> backwards(static_cast<size_t>(N));
    for (int n = 0; n < N; n++) backwards[size_t(n)] = n % 3 == 2 ? -1 : N - 1 - n;
    Integers rows(op, backwards);
    both(op, [&](auto& table, auto at) {
        table.copy_columns(at(to), C, at(wide) + from, width, nullptr, add, N, C);
        table.copy_columns(at(wide) + from, width, at(dense), C, at(rows), add, N, C);
    });
    check.expect("dense", to, ROUNDING<T>);
    check.expect("wide", wide, ROUNDING<T>);
    return check;
}

template <class T, class P> Check check_attention_bias_backward(const Ops<T, P>& op, int B, int S, Heads h) {
    Check check = attention_check("attention_bias_backward", B, S, h);
    const int64_t N = int64_t(B) * S;
    DualHeads heads(op, N, h);
    Dual<T> qkv(op, attention_input(op, N * h.qkv_width(), 1)), dy(op, attention_input(op, N * h.width(), 2));
    Dual<Grad<P>> dbias(op, random_normal(heads.biases.size(), 3));
    const ReferenceAttention forward(qkv.numbers, B, S, heads.host());
    Dual<InputType<T, P>> y(op, forward.y);
    Statistics lse(op, forward.lse);
    both(op, [&](auto& table, auto at) {
        table.attention_bias_backward(at(dbias), at(dy), at(y), at(qkv), at(lse), B, S, at(heads));
    });
    check.expect("dbias", dbias, ATTENTION_LIMIT<float>);    // float for any type: it only multiplies inputs
    return check;
}

template <class T, class P> Check check_relative_keys(const Ops<T, P>& op, int N, Heads h) {
    h.bias_step = h.NH * h.distances();
    Check check("relative_keys", {{"N", N}, {"NH", h.NH}, {"NKV", h.NKV}, {"HS", h.HS}, {"reach", h.max_distance}});
    Dual<T> qkv(op, random_normal(int64_t(N) * h.qkv_width(), 1));
    Dual<T> dqkv(op, random_normal(qkv.size(), 2));
    Dual<P> keys(op, random_normal(int64_t(h.distances()) * h.HS, 3));
    Dual<Grad<P>> bias(op, int64_t(N) * h.bias_step), dbias(op, random_normal(bias.size(), 4));
    Dual<Grad<P>> dkeys(op, random_normal(keys.size(), 5));
    both(op, [&](auto& table, auto at) {
        table.relative_keys_forward(at(bias), at(qkv), at(keys), N, h);
        table.relative_keys_backward(at(dqkv), at(dkeys), at(dbias), at(qkv), at(keys), N, h);
    });
    check.expect("bias", bias, ATTENTION_LIMIT<float>);
    check.expect("dqkv", dqkv, ATTENTION_LIMIT<T>);
    check.expect("dkeys", dkeys, ATTENTION_LIMIT<float>);
    return check;
}
template <class T, class P> Check check_bias_rows(const Ops<T, P>& op, int buckets, int NH, int n) {
    Check check("bias_rows", {{"buckets", buckets}, {"NH", NH}, {"n", n}});
    Integers bucket(op, random_tokens(n, buckets, 1));
    Dual<P> table_in(op, random_normal(int64_t(buckets) * NH, 2));
    Dual<Grad<P>> dbias(op, random_normal(int64_t(NH) * n, 3)), bias(op, dbias.size());
    Dual<Grad<P>> dtable(op, random_normal(table_in.size(), 4));
    both(op, [&](auto& table, auto at) {
        table.bias_rows_forward(at(bias), at(table_in), at(bucket), buckets, NH, n);
        table.bias_rows_backward(at(dtable), at(dbias), at(bucket), buckets, NH, n);
    });
    check.expect("bias", bias, ROUNDING<Grad<P>>);
    check.expect("dtable", dtable, ATTENTION_LIMIT<float>);
    return check;
}
