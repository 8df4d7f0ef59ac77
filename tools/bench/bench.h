// bench.h - what the files of `flatgpt bench` share: peaks, which are measured first, rows, and the profile.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "layers/peaks.h"
#include "model/cost_table.h"
#include "model/decoder.h"
#include "model/device.h"

struct BenchOptions {
    std::string filter, model = "gpt2";
    ConfigOverrides shape = no_overrides();    // what the flags ask of the model
    int batch = 0, seq_len = 0;
    bool json = false, steps_only = false, profile = false;
    DeviceOptions device;
};

struct Bench {
    const BenchOptions& o;
    Device device;
    Peaks peak;

    // work: what one call does; where its flops or bytes are 0 that column stays empty. times: seconds.
    // floor 0: what the peaks give for this work. ratio 0: the floor over the best time
    void print(const std::string& name, std::vector<double> times, const Cost& work, double floor = 0,
               double ratio = 0) const;
    void print_tokens(double per_second) const;    // below a row
    void short_of_memory(const std::string& what) const;
    bool wanted(const std::string& name);
    Status close() const;    // exit 2 if no row matched --filter; lists the rows

    // Instead of timing an operation's row: its name, what a call does, and the call. dev/launches.cpp
    std::function<void(const std::string& name, const Cost& work, const std::function<void()>& call)> on_operation = {};
    std::vector<std::string> names = {};    // first words of all rows
    bool any = false;                       // a row matched --filter
    bool trains = true;                     // the device is open for training; else for inference
};

// tools/bench/rows.cpp: on a GPU memory's ceiling, which peak gets; the head of the table; each operation by itself, at
// a model's sizes.
Status bench_ceilings(Bench& bench, const Config& c, int B, int S);
Status bench_operations(Bench& bench, const Config& c, int B, int S);

// tools/bench_decode.cpp: one token after the other.
// The rows' names. weights: "" (of --dtype), or on a CPU a type of convert's.
std::string decode_row(int rows, const std::string& weights = "");
std::string prefill_row(int tokens, const std::string& weights = "");
Status bench_decode(Bench& bench, const Config& c, int rows, const std::string& weights);
Status bench_prefill(Bench& bench, const Config& c, int tokens, const std::string& weights);
// The plan with the formats of these weights.
Plan inference_plan(const Bench& bench, const Config& c, Plan plan, const std::string& weights);
// What inference computes with: on a CPU a model with packed weights. The device's own model is gone.
Status inference_model(Bench& bench, const Config& c, const Plan& plan, const std::string& weights);

const Peaks& inference_peak(const Bench& bench);    // what bounds a token's products

// Steps of generation as `flatgpt sample` takes them. Where the table draws tokens, a step begins before the host knows
// those of the last one; elsewhere the host gets all logits.
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
    SampleArgs sample_args;    // nothing is counted
    int* drawn = nullptr;      // (rows), pinned
    int64_t last = -1;         // the mark behind the step in flight
};

// ---- the profile: tools/bench/profile.cpp -------------------------------------------------------

struct ProfileRow {
    std::string name;
    int64_t calls = 0;
    double seconds = 0, floor = 0;
    Cost work;             // the sum over all calls
    double weights = 0;    // that products read
};
// The time and work of each call, of which it waits for the end.
class Profile final : public Observer {
  public:
    Profile(const Table& op, const Peaks& peak) : Observer(op), peak(peak) {}
    void start();
    // Since start: the rows, longest first, and last what was in no operation (its calls are 0). Their seconds add up
    // to the time since then, but for what the noting took.
    std::vector<ProfileRow> rows() const;
    // Packed weights' (PackedWeights), which products share by their numbers of weights. Work counts them as fp32.
    double bytes_beside_fp32 = 0;
    bool integers = false;    // weights are: no peak is measured for their products

  private:
    const Peaks peak;
    std::vector<ProfileRow> noted;
    double started = 0, noting = 0;    // seconds; noting: spent on notes
    void call(const Cost& work, const std::function<void()>& run) override;
};

// Print tables for a training step and for a generated token: the fastest of several.
Status profile_training(const Bench& bench, const Config& c, int B, int S);
Status profile_decode(const Bench& bench, const Config& c, int rows, const std::string& weights);

// The training step that rows time and the profile takes apart.
struct TrainingStep {
    TrainingStep(const Config& c, int B, int S);
    void run(Model& model);
    const int B, S;
    std::vector<int> tok, target;
};
