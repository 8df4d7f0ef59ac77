// check.h - compares one operation of a table with the reference, on random inputs. Arrays lie
// between guard bytes, and outputs start as NaN.
//
// tools/selftest/<layer>.h has the checks of one layer: a function for each operation, for every
// table. <layer>.cpp has the sizes of `flatgpt selftest`, which are real models'. The tests also
// use sizes that no model has, and the emulated GPU.
#pragma once
#include <cmath>
#include <string>
#include <variant>
#include <vector>

#include "layers/ops.h"

// A table of operations to check, of any element types.
typedef std::variant<const Ops<float>*, const Ops<bf16>*, const Ops<float, bf16>*> AnyOps;
using Numbers = std::vector<double>;

// Return n random numbers: normal ones times `scale`, or token ids below V. They depend on
// `stream`.
Numbers random_normal(int64_t n, uint64_t stream, double scale = 1);
std::vector<int> random_tokens(int64_t n, int V, uint64_t stream);

template <class X> X as(double x) { return from_float<X>(float(x)); }
template <> inline double as<double>(double x) { return x; }
template <> inline int as<int>(double x) { return int(x); }
template <> inline uint8_t as<uint8_t>(double x) { return uint8_t(x); }
template <> inline uint64_t as<uint64_t>(double x) { return uint64_t(x); }
template <class X> double number(X x) { return double(to_float(x)); }
template <> inline double number<double>(double x) { return x; }
template <> inline double number<int>(int x) { return x; }
template <> inline double number<uint64_t>(uint64_t x) { return double(x); }
// Rounds numbers to a table's type X, so that the reference has the same inputs as the table.
template <class X> Numbers rounded(Numbers v) {
    for (double& x : v) x = number(as<X>(x));
    return v;
}

using Memory = Table;    // the arrays below use its memory functions

// An array of n elements in device memory, between guard bytes. It starts as `from`, rounded to X,
// or as bytes of 0xff, which are NaN.
template <class X> class Array {
  public:
    Array(const Memory& m, int64_t size) : memory(m), n(size) { fill<double>(nullptr); }
    template <class V> Array(const Memory& m, const std::vector<V>& from) : memory(m), n(int64_t(from.size())) {
        fill(from.data());
    }
    Array(const Array&) = delete;
    ~Array() { memory.release(base, bytes()); }
    operator X*() { return reinterpret_cast<X*>(static_cast<char*>(base) + GUARD); }
    int64_t size() const { return n; }

    Numbers read() const {
        std::vector<X> host(static_cast<size_t>(n));
        memory.download(host.data(), static_cast<char*>(base) + GUARD, n * int64_t(sizeof(X)));
        Numbers out;
        out.reserve(host.size());
        for (X x : host) out.push_back(number(x));
        return out;
    }
    std::vector<unsigned char> bits() const {
        std::vector<unsigned char> host(size_t(n) * sizeof(X));
        memory.download(host.data(), static_cast<char*>(base) + GUARD, int64_t(host.size()));
        return host;
    }
    bool intact() const {    // the guards are unchanged
        std::vector<unsigned char> all(static_cast<size_t>(bytes()));
        memory.download(all.data(), base, bytes());
        for (int64_t i = 0; i < GUARD; i++)
            if (all[size_t(i)] != 0xa5 || all[size_t(bytes() - 1 - i)] != 0xa5) return false;
        return true;
    }

  private:
    static constexpr int64_t GUARD = 256;    // keeps the alignment of an allocation
    int64_t bytes() const { return n * int64_t(sizeof(X)) + 2 * GUARD; }
    template <class V> void fill(const V* from) {
        base = memory.allocate(bytes());
        CHECK(base, "no memory for %lld bytes", (long long)bytes());
        std::vector<unsigned char> all(static_cast<size_t>(bytes()), 0xa5);
        X* x = reinterpret_cast<X*>(all.data() + GUARD);
        if (from)
            for (int64_t i = 0; i < n; i++) x[i] = as<X>(double(from[i]));
        else memset(static_cast<void*>(x), 0xff, size_t(n) * sizeof(X));
        memory.upload(base, all.data(), bytes());
    }
    Memory memory;
    int64_t n;
    void* base;
};

// Returns the array's memory, or null if the call has no such array (`is` is false).
template <class X> X* or_null(bool is, Array<X>& array) { return is ? static_cast<X*>(array) : nullptr; }

