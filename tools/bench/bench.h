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
    std::string filter, model = "gpt2", lengths;
    ConfigOverrides shape = no_overrides();    // model flags
    int batch = 0, seq_len = 0;
    bool json = false, steps_only = false, profile = false;
    std::vector<std::string> given = {};    // names of the options that were set
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

    // If it is set, it is called with (name, cost, call) and no row is timed (dev/launches.cpp).
    std::function<void(const std::string& name, const Cost& work, const std::function<void()>& call)> on_operation = {};
    std::vector<std::string> names = {};    // first words of all rows
    bool any = false;                       // a row matched --filter
    bool trains = true;                     // device is open for training; false: for inference
};

// Defined in tools/bench/rows.cpp. bench_ceilings measures a GPU's memory bandwidth (bench.peak)
// and prints the table's head; bench_operations times each operation at a model's sizes.
Status bench_ceilings(Bench& bench, const Config& c, int B, int S);
Status bench_operations(Bench& bench, const Config& c, int B, int S);

// Defined in tools/bench/decode.cpp. decode_row and prefill_row return the name of a row of the
// benchmark's table; `rows` is the number of sequences. weights is empty for the type of --dtype;
// on a CPU it may be a quantised type of `flatgpt convert`.
std::string decode_row(int rows, const std::string& weights = "");
std::string prefill_row(int tokens, const std::string& weights = "");
Status bench_decode(Bench& bench, const Config& c, int rows, const std::string& weights);
Status bench_prefill(Bench& bench, const Config& c, int tokens, const std::string& weights);
// Returns the plan with the formats in which a CPU stores `weights`; a GPU's plan is unchanged.
Plan inference_plan(const Bench& bench, const Config& c, Plan plan, const std::string& weights);
// Allocates bench.device.model for inference with random weights, which are packed on a CPU.
Status inference_model(Bench& bench, const Config& c, const Plan& plan, const std::string& weights);

const Peaks& inference_peak(const Bench& bench);    // bound of decode's matrix products

// Decode steps as in `flatgpt sample`. If the device can sample, a step is enqueued before the
// tokens of the previous step reach the host; otherwise all logits are copied to the host.
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
    int64_t calls = 0, loops = 0;    // loops: those divided among a CPU's threads
    double seconds = 0, floor = 0;
    Cost work = {};        // the sum over all calls
    double weights = 0;    // number of weights read by matrix products
};
// Times each call synchronously and records its cost.
class Profile final : public Observer {
  public:
    Profile(const Table& op, const Peaks& peaks) : Observer(op), peak(peaks) {}
    void start();
    // Returns the rows since start() by descending time, then a row with 0 calls for the time
    // outside of operations. The seconds add up to the elapsed time minus the bookkeeping's.
    std::vector<ProfileRow> rows() const;
    // Bytes per step by which packed (quantised) weights exceed fp32 weights; below 0 if they are
    // smaller. Costs of calls count fp32 bytes, so rows() adds this number to the products, in
    // proportion to their numbers of weights.
    double bytes_beside_fp32 = 0;
    bool integers = false;    // integer weights: no peak is measured for their products

  private:
    const Peaks peak;
    std::vector<ProfileRow> noted;
    double started = 0;    // time of start(), seconds
    double noting = 0;     // seconds of bookkeeping since start()
    void call(const Cost& work, const std::function<void()>& run) override;
};

// Print a table of operations for the fastest of several training steps or decode steps.
Status profile_training(const Bench& bench, const Config& c, int B, int S);
Status profile_decode(const Bench& bench, const Config& c, int rows, const std::string& weights);

// Prints, for training steps of B sequences of each length, the time of attention and of all other
// operations beside the growth of T^2 and T. Exit 5: not enough memory for a length.
Status bench_lengths(const Bench& bench, const Config& c, int B, const std::vector<int>& lengths);

// The training step that `flatgpt bench` times as a whole and --profile divides into operations.
struct TrainingStep {
    TrainingStep(const Config& c, int B, int S);
    void run(Model& model);
    const int B, S;
    std::vector<int> tok, target;
};
