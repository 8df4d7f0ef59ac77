// bench.h - what the parts of `flatgpt bench` share: ceilings that are measured first, and how a row is printed.
#pragma once
#include <string>
#include <vector>

#include "device.h"
#include "gpt.h"

struct BenchOptions {
    std::string filter, model = "gpt2";
    int layers = 0, heads = 0, channels = 0, batch = 0, seq_len = 0, vocab = 0;
    bool json = false, steps_only = false;
    DeviceOptions device;
};

// The floor of every row follows from these.
struct Peaks {
    double products = 0;    // FLOP/s of matrix products in the chosen type
    double flops = 0;       // FLOP/s of the other arithmetic: attention on the CPU, fp32
    double bytes = 0;       // bytes/s: read on the CPU; read and written of a copy on a GPU
};
Peaks cpu_peaks(bool bf16);    // bench_peaks.cpp
double cpu_read();             // bytes/s of one reading of 64 MiB; evicts most of what the caches hold

struct Bench {
    const BenchOptions& o;
    Device device;
    Peaks peak;

    // flops, bytes: of one call; 0: not what the row is about. ratio 0: of floor and best time
    void print(const std::string& name, std::vector<double> times, double floor, double flops, double bytes,
               double ratio = 0) const;
    void short_of_memory(const std::string& what) const;
    bool wanted(const std::string& name) const { return name.find(o.filter) != std::string::npos; }
};

// bench_generation.cpp
std::string generation(int rows);    // the row's name
Status bench_generation(Bench& bench, const Config& c, int rows);
