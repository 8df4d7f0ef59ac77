// linear.h - checks of matrix products.
#pragma once
#include "check.h"

// Returns the limit for an output of type X in a table of T, a sum of K products. It has three
// parts: the rounding of the stored output; the roundings of the sum, random in float (also for a
// CPU's bf16, where T is float), always downward in tensor cores, once per 16 products; and for
// tf32 the roundings of the two factors, 2^-11 each, and twice that where the sum cancels.
template <class X, class T> double product_limit(Dtype dtype, int64_t K) {
    const bool random = dtype == Dtype::fp32 || (dtype == Dtype::bf16 && sizeof(T) == 4);
    const double sum = random ? std::sqrt(double(K)) * 0x1p-24 : double(K) * 0x1p-26;
    return ROUNDING<X> + sum + (dtype == Dtype::tf32 ? 2e-3 : 0);
}
// Returns the relative error of products with factors rounded to fp8: one to E4M3, the other to a
// type with `bits` bits of mantissa (E4M3 as well with scales of blocks). A unit in the last place
// is at most 2^-bits of the number, and an error at most half a unit: at most
// 2^-(bits + 1) / sqrt(3) of the number in the root mean square. Errors of different factors are
// independent, so the relative error of a sum is no larger.
inline double fp8_limit(Dtype dtype, int bits) {
    if (dtype == Dtype::fp8_block) bits = 3;
    return is_fp8(dtype) ? std::sqrt((std::exp2(-8) + std::exp2(-2 * bits - 2)) / 3) : 0;
}
inline Precision precision_of(Dtype dtype) { return is_fp8(dtype) ? Precision::fp8 : Precision::normal; }
// Returns random factors of a product, rounded to X. For bf16 products of a float table they are
// bf16 values, which the rounding in the product leaves unchanged.
template <class X> Numbers operand(Dtype dtype, int64_t n, uint64_t stream, double scale = 1) {
    const Numbers x = random_normal(n, stream, scale);
    return dtype == Dtype::bf16 ? rounded<bf16>(x) : rounded<X>(x);
}
// Returns start values of a gradient to which a sum over N rows is added. They are far from zero,
// so that the result is, too.
inline Numbers start_sums(int64_t n, uint64_t stream, int N) {
    Numbers v = random_normal(n, stream, std::sqrt(N));
    for (double& x : v) x += 4 * std::sqrt(N);
    return rounded<float>(v);
}
// Returns start_sums, or NaN if the gradient is assigned: its old value must not be read.
inline Numbers start_into(int64_t n, uint64_t stream, int N, bool add) {
    return add ? start_sums(n, stream, N) : Numbers(size_t(n), NAN);
}
// Makes factors of a product positive if the sum is assigned, so that it is far from zero.
inline Numbers factor(Numbers x, bool add) {
    for (double& v : x) v = add ? v : std::abs(v);
    return x;
}

inline Check product_check(const char* op, Dtype dtype, int N, int C, int OC, const std::string& more = "") {
    const char* type = dtype == Dtype::tf32        ? " tf32"
                       : dtype == Dtype::fp8       ? " fp8"
                       : dtype == Dtype::fp8_block ? " fp8-block"
                                                   : "";
    return Check(op, {{"N", N}, {"C", C}, {"OC", OC}}, type + more);
}

enum class Residual { none, apart, in_y };
inline const char* text_of(Residual r) {
    return r == Residual::none ? "" : r == Residual::in_y ? " residual in y" : " residual";
}

// dtype is the type of the product.
template <class T, class P> Check check_linear_forward(const Ops<T, P>& op, int N, int C, int OC, bool bias,
                                                       Residual residual, Dtype dtype = DTYPE<P>) {
    Check check =
        product_check("linear_forward", dtype, N, C, OC, (bias ? " bias" : "") + std::string(text_of(residual)));
    const int64_t n = int64_t(N) * OC;
    Dual<InputType<T, P>> x(op, operand<InputType<T, P>>(dtype, int64_t(N) * C, 1));
    Dual<P> w(op, operand<P>(dtype, int64_t(OC) * C, 2, 1 / std::sqrt(C))), b(op, operand<P>(dtype, OC, 3));
    Dual<T> added(op, operand<T>(dtype, n, 4)), apart(op, n);
    Dual<T>& y = residual == Residual::in_y ? added : apart;
    both(op, [&](auto& table, auto at) {
        table.linear_forward(at(y), at(x), at(w), at(b, bias), at(added, residual != Residual::none), N, C, OC,
                             precision_of(dtype));
    });
    check.expect("y", y, product_limit<T, T>(dtype, C) + fp8_limit(dtype, 3));
    return check;
}

