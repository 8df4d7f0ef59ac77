// device_sampler.cpp - see device_sampler.h.
#include "device_sampler.h"

#include <cstring>

bool DeviceSampler::supports(const Model& model, const Sampler& sampler) {
    const char* asked = getenv("FLATGPT_SAMPLER");
    CHECK(!asked || !strcmp(asked, "host"), "FLATGPT_SAMPLER=%s: expected host", asked);
    return !asked && model.op.sample && sampler.on_device();
}

bool DeviceSampler::open(const Sampler& sampler, int choices) {
    const SampleParams draw = *sampler.on_device();
    const int64_t sequences = cache.table.sequences();
    const std::vector<double> bias = sampler.token_history().bias();
    const int64_t at_bytes = int64_t(sizeof(SampleState)) * sequences,
                  bias_bytes = int64_t(sizeof(double) * bias.size());
    bytes = at_bytes + bias_bytes + (draw.penalises() ? int64_t(sizeof(int)) * sequences * choices : 0);
    device = static_cast<char*>(model.op.allocate(bytes));
    ids = static_cast<int*>(model.op.allocate_host(int64_t(sizeof(int)) * 2 * sequences));
    if (!device || !ids) return false;
    sample_args = {.at = reinterpret_cast<SampleState*>(device), .params = draw, .V = choices};
    if (!bias.empty()) {
        model.op.upload(device + at_bytes, bias.data(), bias_bytes);
        sample_args.bias = reinterpret_cast<double*>(device + at_bytes);
    }
    if (draw.penalises()) sample_args.counts = reinterpret_cast<int*>(device + at_bytes + bias_bytes);
    return true;
}
DeviceSampler::~DeviceSampler() {
    model.op.wait(model.op.mark());
    if (ids) model.op.release_host(ids, int64_t(sizeof(int)) * 2 * cache.table.sequences());
    if (device) model.op.release(device, bytes);
}

void DeviceSampler::begin(const std::vector<Row>& rows) {
    CHECK(issued == received, "%lld steps in flight", (long long)(issued - received));
    seqs.clear();
    fed.clear();
    std::vector<SampleState> at;
    for (const Row& t : rows) {
        seqs.push_back(t.seq);
        fed.push_back(t.last);
        at.push_back({t.sampler->number(), uint64_t(t.step_index), t.seq});
        if (sample_args.counts && !t.counts_uploaded)
            model.op.upload(sample_args.counts + int64_t(t.seq) * sample_args.V,
                            t.sampler->token_history().counts().data(), int64_t(sizeof(int)) * sample_args.V);
    }
    model.op.upload(sample_args.at, at.data(), int64_t(sizeof(SampleState) * at.size()));
}

void DeviceSampler::step() {
    CHECK(issued - received < 2, "%lld steps in flight", (long long)(issued - received));
    const int64_t n = int64_t(seqs.size()), half = issued++ % 2;
    extend(model, cache, fed.empty() ? nullptr : fed.data(), 1, seqs, {}, Pages::SumOrder::decode, &sample_args);
    fed.clear();    // later steps read the token sampled before
    model.op.download_async(ids + half * cache.table.sequences(), cache.tok, int64_t(sizeof(int)) * n);
    marks[half] = model.op.mark();
}

const int* DeviceSampler::next() {
    CHECK(issued > received, "no step in flight");
    const int64_t half = received++ % 2;
    model.op.wait(marks[half]);
    return ids + half * cache.table.sequences();
}
