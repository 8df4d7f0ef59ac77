// test_train_prefer.cpp - flatgpt train --prefer: TRL's steps, validation, ranks, resume, errors.
#include <signal.h>

#include <nlohmann/json.hpp>

#include "files/json.h"
#include "tensors.h"
#include "toy_ranks.h"
#include "train/preference.h"

namespace {
typedef std::vector<std::string> Words;
const std::string SFT = "test/golden/sft", DPO = "test/golden/dpo", PAIRS = DPO + "/pairs.jsonl";
const char* METRICS[] = {"margin", "accuracy", "reward_chosen", "reward_rejected", "logp_chosen", "logp_rejected"};

// Sets flags, with a value or without.
Words changed(Words args, const Words& more) {
    for (size_t i = 0; i < more.size(); i++) {
        const bool alone = i + 1 == more.size() || more[i + 1].starts_with("--");
        if (alone) args.push_back(more[i]);
        else Toy::set(args, more[i], more[i + 1]), i++;
    }
    return args;
}
// The steps of dev/golden_dpo.py.
Words prefer(const std::string& out, const Words& more = {}) {
    const Words a = {"train", "--from",  SFT,    "--prefer", PAIRS, "--batch",       "4",        "--seq-len",
                     "127",   "--lr",    "1e-3", "--warmup", "0",   "--lr-schedule", "constant", "--weight-decay",
                     "0",     "--dtype", "fp32", "--seed",   "5",   "--total-batch", "1016",     "--steps",
                     "30",    "--out",   out};
    return changed(a, more);
}
void same_metrics(const RanksToy& toy, const std::string& a, const std::string& b, double tolerance) {
    toy.same_losses(a, b, tolerance);
    for (const char* name : METRICS)
        for (const char* prefix : {"\"", "\"val_"}) {
            const std::string key = std::string(prefix) + name + "\":";
            const std::vector<double> x = toy.losses(a, key.c_str()), y = toy.losses(b, key.c_str());
            REQUIRE(x.size() == y.size());
            CHECK(!x.empty());
            for (size_t i = 0; i < x.size(); i++)
                CHECK(std::fabs(x[i] - y[i]) < tolerance * std::max(1.0, std::fabs(y[i])));
        }
}
}    // namespace

TEST_CASE("train prefer: thirty steps of TRL's DPOTrainer") {
    RanksToy toy;
    const std::string err = must(prefer(toy.dir + "/dpo")).err;
    CHECK(contains(err, "  margin 0."));
    CHECK(contains(err, "  accuracy 1.00"));
    const nlohmann::json golden = json_parse(read_file(DPO + "/dpo.json"), "dpo", 4).take();
    CHECK(golden.size() == 8);
    for (auto& [key, steps] : golden.items()) {
        CAPTURE(key);
        const std::vector<double> ours = toy.losses("dpo", ("\"" + key + "\":").c_str());
        REQUIRE(steps.size() == 30);
        REQUIRE(ours.size() == 30);
        for (size_t i = 0; i < 30; i++)
            CHECK(std::fabs(ours[i] - steps[i].get<double>()) < 1e-5 * std::max(1.0, std::fabs(ours[i])));
    }
    // Cut in other batches, or in other lengths of padding, the steps are the same.
    must(prefer(toy.dir + "/two", {"--batch", "2", "--steps", "4"}));
    must(prefer(toy.dir + "/long", {"--seq-len", "120", "--batch", "8", "--total-batch", "960", "--steps", "4"}));
    for (const char* out : {"two", "long"}) {
        const std::vector<double> few = toy.losses(out);
        REQUIRE(few.size() == 4);
        for (size_t i = 0; i < few.size(); i++) CHECK(few[i] == doctest::Approx(golden["loss"][i].get<double>()));
    }
}

TEST_CASE("train prefer: every loss has the steps that torch computes in double") {
    RanksToy toy;
    const nlohmann::json golden = json_parse(read_file(DPO + "/steps.json"), "steps", 4).take();
    std::vector<std::pair<std::string, Words>> runs;
    for (const PreferenceRow& row : PREFERENCES) runs.push_back({row.name, {"--prefer-loss", row.name}});
    runs.push_back({"dpo smoothed", {"--label-smoothing", "0.2"}});
    runs.push_back({"ipo of DPOTrainer", {"--prefer-loss", "ipo"}});
    runs.push_back({"texts", {"--prefer", DPO + "/texts.jsonl"}});
    for (const auto& [name, flags] : runs) {
        CAPTURE(name);
        must(changed(prefer(toy.dir + "/" + name, flags), {"--steps", "3"}));
        REQUIRE(golden.contains(name));
        for (const char* key : {"loss", "grad_norm", "margin"}) {
            CAPTURE(std::string(key));
            const std::vector<double> ours = toy.losses(name, (std::string("\"") + key + "\":").c_str());
            REQUIRE(ours.size() == 3);
            for (size_t i = 0; i < 3; i++)
                CHECK(std::fabs(ours[i] - golden[name][key][i].get<double>()) < 2e-5 * std::max(1.0, ours[i]));
        }
        // Only the losses with a reference have its file.
        const bool reference = name != "orpo" && name != "simpo";
        CHECK(fs::exists(toy.dir + "/" + name + "/reference.bin") == reference);
    }
}

