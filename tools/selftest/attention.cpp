#include "attention.h"

#include <algorithm>

#include "selftest.h"

// If a float table rounds to bf16 (attention_rounds_to_bf16), the test's q, k, v and dy are bf16
// values, so scores, lse and dp have float's errors. The remaining error is one rounding to bf16:
// of each probability, for y and dv, or of each score's gradient ds, for dq and dk. It is at most
// 2^-8 of the number, and 0.42 * 2^-8 in the root mean square. A row of outputs is a sum of random
// rows of HS numbers, each times such a number, so the 2-norm of the errors is that fraction of the
// outputs' 2-norm. The mean holds for all rows together (OF_ALL). A single row may be a sum of only
// two terms, so its limit (OF_ROW) is the largest error, and half as much again, because random
// rows are not quite orthogonal.
static constexpr double OF_ALL = 0x1p-9 + ATTENTION_LIMIT<float>, OF_ROW = 1.5 * 0x1p-8 + ATTENTION_LIMIT<float>;
// Returns the 2-norm of the errors of n numbers, from number `first` on, divided by the 2-norm of
// the expected numbers, whose root mean square counts as `floor` if it is smaller.
static double norm_error(const Numbers& got, const Numbers& expected, size_t first, size_t n, double floor) {
    double error = 0, square = 0;
    for (size_t i = first; i < first + n; i++)
        error += (got[i] - expected[i]) * (got[i] - expected[i]), square += expected[i] * expected[i];
    const double e = std::sqrt(error / std::fmax(square, double(n) * floor * floor + 1e-30));
    return std::isnan(e) ? INFINITY : e;
}
double attention_error(bool rounds, bool half, const Numbers& got, const Numbers& expected, int HS, bool cancels) {
    if (!rounds)
        return Check::error_over_limit(got, expected, half ? ATTENTION_LIMIT<bf16> : ATTENTION_LIMIT<float>,
                                       cancels ? 0.1 : 0);
    const double stored = half ? 0x1p-9 : 0;    // rounding of the stored sum
    double worst = norm_error(got, expected, 0, got.size(), 0) / std::hypot(OF_ALL, stored);
    for (size_t row = 0; row < got.size(); row += size_t(HS))
        worst = std::fmax(worst, norm_error(got, expected, row, size_t(HS), cancels ? 0.01 : 0) / (OF_ROW + stored));
    return worst;
}

Check attention_check(const char* op, int B, int S, Heads h) {
    std::vector<Size> all = {{"B", B}, {"S", S}, {"NH", h.NH}, {"NKV", h.NKV}, {"HS", h.HS}, {"window", h.window}};
    if (h.stride) all.push_back({"stride", h.stride});
    if (h.global_tokens) all.push_back({"globals", h.global_tokens});
    if (h.max_distance) all.push_back({"reach", h.max_distance});
    if (h.bias_step) all.push_back({"biases of each query", 1});
    if (h.source) all.push_back({"source", h.source});
    if (h.HV) all.push_back({"HV", h.HV});
    std::string scores = h.alibi ? " alibi" : "";
    if (h.keys) scores += " spans";
    if (h.scale != 0) scores += " scale=" + std::to_string(h.scale);
    if (h.softcap != 0) scores += " softcap=" + std::to_string(h.softcap);
    if (h.dropout.rate > 0) scores += " dropout=" + std::to_string(h.dropout.rate);
    return Check(op, all, scores);
}

Numbers columns(const Numbers& x, int width, int from, int n) {
    Numbers out;
    for (auto row = x.begin(); row < x.end(); row += width) out.insert(out.end(), row + from, row + from + n);
    return out;
}

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

