#include "lm_head.h"

#include "selftest.h"

template <class T, class P>
Check check_cross_entropy(const Ops<T, P>& op, int N, int V, int Vp, bool with_gradient, bool in_place, Logits z) {
    const Memory m(op);
    std::string form = with_gradient ? in_place ? " in place" : " gradient" : " loss only";
    if (z.scale != 1) form += " scale=" + std::to_string(z.scale);
    if (z.cap != 0) form += " cap=" + std::to_string(z.cap);
    Check check("cross_entropy", {{"N", N}, {"V", V}, {"Vp", Vp}}, form);
    const float scale = 0.37f;
    Numbers logits = rounded<T>(random_normal(int64_t(N) * Vp, 1, 3));
    for (int64_t i = 0; i < int64_t(logits.size()); i++)
        if (i % Vp >= V) logits[size_t(i)] = NAN;    // padding must be ignored
    std::vector<int> target = random_tokens(N, V, 2);
    for (int n = 7; n < N; n += 5) {    // ignored targets and their logits
        target[size_t(n)] = -1;
        for (int v = 0; v < V; v++) logits[size_t(n) * size_t(Vp) + size_t(v)] = v % 2 ? double(NAN) : double(INFINITY);
    }
    std::vector<float> losses(size_t(N), 0);
    Numbers gradient(logits.size());
    reference_ops().cross_entropy(losses.data(), gradient.data(), logits.data(), target.data(), scale, z, N, V, Vp);
    Array<float> loss(m, N);
    Array<T> x(m, logits), d(m, int64_t(logits.size()));
    Array<int> y(m, Numbers(target.begin(), target.end()));
    Array<T>& out = in_place ? x : d;
    op.cross_entropy(loss, with_gradient ? static_cast<T*>(out) : nullptr, x, y, scale, z, N, V, Vp);
    check.expect("loss", loss, Numbers(losses.begin(), losses.end()), ROUNDING<float>);
    if (with_gradient) check.expect("dlogits", out, gradient, ROUNDING<T>);
    return check;
}

FOR_EACH_TABLE(check_cross_entropy, int, int, int, bool, bool, Logits)

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    for (bool train : {true, false})
        test.row("cross_entropy", [&] { return check_cross_entropy(op, 64, test.V, test.Vp(), train, train); });
    test.row("cross_entropy", [&] { return check_cross_entropy(op, 16, test.V, test.Vp(), true, true, {0.7f, 3}); });
});