// If add, dw accumulates; otherwise it is assigned. Without with_dw it is null.
template <class T, class P> Check check_linear_backward(const Ops<T, P>& op, int N, int C, int OC, bool with_dx,
                                                        bool bias, Dtype dtype = DTYPE<P>, bool add = true,
                                                        bool with_dw = true) {
    Check check = product_check("linear_backward", dtype, N, C, OC,
                                std::string(with_dx ? " dx" : "") + (bias ? " db" : "") +
                                    (!with_dw ? " without dw"
                                     : add    ? ""
                                              : " assigned"));
    Dual<T> dy(op, factor(operand<T>(dtype, int64_t(N) * OC, 1), add)), dx(op, int64_t(N) * C);
    Dual<InputType<T, P>> x(op, factor(operand<InputType<T, P>>(dtype, int64_t(N) * C, 2), add));
    Dual<P> w(op, factor(operand<P>(dtype, int64_t(OC) * C, 3, 1 / std::sqrt(OC)), add));
    Dual<Grad<P>> dw(op, start_into(int64_t(OC) * C, 4, N, add)), db(op, start_sums(OC, 5, N));
    both(op, [&](auto& table, auto at) {
        table.linear_backward(at(dx, with_dx), {at(dw, with_dw), add}, at(db, bias), at(dy), at(x), at(w), N, C, OC,
                              precision_of(dtype));
    });
    if (with_dx) check.expect("dx", dx, product_limit<T, T>(dtype, OC) + fp8_limit(dtype, 2));
    if (with_dw) check.expect("dw", dw, product_limit<Grad<P>, T>(dtype, N) + fp8_limit(dtype, 2));
    if (bias) check.expect("db", db, product_limit<Grad<P>, T>(dtype, N));
    return check;
}

template <class T, class P> Check check_keep_blocks(const Ops<T, P>& op, RowBlocks blocks, int rows, int cols) {
    Check check("keep_blocks", {{"rows", rows}, {"cols", cols}, {"blocks", blocks.count}});
    Dual<Grad<P>> x(op, random_normal(int64_t(rows) * cols, 1));
    both(op, [&](auto& table, auto at) { table.keep_blocks(at(x), blocks, rows, cols); });
    check.expect_equal("x", x);
    return check;
}

template <class T, class P> Check check_inverse_row_norms(const Ops<T, P>& op, RowBlocks blocks, int C) {
    const int OC = blocks.row[blocks.count], R = blocks.col[blocks.count];
    Check check("inverse_row_norms", {{"C", C}, {"OC", OC}, {"R", R}, {"blocks", blocks.count}});
    Numbers of_b = random_normal(int64_t(OC) * R, 3);
    reference_ops().keep_blocks(of_b.data(), blocks, OC, R);
    Dual<P> w(op, random_normal(int64_t(OC) * C, 1)), a(op, random_normal(int64_t(R) * C, 2)), b(op, of_b);
    Statistics inverse(op, Numbers(size_t(OC), NAN));
    both(op, [&](auto& table, auto at) {
        table.inverse_row_norms(at(inverse), at(w), at(a), at(b), 0.7f, blocks, C, OC, R);
    });
    check.expect("inverse", inverse, product_limit<float, float>(Dtype::fp32, C));
    return check;
}
// The inverses of norms, 0 in each seventh column.
inline Numbers some_inverses(int C) {
    Numbers inverse = random_normal(C, 4);
    for (size_t c = 0; c < inverse.size(); c++) inverse[c] = c % 7 == 3 ? 0 : 0.5 + std::abs(inverse[c]);
    return inverse;
}
template <class T, class P>
Check check_scale_columns_forward(const Ops<T, P>& op, int N, int C, bool bias, bool residual, bool in_place) {
    Check check("scale_columns_forward", {{"N", N}, {"C", C}, {"in_place", in_place}});
    Dual<T> x(op, random_normal(int64_t(N) * C, 1)), y(op, int64_t(N) * C), more(op, random_normal(int64_t(N) * C, 2));
    Dual<P> magnitude(op, random_normal(C, 3)), b(op, random_normal(C, 5));
    Statistics inverse(op, some_inverses(C));
    Dual<T>& to = in_place ? x : y;
    both(op, [&](auto& table, auto at) {
        table.scale_columns_forward(at(to), at(x), at(magnitude), at(inverse), at(b, bias), at(more, residual), N, C);
    });
    check.expect("y", to, 2 * ROUNDING<T>);
    return check;
}
// If in_place, dx is x.
template <class T, class P>
Check check_scale_columns_backward(const Ops<T, P>& op, int N, int C, bool in_place, bool frozen = false) {
    Check check("scale_columns_backward", {{"N", N}, {"C", C}, {"in_place", in_place}});
    Dual<T> dy(op, random_normal(int64_t(N) * C, 1)), x(op, random_normal(int64_t(N) * C, 2)), dx(op, x.size());
    Dual<P> magnitude(op, random_normal(C, 3));
    Statistics inverse(op, some_inverses(C));
    Dual<Grad<P>> dmagnitude(op, start_sums(C, 5, N));
    Dual<T>& to = in_place ? x : dx;
    both(op, [&](auto& table, auto at) {
        table.scale_columns_backward(at(to), at(dmagnitude, !frozen), at(dy), at(x), at(magnitude), at(inverse), N, C);
    });
    check.expect("dx", to, ROUNDING<T>);
    check.expect("dmagnitude", dmagnitude, product_limit<Grad<P>, T>(Dtype::fp32, N));
    return check;
}

