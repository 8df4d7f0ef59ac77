#include "attention.h"

#include <algorithm>
#include <memory>

#include "selftest.h"

namespace {

// bf16 results: probabilities and their gradients are rounded to bf16 before they are multiplied,
// and sums are rounded when they are stored.
template <class T> constexpr double LIMIT = sizeof(T) == 2 ? 5e-3 : 1e-5;
// A float table that rounds to bf16 (attention_rounds_to_bf16) gets bf16 values of q, k, v and dy,
// so scores, lse and dp have float's errors. The remaining error is one rounding of each
// probability, for y and dv, or of each ds, for dq and dk: at most 2^-8 of the number, 0.42 * 2^-8
// in the root mean square. Outputs are sums of random rows of HS, each times such a number, so the
// errors' 2-norm is that fraction of the outputs' 2-norm. The mean holds for all rows together. A
// single row may be a sum of only two terms, so its limit is the largest error, and half as much
// again, because random rows are not quite orthogonal.
constexpr double OF_ALL = 0x1p-9 + LIMIT<float>, OF_ROW = 1.5 * 0x1p-8 + LIMIT<float>;
// 2-norm of the errors of n numbers from `first` on over the numbers' own, whose root mean square
// is at least `floor`.
double norm_error(const Numbers& got, const Numbers& expected, size_t first, size_t n, double floor) {
    double error = 0, square = 0;
    for (size_t i = first; i < first + n; i++)
        error += (got[i] - expected[i]) * (got[i] - expected[i]), square += expected[i] * expected[i];
    const double e = std::sqrt(error / std::fmax(square, double(n) * floor * floor + 1e-30));
    return std::isnan(e) ? INFINITY : e;
}
template <class T, class P> Numbers inputs(const Ops<T, P>& op, const Numbers& x) {
    return op.attention_rounds_to_bf16 ? rounded<bf16>(x) : rounded<T>(x);
}
// Error over limit of numbers of type X. cancels: rows are differences of terms of size 1, and
// zero, except for rounding, where a query has one visible key.
template <class X, class T, class P>
double error(const Ops<T, P>& op, const Numbers& got, const Numbers& expected, int HS, bool cancels) {
    if (!op.attention_rounds_to_bf16) return Check::error_over_limit(got, expected, LIMIT<X>, cancels ? 0.1 : 0);
    const double stored = sizeof(X) == 2 ? 0x1p-9 : 0;    // the rounding of the sum
    double worst = norm_error(got, expected, 0, got.size(), 0) / std::hypot(OF_ALL, stored);
    for (size_t row = 0; row < got.size(); row += size_t(HS))
        worst = std::fmax(worst, norm_error(got, expected, row, size_t(HS), cancels ? 0.01 : 0) / (OF_ROW + stored));
    return worst;
}

Check named(const char* op, int B, int S, Heads h, const std::vector<Size>& more) {
    std::vector<Size> all = {{"B", B}, {"S", S}, {"NH", h.NH}, {"NKV", h.NKV}, {"HS", h.HS}, {"window", h.window}};
    all.insert(all.end(), more.begin(), more.end());
    if (h.stride) all.push_back({"stride", h.stride});
    if (h.global_tokens) all.push_back({"globals", h.global_tokens});
    if (h.max_distance) all.push_back({"reach", h.max_distance});
    std::string scores = h.alibi ? " alibi" : "";
    if (h.keys) scores += " spans";
    if (h.scale != 0) scores += " scale=" + std::to_string(h.scale);
    if (h.softcap != 0) scores += " softcap=" + std::to_string(h.softcap);
    if (h.dropout.rate > 0) scores += " dropout=" + std::to_string(h.dropout.rate);
    return Check(op, all, scores);
}

// Equal heads for the reference and the device.
struct BothHeads {
    TableSpans spans;
    Numbers biases;    // if h.max_distance > 0
    Array<float> device_biases;
    Heads host, device;
    BothHeads(Memory m, int B, int S, Heads h)
        : spans(m, h.keys ? copied(h, size_t(B) * size_t(S)) : TrueSpans(1, {{}})),
          biases(rounded<float>(random_normal(h.max_distance ? int64_t(h.NH) * (2 * h.max_distance + 1) : 0, 9))),
          device_biases(m, biases), host(h), device(h.keys ? spans.in(h) : h) {
        if (h.max_distance) host.bias = reinterpret_cast<const float*>(biases.data()), device.bias = device_biases;
    }
    static TrueSpans copied(Heads h, size_t N) {
        TrueSpans s(1, {{}});
        s.keys.assign(h.keys, h.keys + N), s.queries.assign(h.queries, h.queries + N);
        return s;
    }
};

// Heads from..to of packed rows.
Numbers part(const Numbers& x, Heads h, int from, int to) {
    Numbers out;
    for (size_t i = 0; i < x.size(); i++)
        if (int head = int(i / size_t(h.HS) % size_t(h.NH + 2 * h.NKV)); head >= from && head < to) out.push_back(x[i]);
    return out;
}

}    // namespace

