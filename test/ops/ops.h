// ops.h - shared by the tests of operations. The files of this folder are linked into both test
// binaries and run over every table of theirs: the CPU's in test_all, the GPU's or the emulated
// ones in test_cuda.
//
// The checks of tools/selftest/ compare a table with the reference, here at awkward sizes; central
// differences check the reference. Features of one device (a library's choices, kernels of one
// architecture) are tested in test_cpu.cpp and cuda/.
#pragma once
#include <optional>

#include "tools/selftest/check.h"

#include "test/test.h"

// Operations in which a table differs from those before it in the list: all of them, only its
// matrix products, or only its attention.
enum class TablePart { all, products, attention };
struct TestTable {
    AnyOps op;
    Dtype dtype;    // decides how much products may round
    TablePart part = TablePart::all;
    bool same_bits = true;    // products' bits do not depend on threads
};

// The tables that this binary has (test/cpu_tables.cpp, test/cuda/tables.cpp):
const std::vector<TestTable>& test_tables();
std::string absent_tables();    // tables missing here, with reasons; "": none
extern const int ORDERS;        // number of thread counts or emulated schedules
void set_order(int order);      // 0: the usual one
extern const int EVERY;         // tests of many sizes take every EVERY-th
// Fraction of the user-facing error limit that the tests allow: measured, then rounded up.
double share(const std::string& op, const Check::Output& output);
extern const bool FAST_EXP;    // exp and division: some ulps off

// Calls f(op, test table) or f(op) for every table that differs from earlier ones in this part.
template <class F> void each_table(TablePart part, F f) {
    for (const TestTable& t : test_tables()) {
        if (t.part != TablePart::all && t.part != part) continue;
        std::visit(
            [&](auto* op) {
                CAPTURE(std::string(op->name));
                if constexpr (std::is_invocable_v<F&, decltype(*op), const TestTable&>) f(*op, t);
                else f(*op);
            },
            t.op);
    }
}
template <class F> void each_table(F f) { each_table(TablePart::all, f); }
// f() in each order.
template <class F> void each_order(F f) {
    for (int order = 0; order < ORDERS; order++) {
        CAPTURE(order);
        set_order(order);
        f();
    }
    set_order(0);
}
// f(op) for every table, in each order.
template <class F> void in_each_order(TablePart part, F f) {
    each_order([&] { each_table(part, f); });
}
template <class F> void in_each_order(F f) { in_each_order(TablePart::all, f); }

#define EXPECT(check)                                                                                               \
    do {                                                                                                            \
        Check expected_ = (check);                                                                                  \
        CAPTURE(expected_.shape);                                                                                   \
        CAPTURE(expected_.output);                                                                                  \
        CAPTURE(expected_.worst);                                                                                   \
        for (const Check::Output& o_ : expected_.outputs)                                                           \
            CHECK_MESSAGE(o_.error <= share(expected_.op, o_), expected_.op << ": " << o_.name << " " << o_.error); \
        CHECK_MESSAGE(expected_.ok(), expected_.op);                                                                \
    } while (0)

typedef std::vector<unsigned char> Bits;
template <class... A> Bits bits_of(const A&... arrays) {
    Bits all;
    for (const Bits& more : {arrays.bits()...}) all.insert(all.end(), more.begin(), more.end());
    return all;
}
// The bits of each of the checks' outputs.
inline Bits bits_of(std::initializer_list<Check> checks) {
    Bits all;
    for (const Check& c : checks)
        for (const Check::Output& o : c.outputs) all.insert(all.end(), o.bits.begin(), o.bits.end());
    return all;
}
// While one exists, checks run the tested table alone.
struct WithoutReference {
    WithoutReference() { Check::compares = false; }
    ~WithoutReference() { Check::compares = true; }
};
// run() returns the bits of an operation's outputs, which must be equal in every order. Checks
// within it do not run the reference.
template <class F> void expect_same_bits(F run) {
    std::optional<decltype(run())> first;
    const WithoutReference alone;
    each_order([&] {
        const auto now = run();
        if (!first) first = now;
        CHECK((now == *first));
    });
}
// Expects NaN exactly at the indices i for which expected(i) is true.
template <class F> void expect_nan(const Numbers& x, F expected) {
    int64_t wrong = -1;
    for (size_t i = 0; i < x.size(); i++)
        if (std::isnan(x[i]) != expected(int64_t(i)) && wrong < 0) wrong = int64_t(i);
    CHECK(wrong == -1);    // index of the first wrong element
}

// Worst error of gradient (n) against central differences of loss() in x (n), relative to
// |gradient| + a thousandth of its largest element.
template <class Loss> double gradient_error(Numbers& x, const Numbers& gradient, Loss loss) {
    double size = 1e-12, worst = 0;
    for (double g : gradient) size = std::fmax(size, std::fabs(g));
    for (size_t i = 0; i < gradient.size(); i++) {
        const double at = x[i], h = 1e-4;
        auto slope = [&](double step) {
            x[i] = at + step;
            const double above = loss();
            x[i] = at - step;
            const double below = loss();
            x[i] = at;
            return (above - below) / (2 * step);
        };
        const double numeric = (4 * slope(h) - slope(2 * h)) / 3;    // Richardson: the error is O(h^4)
        const double e = std::fabs(numeric - gradient[i]) / (std::fabs(gradient[i]) + 1e-3 * size);
        worst = std::isnan(e) ? NAN : std::fmax(worst, e);
    }
    return worst;
}
inline double dot(const Numbers& a, const Numbers& b) {
    double s = 0;
    for (size_t i = 0; i < a.size(); i++) s += a[i] * b[i];
    return s;
}
