// peaks.h - this CPU's measured peak speeds, from which lower bounds of times are computed.
#pragma once
#include <algorithm>

#include "ops.h"

struct Peaks {
    double products = 0;    // FLOP/s of matrix products in the chosen type
    double flops = 0;       // FLOP/s of the other arithmetic: fp32
    double bytes = 0;       // bytes/s: CPU's reading; GPU's reading plus writing
    // Whether `products` is the peak of AMX tiles. fp32 products then have a sixth of bf16's speed.
    bool tiles = false;
    // Least seconds for a cost w: products and arithmetic are FLOPs.
    template <class Cost> double floor(const Cost& w) const {
        return std::max(w.products / products + w.arithmetic / flops, w.bytes / bytes);
    }
};
// Peaks of the instruction set in use, and of tiles if this table's products use them, with random
// numbers from L1. The first call measures for about a second.
const Peaks& cpu_peaks(const Table& op);
// Peaks with FMAs, which generation and attention use in fp32.
const Peaks& cpu_fma_peaks();
const Peaks& cpu_peaks(bool bf16);    // peaks of the table for this type
// Removes this memory from all caches.
void cpu_flush(const void* p, int64_t bytes);
double cpu_read();    // bytes/s of reading uncached 64 MiB once
