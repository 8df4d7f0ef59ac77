// forecast.h - for `flatgpt train --dry-run`: predicts the bytes that ranks send in a step, and how
// much of the sending overlaps with computation. Derived in dev/scale.md.
#pragma once
#include <string>
#include <vector>

#include "model/cost_table.h"

// Speed of a rank and of the links between ranks. Rates are per rank and direction.
struct Cluster {
    int node = 8;                                    // ranks per machine
    double inside = 370e9, outside = 50e9;           // bytes/s within a machine, between machines
    double hop_inside = 2e-6, hop_outside = 5e-6;    // seconds between two ranks
    double call = 8e-6;                              // seconds to launch a collective
    bool trees = true;                               // all-reduce may use trees, as NCCL's; else rings
    double flops = 0;                                // FLOP/s reached in forward and backward
    double memory = 0;                               // bytes/s reached in AdamW
};
// Seconds of one collective. bytes: the whole buffer's, in comm_dtype. passes: 2 for an all-reduce,
// 1 for a reduce-scatter or an all-gather.
double collective_seconds(const Cluster& k, int ranks, int passes, double bytes);

// A training step: `accumulate` batches of plan.B x plan.S tokens on each rank.
struct Workload {
    Table op;    // operations of each rank
    Config c;
    Plan plan;
    int accumulate = 1;
};
struct Forecast {                                                    // per step and rank: bytes, seconds
    double gradients = 0, parameters = 0, verdict = 0;               // bytes sent
    double work = 0;                                                 // computation; infinite: impossible sizes
    double sending = 0;                                              // all sending, also what overlaps
    double waiting_for_gradients = 0, waiting_for_parameters = 0;    // seconds not overlapped
    int collectives = 0;
    double sent() const { return gradients + parameters + verdict; }
    double step() const { return work + waiting_for_gradients + waiting_for_parameters; }
    double efficiency() const { return step() > 0 ? work / step() : 1; }
};
Forecast forecast(const Workload& w, const Cluster& k);
// If ranks wait for more than a twentieth of a step: a line for each change that would be faster.
std::vector<std::string> forecast_advice(const Workload& w, const Cluster& k);
// Bytes of scratch that a step's collectives need: comm/nccl.cu's bf16 copy of a bucket,
// comm/mpi.cpp's chunks of all ranks before they are added. The libraries' own memory is unknown.
int64_t collective_scratch(const Workload& w, bool gpu);
