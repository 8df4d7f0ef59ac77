// peaks.h - this CPU's peak speeds, measured: the floors of times are computed from them.
#pragma once
#include <algorithm>

#include "ops.h"

struct Peaks {
    double products = 0;    // FLOP/s of matrix products in the chosen type
    double flops = 0;       // FLOP/s of the other arithmetic: fp32
    double bytes = 0;       // bytes/s: reading on the CPU; a copy's reading and writing on a GPU
    bool tiles = false;     // `products` is that of a CPU's tiles (AMX); fp32 has a sixth of bf16's
    // The least seconds that a work takes, from its `products` and `arithmetic` (FLOPs) and `bytes`.
    template <class Cost> double floor(const Cost& w) const {
        return std::max(w.products / products + w.arithmetic / flops, w.bytes / bytes);
    }
};
// The peaks of the instruction set in use, and of tiles where this table's products use them, with random numbers from
// L1. The first call measures, for about a second.
const Peaks& cpu_peaks(const Table& op);
const Peaks& cpu_fma_peaks();                    // by FMAs, which generation and attention use in fp32
const Peaks& cpu_peaks(bool bf16);               // the peaks for the table in use for this type
void cpu_flush(const void* p, int64_t bytes);    // removes this memory from all caches
double cpu_read();                               // bytes/s of reading 64 MiB once that are in no cache
