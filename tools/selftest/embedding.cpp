#include "base/philox.h"
#include "embedding.h"

#include "selftest.h"

template <class T, class P>
Check check_embedding_forward(const Ops<T, P>& op, int B, int S, int C, int V, int pos, bool positions) {
    const Memory m(op);
    Check check("embedding_forward", {{"B", B}, {"S", S}, {"C", C}, {"V", V}, {"pos", pos}},
                positions ? "" : " no wpe");
    // Sequence b begins b positions later; the last position of all is padding.
    std::vector<int> places;
    for (int n = 0; n < B * S; n++) places.push_back(pos < 0 ? n % S : pos + n / S + n % S);
    if (pos >= 0 && B * S > 1) places.back() = -1;
    const Numbers wte = rounded<P>(random_normal(int64_t(V) * C, 1));
    const Numbers wpe = rounded<P>(random_normal(int64_t(std::max(0, pos) + B + S) * C, 2));
    const std::vector<int> tok = random_tokens(int64_t(B) * S, V, 3);
    Numbers expected(size_t(B) * size_t(S) * size_t(C));
    reference_ops().embedding_forward(expected.data(), tok.data(), wte.data(), positions ? wpe.data() : nullptr, B, S,
                                      C, places.data());
    Array<T> x(m, int64_t(expected.size()));
    Array<P> e(m, wte), w(m, wpe);
    Array<int> t(m, Numbers(tok.begin(), tok.end())), at(m, Numbers(places.begin(), places.end()));
    op.embedding_forward(x, t, e, or_null(positions, w), B, S, C, or_null(pos >= 0, at));
    check.expect("x", x, expected, ROUNDING<T>);
    return check;
}

template <class T, class P>
Check check_embedding_backward(const Ops<T, P>& op, int B, int S, int C, int V, double hot, bool positions) {
    const Memory m(op);
    Check check("embedding_backward", {{"B", B}, {"S", S}, {"C", C}, {"V", V}},
                " hot=" + std::to_string(hot) + (positions ? "" : " no wpe"));
    const int64_t N = int64_t(B) * S;
    std::vector<int> tok = random_tokens(N, V, 1);
    for (int64_t n = 0; n < N; n++)
        if (double(philox_uniform(philox(1, 2, uint64_t(n)).v[0])) < hot) tok[size_t(n)] = V / 2;
    // Around 1: a sum of 65536 numbers around 0 is small against its terms and their errors.
    Numbers dx = random_normal(N * C, 3);
    for (double& d : dx) d += 1;
    dx = rounded<T>(dx);
    Numbers dwte = rounded<float>(random_normal(int64_t(V) * C, 4));
    Numbers dwpe = rounded<float>(random_normal(int64_t(S) * C, 5));
    Array<Grad<P>> de(m, dwte), dp(m, dwpe);
    Array<T> d(m, dx);
    Array<int> t(m, Numbers(tok.begin(), tok.end()));
    op.embedding_backward(de, or_null(positions, dp), d, t, B, S, C, V);
    reference_ops().embedding_backward(dwte.data(), positions ? dwpe.data() : nullptr, dx.data(), tok.data(), B, S, C,
                                       V);
    check.expect("dwte", de, dwte, ROUNDING<float>);
    check.expect("dwpe", dp, dwpe, ROUNDING<float>);
    return check;
}

FOR_EACH_TABLE(check_embedding_forward, int, int, int, int, int, bool)
FOR_EACH_TABLE(check_embedding_backward, int, int, int, int, double, bool)

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    test.row("embedding_forward", [&] { return check_embedding_forward(op, 4, 500, gpt2.C, test.V, 500); });
    test.row("embedding_backward", [&] { return check_embedding_backward(op, 4, 1024, gpt2.C, test.V, 0.3); });
});
