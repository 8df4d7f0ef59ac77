// train_step.h - an optimizer step: begin, each batch's passes, update; finish returns the outcome.
#pragma once
#include "gpt.h"
#include "model/weights.h"

// Sums of squares of a trained tensor's elements, over those that this rank updates: of the
// weights after the update, of the gradient before it is clipped, of the update.
struct TensorSquares {
    double weights = 0, gradient = 0, update = 0;
};

class TrainStep {
  public:
    TrainStep(Gpt& model, ParamStore& parameters) : g(model), store(parameters), op(model.op) {}
    TrainStep(const TrainStep&) = delete;
    ~TrainStep();
    void lay_out(Layout& at);    // in device memory
    bool allocate();             // host memory; false: out of memory

    // targets: number of targets in the whole step, on all ranks, without ignored ones; 0: every
    // rank has as many as this rank. positions, seed, number: as in StepState (gpt.h).
    void begin(int64_t targets = 0, uint64_t seed = 0, int64_t number = 0, int64_t positions = 0);
    double grad_norm();    // global norm; one rank only
    // Runs the optimizer, unless the step exceeds its limits. seed: for stochastic rounding.
    // signal: a number that this rank's report brings to all ranks. At most two updates may be
    // pending.
    void update(const OptimizerParams& params, const Limits& limits, uint64_t seed, int signal = 0);
    // Waits for the oldest pending update and returns its outcome. reports: gets every rank's
    // report. router_totals (L,E+2): gets the totals of router_forward in this step.
    Step finish(std::vector<RankReport>* reports = nullptr, std::vector<double>* router_totals = nullptr);
    void set_updates(int64_t updates);    // the optimizer's step count, on resume

    // If not null, the next update fills it, with one entry for each trained tensor in the model's
    // order, and sets it to null. For that update the weights are copied to host memory.
    std::vector<TensorSquares>* measured = nullptr;

    StepTotals totals;
    // With Plan::first_squares, after finish(): the square of the norm of the gradient that the
    // step's first batch had on this rank alone, divided by the targets of the whole step.
    double first_square = 0;
    double next_loss = 0;    // after finish(): the step's sum, on all ranks, of next-sentence losses

  private:
    int64_t result_bytes() const, first_bytes() const;
    std::vector<float> measure_gradients();
    void measure_weights(const std::vector<float>& before);
    template <class F> void each_own_chunk(F f);
    Gpt& g;
    ParamStore& store;
    const Table& op;
    Step* verdict = nullptr;    // on the device
    char* results = nullptr;    // host, 2 x (Step, RankReport (ranks), router totals, first squares)
    int64_t marks[2] = {}, updates = 0, finished = 0;
    int64_t all_targets = 0;    // begin's `targets`
};
