// cached.h - checks of attention over generation's cache.
#pragma once
#include "check.h"

// A cache of B sequences of `width` pages in a table's memory, T being the activations' type. Pages lie in an order of
// their own. `type` T's own: the reference's twin holds doubles.
template <class T> struct CacheArrays {
    // Sequence b's first held[b] rows are random numbers, the others NaN.
    CacheArrays(Memory m, Element type, int NKV, int HS, int width, const std::vector<int>& held, double scale = 1);
    CacheArrays(const CacheArrays&) = delete;
    ~CacheArrays();
    Pages device() { return device_pages; }
    Pages reference() { return reference_pages; }
    int pages() const { return int(table.size()) + 1; }    // one is nobody's
    bool same();                                           // both hold the same rows
    bool intact();                                         // nothing was written beyond the device's

  private:
    Memory m;
    int64_t rows, HS;
    std::vector<int> table;
    struct Part;    // keys or values
    Part* parts[2];
    Array<int> device_table;
    Pages device_pages, reference_pages;
};

// Sequence b begins its S positions at pos - 5 b; of several it has S - 3 b, the rest is padding, whose y must be 0, or
// finite where pos is 0. type f64: T's own.
template <class T, class P> Check check_attention_cached(const Ops<T, P>& op, int B, int S, int pos, int maxT, Heads h,
                                                         double scale = 1, Element type = Element::f64);
// n pages of a cache.
template <class T, class P>
Check check_cache_rotate(const Ops<T, P>& op, int n, Heads h, QkNormRope t, Element type = Element::f64);
