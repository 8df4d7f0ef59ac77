// test_train_reward.cpp - flatgpt train --prompts: a toy task, commands, ranks, resume, errors.
#include <signal.h>
#include <sys/stat.h>

#include <numeric>
#include <nlohmann/json.hpp>

#include "files/json.h"
#include "toy_ranks.h"

namespace {
typedef std::vector<std::string> Words;

// Prompts of four digits, to be answered with the last one, and a model that has learnt to write
// digits at random.
struct DigitsToy : RanksToy {
    std::string prompts = dir + "/prompts.jsonl";
    DigitsToy() {
        const Tokenizer bytes = Tokenizer::from_merges({}, Pattern::gpt2, {"<|endoftext|>"});
        std::string digits, lines;
        for (uint64_t i = 0; i < 6000; i++) digits += char('0' + philox(1, 1, i).v[0] % 10);
        const std::vector<int> ids = bytes.encode(digits);
        ShardWriter w;
        REQUIRE(w.open(dir + "/digits.bin", 65536).ok());
        REQUIRE(w.append(ids.data(), int(ids.size())).ok());
        REQUIRE(w.commit().ok());
        for (size_t i = 0; i < 80; i++) {
            const std::string four = digits.substr(4 * i, 4);
            lines += "{\"prompt\": \"" + four + "\", \"answer\": \"" + four[3] +
                     "\", \"number\": " + std::to_string(i) + "}\n";
        }
        write_file(prompts, lines);
        must(args("base", {"--data", dir + "/digits.bin", "--val", dir + "/digits.bin", "--steps", "40"}));
    }
    Words reward(const std::string& out, const Words& more = {}) const {
        Words a = {"train",        "--from",          dir + "/base", "--prompts",     prompts,    "--reward",
                   "exact",        "--answer-tokens", "1",           "--batch",       "64",       "--lr",
                   "1e-3",         "--warmup",        "0",           "--lr-schedule", "constant", "--dtype",
                   "fp32",         "--seed",          "5",           "--steps",       "6",        "--out",
                   dir + "/" + out};
        for (size_t i = 0; i < more.size(); i += 2) set(a, more[i], more[i + 1]);
        return a;
    }
    std::string samples(const std::string& out) const { return read_file(dir + "/" + out + "/samples.jsonl"); }
    // metrics.jsonl without times.
    std::string script(const std::string& name, const std::string& text) const {
        const std::string path = dir + "/" + name;
        write_file(path, "#!/bin/sh\n" + text);
        REQUIRE(chmod(path.c_str(), 0755) == 0);
        return path;
    }
};
}    // namespace

TEST_CASE("train reward: answers with the prompt's last digit are learnt, from a tenth to nine tenths") {
    DigitsToy toy;
    const std::string err = must(toy.reward("run", {"--steps", "300", "--group", "16", "--batch", "256",
                                                    "--prompts-val", toy.prompts, "--eval-every", "300"}))
                                .err;
    CHECK(contains(err, "  reward "));
    const std::vector<double> rewards = toy.losses("run", "\"reward\":");
    REQUIRE(rewards.size() == 300);
    auto mean = [&](size_t from) { return std::accumulate(&rewards[from], &rewards[from] + 10, 0.0) / 10; };
    CHECK(mean(0) < 0.15);
    CHECK(mean(290) > 0.9);
    CHECK(toy.losses("run", "\"val_reward\":")[0] > 0.9);
}
