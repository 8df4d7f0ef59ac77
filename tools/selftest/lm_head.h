// lm_head.h - checks of the cross-entropy and of the LM head's backward pass.
#pragma once
#include <bit>

#include "linear.h"

// If in_place, dlogits overwrite the logits, where both have one type.
template <class T, class P> Check check_cross_entropy(const Ops<T, P>& op, int N, int V, int Vp, bool with_gradient,
                                                      bool in_place, Logits z = {}, bool weighted = false,
                                                      LossPenalties more = {}) {
    std::string form = with_gradient ? in_place ? " in place" : " gradient" : " loss only";
    if (z.scale != 1) form += " scale=" + std::to_string(z.scale);
    if (z.cap != 0) form += " cap=" + std::to_string(z.cap);
    if (weighted) form += " weights";
    if (more.z_loss != 0) form += " z_loss=" + std::to_string(more.z_loss);
    if (more.label_smoothing != 0) form += " smoothing=" + std::to_string(more.label_smoothing);
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
    typedef InputType<T, P> I;
    Dual<T> logits(op, numbers);
    Dual<I> apart(op, logits.size());
    Integers target(op, targets);
    Statistics weights(op, random_normal(N, 4));
    auto run = [&](auto& dlogits) {
        both(op, [&](auto& table, auto at) {
            table.cross_entropy(at(loss), at(dlogits, with_gradient), at(logits), at(target), at(weights, weighted),
                                0.37f, more, z, N, V, Vp);
        });
        check.expect("loss", loss, ROUNDING<float>);
        if (with_gradient) check.expect("dlogits", dlogits, ROUNDING<I>);
    };
    if constexpr (std::is_same_v<I, T>) run(in_place ? logits : apart);
    else run(apart);
    return check;
}

template <class T, class P> Check check_lm_head_backward(const Ops<T, P>& op, int N, int C, int V, bool bias,
                                                         Dtype dtype = DTYPE<P>, bool add = true) {
    typedef InputType<T, P> I;
    Check check =
        product_check("lm_head_backward", dtype, N, C, V, std::string(bias ? " db" : "") + (add ? "" : " assigned"));
    Dual<I> dy(op, operand<I>(dtype, int64_t(N) * V, 1)), x(op, operand<I>(dtype, int64_t(N) * C, 2));
    Dual<P> w(op, operand<P>(dtype, int64_t(V) * C, 3, 1 / std::sqrt(V)));
    Dual<T> dx(op, int64_t(N) * C);
    Dual<Grad<P>> dw(op, start_into(int64_t(V) * C, 4, N, add)), db(op, start_sums(V, 5, N));
    both(op, [&](auto& table, auto at) {
        table.lm_head_backward(at(dx), {at(dw), add}, at(db, bias), at(dy), at(x), at(w), N, C, V, {});
    });
    check.expect("dx", dx, product_limit<T, T>(dtype, V));
    check.expect("dw", dw, product_limit<Grad<P>, T>(dtype, N));
    if (bias) check.expect("db", db, product_limit<Grad<P>, T>(dtype, N));
    return check;
}

// A third of the targets is ignored, with logits that are not finite.
template <class T, class P> Check check_distill_loss(const Ops<T, P>& op, int N, int V, int Vp, Distillation how,
                                                     bool with_gradient, Logits z = {}, Logits teacher_z = {}) {
    Check check("distill_loss", {{"N", N}, {"V", V}, {"Vp", Vp}}, with_gradient ? "" : " loss only");
    typedef InputType<T, P> I;
    Numbers own = rounded<T>(random_normal(int64_t(N) * Vp, 1, 2)),
            other = rounded<T>(random_normal(int64_t(N) * Vp, 2, 2));
    std::vector<int> targets = random_tokens(N, V, 3);
    for (int n = 0; n < N; n++) {
        if (n % 3 == 2) targets[size_t(n)] = -1;
        for (int v = 0; v < Vp; v++)
            if (n % 3 == 2 || v >= V)
                own[size_t(n) * size_t(Vp) + size_t(v)] = other[size_t(n) * size_t(Vp) + size_t(v)] = NAN;
    }
    Statistics loss(op, N);
    Dual<T> logits(op, own), teacher(op, other);
    Dual<I> dlogits(op, logits.size());
    Integers target(op, targets);
    both(op, [&](auto& table, auto at) {
        table.distill_loss(at(loss), at(dlogits, with_gradient), at(logits), at(teacher), at(target), 0.37f, how, z,
                           teacher_z, N, V, Vp);
    });
    check.expect("loss", loss, 4 * ROUNDING<float>, 1);
    // A gradient is a difference of probabilities, and keeps their errors.
    if (with_gradient) check.expect("dlogits", dlogits, 2 * ROUNDING<I>, 0.37 / std::sqrt(double(V)));
    return check;
}

// Logits beyond the first, and those of ignored rows, are not finite. Some are large.
template <class T, class P>
Check check_value_loss(const Ops<T, P>& op, int N, int Vp, bool binary, bool with_gradient, bool in_place) {
    Check check("value_loss", {{"N", N}, {"Vp", Vp}},
                std::string(binary ? " binary" : "") + (with_gradient ? in_place ? " in place" : "" : " loss only"));
    typedef InputType<T, P> I;
    Numbers numbers = random_normal(int64_t(N) * Vp, 1, 3), values = rounded<float>(random_normal(N, 2));
    std::vector<int> targets;
    for (int n = 0; n < N; n++) {
        const bool ignored = n % 3 == 2;
        const float y = binary ? float(n % 2) : float(values[size_t(n)]);
        targets.push_back(!ignored ? std::bit_cast<int>(y) : n % 2 ? -1 : std::bit_cast<int>(NAN));
        double* row = &numbers[size_t(n) * size_t(Vp)];
        if (n % 5 == 1) row[0] *= 30;
        for (int v = ignored ? 0 : 1; v < Vp; v++) row[v] = double(NAN);
    }
    Statistics loss(op, N);
    Dual<T> logits(op, numbers);
    Dual<I> apart(op, logits.size());
    Integers target(op, targets);
    auto run = [&](auto& dlogits) {
        both(op, [&](auto& table, auto at) {
            table.value_loss(at(loss), at(dlogits, with_gradient), at(logits), at(target), 0.37f, binary, N, Vp);
        });
        check.expect("loss", loss, ROUNDING<float>, 1);
        if (with_gradient) check.expect("dlogits", dlogits, ROUNDING<I>, 0.37);
    };
    if constexpr (std::is_same_v<I, T>) run(in_place ? logits : apart);
    else run(apart);
    return check;
}
