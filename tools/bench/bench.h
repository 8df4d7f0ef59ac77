// bench.h - shared by the files of `flatgpt bench`: measured peaks, rows, and the profile.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "layers/peaks.h"
#include "model/cost_table.h"
#include "model/decoder.h"
#include "model/device.h"

inline const std::vector<int> ROW_WIDTHS = {-46, 10, 10, 10, 8, 10, 7};    // columns of bench's table

struct BenchOptions {
    std::string filter, model = "gpt2";
    ConfigOverrides shape = no_overrides();    // model flags
    int batch = 0, seq_len = 0;
    bool json = false, steps_only = false, profile = false;
    DeviceOptions device;
};

struct Bench {
    const BenchOptions& o;
    Device device;
    Peaks peak;

    // Prints a row. work is the cost of one call; a cost of 0 leaves its column empty. times are in
    // seconds. A floor of 0 is computed from the peaks, a ratio of 0 from the floor and the best
    // time.
    void print(const std::string& name, std::vector<double> times, const Cost& work, double floor = 0,
               double ratio = 0) const;
    void print_tokens(double per_second) const;    // prints tokens per second below a row
    void short_of_memory(const std::string& what) const;
    bool wanted(const std::string& name);
    Status close() const;    // exit 2 if no row matched --filter; lists the rows

    // If set, called with (name, cost, call) instead of timing a row. dev/launches.cpp uses it.
    std::function<void(const std::string& name, const Cost& work, const std::function<void()>& call)> on_operation = {};
    std::vector<std::string> names = {};    // first words of all rows
    bool any = false;                       // a row matched --filter
    bool trains = true;                     // device is open for training; false: for inference
};

// tools/bench/rows.cpp. bench_ceilings measures a GPU's memory bandwidth, stores it in bench.peak,
// and prints the table's head; bench_operations times each operation at a model's sizes.
Status bench_ceilings(Bench& bench, const Config& c, int B, int S);
Status bench_operations(Bench& bench, const Config& c, int B, int S);

// tools/bench/decode.cpp: generation. decode_row and prefill_row return rows' names. weights: ""
// for the type of --dtype, or on a CPU a quantised type that `flatgpt convert` writes.
std::string decode_row(int rows, const std::string& weights = "");
std::string prefill_row(int tokens, const std::string& weights = "");
Status bench_decode(Bench& bench, const Config& c, int rows, const std::string& weights);
Status bench_prefill(Bench& bench, const Config& c, int tokens, const std::string& weights);
// Returns the plan with the storage formats of these weights.
Plan inference_plan(const Bench& bench, const Config& c, Plan plan, const std::string& weights);
// Allocates bench.device.model for inference with random weights, which are packed on a CPU.
Status inference_model(Bench& bench, const Config& c, const Plan& plan, const std::string& weights);

const Peaks& inference_peak(const Bench& bench);    // bound of decode's matrix products

// Decode steps as in `flatgpt sample`. If the device can sample, a step is enqueued before the host
// has the last tokens; otherwise the host gets all logits.
class DecodeSteps {
  public:
    DecodeSteps(Model& model, KvCache& cache, int rows, int V);
    DecodeSteps(const DecodeSteps&) = delete;
    ~DecodeSteps();
    Status open();    // exit 5: no memory
    void step();

  private:
    Model& model;
    KvCache& cache;
    std::vector<int> tok;
    std::vector<float> logits;
    SampleArgs sample_args;    // without token counts
    int* drawn = nullptr;      // (rows), pinned
    int64_t last = -1;         // mark() after the pending step
};

// ---- the profile: tools/bench/profile.cpp -------------------------------------------------------

struct ProfileRow {
    std::string name;
    int64_t calls = 0;
    double seconds = 0, floor = 0;
    Cost work;             // the sum over all calls
    double weights = 0;    // number of weights read by matrix products
};
// Times each call synchronously and records its cost.
class Profile final : public Observer {
  public:
    Profile(const Table& op, const Peaks& peaks) : Observer(op), peak(peaks) {}
    void start();
    // Rows since start, longest first; the last row is the time outside of operations (its calls
    // are 0). The seconds add up to the elapsed time without the time of the bookkeeping.
    std::vector<ProfileRow> rows() const;
    // Correction for packed (quantised) weights, whose cost counts fp32 bytes. It is split over the
    // products by their number of weights.
    double bytes_beside_fp32 = 0;
    bool integers = false;    // integer weights: no peak is measured for their products

  private:
    const Peaks peak;
    std::vector<ProfileRow> noted;
    double started = 0;    // time of start(), seconds
    double noting = 0;     // seconds of bookkeeping since start()
    void call(const Cost& work, const std::function<void()>& run) override;
};

// Print tables for a training step and for a decode step: the fastest of several.
Status profile_training(const Bench& bench, const Config& c, int B, int S);
Status profile_decode(const Bench& bench, const Config& c, int rows, const std::string& weights);

// The training step that rows time and the profile splits into operations.
struct TrainingStep {
    TrainingStep(const Config& c, int B, int S);
    void run(Model& model);
    const int B, S;
    std::vector<int> tok, target;
};
