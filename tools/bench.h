// bench.h - what the files of `flatgpt bench` share: peaks, which are measured first, rows, and the profile.
#pragma once
#include <string>
#include <vector>

#include "bench_work.h"
#include "model/device.h"

struct Peaks {
    double products = 0;    // FLOP/s of matrix products in the chosen type
    double flops = 0;       // FLOP/s of the other arithmetic: fp32
    double bytes = 0;       // bytes/s: reading on the CPU; a copy's reading and writing on a GPU
    bool tiles = false;     // `products` is that of a CPU's tiles (AMX)
    double floor(const Work& w) const {    // seconds
        return std::max(w.products / products + w.flops / flops, w.bytes / bytes);
    }
};
// tools/bench_peaks.cpp: the peaks of the instruction set in use, or of AMX tiles where the table's products use them.
const Peaks& cpu_peaks(const Table& op);
const Peaks& cpu_peaks(bool bf16);    // what the table in use for this type can do
Table cpu_table(bool bf16);           // our own products, of the instruction set in use, where a library's may be used
void cpu_flush(const void* p, int64_t bytes);      // removes this memory from all caches
double cpu_read();                                 // bytes/s of reading 64 MiB once that are in no cache

struct BenchOptions {
    std::string filter, model = "gpt2";
    int layers = 0, heads = 0, channels = 0, batch = 0, seq_len = 0, vocab = 0;
    bool json = false, steps_only = false, profile = false;
    DeviceOptions device;
};

struct Bench {
    const BenchOptions& o;
    Device device;
    Peaks peak;

    // work: one call's; 0 FLOPs or bytes are not shown.    times: seconds
    // floor 0: computed from the peaks. ratio 0: floor / best time
    void print(const std::string& name, std::vector<double> times, const Work& work, double floor = 0,
               double ratio = 0) const;
    void short_of_memory(const std::string& what) const;
    bool wanted(const std::string& name);
    Status close() const;    // exit 2 if no row matched --filter; lists the rows

    std::vector<std::string> names = {};    // first words of all rows
    bool any = false;                       // a row matched --filter
};

// tools/bench_rows.cpp: each operation by itself, at a model's sizes.
Status bench_operations(Bench& bench, const Config& c, int B, int S);

// tools/bench_generation.cpp: one token after the other.
std::string generation(int rows);    // the row's name
Status bench_generation(Bench& bench, const Config& c, int rows);

// ---- the profile: tools/bench_profile.cpp ---------------------------------------------------------------------------

struct ProfileRow {
    std::string name;
    int64_t calls = 0;
    double seconds = 0, floor = 0;
    Work work;    // all calls together
};
// `op` with every operation noting its time and work; one table at a time. They wait for the device after each call,
// and nothing is recorded.
Table profiled(const Table& op);
void profile_start(const Peaks& peak);
// The rows since profile_start, longest first; the last one is the time spent in no entry (its calls are 0). Their
// seconds add up to the time since then, less what the noting took.
std::vector<ProfileRow> profile_rows();

// Print tables for a training step and for a generated token: the fastest of several.
Status profile_training(const Bench& bench, const Config& c, int B, int S);
Status profile_generation(const Bench& bench, const Config& c, int rows);

// The training step that rows time and the profile takes apart.
struct TrainingStep {
    TrainingStep(const Config& c, int B, int S);
    void run(Model& g);
    const int B, S;
    std::vector<int> tok, target;
};