// Returns the limit of a product fused with GELU or its derivative. cuBLASLt does not document the
// accuracy of its tanh; users have found its GELU a little less exact than a plain one (llm.c, pull
// request 653). Float outputs may therefore have errors up to 1e-5. The CPU's fused GELU is
// flatgpt's own and has no such allowance.
template <class X, class T> double gelu_limit(bool host, Dtype dtype, int64_t K) {
    return product_limit<X, T>(dtype, K) + (host || sizeof(X) == 2 ? 0 : 1e-5 - ROUNDING<X>);
}

// The reference runs product and GELU one after the other.
template <class T, class P>
Check check_linear_gelu_forward(const Ops<T, P>& op, int N, int C, int OC, Dtype dtype = DTYPE<P>, bool bias = true) {
    Check check = product_check("linear_gelu_forward", dtype, N, C, OC);
    if (!op.linear_gelu_forward) return check;
    Dual<InputType<T, P>> x(op, operand<InputType<T, P>>(dtype, int64_t(N) * C, 1)), y(op, int64_t(N) * OC);
    Dual<P> w(op, operand<P>(dtype, int64_t(OC) * C, 2, 1 / std::sqrt(C))), b(op, operand<P>(dtype, OC, 3));
    Dual<T> pre(op, int64_t(N) * OC);
    both(op, [&](auto& table, auto at) {
        if (table.linear_gelu_forward)
            return table.linear_gelu_forward(at(y), at(pre), at(x), at(w), at(b, bias), N, C, OC, {});
        table.linear_forward(at(pre), at(x), at(w), at(b, bias), nullptr, N, C, OC, {});
        table.activation_forward(at(y), at(pre), Act::gelu_tanh, false, N, OC);
    });
    check.expect("pre", pre, product_limit<T, T>(dtype, C));
    check.expect("y", y, gelu_limit<InputType<T, P>, T>(op.upload == op.copy, dtype, C));
    return check;
}

template <class T, class P> Check check_linear_gelu_backward(const Ops<T, P>& op, int N, int C, int OC,
                                                             Dtype dtype = DTYPE<P>, bool bias = true,
                                                             bool add = true) {
    Check check = product_check("linear_gelu_backward", dtype, N, C, OC, add ? "" : " assigned");
    if (!op.linear_gelu_backward) return check;
    const int64_t n = int64_t(N) * C;
    Dual<T> dy(op, factor(operand<T>(dtype, int64_t(N) * OC, 1), add)), pre(op, operand<T>(dtype, n, 3)), dpre(op, n);
    Dual<InputType<T, P>> x(op, factor(operand<InputType<T, P>>(dtype, n, 2), add));
    Dual<P> w(op, factor(operand<P>(dtype, int64_t(OC) * C, 4, 1 / std::sqrt(OC)), add));
    Dual<Grad<P>> dw(op, start_into(int64_t(OC) * C, 5, N, add)), db(op, start_sums(OC, 6, N));
    Dual<Grad<P>> dpre_sum(op, start_sums(C, 7, N));
    both(op, [&](auto& table, auto at) {
        if (table.linear_gelu_backward)
            return table.linear_gelu_backward(at(dpre), {at(dw), add}, at(db, bias), at(dpre_sum, bias), at(dy), at(x),
                                              at(w), at(pre), N, C, OC);
        table.linear_backward(at(dpre), {at(dw), add}, at(db, bias), at(dy), at(x), at(w), N, C, OC, {});
        table.activation_backward(at(dpre), at(dpre), at(pre), Act::gelu_tanh, false, N, C);
        for (size_t i = 0; i < dpre.numbers.size() && bias; i++) dpre_sum.numbers[i % size_t(C)] += dpre.numbers[i];
    });
    const bool host = op.upload == op.copy;
    // Where cuBLASLt lacks the fused product, dy w is rounded before it is multiplied by gelu'.
    check.expect("dpre", dpre, gelu_limit<T, T>(host, dtype, OC) + ROUNDING<T> / 2);
    check.expect("dw", dw, product_limit<Grad<P>, T>(dtype, N));
    check.expect("db", db, product_limit<Grad<P>, T>(dtype, N));
    // Rounding to T may affect the terms dpre (summed afterwards) or the sum (summed by cuBLASLt).
    check.expect("dpre_sum", dpre_sum, gelu_limit<T, T>(host, dtype, N + OC));
    return check;
}
