// lm_head.h - checks of the cross-entropy.
#pragma once
#include "check.h"

// If in_place, dlogits overwrite the logits.
template <class T, class P>
Check check_cross_entropy(const Ops<T, P>& op, int N, int V, int Vp, bool with_gradient, bool in_place, Logits z = {}) {
    std::string form = with_gradient ? in_place ? " in place" : " gradient" : " loss only";
    if (z.scale != 1) form += " scale=" + std::to_string(z.scale);
    if (z.cap != 0) form += " cap=" + std::to_string(z.cap);
    Check check("cross_entropy", {{"N", N}, {"V", V}, {"Vp", Vp}}, form);
    Numbers numbers = random_normal(int64_t(N) * Vp, 1, 3);
    std::vector<int> targets = random_tokens(N, V, 2);
    for (int n = 0; n < N; n++) {
        const bool ignored = n >= 7 && n % 5 == 2;
        if (ignored) targets[size_t(n)] = -1;
        for (int v = 0; v < Vp; v++)    // ignored logits, and padding
            if (ignored || v >= V)
                numbers[size_t(n) * size_t(Vp) + size_t(v)] = v % 2 || v >= V ? double(NAN) : double(INFINITY);
    }
    Statistics loss(op, N);
    Dual<T> logits(op, numbers), apart(op, logits.size());
    Dual<T>& dlogits = in_place ? logits : apart;
    Integers target(op, targets);
    both(op, [&](auto& table, auto at) {
        table.cross_entropy(at(loss), at(dlogits, with_gradient), at(logits), at(target), 0.37f, z, N, V, Vp);
    });
    check.expect("loss", loss, ROUNDING<float>);
    if (with_gradient) check.expect("dlogits", dlogits, ROUNDING<T>);
    return check;
}
