// selftest.h - every operation of a table against the reference, at real models' sizes.
#pragma once
#include <functional>
#include <vector>

#include "check.h"

struct Selftest {
    std::string filter;    // only operations whose name contains this text
    bool json = false;     // one object per line
    int V = 50257;         // vocabulary: GPT-2's; dominates the time
    int Vp() const { return int(round_up(V, 128)); }
    FILE* out = stdout;
    int checks = 0, failed = 0;
    const char* table = "";    // its name, in each row

    // Runs the checks and prints a line for each. dtype: type of the table's matrix products.
    template <class T, class P> void run(const Ops<T, P>& op, Dtype dtype);
    void row(const char* op, const std::function<Check()>& run);    // skipped if the filter does not match
    Status close(double seconds) const;                             // prints the summary; exit 1: failures; 2: no match
};

// The rows of one file: a static object built from []<class T, class P>(Selftest& test, const
// Ops<T, P>& op, Dtype).
struct SelftestRows {
    void (*floats)(Selftest&, const Ops<float>&, Dtype);
    void (*halves)(Selftest&, const Ops<bf16>&, Dtype);
    void (*mixed)(Selftest&, const Ops<float, bf16>&, Dtype);
    template <class F> explicit SelftestRows(F f) : floats(f), halves(f), mixed(f) { all().push_back(*this); }
    static std::vector<SelftestRows>& all() {
        static std::vector<SelftestRows> list;
        return list;
    }
    void operator()(Selftest& test, const Ops<float>& op, Dtype dtype) const { floats(test, op, dtype); }
    void operator()(Selftest& test, const Ops<bf16>& op, Dtype dtype) const { halves(test, op, dtype); }
    void operator()(Selftest& test, const Ops<float, bf16>& op, Dtype dtype) const { mixed(test, op, dtype); }
};
// Sizes of GPT-2 124M.
constexpr struct { int C = 768, F = 3072, NH = 12, HS = 64; } gpt2;