TEST_CASE("train prefer: validation has the same metrics; a run learns, and its answers change") {
    RanksToy toy;
    const Words val = {"--prefer-val", PAIRS, "--eval-every", "20", "--steps", "40", "--eval-tokens", "0"};
    must(prefer(toy.dir + "/val", val), 0, "--prefer-val has the pairs of --prefer");
    for (const char* name : METRICS) {
        const std::vector<double> seen = toy.losses("val", (std::string("\"val_") + name + "\":").c_str());
        REQUIRE(seen.size() == 2);
        CHECK(std::isfinite(seen[0]));
    }
    CHECK(toy.losses("val", "\"val_accuracy\":")[1] > 0.8);
    CHECK(toy.losses("val", "\"val_margin\":")[1] > toy.losses("val", "\"val_margin\":")[0]);
    // Before the first step the model is its own reference: a run of one step at a rate of 0.
    must(prefer(toy.dir + "/start", {"--prefer-val", PAIRS, "--lr", "0", "--steps", "1"}));
    CHECK(toy.losses("start", "\"val_loss\":")[0] == doctest::Approx(std::log(2)));
    CHECK(toy.losses("start", "\"val_margin\":")[0] == 0);
    // In bf16, with dropout and packed gradients, a run goes through.
    must(prefer(toy.dir + "/bf16", {"--dtype", "bf16", "--dropout", "0.1", "--recompute", "blocks", "--steps", "3"}));
    CHECK(toy.losses("bf16").size() == 3);
    // Without --steps a run makes one pass, rounded up: 50 pairs in batches of 4 sequences.
    must({"train", "--from", SFT, "--prefer", PAIRS, "--batch", "4", "--dtype", "fp32", "--out", toy.dir + "/pass"}, 0,
         "25 steps of 512 tokens");
    must({"train", "--from", SFT, "--prefer", PAIRS, "--batch", "auto", "--epochs", "2", "--dtype", "fp32", "--out",
          toy.dir + "/auto"},
         0, "--batch auto: 100 sequences of 128 tokens");
}

TEST_CASE("train prefer: a killed run goes on with the same bits, and reads the reference again") {
    RanksToy toy;
    const Words command = prefer(toy.dir + "/whole", {"--save-every", "4", "--prefer-val", PAIRS, "--eval-every", "3",
                                                      "--steps", "24", "--seed", "9"});
    must(command);
    killed_and_resumed(toy, command, {1, 5, 9, 14}, [&](const std::string& out) {
        same_checkpoint(toy, out, "whole");
        CHECK(same_file(toy.dir + "/" + out + "/reference.bin", toy.dir + "/whole/reference.bin"));
    });
    // Another run may go on from a checkpoint: the reference stays that of the first start.
    const std::string toml = toy.dir + "/whole/run.toml", file = toy.dir + "/whole/reference.bin";
    const Words longer = {"train", "--config", toml, "--resume", "auto", "--steps", "26"};
    must({"train", "--config", toml, "--resume", toy.newest("whole"), "--steps", "26", "--out", toy.dir + "/other"});
    CHECK(same_file(toy.dir + "/other/reference.bin", file));
    // Other pairs, other validation, and a damaged or missing file are refused.
    const std::string half = toy.dir + "/half.jsonl", text = read_file(PAIRS), bytes = read_file(file);
    write_file(half, text.substr(0, text.find('\n', text.size() / 2) + 1));
    must(changed(longer, {"--prefer", half}), 2, "trained on other pairs than --prefer");
    must(changed(longer, {"--prefer-val", half}), 2, "--prefer-val");
    std::string damaged = bytes;
    damaged[damaged.size() / 2] = char(damaged[damaged.size() / 2] ^ 1);
    write_file(file, damaged);
    must(longer, 3, file + ": damaged");
    fs::remove(file);
    must(longer, 3, file);
    write_file(file, bytes);
    must(longer);
}