TrueSpans::TrueSpans(int S, const std::vector<std::vector<int>>& places, Kind kind)
    : keys(places.size() * size_t(S), {S, 0}), queries(keys) {
    for (size_t b = 0; b < places.size(); b++) {
        std::vector<int> document(size_t(S), 0), begin(size_t(S) + 1, 0), end(size_t(S) + 1, 0);
        for (int s = 0; s < S; s++)
            for (int at : places[b]) document[size_t(s)] += at <= s;
        for (int s = 0; s < S; s++) {
            const size_t d = size_t(document[size_t(s)]);
            if (s == 0 || d != size_t(document[size_t(s) - 1])) begin[d] = s;
            end[d] = s + 1;
        }
        for (int i = 0; i < S; i++)
            for (int j = 0; j < S; j++) {
                const size_t d = size_t(document[size_t(i)]), row = b * size_t(S);
                const bool early = kind == all || (kind == prefix && j < (begin[d] + end[d] + 1) / 2);
                if (document[size_t(j)] != int(d) || (j > i && !early)) continue;
                Span &sees = keys[row + size_t(i)], &seen = queries[row + size_t(j)];
                sees = {std::min(sees.from, j), std::max(sees.to, j + 1)};
                seen = {std::min(seen.from, i), std::max(seen.to, i + 1)};
            }
    }
}
static std::vector<std::vector<int>> random_places(int B, int S, int length) {
    std::vector<std::vector<int>> all(static_cast<size_t>(B));
    const std::vector<int> draws = random_tokens(int64_t(B) * S, length, 5);
    for (int i = 0; i < B * S; i++)
        if (draws[size_t(i)] == 0) all[size_t(i / S)].push_back(i % S);
    return all;
}
TrueSpans::TrueSpans(int B, int S, int length, Kind kind) : TrueSpans(S, random_places(B, S, length), kind) {}

static Numbers flat(const std::vector<Span>& spans) {
    Numbers all;
    for (Span s : spans) all.push_back(s.from), all.push_back(s.to);
    return all;
}
TableSpans::TableSpans(Memory m, const TrueSpans& spans) : keys(m, flat(spans.keys)), queries(m, flat(spans.queries)) {}

template <class T, class P> Check check_attention_forward(const Ops<T, P>& op, int B, int S, Heads h, double scale) {
    const Memory m(op);
    const BothHeads both(m, B, S, h);
    Check check = named("attention_forward", B, S, h, {});
    const Numbers qkv = inputs(op, random_normal(int64_t(B) * S * h.qkv_width(), 1, scale));
    Numbers y(size_t(int64_t(B) * S * h.width()));
    std::vector<float> lse(size_t(B) * size_t(h.NH) * size_t(S));
    reference_ops().attention_forward(y.data(), lse.data(), qkv.data(), B, S, both.host);
    Array<T> in(m, qkv);
    Array<InputType<T, P>> out(m, int64_t(y.size()));
    Array<float> statistics(m, int64_t(lse.size()));
    op.attention_forward(out, statistics, in, B, S, both.device);
    check.note("y", out.intact() ? error<InputType<T, P>>(op, out.read(), y, h.HS, false) : INFINITY,
               sizeof(InputType<T, P>) == 2);
    check.expect("lse", statistics, Numbers(lse.begin(), lse.end()), LIMIT<float>);
    return check;
}

template <class T, class P> Check check_attention_backward(const Ops<T, P>& op, int B, int S, Heads h, double scale) {
    const Memory m(op);
    const BothHeads both(m, B, S, h);
    Check check = named("attention_backward", B, S, h, {});
    const Numbers qkv = inputs(op, random_normal(int64_t(B) * S * h.qkv_width(), 1, scale));
    const Numbers dy = inputs(op, random_normal(int64_t(B) * S * h.width(), 2));
    Numbers y(dy.size()), dqkv(qkv.size());
    std::vector<float> lse(size_t(B) * size_t(h.NH) * size_t(S));
    reference_ops().attention_forward(y.data(), lse.data(), qkv.data(), B, S, both.host);
    y = rounded<InputType<T, P>>(y);
    reference_ops().attention_backward(dqkv.data(), dy.data(), y.data(), qkv.data(), lse.data(), B, S, both.host);
    Array<T> dy_in(m, dy), in(m, qkv), out(m, int64_t(qkv.size()));
    Array<InputType<T, P>> y_in(m, y);
    Array<float> statistics(m, Numbers(lse.begin(), lse.end()));
    op.attention_backward(out, dy_in, y_in, in, statistics, B, S, both.device);
    const Numbers got = out.read();
    const char* names[] = {"dq", "dk", "dv"};
    const int from[] = {0, h.NH, h.NH + h.NKV, h.NH + 2 * h.NKV};
    for (int i = 0; i < 3; i++)
        check.note(names[i], error<T>(op, part(got, h, from[i], from[i + 1]), part(dqkv, h, from[i], from[i + 1]), h.HS,
                                      i < 2 || !op.attention_rounds_to_bf16));
    if (!out.intact()) check.note("beyond dqkv", INFINITY);
    return check;
}

