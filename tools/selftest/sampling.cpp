#include "sampling.h"

#include "base/console.h"
#include "selftest.h"

static std::string text_of(const SampleParams& d, Logits z, bool bias, bool ties) {
    std::string text;
    auto add = [&](const char* name, double x, double off) {
        if (x != off) text += formatted(" %s=%g", name, x);
    };
    add("temperature", d.temperature, 1), add("top-k", d.top_k, 0), add("top-p", d.top_p, 1), add("min-p", d.min_p, 0);
    add("repetition", d.repetition, 1), add("presence", d.presence, 0), add("frequency", d.frequency, 0);
    add("scale", double(z.scale), 1), add("cap", double(z.cap), 0);
    return text + (bias ? " biases" : "") + (ties ? " ties" : "");
}

template <class T, class P>
Check check_sample(const Ops<T, P>& op, int N, int V, int Vp, SampleParams draw, Logits z, bool bias, bool ties) {
    Check check("sample", {{"N", N}, {"V", V}, {"Vp", Vp}}, text_of(draw, z, bias, ties));
    if (!op.sample) return check;
    const Memory m(op);
    Numbers logits = rounded<T>(random_normal(int64_t(N) * Vp, 1, 2)), biases = random_normal(V, 2, 2);
    for (int64_t i = 0; i < int64_t(logits.size()); i++) {
        double& x = logits[size_t(i)];
        if (ties) x = std::floor(2 * x) / 2;
        if (i % 23 == 5) x = i % 2 ? -INFINITY : double(NAN);
        if (i % Vp >= V) x = 100;    // padding must be ignored
    }
    for (int v = 3; v < V; v += 7) biases[size_t(v)] = -INFINITY;
    const std::vector<int> random = random_tokens(int64_t(N) * V, 12, 3);
    Numbers token_counts, at;
    for (int r : random) token_counts.push_back(r < 6 ? 0 : r == 6 ? 1 : 2 * (r - 6) + r % 2);
    for (int n = 0; n < N; n++) at.insert(at.end(), {double(n % 3), double(n * n), double(N - 1 - n)});
    std::vector<int> ids(static_cast<size_t>(N)), counts(token_counts.begin(), token_counts.end());
    std::vector<uint64_t> places(at.begin(), at.end());
    const bool counted = draw.penalises();
    std::vector<int> positions = random_tokens(2 * N, 1000, 4);
    Array<int> positions_there(m, Numbers(positions.begin(), positions.end()));
    Array<uint64_t> places_there(m, at);
    reference_ops().sample(ids.data(), counted ? counts.data() : nullptr, reinterpret_cast<SampleState*>(places.data()),
                           positions.data(), bias ? nullptr : &positions[size_t(N)], logits.data(),
                           bias ? biases.data() : nullptr, draw, z, N, V, Vp);
    Array<T> x(m, logits);
    Array<int> chosen(m, N), counts_there(m, token_counts);
    Array<double> biases_there(m, biases);
    op.sample(chosen, or_null(counted, counts_there),
              reinterpret_cast<SampleState*>(static_cast<uint64_t*>(places_there)), positions_there,
              bias ? nullptr : positions_there + N, x, or_null(bias, biases_there), draw, z, N, V, Vp);
    auto same = [&](const char* what, const auto& got, const auto& expected) {
        check.note(what, got.intact() && got.read() == Numbers(expected.begin(), expected.end()) ? 0 : INFINITY);
    };
    same("ids", chosen, ids);
    same("counts", counts_there, counts);
    same("places of draws", places_there, places);
    same("positions", positions_there, positions);
    return check;
}

FOR_EACH_TABLE(check_sample, int, int, int, SampleParams, Logits, bool, bool)

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    if (!op.sample) return;
    for (SampleParams draw :
         {SampleParams{.temperature = 0}, SampleParams{}, SampleParams{.temperature = 0.8, .top_k = 50},
          SampleParams{.min_p = 0.05}, SampleParams{.top_p = 0.9, .repetition = 1.2, .presence = 0.3}})
        test.row("sample", [&] { return check_sample(op, 4, test.V, test.Vp(), draw); });
});
