// device_sampler.h - samples on the device, so that a step can start before the host has its token.
//
// The host receives a token while the next step runs. If the token ends a text, the next step has
// computed a token that the caller must ignore, and a cache position that it must not reuse.
#pragma once
#include "model/decoder.h"
#include "infer/sampling/sampler.h"

class DeviceSampler {
  public:
    // Whether operation sample can apply this sampler's settings. With FLATGPT_SAMPLER=host, for
    // measurements: never.
    static bool supports(const Model& model, const Sampler& sampler);
    DeviceSampler(Model& g, KvCache& kv_cache) : model(g), cache(kv_cache) {}
    DeviceSampler(const DeviceSampler&) = delete;
    ~DeviceSampler();
    bool open(const Sampler& sampler, int V);    // V: tokens to choose from; false: no memory
    static constexpr const char* NO_MEMORY =
        "the device has no memory left to draw tokens by itself: the host chooses them";

    struct Row {
        int seq, last;     // cache sequence; first input token
        int step_index;    // step_index of the first sampled token
        const Sampler* sampler;
        bool counts_uploaded;    // device has this sequence's token counts already
    };
    void begin(const std::vector<Row>& rows);    // replaces all rows; requires that no step runs
    void step();                                 // starts a step; at most 2 may run
    const int* next();                           // waits for the earliest step; one token per row
    int in_flight() const { return int(issued - received); }

  private:
    Model& model;
    KvCache& cache;
    char* device = nullptr;    // one allocation: draw states, biases, counts
    int64_t bytes = 0;
    SampleArgs sample_args;    // token counts (seqs,V); null: no penalties
    int* ids = nullptr;        // (2,seqs), pinned
    std::vector<int> seqs, fed;
    int64_t marks[2] = {}, issued = 0, received = 0;
};