template <class T, class P> Check check_attention_bias_backward(const Ops<T, P>& op, int B, int S, Heads h) {
    const Memory m(op);
    const BothHeads both(m, B, S, h);
    Check check = named("attention_bias_backward", B, S, h, {});
    const Numbers qkv = inputs(op, random_normal(int64_t(B) * S * h.qkv_width(), 1));
    const Numbers dy = inputs(op, random_normal(int64_t(B) * S * h.width(), 2));
    Numbers y(dy.size()), dbias = rounded<float>(random_normal(int64_t(both.biases.size()), 3));
    Array<Grad<P>> out(m, dbias);
    std::vector<float> lse(size_t(B) * size_t(h.NH) * size_t(S));
    reference_ops().attention_forward(y.data(), lse.data(), qkv.data(), B, S, both.host);
    y = rounded<InputType<T, P>>(y);
    reference_ops().attention_bias_backward(dbias.data(), dy.data(), y.data(), qkv.data(), lse.data(), B, S, both.host);
    Array<T> dy_in(m, dy), in(m, qkv);
    Array<InputType<T, P>> y_in(m, y);
    Array<float> statistics(m, Numbers(lse.begin(), lse.end()));
    op.attention_bias_backward(out, dy_in, y_in, in, statistics, B, S, both.device);
    check.expect("dbias", out, dbias, LIMIT<float>);    // float for any type: it only multiplies inputs
    return check;
}
template <class T, class P> Check check_bias_rows(const Ops<T, P>& op, int buckets, int NH, int n) {
    const Memory m(op);
    Check check("bias_rows", {{"buckets", buckets}, {"NH", NH}, {"n", n}});
    const std::vector<int> bucket = random_tokens(n, buckets, 1);
    const Numbers table = rounded<P>(random_normal(int64_t(buckets) * NH, 2));
    const Numbers dbias = rounded<Grad<P>>(random_normal(int64_t(NH) * n, 3));
    Numbers bias(dbias.size()), dtable = rounded<Grad<P>>(random_normal(int64_t(table.size()), 4));
    Array<int> buckets_in(m, Numbers(bucket.begin(), bucket.end()));
    Array<P> table_in(m, table);
    Array<Grad<P>> rows(m, int64_t(bias.size())), dbias_in(m, dbias), dtable_out(m, dtable);
    op.bias_rows_forward(rows, table_in, buckets_in, buckets, NH, n);
    op.bias_rows_backward(dtable_out, dbias_in, buckets_in, buckets, NH, n);
    reference_ops().bias_rows_forward(bias.data(), table.data(), bucket.data(), buckets, NH, n);
    reference_ops().bias_rows_backward(dtable.data(), dbias.data(), bucket.data(), buckets, NH, n);
    check.expect("bias", rows, bias, ROUNDING<Grad<P>>);
    check.expect("dtable", dtable_out, dtable, LIMIT<float>);
    return check;
}

FOR_EACH_TABLE(check_attention_bias_backward, int, int, Heads)
FOR_EACH_TABLE(check_bias_rows, int, int, int)
FOR_EACH_TABLE(check_attention_forward, int, int, Heads, double)
FOR_EACH_TABLE(check_attention_backward, int, int, Heads, double)

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    const int NH = gpt2.NH, HS = gpt2.HS;
    auto add = [&](int B, int S, Heads h, int document = 0, TrueSpans::Kind kind = TrueSpans::causal) {
        auto spans = std::make_shared<TrueSpans>(document ? TrueSpans(B, S, document, kind) : TrueSpans(1, {{}}));
        if (document) h = spans->in(h);
        test.row("attention_forward", [=, &op] { return (void)spans, check_attention_forward(op, B, S, h); });
        test.row("attention_backward", [=, &op] { return (void)spans, check_attention_backward(op, B, S, h); });
    };
    add(4, 256, {NH, NH, HS});
    add(1, 1024, {2, 2, HS});
    add(1, 1024, {4, 1, HS, 200});
    add(2, 1024, {2, 1, HS}, 100);
    add(2, 700, {2, 1, HS}, 100, TrueSpans::prefix);
    add(1, 700, {2, 1, HS}, 300, TrueSpans::all);
    add(1, 1024, {.NH = 2, .NKV = 1, .HS = HS, .window = 100, .stride = 16, .global_tokens = 4});
    add(1, 500, {2, 2, 128});
    for (int size : {32, 96, 192, 256}) add(1, 300, {2, 1, size});
    Heads capped = {4, 2, HS, 300}, alibi = {6, 6, HS};
    capped.scale = 0.2f, capped.softcap = 2, alibi.alibi = true;
    Heads dropping = {4, 2, HS};
    dropping.dropout = {0.1f, 1, 3};
    add(1, 300, capped);
    add(1, 300, alibi);
    add(2, 600, dropping);
    const Heads biased = {.NH = 6, .NKV = 6, .HS = HS, .max_distance = 128};
    add(1, 300, biased);
    test.row("attention_bias_backward", [&] { return check_attention_bias_backward(op, 2, 500, biased); });
    test.row("bias_rows", [&] { return check_bias_rows(op, 32, 12, 257); });
});
