// bench.h - ceilings that `flatgpt bench` measures first; the floor of every row follows from them.
#pragma once

struct Peaks {
    double products = 0;    // FLOP/s of matrix products in the chosen type
    double flops = 0;       // FLOP/s of the other arithmetic: attention on the CPU, fp32
    double bytes = 0;       // bytes/s: read on the CPU; read and written of a copy on a GPU
};
Peaks cpu_peaks(bool bf16);    // bench_peaks.cpp
void cpu_evict();              // reads more memory than the caches hold
