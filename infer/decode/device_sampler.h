// device_sampler.h - sampling on the device: a step starts before the host has its input token.
//
// The host receives a token while the next step runs. If that token ends a text, the next step was
// superfluous: its token is ignored, and the caller discards its position.
#pragma once
#include "model/decoder.h"
#include "infer/sampling/sampler.h"

class DeviceSampler {
  public:
    // Whether the op table can sample with this sampler's settings. FLATGPT_SAMPLER=host: never,
    // for measurements.
    static bool supports(const Model& model, const Sampler& sampler);
    DeviceSampler(Model& model, KvCache& cache) : model(model), cache(cache) {}
    DeviceSampler(const DeviceSampler&) = delete;
    ~DeviceSampler();
    bool open(const Sampler& sampler, int V);    // V: tokens to choose from. False: no device memory
    static constexpr const char* NO_MEMORY =
        "the device has no memory left to draw tokens by itself: the host chooses them";

    struct Row {
        int seq, last;     // cache sequence; first token to feed
        int step_index;    // the first sampled token's
        const Sampler* sampler;
        bool counts_uploaded;    // the device already has this sequence's token counts
    };
    void begin(const std::vector<Row>& rows);    // replaces all rows; no step may be in flight
    void step();                                 // issues a step; at most 2 in flight
    const int* next();                           // waits for the earliest step: a token per row
    int in_flight() const { return int(issued - received); }

  private:
    Model& model;
    KvCache& cache;
    char* device = nullptr;    // one block: states, biases, counts
    int64_t bytes = 0;
    SampleArgs sample_args;    // counts (seqs,V); null: no penalties
    int* ids = nullptr;        // (2,seqs), pinned
    std::vector<int> seqs, fed;
    int64_t marks[2] = {}, issued = 0, received = 0;
};
