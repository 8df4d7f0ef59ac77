// ahead.cpp - see ahead.h.
#include "ahead.h"

#include <cstring>

bool Ahead::can(const Model& g, const Sampler& sampler) {
    const char* asked = getenv("FLATGPT_SAMPLER");
    CHECK(!asked || !strcmp(asked, "host"), "FLATGPT_SAMPLER=%s: expected host", asked);
    return !asked && g.op.sample && sampler.on_device();
}

bool Ahead::open(const Sampler& sampler, int choices) {
    const Draw draw = *sampler.on_device();
    const int64_t slots = cache.table.sequences();
    const std::vector<double> bias = sampler.said().bias();
    const int64_t places = int64_t(sizeof(DrawAt)) * slots, biases = int64_t(sizeof(double) * bias.size());
    bytes = places + biases + (draw.penalises() ? int64_t(sizeof(int)) * slots * choices : 0);
    device = static_cast<char*>(g.op.allocate(bytes));
    ids = static_cast<int*>(g.op.allocate_host(int64_t(sizeof(int)) * 2 * slots));
    if (!device || !ids) return false;
    drawing = {.at = reinterpret_cast<DrawAt*>(device), .draw = draw, .V = choices};
    if (!bias.empty()) {
        g.op.upload(device + places, bias.data(), biases);
        drawing.bias = reinterpret_cast<double*>(device + places);
    }
    if (draw.penalises()) drawing.counts = reinterpret_cast<int*>(device + places + biases);
    return true;
}
Ahead::~Ahead() {
    g.op.wait(g.op.mark());
    if (ids) g.op.release_host(ids, int64_t(sizeof(int)) * 2 * cache.table.sequences());
    if (device) g.op.release(device, bytes);
}

void Ahead::begin(const std::vector<Text>& texts) {
    CHECK(begun == heard, "%lld steps in flight", (long long)(begun - heard));
    which.clear(), fed.clear();
    std::vector<DrawAt> at;
    for (const Text& t : texts) {
        which.push_back(t.slot), fed.push_back(t.last);
        at.push_back({t.sampler->number(), uint64_t(t.place), t.slot});
        if (drawing.counts && !t.counted)
            g.op.upload(drawing.counts + int64_t(t.slot) * drawing.V, t.sampler->said().counts().data(),
                        int64_t(sizeof(int)) * drawing.V);
    }
    g.op.upload(drawing.at, at.data(), int64_t(sizeof(DrawAt) * at.size()));
}

void Ahead::step() {
    CHECK(begun - heard < 2, "%lld steps in flight", (long long)(begun - heard));
    const int64_t n = int64_t(which.size()), half = begun++ % 2;
    extend(g, cache, fed.empty() ? nullptr : fed.data(), 1, which, {}, Pages::Sums::steps, &drawing);
    fed.clear();    // from here on what was drawn is fed
    g.op.download_later(ids + half * cache.table.sequences(), cache.tok, int64_t(sizeof(int)) * n);
    marks[half] = g.op.mark();
}

const int* Ahead::next() {
    CHECK(begun > heard, "no step in flight");
    const int64_t half = heard++ % 2;
    g.op.wait(marks[half]);
    return ids + half * cache.table.sequences();
}
