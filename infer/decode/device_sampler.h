// device_sampler.h - generation whose tokens the device draws: a step begins before the host knows the token that it is
// fed.
//
// The host hears of a token while the next step runs. Where that token ends a text, the step was one too many: nobody
// reads its token, and the caller gives its position up.
#pragma once
#include "model/decoder.h"
#include "infer/sampling/sampler.h"

class DeviceSampler {
  public:
    // Whether the table draws tokens, and can as this sampler would. FLATGPT_SAMPLER=host: never, for measurements.
    static bool supports(const Model& model, const Sampler& sampler);
    DeviceSampler(Model& model, KvCache& cache) : model(model), cache(cache) {}
    DeviceSampler(const DeviceSampler&) = delete;
    ~DeviceSampler();
    bool open(const Sampler& sampler, int V);    // V: tokens to choose from. False: the device has no memory for it
    static constexpr const char* NO_MEMORY =
        "the device has no memory left to draw tokens by itself: the host chooses them";

    struct Row {
        int seq, last;     // its sequence in the cache; the token that it is fed first
        int step_index;    // where the token that is drawn first goes
        const Sampler* sampler;
        bool counts_uploaded;    // whether the device's counts hold all its tokens: they were uploaded by an earlier
                                 // begin, and all since were drawn there
    };
    void begin(const std::vector<Row>& rows);    // these from now on; nothing is in flight
    void step();                                 // hands a step of all texts to the device; at most 2 are in flight
    const int* next();                           // waits for the earliest step in flight: the texts' tokens
    int in_flight() const { return int(issued - received); }

  private:
    Model& model;
    KvCache& cache;
    char* device = nullptr;    // memory in one piece, of what drawing has there
    int64_t bytes = 0;
    SampleArgs sample_args;    // counts (slots,V); null where nothing is penalised
    int* ids = nullptr;        // (2,slots), pinned
    std::vector<int> seqs, fed;
    int64_t marks[2] = {}, issued = 0, received = 0;
};