TEST_CASE("train prefer: ranks and ZeRO have the losses and metrics of one process") {
    NEED_MPIRUN();
    RanksToy toy;
    for (const auto& [ranks, zero] : {std::pair{1, "0"}, {2, "0"}, {2, "1"}, {2, "2"}}) {
        const std::string out = "r" + std::to_string(ranks) + zero;
        Words p = prefer(toy.dir + "/" + out, {"--prefer-val", PAIRS, "--zero", zero, "--threads", "1", "--steps", "6",
                                               "--batch", ranks == 2 && zero[0] == '0' ? "2" : "4"});
        p.insert(p.begin(), flatgpt_binary());
        const ProcessResult r = run_process(ranks == 1 ? p : mpirun(ranks, p), mpirun_options(120));
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
        if (out != "r10") same_metrics(toy, "r10", out, 1e-5);
    }
    // A run of one rank goes on with two.
    Words p = {flatgpt_binary(), "train", "--config", toy.dir + "/r10/run.toml", "--resume", "auto", "--steps", "8"};
    const ProcessResult r = run_process(mpirun(2, p), mpirun_options(120));
    INFO(r.err);
    CHECK(r.exit_code == 0);
    CHECK(toy.losses("r10").size() == 8);
}

TEST_CASE("train prefer: the preview, the dry run, and what is wrong is told before anything is written") {
    RanksToy toy;
    const std::string out = toy.dir + "/none", bad = toy.dir + "/bad.jsonl", pairs = read_file(PAIRS);
    const std::string shown = must(prefer(out, {"--preview", "1"})).out;
    CHECK(contains(shown,
                   "--- pair 1, chosen: 48 tokens, 7 learnt ---\n<|im_start|>user\nWhat is the capital of France?"
                   "<|im_end|>\n<|im_start|>assistant\n[[Paris.<|im_end|>\n]]\n--- pair 1, rejected: "));
    CHECK(contains(shown, "\npairs          50, "));
    CHECK(!contains(shown, "pair 2"));
    const std::string plan = must(prefer(out, {"--dry-run", "--prefer-loss", "simpo"})).out;
    CHECK(contains(plan, "objective     preference, simpo (Meng et al. 2024), beta 2\n"));
    CHECK(contains(plan, " tokens in 50 pairs, "));
    CHECK(contains(plan, "2.40 epochs"));
    auto refused = [&](const Words& more, int code, const std::string& says) {
        must(prefer(out, more), code, says);
        CHECK(!fs::exists(out));
    };
    for (const Words& more : std::vector<Words>{{"--data", toy.dir + "/train.bin"},
                                                {"--chat", PAIRS},
                                                {"--pack"},
                                                {"--documents"},
                                                {"--objective", "mlm"},
                                                {"--train-on", "all"}})
        refused(more, 2, more[0]);
    refused({"--gamma", "0.5"}, 2, "--gamma needs --prefer-loss simpo");
    refused({"--prefer-loss", "ipo", "--label-smoothing", "0.1"}, 2, "--label-smoothing");
    refused({"--prefer-loss", "ppo"}, 2, "dpo");
    refused({"--batch", "3"}, 2, "--batch 3: expected a multiple of 2");
    refused({"--prefer-val", toy.dir + "/gone.jsonl"}, 3, "gone.jsonl");
    must({"train", "--prefer", PAIRS, "--model", "d2", "--out", out}, 2, "--prefer needs --from");
    must({"train", "--from", SFT, "--prefer-val", PAIRS, "--out", out}, 2, "--prefer-val needs --prefer");
    // The third line ends in the middle.
    size_t third = 0;
    for (int i = 0; i < 2; i++) third = pairs.find('\n', third) + 1;
    write_file(bad, pairs.substr(0, third + 40));
    refused({"--prefer", bad}, 3, "bad.jsonl:3: ");
    write_file(bad, pairs.substr(0, third) + R"({"prompt": "q", "chosen": "a"})" + "\n");
    refused({"--prefer", bad}, 3, "bad.jsonl:3: rejected: expected a text");
    refused({"--prefer-val", bad}, 3, "bad.jsonl:3: rejected: expected a text");
    write_file(bad, pairs.substr(0, third) + R"({"prompt": "q", "chosen": "a", "rejected": "a"})" + "\n");
    must(prefer(out, {"--prefer", bad, "--steps", "1"}), 0, "1 pair left out, as both answers are the same");
}
