// ops.h - what the tests of layers/ share: every CPU table against the reference, the same bits for any number of
// threads, and the reference's own gradients against central differences.
#pragma once
#include "layers/cpu.h"
#include "tools/selftest/checks.h"
#include "test.h"

// Seeded normal numbers, of bf16 rounded.
template <class T> std::vector<T> normal(int64_t n, uint64_t stream, double scale = 1) {
    std::vector<float> x(static_cast<size_t>(n));
    fill_normal(x.data(), n, stream, scale);
    std::vector<T> out;
    for (float v : x) out.push_back(from_float<T>(v));
    return out;
}
template <class T> std::vector<double> doubles(const std::vector<T>& x) {
    std::vector<double> out;
    for (T v : x) out.push_back(double(to_float(v)));
    return out;
}
inline std::vector<int> tokens(int n, int V, uint64_t stream) {
    std::vector<int> t(static_cast<size_t>(n));
    for (int i = 0; i < n; i++) t[size_t(i)] = int(philox(7, stream, uint64_t(i)).v[0] % uint32_t(V));
    return t;
}

// f(ops) for every instruction set of this machine, with parameters of type P.
template <class P = float, class F> void each_isa(F f) {
    for (int i = 0; i < ISA_COUNT; i++)
        if (cpu_supports(Isa(i))) {
            const Ops<float, P>& ops = cpu_ops_isa<P>(Isa(i));
            CAPTURE(std::string(ops.name));
            f(ops);
        }
}
// f(ops) for every table that this machine and build have: also those with oneDNN's products.
template <class P = float, class F> void each_table(F f) {
    each_isa<P>(f);
    for (int i = 0; i < ISA_COUNT; i++)
        if (cpu_supports(Isa(i)))
            if (const Ops<float, P>* library = onednn_ops<P>(Isa(i))) {
                CAPTURE(std::string(library->name)); CAPTURE(i);
                f(*library);
            }
}

#define EXPECT(check)                                                                              \
    do {                                                                                           \
        Check expected_ = (check);                                                                 \
        CAPTURE(expected_.shape); CAPTURE(expected_.output); CAPTURE(expected_.worst);             \
        CHECK_MESSAGE(expected_.ok(), expected_.op);                                               \
    } while (0)

struct Threads {
    explicit Threads(int n) { cpu_set_threads(n); }
    ~Threads() { cpu_set_threads(0); }
};
// run fills an output; it must give the same bits twice, and with 1, 2 and 3 threads.
template <class F> bool same_bits(int64_t n, F run) {
    Guarded<float> first(n);
    for (int threads : {1, 1, 2, 3}) {
        Threads set(threads);
        Guarded<float> out(n);
        run(out.data());
        if (threads == 1 && std::isnan(first[0])) memcpy(first.data(), out.data(), size_t(n) * sizeof(float));
        if (memcmp(first.data(), out.data(), size_t(n) * sizeof(float)) != 0) return false;
    }
    return true;
}

// Worst error of gradient (n) against central differences of loss() when x (n) moves; relative to |gradient| + a
// thousandth of its largest element.
template <class Loss> double gradient_error(double* x, const double* gradient, int64_t n, Loss loss) {
    double size = 1e-12, worst = 0;
    for (int64_t i = 0; i < n; i++) size = std::fmax(size, std::fabs(gradient[i]));
    for (int64_t i = 0; i < n; i++) {
        const double at = x[i], h = 1e-4;
        auto slope = [&](double step) {
            x[i] = at + step;
            double above = loss();
            x[i] = at - step;
            double below = loss();
            x[i] = at;
            return (above - below) / (2 * step);
        };
        double numeric = (4 * slope(h) - slope(2 * h)) / 3;    // Richardson: the error is O(h^4)
        double e = std::fabs(numeric - gradient[i]) / (std::fabs(gradient[i]) + 1e-3 * size);
        worst = std::isnan(e) ? NAN : std::fmax(worst, e);
    }
    return worst;
}
inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
    double s = 0;
    for (size_t i = 0; i < a.size(); i++) s += a[i] * b[i];
    return s;
}