CrossSpans::CrossSpans(int B, int S, int source, int pairs, int pad)
    : keys(size_t(B) * size_t(S)), queries(size_t(B) * size_t(source)) {
    for (int b = 0; b < B; b++) {
        const int end = source - pad * (b + 1);    // padding of sequences differs
        auto first_query = [&](int i) { return S * i / pairs; };
        auto first_key = [&](int i) { return end * i / pairs; };
        for (int i = 0; i < pairs; i++) {
            for (int s = first_query(i); s < first_query(i + 1); s++)
                keys[size_t(b * S + s)] = {first_key(i), first_key(i + 1)};
            for (int j = first_key(i); j < first_key(i + 1); j++)
                queries[size_t(b * source + j)] = {first_query(i), first_query(i + 1)};
        }
        for (int j = end; j < source; j++) queries[size_t(b * source + j)] = {S, S};
    }
}

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    const int NH = gpt2.NH, HS = gpt2.HS;
    const Heads biased = {.NH = 6, .NKV = 6, .HS = HS, .max_distance = 128};
    const AttentionShape shapes[] = {
        {4, 256, {NH, NH, HS}},
        {1, 1024, {2, 2, HS}},
        {1, 1024, {4, 1, HS, 200}},
        {2, 1024, {2, 1, HS}, 100},
        {2, 700, {2, 1, HS}, 100, TrueSpans::prefix},
        {1, 700, {2, 1, HS}, 300, TrueSpans::all},
        {1, 700, {2, 1, HS, 65}, 300, TrueSpans::all},
        {1, 1024, {.NH = 2, .NKV = 1, .HS = HS, .window = 100, .stride = 16, .global_tokens = 4}},
        {1, 700, {.NH = 2, .NKV = 1, .HS = HS, .window = 65, .stride = 16, .global_tokens = 4}, 700, TrueSpans::all},
        {1, 500, {2, 2, 128}},
        {1, 300, {2, 1, 32}},
        {1, 300, {2, 1, 96}},
        {1, 300, {2, 1, 192}},
        {1, 300, {2, 1, 256}},
        {1, 300, {.NH = 4, .NKV = 2, .HS = HS, .window = 300, .scale = 0.2f, .softcap = 2}},
        {1, 300, {.NH = 6, .NKV = 6, .HS = HS, .alibi = true}},
        {2, 600, {.NH = 4, .NKV = 2, .HS = HS, .dropout = {0.1f, 1, 3}}},
        {1, 300, biased}};
    for (const AttentionShape& shape : shapes)
        shape.call([&](int B, int S, Heads h) {
            CHECK_ROW(attention_forward, B, S, h);
            CHECK_ROW(attention_backward, B, S, h);
        });
    auto cross = [&](int B, int S, Heads h, int pairs, int pad) {
        const CrossSpans spans(B, S, h.source, pairs, pad);
        const Heads masked = pairs ? spans.in(h) : h;
        CHECK_ROW(cross_attention_forward, B, S, masked);
        CHECK_ROW(cross_attention_backward, B, S, masked);
    };
    cross(4, 256, {.NH = NH, .NKV = NH, .HS = HS, .source = 512}, 0, 0);
    cross(2, 300, {.NH = 8, .NKV = 2, .HS = HS, .source = 200}, 1, 40);
    cross(2, 300, {.NH = 4, .NKV = 4, .HS = 128, .source = 700}, 5, 40);
    cross(2, 130, {.NH = 4, .NKV = 2, .HS = HS, .source = 300, .HV = 32}, 1, 40);
    cross(2, 200, {.NH = 4, .NKV = 2, .HS = HS, .dropout = {0.1f, 1, 3}, .source = 90}, 1, 5);
    CHECK_ROW(attention_merge, true, 4, 256, {.NH = NH, .NKV = NH, .HS = HS});
    CHECK_ROW(copy_columns, 1024, NH * HS, 3 * NH * HS, 0, false);
    CHECK_ROW(copy_columns, 1024, 2 * NH * HS, 3 * NH * HS, NH * HS, true);
    CHECK_ROW(attention_bias_backward, 2, 500, biased);
    CHECK_ROW(bias_rows, 32, 12, 257);
});
