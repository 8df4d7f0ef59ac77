// selftest.h - compares every operation of a table with the reference, at real models' sizes.
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
    void run(AnyOps op, Dtype dtype);
    void row(const char* op, const std::function<Check()>& run);    // skipped if the filter does not match
    Status close(double seconds) const;                             // prints the summary; exit 1: failures; 2: no match
};

// The rows of one file. Each file has a static object of this type, built from a lambda []<class T,
// class P>(Selftest& test, const Ops<T, P>& op, Dtype) that prints them.
struct SelftestRows {
    typedef std::function<void(Selftest&, AnyOps, Dtype)> Rows;
    template <class F> explicit SelftestRows(F f) {
        all().push_back(
            [f](Selftest& test, AnyOps any, Dtype dtype) { std::visit([&](auto* op) { f(test, *op, dtype); }, any); });
    }
    static std::vector<Rows>& all() {
        static std::vector<Rows> list;
        return list;
    }
};
// For use within SelftestRows: runs check_<name>(op, arguments...) and prints its row.
#define CHECK_ROW(name, ...) test.row(#name, [&] { return check_##name(op, __VA_ARGS__); })
// Sizes of GPT-2 124M.
constexpr struct { int C = 768, F = 3072, NH = 12, HS = 64; } gpt2;
