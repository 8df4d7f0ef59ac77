// peaks.h - what this CPU can do at most, measured: the ceilings that floors of time follow from.
#pragma once
#include <algorithm>

#include "ops.h"

struct Peaks {
    double products = 0;    // FLOP/s of matrix products in the chosen type
    double flops = 0;       // FLOP/s of the other arithmetic: fp32
    double bytes = 0;       // bytes/s: read on the CPU; read and written of a copy on a GPU
    bool tiles = false;     // products are made by a CPU's tiles (AMX)
    // Seconds that a work takes at least: its `products` and `arithmetic` (FLOPs) and `bytes`.
    template <class Work> double floor(const Work& w) const {
        return std::max(w.products / products + w.arithmetic / flops, w.bytes / bytes);
    }
};
// The peaks of the instruction set in use, with tiles where this table's products are multiplied by them. Measured at
// the first call, about a second.
const Peaks& cpu_peaks(const Table& op);
const Peaks& cpu_peaks(bool bf16);               // what the table in use for this type can do
Table cpu_table(bool bf16);                      // our own products, of the instruction set in use
void cpu_flush(const void* p, int64_t bytes);    // out of all caches
double cpu_read();                               // bytes/s of one reading of 64 MiB that no cache holds
