// cached.h - checks of attention over the KV cache.
#pragma once
#include "check.h"

// A cache of B sequences of `width` pages in a table's memory; T: the activations' type. Pages are
// in shuffled order. type: T's own uses doubles in the reference cache.
template <class T> struct CacheArrays {
    // Sequence b's first held[b] rows are random, the others NaN.
    CacheArrays(Memory m, Element type, int NKV, int HS, int width, const std::vector<int>& held, double scale = 1);
    CacheArrays(const CacheArrays&) = delete;
    ~CacheArrays();
    Pages device() { return device_pages; }
    Pages reference() { return reference_pages; }
    int pages() const { return int(table.size()) + 1; }    // one is unused
    bool same();                                           // device and reference rows are equal
    bool intact();                                         // nothing was written beyond the device's arrays

  private:
    Memory m;
    int64_t rows, HS;
    std::vector<int> table;
    struct Part;    // keys or values
    Part* parts[2];
    Array<int> device_table;
    Pages device_pages, reference_pages;
};

// Sequence b begins its S positions at pos - 5 b; with several sequences it has S - 3 b positions,
// the rest is padding, whose y must be 0, or finite if pos is 0. type f64: T's own.
template <class T, class P> Check check_attention_cached(const Ops<T, P>& op, int B, int S, int pos, int maxT, Heads h,
                                                         double scale = 1, Element type = Element::f64);
// n pages of a cache.
template <class T, class P>
Check check_cache_rotate(const Ops<T, P>& op, int n, Heads h, QkNormRope t, Element type = Element::f64);