// An argument of a call: an Array of type X for the tested table, and a vector of type R with the
// same numbers, rounded to X, for the reference. An output starts as NaN in the first and as 0 in
// the second. (Kokkos: DualView.)
template <class X, class R = double> struct Dual : Array<X> {
    std::vector<R> numbers;
    Dual(const Memory& m, int64_t size) : Array<X>(m, size), numbers(size_t(size)) {}
    template <class V> Dual(const Memory& m, const std::vector<V>& from) : Array<X>(m, from) {
        numbers.reserve(from.size());
        for (V v : from) numbers.push_back(as<R>(number(as<X>(double(v)))));
    }
    X* device() { return *this; }
    R* host() { return numbers.data(); }
};
using Statistics = Dual<float, float>;    // float in the reference, too
using Integers = Dual<int, int>;

// A size of an operation with its name, for messages: {"N", 33}.
struct Size {
    const char* name;
    int64_t value;
};
// The outcome of one operation at one size.
struct Check {
    std::string op, shape;    // "norm_backward", "N=33 C=768"
    double worst = 0;         // largest error / limit; > 1 or NaN fails
    std::string output;       // the output with this error
    struct Output {
        std::string name;
        double error;
        bool half;                          // stored as bf16
        std::vector<unsigned char> bits;    // the output's, without comparison
    };
    std::vector<Output> outputs;    // each with its error over its limit
    // If this is false, outputs are only recorded, so that the bits of two runs can be compared,
    // and `both` does not run the reference.
    static inline bool compares = true;
    Check(const char* op = "", const std::vector<Size>& sizes = {}, const std::string& more = "");
    bool ok() const { return worst <= 1; }
    void note(const char* what, double error_over_limit, bool half = false);

    // Fails if the relative error in the 2-norm exceeds `limit`, if an element's error exceeds
    // 8 * limit of its own size or of the root mean square, whichever is larger, if an output is
    // NaN, or if memory outside the array was written.
    template <class X>
    void expect(const char* what, const Array<X>& got, const Numbers& expected, double limit, double floor = 0) {
        note(what, got, error_over_limit(got.read(), expected, limit, floor));
    }
    template <class X, class R> void expect(const char* what, const Dual<X, R>& got, double limit, double floor = 0) {
        expect(what, got, Numbers(got.numbers.begin(), got.numbers.end()), limit, floor);
    }
    template <class X, class R> void expect_equal(const char* what, const Dual<X, R>& got) {
        note(what, got, got.read() == Numbers(got.numbers.begin(), got.numbers.end()) ? 0 : INFINITY);
    }
    // Records an output's error over its limit; infinity if memory outside the array was written.
    template <class X> void note(const char* what, const Array<X>& got, double error) {
        note(what, got.intact() ? error : INFINITY, sizeof(X) == 2);
        if (!compares) outputs.back().bits = got.bits();
    }
    // Returns the error over its limit. A root mean square below `floor` counts as `floor`, because
    // a gradient whose terms cancel keeps the errors of the terms.
    static double error_over_limit(const Numbers& got, const Numbers& expected, double limit, double floor = 0);
};
// The type of matrix products with parameters of type P, unless it is given (tf32 or fp8).
template <class P> constexpr Dtype DTYPE = sizeof(P) == 2 ? Dtype::bf16 : Dtype::fp32;
// The limit for outputs whose only error is rounding to X.
template <class X> constexpr double ROUNDING = sizeof(X) == 2 ? 4e-3 : 2e-6;

// Return an argument's pointer for a call on the reference (on_host) or on the tested table
// (on_device), or null if `is` is false.
inline constexpr auto on_host = [](auto& dual, bool is = true) { return is ? dual.host() : decltype(dual.host()){}; };
inline constexpr auto on_device = [](auto& dual, bool is = true) {
    return is ? dual.device() : decltype(dual.device()){};
};
// Runs call(table, at) with the reference and on_host, then with op and on_device.
template <class T, class P, class F> void both(const Ops<T, P>& op, F call) {
    if (Check::compares) call(reference_ops(), on_host);
    call(op, on_device);
}

#define FOR_EACH_TABLE(check, ...)                        \
    template Check check(const Ops<float>&, __VA_ARGS__); \
    template Check check(const Ops<bf16>&, __VA_ARGS__);  \
    template Check check(const Ops<float, bf16>&, __VA_ARGS__);
