// kv_rows.h - rows of a KV cache of any type, as doubles, for the reference.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "layers/ops.h"

// Rows of a cache's keys or values.
struct CachedRows {
    void* rows;
    float* factors;
    Element type;
    int HS;
    template <class F> void as_type(F f) const {
        if (type == Element::f64) f(static_cast<double*>(rows));
        else if (type == Element::bf16) f(static_cast<bf16*>(rows));
        else if (type == Element::fp8) f(static_cast<fp8*>(rows));
        else f(static_cast<int8*>(rows));
    }
    void put(int64_t row, const double* x) const {
        as_type([&]<class X>(X* all) {
            X* to = all + row * HS;
            if constexpr (element_of<X> == Element::f64) {
                std::copy_n(x, HS, to);
            } else if constexpr (LARGEST<X> == 0) {
                for (int d = 0; d < HS; d++) to[d] = from_float<X>(float(x[d]));
            } else {
                float most = 0, finite = 0;
                for (int d = 0; d < HS; d++) most = std::max(std::abs(float(x[d])), most), finite += float(x[d]) * 0;
                most += finite;    // NaN if a number is not finite
                const float inverse = most < TINY ? 0 : LARGEST<X> / most;
                for (int d = 0; d < HS; d++) to[d] = from_float<X>(float(x[d]) * inverse);
                factors[row] = most < TINY ? 0 : most / LARGEST<X>;
            }
        });
    }
    std::vector<double> get(int64_t row) const {
        std::vector<double> x(static_cast<size_t>(HS));
        as_type([&]<class X>(const X* all) {
            for (int d = 0; d < HS; d++)
                if constexpr (element_of<X> == Element::f64) x[size_t(d)] = all[row * HS + d];
                else x[size_t(d)] = double(to_float(all[row * HS + d])) * (LARGEST<X> != 0 ? double(factors[row]) : 1);
        });
        return x;
    }
};
inline CachedRows cached_keys(const Pages& p, int HS) { return {p.k, p.k_scale, p.type, HS}; }
inline CachedRows cached_values(const Pages& p, int HS) { return {p.v, p.v_scale, p.type, HS}; }
