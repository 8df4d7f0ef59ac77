// toy_optimizers.h - made-up optimizers as table rows, of which the product has no code.
#pragma once
#include <cmath>

#include "model/optimizers.h"

// Calls f(double()) or f(float()), by the type of parameters and gradients.
template <class F> void by_type(const Table& op, F f) { op.gradient == Element::f64 ? f(double()) : f(float()); }
template <class T> T* in(Gradient* p) { return reinterpret_cast<T*>(p); }
template <class T> T* in(Parameter* p) { return reinterpret_cast<T*>(p); }

// w -= lr * (direction + decay * w)
template <class T, class Direction> void apply(const OptimizerRange& r, Direction direction) {
    for (int64_t i = 0; i < r.n && !r.step->skipped; i++) {
        T& w = in<T>(r.w)[i];
        w -= T(r.params.lr) * (T(direction(i)) + (r.groups[i / 64] & GROUP_DECAYS ? T(r.params.weight_decay) : 0) * w);
    }
}
// momentum = beta1 * momentum + (1 - beta1) * gradient
template <class T> void add_momentum(const OptimizerRange& r) {
    auto* momentum = static_cast<float*>(r.states[0]);
    const float beta = r.params.beta1;
    for (int64_t i = 0; i < r.n && !r.step->skipped; i++)
        momentum[i] = float(T(beta) * T(momentum[i]) + T(1 - beta) * T(r.step->scale) * in<T>(r.dw)[i]);
}

// signSGD with momentum (Bernstein et al. 2018, algorithm 2), elementwise. Momentum below eps is 0:
// a key bias's gradient, 0 but for rounding, would have a sign that depends on the order of sums.
inline const Optimizer SIGN_SGD = {
    .name = "sign_sgd",
    .eps = 0,
    .states = {{"momentum"}},
    .update =
        [](const OptimizerRange& r) {
            by_type(r.op, [&](auto zero) {
                using T = decltype(zero);
                add_momentum<T>(r);
                const auto* momentum = static_cast<const float*>(r.states[0]);
                apply<T>(r, [&](int64_t i) { return (momentum[i] > r.params.eps) - (momentum[i] < -r.params.eps); });
            });
        },
};

// Momentum; each row of a matrix is divided by its root mean square over time, then the matrix by
// its norm: each number depends on the whole matrix, and one state has a value per row.
inline const Optimizer NORMED_ROWS = {
    .name = "normed_rows",
    .eps = 1e-6f,
    .states = {{"momentum"}, {"row_square", StateSize::row}},
    .update =
        [](const OptimizerRange& r) {
            by_type(r.op, [&](auto zero) {
                using T = decltype(zero);
                apply<T>(r, [&](int64_t i) { return in<T>(r.dw)[i]; });
            });
        },
    .direction =
        [](const OptimizerRange& r) {
            by_type(r.op, [&](auto zero) {
                using T = decltype(zero);
                add_momentum<T>(r);
                for (int64_t i = 0; i < r.n; i++) in<T>(r.dw)[i] = T(static_cast<const float*>(r.states[0])[i]);
            });
        },
    .matrix =
        [](const OptimizerMatrix& m) {
            if (m.step->skipped) return;
            by_type(m.op, [&](auto zero) {
                using T = decltype(zero);
                T* d = in<T>(m.direction);
                auto* squares = static_cast<float*>(m.states[1]);
                double all = 0;
                for (int64_t r = 0; r < m.rows; r++) {
                    double square = 0;
                    for (int64_t c = 0; c < m.cols; c++)
                        square += double(d[r * m.cols + c]) * double(d[r * m.cols + c]);
                    squares[r] = m.params.beta2 * squares[r] + (1 - m.params.beta2) * float(square / double(m.cols));
                    const double factor = 1 / (std::sqrt(double(squares[r])) + double(m.params.eps));
                    for (int64_t c = 0; c < m.cols; c++) d[r * m.cols + c] *= T(factor);
                    all += square * factor * factor;
                }
                for (int64_t i = 0; i < m.rows * m.cols; i++) d[i] /= T(std::sqrt(all) + double(m.params.eps));
            });
        },
};
