// bench.h - what the files of `flatgpt bench` share: ceilings, which are measured first, rows, and the profile.
#pragma once
#include <string>
#include <vector>

#include "bench_work.h"
#include "model/device.h"

struct Peaks {
    double products = 0;    // FLOP/s of matrix products in the chosen type
    double flops = 0;       // FLOP/s of the other arithmetic: fp32
    double bytes = 0;       // bytes/s: read on the CPU; read and written of a copy on a GPU
    bool tiles = false;     // products are a CPU's tiles' (AMX)
    double floor(const Work& w) const {    // seconds
        return std::max(w.products / products + w.flops / flops, w.bytes / bytes);
    }
};
// tools/bench_peaks.cpp. Of the instruction set in use, and of tiles (AMX) where the table's products are multiplied by them.
const Peaks& cpu_peaks(const Table& op);
const Peaks& cpu_peaks(bool bf16);    // what the table in use for this type can do
Table cpu_table(bool bf16);           // our own products, of the instruction set in use, where a library's may be used
void cpu_flush(const void* p, int64_t bytes);      // out of all caches
double cpu_read();                                 // bytes/s of one reading of 64 MiB that no cache holds

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

    // work: of one call. flops, bytes 0 there: not what the row is about.    times in seconds
    // floor, ratio 0: of the ceilings measured first; of floor and best time
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

// tools/bench_generation.cpp: a token after the other.
std::string generation(int rows);    // the row's name
Status bench_generation(Bench& bench, const Config& c, int rows);

// ---- the profile: tools/bench_profile.cpp ---------------------------------------------------------------------------

struct ProfileRow {
    std::string name;
    int64_t calls = 0;
    double seconds = 0, floor = 0;
    Work work;    // of all calls
};
// `op` with every operation noting its time and work; one table at a time. They wait for the device after each call,
// and nothing is recorded.
Table profiled(const Table& op);
void profile_start(const Peaks& peak);
// Since profile_start: the rows, longest first, and last what was in no entry (its calls are 0). Their seconds add up
// to the time since then, but for what the noting took.
std::vector<ProfileRow> profile_rows();

// A step of training, a generated token: tables of the fastest of several.
Status profile_training(const Bench& bench, const Config& c, int B, int S);
Status profile_generation(const Bench& bench, const Config& c, int rows);

// What the rows time and the profile takes apart. ahead: the device works while the next step is handed over.
struct TrainingStep {
    TrainingStep(const Config& c, int B, int S);
    void run(Model& g);
    const int B, S;
    std::vector<int> tok, target;
};
