// forecast.h - what a step among many ranks sends, and how much of that hides behind work: a forecast on paper, for
// `flatgpt train --dry-run`. dev/scale.md derives it.
#pragma once
#include <string>
#include <vector>

#include "model/cost_table.h"

// What each rank computes, and the two kinds of links between ranks. Rates are of one rank, in one direction.
struct Cluster {
    int node = 8;                                    // ranks of a machine
    double inside = 370e9, outside = 50e9;           // bytes/s within a machine, to others
    double hop_inside = 2e-6, hop_outside = 5e-6;    // seconds from one rank to the next, however few the bytes
    double call = 8e-6;                              // seconds until a collective moves its first byte
    bool trees = true;    // an all-reduce may go by trees of ranks, as NCCL's; else by rings, as all others
    double flops = 0;     // FLOP/s that forward and backward achieve
    double memory = 0;    // bytes/s that AdamW achieves
};
// Seconds of one collective; bytes: of the whole buffer as it travels, of which each rank holds a part at the end or at
// the beginning (passes 1) or all (an all-reduce: 2).
double collective_seconds(const Cluster& k, int ranks, int passes, double bytes);

// A step of `accumulate` batches of plan.B x plan.S tokens on each rank.
struct Workload {
    Table op;    // what each rank computes with
    Config c;
    Plan plan;
    int accumulate = 1;
};
struct Forecast {                                                    // for a step of one rank: bytes, seconds
    double gradients = 0, parameters = 0, verdict = 0;               // sent
    double work = 0;                                                 // that no link changes; infinite: impossible sizes
    double sending = 0;                                              // hidden or not
    double waiting_for_gradients = 0, waiting_for_parameters = 0;    // not hidden
    int collectives = 0;
    double sent() const { return gradients + parameters + verdict; }
    double step() const { return work + waiting_for_gradients + waiting_for_parameters; }
    double efficiency() const { return step() > 0 ? work / step() : 1; }
};
Forecast forecast(const Workload& w, const Cluster& k);
// Where ranks wait for more than a twentieth of a step: what would be faster by forecast, a line each.
std::vector<std::string> forecast_advice(const Workload& w, const Cluster& k);
// Bytes that the collectives of a step take for themselves: comm/nccl.cu's copy of a bucket in bf16, comm/mpi.cpp's
// pieces of all ranks that wait to be added. What the libraries take is not known here.
int64_t collective_scratch(const Workload& w, bool gpu);
