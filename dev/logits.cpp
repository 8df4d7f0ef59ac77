// logits.cpp - flatgpt's side of dev/compare_llama.py.
//
// build/dev/logits MODEL TEXT OUT WINDOWS LENGTH GREEDY prints JSON: the tokens of the text
// (without a tokenizer its bytes, modulo the vocabulary), and the likeliest GREEDY tokens after the
// first LENGTH / 2. OUT gets the logits of the first windows of LENGTH tokens, float32 (windows,
// length, vocabulary).
#include <algorithm>
#include <cstdio>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "files/json.h"
#include "model/decoder.h"
#include "model/device.h"

static Status logits(char** args) {
    const std::string model = args[0], text = TRY(read_file(args[1], 64 << 20));
    const Config config = TRY(checkpoint_config(model));
    const Tokenizer tokenizer = TRY(checkpoint_tokenizer(model));
    std::vector<int> ids;
    if (tokenizer.vocab_size()) ids = tokenizer.encode(text);
    else
        for (const unsigned char c : text) ids.push_back(c % config.V);
    const int length = std::min({atoi(args[4]), config.T, int(ids.size())});
    const int windows = std::min(atoi(args[3]), int(ids.size()) / std::max(1, length)), greedy = atoi(args[5]);
    if (length < 2) return fail(Exit::usage, "%s: expected a text of two tokens or more", args[1]);
    Device device = TRY(open_device({.device = "cpu", .dtype = "fp32"}, false));
    Model& g = *device.model;
    TRY(g.allocate(config, {RunMode::infer, 1, length}));
    TRY(checkpoint_weights(model, g));
    std::vector<float> last(size_t(config.V));
    FILE* out = fopen(args[2], "wb");
    auto feed = [&](KvCache& cache, int id) { compute_logits(g, extend(g, cache, &id, 1), last.data()); };
    bool written = out;
    for (int w = 0; w < windows; w++) {
        KvCache cache;
        TRY(allocate_cache(g, cache, 1, length));
        for (int i = 0; i < length; i++) {
            feed(cache, ids[size_t(w * length + i)]);
            written = written && fwrite(last.data(), sizeof(float), last.size(), out) == last.size();
        }
    }
    if (!written || fclose(out)) return fail(Exit::io, "%s: cannot be written", args[2]);
    KvCache cache;
    TRY(allocate_cache(g, cache, 1, config.T));
    for (int i = 0; i < length / 2; i++) feed(cache, ids[size_t(i)]);
    std::vector<int> answer;
    for (int i = 0; i < std::min(greedy, config.T - length / 2); i++) {
        answer.push_back(int(std::max_element(last.begin(), last.end()) - last.begin()));
        feed(cache, answer.back());
    }
    const nlohmann::json result = {{"ids", ids}, {"windows", windows}, {"length", length}, {"greedy", answer}};
    printf("%s\n", result.dump().c_str());
    return {};
}

int main(int argc, char** argv) {
    const Status s = argc == 7 ? logits(argv + 1) : fail(Exit::usage, "six arguments: see dev/logits.cpp");
    if (!s.ok()) fprintf(stderr, "%s\n", s.message.c_str());
    return int(s.code);
}
