// selftest.h - every operation of a table against the reference, at the sizes of real models.
#pragma once
#include <functional>

#include "checks.h"

struct Selftest {
    std::string filter;      // only operations with this text in their name
    bool json = false;       // one object per line
    int V = 50257;           // vocabulary: GPT-2's. Most of the time goes into numbers for it
    FILE* out = stdout;
    int checks = 0, failed = 0;
    const char* table = "";    // its name, in each row

    // Runs the checks and prints a line for each. dtype: the type of the table's products.
    template <class T, class P> void run(const Ops<T, P>& op, Dtype dtype);
    void row(const char* op, const std::function<Check()>& run);    // does nothing if the filter leaves it out
    Status close(double seconds) const;    // prints the sum. exit 1: some failed; 2: the filter left none
};
