// forecast.h - predicts the bytes that the ranks send in a step, and how much of the sending
// overlaps with computation, for `flatgpt train --dry-run`. dev/scale.md derives it.
#pragma once
#include <string>
#include <vector>

#include "model/cost_table.h"

// Speed of a rank, and of the two kinds of links between ranks. Rates are per rank and direction.
struct Cluster {
    int node = 8;                                    // ranks per machine
    double inside = 370e9, outside = 50e9;           // bytes/s within a machine, between machines
    double hop_inside = 2e-6, hop_outside = 5e-6;    // latency between two ranks, seconds
    double call = 8e-6;                              // launch latency of a collective, seconds
    bool trees = true;                               // all-reduce may use trees, as NCCL; else rings only
    double flops = 0;                                // achieved FLOP/s of forward and backward
    double memory = 0;                               // achieved bytes/s of AdamW
};
// Seconds of one collective. bytes: of the whole buffer, as sent. passes: 2 for an all-reduce, 1
// for a reduce-scatter or an all-gather.
double collective_seconds(const Cluster& k, int ranks, int passes, double bytes);

// A step of `accumulate` batches of plan.B x plan.S tokens on each rank.
struct Workload {
    Table op;    // each rank's operations
    Config c;
    Plan plan;
    int accumulate = 1;
};
struct Forecast {                                                    // per step and rank: bytes, seconds
    double gradients = 0, parameters = 0, verdict = 0;               // bytes sent
    double work = 0;                                                 // computation; infinite: impossible sizes
    double sending = 0;                                              // all sending, overlapped or not
    double waiting_for_gradients = 0, waiting_for_parameters = 0;    // not overlapped
    int collectives = 0;
    double sent() const { return gradients + parameters + verdict; }
    double step() const { return work + waiting_for_gradients + waiting_for_parameters; }
    double efficiency() const { return step() > 0 ? work / step() : 1; }
};
Forecast forecast(const Workload& w, const Cluster& k);
// If ranks wait for more than a twentieth of a step: changes that would be faster, a line each.
std::vector<std::string> forecast_advice(const Workload& w, const Cluster& k);
// Scratch bytes of a step's collectives: comm/nccl.cu's bf16 copy of a bucket, comm/mpi.cpp's
// chunks of all ranks before they are added. The libraries' own memory is unknown.
int64_t collective_scratch(const Workload& w, bool gpu);
