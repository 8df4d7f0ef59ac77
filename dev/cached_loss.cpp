// cached_loss.cpp - the loss of a text that is fed token by token through generation's KV cache:
// the cost of quantised cache types and of eviction.
//
// build/dev/cached_loss MODEL TEXT LENGTH STREAMS CACHE SINKS TYPE reads the text's first STREAMS
// pieces of LENGTH tokens side by side. The cache keeps CACHE positions, the first SINKS of them
// for ever; CACHE 0 keeps all LENGTH, even beyond the model's context. Prints a JSON object: for
// each of PARTS equal parts of the pieces the mean loss, the microseconds per step and the
// process's memory at its end (time and memory should stay constant), then the mean loss of all.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/console.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "infer/decode/generate.h"
#include "model/decoder.h"
#include "model/device.h"
#include "train/train.h"

constexpr int PARTS = 16;

static Status cached_loss(char** args) {
    const std::string model = args[0], text = TRY(read_file(args[1], 256 << 20)), type = args[6];
    const int length = atoi(args[2]), streams = atoi(args[3]), kept = atoi(args[4]), sinks = atoi(args[5]);
    Config config = TRY(checkpoint_config(model));
    const std::vector<int> ids = TRY(checkpoint_tokenizer(model)).encode(text);
    if (length <= PARTS || kept < 0 || sinks < 0 || streams < 1 || int64_t(ids.size()) < int64_t(length) * streams)
        return fail(Exit::usage, "the text has %zu tokens; LENGTH: more than %d", ids.size(), PARTS);
    if (!kept && length > config.T) TRY(extend_context(&config, {.context = length}));
    const bool evicts = kept && kept < length;
    if (const char* why = why_no_eviction(config); evicts && why) return fail(Exit::usage, "CACHE %d: %s", kept, why);
    if (const int least = (pages_for(sinks) + 2) * Pages::SIZE; evicts && kept < least)
        return fail(Exit::usage, "CACHE %d: at least %d with SINKS %d", kept, least, sinks);
    Device device = TRY(open_device({.device = "cpu", .dtype = "fp32"}, false));
    Model& g = *device.model;
    TRY(g.allocate(config, {RunMode::infer, streams, 1}));
    TRY(checkpoint_weights(model, g));
    KvCache cache;
    const CacheOptions kind = {TRY(cache_type(config, type, g.op.activation, false)), evicts, sinks};
    TRY(allocate_cache(g, cache, streams, evicts ? kept : length, kind));
    std::vector<float> logits(size_t(streams) * size_t(config.V));
    std::vector<double> sums(PARTS), micros, mebibytes;
    auto part_of = [&](int i) { return int(int64_t(i) * PARTS / (length - 1)); };
    std::vector<int> tok(static_cast<size_t>(streams));
    const double start = now_seconds();
    double begun = start;
    for (int i = 0; i + 1 < length; i++) {
        for (int b = 0; b < streams; b++) tok[size_t(b)] = ids[size_t(b * length + i)];
        compute_logits(g, extend(g, cache, tok.data(), 1), logits.data());
        for (int b = 0; b < streams; b++) {
            const float* row = &logits[size_t(b) * size_t(config.V)];
            const double top = double(*std::max_element(row, row + config.V));
            double sum = 0;
            for (int v = 0; v < config.V; v++) sum += std::exp(double(row[v]) - top);
            const int target = ids[size_t(b * length + i + 1)];
            sums[size_t(part_of(i))] += top + std::log(sum) - double(row[target]);
        }
        if (i + 2 < length && part_of(i + 1) == part_of(i)) continue;
        const double now = now_seconds(), steps = double(length - 1) / PARTS;
        micros.push_back(1e6 * (now - begun) / steps), mebibytes.push_back(double(resident_bytes()) / (1 << 20));
        begun = now;
    }
    double all = 0;
    printf("{\"cache\":%d,\"sinks\":%d,\"type\":\"%s\",\"cache_bytes\":%lld,\"losses\":[", kept, sinks, type.c_str(),
           (long long)cache.bytes);
    for (size_t i = 0; i < PARTS; i++) {
        printf("%s%.4f", i ? "," : "", sums[i] * PARTS / double(length - 1) / streams);
        all += sums[i];
    }
    for (auto [name, values] : {std::pair{"microseconds", &micros}, {"mebibytes", &mebibytes}}) {
        printf("],\"%s\":[", name);
        for (size_t i = 0; i < PARTS; i++) printf("%s%.1f", i ? "," : "", (*values)[i]);
    }
    const double loss = all / double(length - 1) / streams;
    printf("],\"loss\":%.5f,\"perplexity\":%.4f,\"seconds\":%.1f}\n", loss, std::exp(loss), now_seconds() - start);
    return {};
}

int main(int argc, char** argv) {
    const Status s = argc == 8 ? cached_loss(argv + 1) : fail(Exit::usage, "seven arguments: see dev/cached_loss.cpp");
    if (!s.ok()) fprintf(stderr, "%s\n", s.message.c_str());
    return int(s.code);
}
