// sampling.h - checks of sampling.
#pragma once
#include "base/console.h"
#include "check.h"

inline std::string text_of(const SampleParams& d, Logits z, bool bias, bool ties) {
    std::string text;
    auto add = [&](const char* name, double x, double off) {
        if (x != off) text += formatted(" %s=%g", name, x);
    };
    add("temperature", d.temperature, 1), add("top-k", d.top_k, 0), add("top-p", d.top_p, 1), add("min-p", d.min_p, 0);
    add("repetition", d.repetition, 1), add("presence", d.presence, 0), add("frequency", d.frequency, 0);
    add("scale", double(z.scale), 1), add("cap", double(z.cap), 0);
    return text + (bias ? " biases" : "") + (ties ? " ties" : "");
}

// A SampleState for each generated text, on host and device. Its three 64-bit fields are sequence,
// position and number of the text.
struct DualStates : Dual<uint64_t, uint64_t> {
    using Dual::Dual;
    SampleState* device() { return reinterpret_cast<SampleState*>(Dual::device()); }
    SampleState* host() { return reinterpret_cast<SampleState*>(Dual::host()); }
};

// Checks operation sample, which draws one of V tokens for each of N texts. With `ties`, logits are
// multiples of 1/2, so that many are equal. Some logits are -inf or NaN.
template <class T, class P> Check check_sample(const Ops<T, P>& op, int N, int V, int Vp, SampleParams draw,
                                               Logits z = {}, bool has_bias = false, bool ties = false) {
    Check check("sample", {{"N", N}, {"V", V}, {"Vp", Vp}}, text_of(draw, z, has_bias, ties));
    if (!op.sample) return check;
    Numbers numbers = rounded<T>(random_normal(int64_t(N) * Vp, 1, 2)), biases = random_normal(V, 2, 2), at_each;
    for (int64_t i = 0; i < int64_t(numbers.size()); i++) {
        double& x = numbers[size_t(i)];
        if (ties) x = std::floor(2 * x) / 2;
        if (i % 23 == 5) x = i % 2 ? -INFINITY : double(NAN);
        if (i % Vp >= V) x = 100;    // padding must be ignored
    }
    for (int v = 3; v < V; v += 7) biases[size_t(v)] = -INFINITY;
    std::vector<int> token_counts = random_tokens(int64_t(N) * V, 12, 3);
    for (int& r : token_counts) r = r < 6 ? 0 : r == 6 ? 1 : 2 * (r - 6) + r % 2;
    for (int n = 0; n < N; n++) at_each.insert(at_each.end(), {double(n % 3), double(n * n), double(N - 1 - n)});
    Dual<T> logits(op, numbers);
    Dual<double> bias(op, biases);
    Integers ids(op, N), counts(op, token_counts), positions(op, random_tokens(2 * N, 1000, 4));
    DualStates states(op, at_each);
    both(op, [&](auto& table, auto at) {
        table.sample(at(ids), at(counts, draw.penalises()), at(states), at(positions),
                     has_bias ? nullptr : at(positions) + N, at(logits), at(bias, has_bias), draw, z, N, V, Vp);
    });
    check.expect_equal("ids", ids);
    check.expect_equal("counts", counts);
    check.expect_equal("places of draws", states);
    check.expect_equal("positions", positions);
    return check;
}
