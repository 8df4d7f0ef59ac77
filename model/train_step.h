// train_step.h - an optimizer step: begin, then batches' passes, then update; finish gives its outcome later.
#pragma once
#include "gpt.h"
#include "model/weights.h"

class TrainStep {
  public:
    TrainStep(Gpt& g, ParamStore& store) : g(g), store(store), op(g.op) {}
    TrainStep(const TrainStep&) = delete;
    ~TrainStep();
    void lay_out(Layout& at);    // the device's memory
    bool allocate();             // the host's; false: there is none

    // targets: those that count in the whole step, on all ranks; 0: as many on each rank as on this one. positions:
    // likewise, all of them; 0: the batch's. seed, number: StepState's.
    void begin(int64_t targets = 0, uint64_t seed = 0, int64_t number = 0, int64_t positions = 0);
    double grad_norm();    // global; one rank's alone
    // Applies the optimizer, unless the step is over its limits. seed: for stochastic rounding; signal: passed to the
    // other ranks. At most two updates may be pending.
    void update(const AdamW& a, const Limits& limits, uint64_t seed, int signal = 0);
    // The outcome of the oldest update that is pending, and what each rank reported in it.
    // router_totals: router_forward's in the step, (L,E+2)
    Step finish(std::vector<RankReport>* reports = nullptr, std::vector<double>* router_totals = nullptr);
    void set_updates(int64_t updates);    // the optimizer's step count, when a run goes on

    StepTotals totals;

  private:
    int64_t result_bytes() const;
    Gpt& g;
    ParamStore& store;
    const Table& op;
    Step* verdict = nullptr;    // on the device
    char* results = nullptr;    // (2) on the host: Step, (ranks) of RankReport, the routers' totals
    int64_t marks[2] = {}, updates = 0, finished = 0;
    int64_t all_targets = 0;    // as begin was told
};
