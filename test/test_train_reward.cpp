// test_train_reward.cpp - flatgpt train --prompts: a toy task, commands, ranks, resume, errors.
#include <signal.h>
#include <sys/stat.h>

#include <numeric>
#include <nlohmann/json.hpp>

#include "emulated.h"
#include "files/json.h"
#include "sanitizers.h"
#include "toy_ranks.h"

namespace {
typedef std::vector<std::string> Words;

// Prompts of four digits, to be answered with the last one, and a model that has learnt to write
// digits at random; if `ends`, also the end of texts.
struct DigitsToy : RanksToy {
    std::string prompts = dir + "/prompts.jsonl";
    explicit DigitsToy(bool ends = false) {
        const Tokenizer bytes = Tokenizer::from_merges({}, Pattern::gpt2, {"<|endoftext|>"});
        std::string digits, lines;
        for (uint64_t i = 0; i < 6000; i++) digits += char('0' + philox(1, 1, i).v[0] % 10);
        std::vector<int> ids = bytes.encode(digits);
        for (size_t i = 0; ends && i < ids.size(); i++)
            if (philox(1, 2, i).v[0] % 6 == 0) ids[i] = bytes.end_of_text();
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
        must(args("base",
                  {"--data", dir + "/digits.bin", "--val", dir + "/digits.bin", "--steps", "40", "--seq-len", "64"}));
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
    void same_losses(const std::string& a, const std::string& b, double tolerance, const Words& keys) const {
        for (const std::string& key : keys) {
            const std::vector<double> x = losses(a, key.c_str()), y = losses(b, key.c_str());
            REQUIRE(x.size() == y.size());
            REQUIRE(!x.empty());
            for (size_t i = 0; i < x.size(); i++) CHECK(std::fabs(x[i] - y[i]) < tolerance * std::max(1.0, y[i]));
        }
    }
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

TEST_CASE("train reward: several updates, a reference, and the norms of the loss") {
    DigitsToy toy;
    const auto row = [&](const std::string& out, const char* key) {
        return toy.losses(out, (std::string("\"") + key + "\":").c_str());
    };
    must(toy.reward("one", {"--kl", "0.1"}));
    // Before the first update the policy is its reference.
    CHECK(row("one", "kl")[0] == doctest::Approx(0).epsilon(1e-12));
    CHECK(row("one", "kl")[5] > 0);
    CHECK(row("one", "clipped")[5] == 0);
    CHECK(fs::exists(toy.dir + "/one/reference.bin"));
    // The loss of the first update: minus the mean advantage, which is 0.
    CHECK(std::fabs(row("one", "loss")[0]) < 1e-6);
    must(toy.reward("three", {"--updates", "3", "--clip", "0.01", "--clip-high", "0.02"}));
    CHECK(row("three", "clipped")[0] > 0);
    CHECK(!fs::exists(toy.dir + "/three/reference.bin"));
    // The second and third update raise the probabilities of the better answers.
    CHECK(row("three", "loss")[0] < -1e-4);
    // The speed counts the positions of all updates: 64 sequences of 16 in each.
    auto positions = [&](const std::string& out) {
        const std::string metrics = read_file(toy.dir + "/" + out + "/metrics.jsonl");
        return number(metrics, "\"tokens_per_second\":") * number(metrics, "\"ms\":") / 1e3;
    };
    CHECK(positions("one") == doctest::Approx(1024));
    CHECK(positions("three") == doctest::Approx(3 * 1024));
    // Answers of one token: the three norms are the same, also with other batches.
    must(toy.reward("plain", {"--batch", "32", "--total-batch", "1024", "--seq-len", "16"}));
    for (const char* norm : {"sequence", "tokens", "constant"}) {
        must(toy.reward(norm, {"--loss-norm", norm, "--seq-len", "16"}));
        toy.same_losses("plain", norm, 1e-4, {"\"loss\":", "\"grad_norm\":"});
        CHECK(toy.samples(norm) == toy.samples("plain"));
    }
    // Longer answers all have 5 tokens, since the model knows no end.
    for (const char* norm : {"sequence", "tokens", "constant"})
        must(toy.reward(std::string("long ") + norm,
                        {"--loss-norm", norm, "--answer-tokens", "5", "--reward", "regex:^[0-4]", "--steps", "1"}));
    CHECK(toy.samples("long tokens") == toy.samples("long constant"));
    CHECK(row("long tokens", "grad_norm")[0] == doctest::Approx(row("long constant", "grad_norm")[0]).epsilon(1e-3));
    // Equal prompts have other answers, in a step and in the next one.
    const std::string equal = toy.dir + "/equal.jsonl";
    write_file(equal, std::string(R"({"prompt": "1234", "answer": 4})") + "\n" + R"({"prompt": "1234", "answer": 4})");
    must(toy.reward("equal", {"--prompts", equal, "--steps", "2", "--lr", "0", "--batch", "16"}));
    std::vector<std::string> drawn(4);
    std::istringstream rows(toy.samples("equal"));
    for (size_t i = 0; i < 32; i++) {
        std::string text;
        std::getline(rows, text);
        drawn[i / 8] += text.substr(text.find("answer"), 12);
    }
    for (size_t i = 0; i < 4; i++)
        for (size_t k = 0; k < i; k++) CHECK(drawn[i] != drawn[k]);
    must(toy.reward("mean", {"--advantage", "mean"}));
    CHECK(contains(toy.samples("mean"), "\"reward\":1.0,\"advantage\":0."));
}

TEST_CASE("train reward: a killed run goes on with the same bits, and repeats its samples") {
    DigitsToy toy;
    const Words command = toy.reward("whole", {"--steps", "24", "--save-every", "4", "--updates", "2", "--kl", "0.05",
                                               "--answer-tokens", "3", "--seed", "9"});
    must(command);
    killed_and_resumed(toy, command, {1, 6, 11, 18}, [&](const std::string& out) {
        CHECK(toy.samples(out) == toy.samples("whole"));
        same_checkpoint(toy, out, "whole");
    });
    // The reference must be the one that the run began with.
    const Words longer = {"train", "--config", toy.dir + "/whole/run.toml", "--resume", "auto", "--steps", "26"};
    must({"train", "--from", toy.dir + "/base", "--data", toy.dir + "/digits.bin", "--steps", "1", "--batch", "4",
          "--seq-len", "32", "--out", toy.dir + "/base2"});
    Words other = longer;
    other.insert(other.end(), {"--from", toy.dir + "/base2"});
    must(other, 3, "expected the weights that the run began with");
    must(longer);
    // Other prompts are refused.
    const std::string half = toy.dir + "/half.jsonl", text = read_file(toy.prompts);
    write_file(half, text.substr(0, text.find('\n', text.size() / 2) + 1));
    Words changed = longer;
    changed.insert(changed.end(), {"--prompts", half});
    must(changed, 2, "trained on other prompts than --prompts");
}

TEST_CASE("train reward: rewards of a command, and commands that fail in a run") {
    DigitsToy toy;
    // The reward is the line's field "number".
    const std::string numbers =
        toy.script("numbers.sh", "while read -r line; do n=${line##*number\\\":}; echo ${n%?}; done");
    must(toy.reward("numbers", {"--reward", numbers, "--steps", "2"}));
    std::istringstream rows(toy.samples("numbers"));
    int64_t count = 0;
    for (std::string row; std::getline(rows, row); count++) {
        const nlohmann::json j = json_parse(row, "row", 4).take();
        const size_t at = size_t(j["reward"].get<double>());
        std::istringstream lines(read_file(toy.prompts));
        std::string line;
        for (size_t i = 0; i <= at; i++) std::getline(lines, line);
        CHECK(contains(line, "\"" + j["prompt"].get<std::string>() + "\""));
    }
    CHECK(count == 128);
    // A dead command ends the run with a checkpoint of the last step, and the run can go on.
    const std::string dies = toy.script(
        "dies.sh", "n=0; while read -r line; do n=$((n+1)); [ $n -gt 200 ] && exit 5; echo $((n % 3)); done");
    must(toy.reward("dies", {"--reward", dies}), 1, "after 8 of 64; it ended with exit code 5");
    CHECK(fs::path(toy.newest("dies")).filename() == "step_00000003");
    must({"train", "--config", toy.dir + "/dies/run.toml", "--resume", "auto"});
    CHECK(toy.losses("dies").size() == 6);
    const std::string all = toy.samples("dies");
    CHECK(std::count(all.begin(), all.end(), '\n') == 6 * 64);
    must(toy.reward("hangs", {"--reward", toy.script("hangs.sh", "sleep 60"), "--reward-timeout", "0.2"}), 1,
         "found none for 0.2 seconds");
    // No step was made, so the directory can be used again.
    CHECK(toy.newest("hangs").empty());
    must(toy.reward("hangs", {"--steps", "1"}));
    const std::string once = toy.samples("hangs");
    CHECK(std::count(once.begin(), once.end(), '\n') == 64);
}

TEST_CASE("train reward: a command that dies on one rank ends them all with its name, after a checkpoint") {
    NEED_MPIRUN();
    DigitsToy toy;
    auto dies = [&](const std::string& out, const std::string& when, const Words& more, int steps) {
        const std::string name = out + ".sh";
        const std::string program =
            toy.script(name, "n=0; while read -r line; do n=$((n+1)); [ $OMPI_COMM_WORLD_RANK = 1 ] && " + when +
                                 " && exit 5; echo $((n % 3)); done");
        Words p = toy.reward(out, with({"--threads", "1", "--batch", "32", "--reward", program}, more));
        p.insert(p.begin(), flatgpt_binary());
        const ProcessResult r = run_process(mpirun(2, p), mpirun_options(120));
        INFO(r.err);
        CHECK(r.exit_code == 1);
        CHECK(contains(r.err, "flatgpt train: rank 0: rank 1 ("));
        CHECK(contains(r.err, name + ": expected a number for each answer, found the output's end after "));
        CHECK(contains(r.err, "it ended with exit code 5"));
        CHECK(!contains(r.err, "rank 1: "));
        REQUIRE(fs::path(toy.newest(out)).filename() == "step_0000000" + std::to_string(steps));
        must({"train", "--config", toy.dir + "/" + out + "/run.toml", "--resume", "auto", "--reward", "exact"});
        CHECK(toy.losses(out).size() == 6);
    };
    dies("step", "[ $n -gt 100 ]", {}, 3);
    // Behind the 64 answers of two steps come those of a validation.
    dies("validation", "[ $n -eq 70 ]", {"--prompts-val", toy.prompts, "--eval-every", "2"}, 2);
}

TEST_CASE("train reward: a command that hangs dies with its run, and the run's own stop is not its fault") {
    DigitsToy toy;
    // The trainer has the command's parent's number. It is stopped for longer than the limit.
    const std::string stops =
        toy.script("stops.sh",
                   "read -r line; kill -STOP $PPID; sleep 7; kill -CONT $PPID; sleep 0.5; echo 0\n"
                   "while read -r line; do echo 0; done");
    must(toy.reward("stops", {"--reward", stops, "--reward-timeout", "6", "--steps", "1"}));
    // It ignores what it can, and so does its child.
    const std::string pids = toy.dir + "/pids";
    const std::string hangs = toy.script("hangs.sh", "trap '' HUP TERM PIPE; sleep 600 & echo 0 $! >" + pids +
                                                         "; echo 1 $$ >>" + pids + "; sleep 600; sleep 600");
    Words p = toy.reward("hangs", {"--reward", hangs});
    p.insert(p.begin(), flatgpt_binary());
    Process run(p);
    const Killer killer{toy.dir};
    for (int i = 0; i < 10000 && run.running() && numbers(pids).size() < 2; i++) usleep(2000);
    REQUIRE(numbers(pids).size() == 2);
    run.send(SIGKILL);
    (void)run.wait();
    for (const auto& [which, pid] : numbers(pids)) {
        CAPTURE(which);
        for (int i = 0; i < 10000 && !gone(pid); i++) usleep(2000);
        CHECK(gone(pid));
    }
    write_file(pids, "");    // others may get these numbers
}

TEST_CASE("train reward: ranks draw the answers of one process, and have its losses") {
    NEED_MPIRUN();
    DigitsToy toy;
    for (const auto& [ranks, zero] : {std::pair{1, "0"}, {2, "0"}, {2, "2"}}) {
        const std::string out = "r" + std::to_string(ranks) + zero;
        Words p = toy.reward(out, {"--zero", zero, "--threads", "1", "--batch", ranks == 2 ? "32" : "64",
                                   "--answer-tokens", "3", "--reward", "regex:^[0-4]*$", "--loss-norm", "tokens",
                                   "--updates", "2", "--prompts-val", toy.prompts});
        p.insert(p.begin(), flatgpt_binary());
        const ProcessResult r = run_process(ranks == 1 ? p : mpirun(ranks, p), mpirun_options(120));
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
        for (const char* key :
             {"\"reward\":", "\"reward_std\":", "\"no_signal\":", "\"val_reward\":", "\"val_loss\":"}) {
            const std::vector<double> x = toy.losses("r10", key), y = toy.losses(out, key);
            REQUIRE(x.size() == y.size());
            REQUIRE(!x.empty());
            CHECK(x[0] == doctest::Approx(y[0]));
        }
        toy.same_losses("r10", out, 1e-2, {"\"grad_norm\":"});
        CHECK(toy.samples(out).substr(0, 64 * 70) == toy.samples("r10").substr(0, 64 * 70));
    }
}

TEST_CASE("train reward: adapters, bf16, the preview, the dry run") {
    DigitsToy toy;
    must(toy.reward("lora", {"--lora-rank", "4", "--kl", "0.1", "--steps", "3"}));
    CHECK(toy.losses("lora", "\"kl\":")[0] == doctest::Approx(0).epsilon(1e-12));
    CHECK(toy.losses("lora", "\"kl\":")[2] > 0);
    must(toy.reward(
        "bf16", {"--dtype", "bf16", "--recompute", "blocks", "--dropout", "0.1", "--updates", "2", "--steps", "3"}));
    CHECK(toy.losses("bf16").size() == 3);
    const std::string out = toy.dir + "/none";
    const std::string shown = must(toy.reward("none", {"--preview", "1"})).out;
    CHECK(contains(shown, "--- prompt 1: 4 tokens ---\n"));
    CHECK(contains(shown, "--- answer 8: 1 token (cut), reward "));
    CHECK(!contains(shown, "prompt 2"));
    CHECK(contains(shown, "\nprompts        80, 320 tokens\n"));
    CHECK(contains(shown, "steps          6 of 8 prompts, 8 answers to each\n"));
    Words plan = toy.reward("none", {"--kl", "0.1"});
    plan.push_back("--dry-run");
    const std::string planned = must(plan).out;
    CHECK(contains(
        planned, "objective     rewards by exact, groups of 8 answers of at most 1 token, 1 update, loss by sequence"));
    CHECK(contains(planned, "KL 0.1 to the starting weights"));
    CHECK(contains(planned, "keys and values of sampled answers"));
    CHECK(contains(planned, "the reference (--kl)"));
    CHECK(!fs::exists(out));
}

TEST_CASE("train reward: --dry-run tells the memory of answers and reference within 3 %") {
    if (ASAN) SKIP("AddressSanitizer has memory of its own");
    const DigitsToy toy;
    // The second step samples beside what the first one has allocated.
    auto check = [&](const std::string& channels, const std::string& context, const Words& more) {
        const std::string base = toy.dir + "/base" + channels;
        must(toy.args("base" + channels,
                      {"--data", toy.dir + "/digits.bin", "--val", toy.dir + "/digits.bin", "--steps", "1", "--batch",
                       "1", "--channels", channels, "--layers", "8", "--seq-len", context}));
        Words a = {"--from", base, "--batch", "2", "--seq-len", context, "--steps", "2"};
        return check_memory(toy.reward("of" + channels, with(a, more)), 1.5e8);
    };
    // 64 answers of nearly 512 tokens. 3 % of their cache exceed the few MB by which runs differ.
    const std::string long_answers = check("128", "512", {"--answer-tokens", "508", "--total-batch", "32768"});
    CHECK(number(long_answers, "of sampled answers") == 256);
    CHECK(!contains(long_answers, "reference"));
    CHECK(contains(check("512", "16", {"--kl", "0.1", "--total-batch", "128"}), "the reference (--kl)"));
}

TEST_CASE("train reward: what is wrong is told before anything is written") {
    DigitsToy toy;
    const std::string out = toy.dir + "/none", bad = toy.dir + "/bad.jsonl", text = read_file(toy.prompts);
    auto refused = [&](const Words& more, int code, const std::string& says) {
        must(toy.reward("none", more), code, says);
        CHECK(!fs::exists(out));
    };
    size_t third = 0;
    for (int i = 0; i < 2; i++) third = text.find('\n', third) + 1;
    for (const auto& [line, says] : {std::pair{R"({"prompt": "1"})", "answer: expected a text or a number"},
                                     {R"({"answer": "1"})", "prompt: expected a text"},
                                     {R"({"prompt": "", "answer": "1"})", "prompt: expected a prompt"},
                                     {R"({"prompt": "1", "ans)", "byte"}}) {
        write_file(bad, text.substr(0, third) + line + "\n");
        refused({"--prompts", bad}, 3, std::string("bad.jsonl:3: "));
        refused({"--prompts", bad}, 3, says);
        refused({"--prompts-val", bad}, 3, says);
    }
    write_file(bad, R"({"prompt": [{"role": "user", "content": "1"}], "answer": "1"})");
    refused({"--prompts", bad}, 3, "--chat-template");
    must(toy.reward("chat", {"--prompts", bad, "--chat-template", "chatml", "--steps", "1"}));
    refused({"--reward", "exakt"}, 2, "--reward exakt: expected one of exact, regex:RE, json-schema:FILE, ./COMMAND");
    refused({"--reward", "regex:["}, 2, "--reward regex:[");
    refused({"--reward", "./gone --fast"}, 2, "./gone");
    refused({"--reward", "json-schema:" + toy.dir + "/gone.json"}, 3, "gone.json");
    refused({"--answer-tokens", "40", "--seq-len", "32"}, 2, "--answer-tokens 40");
    refused({"--answer-tokens", "30", "--seq-len", "32"}, 3, "expected prompts, found none; 80 prompts left out");
    refused({"--total-batch", "320", "--seq-len", "16", "--batch", "20"}, 2,
            "is not a multiple of seq-len x group = 128");
    refused({"--data", toy.dir + "/digits.bin"}, 2, "--data");
    refused({"--objective", "mlm"}, 2, "--objective");
    must({"train", "--from", toy.dir + "/base", "--prompts", toy.prompts, "--out", out}, 2, "--prompts needs --reward");
    must({"train", "--from", toy.dir + "/base", "--data", toy.dir + "/digits.bin", "--group", "4", "--out", out}, 2,
         "--group needs --prompts");
}

TEST_CASE("train reward: answers that end, and the norms of the loss for several lengths") {
    const DigitsToy toy(true);
    auto run = [&](const std::string& out, Words more) {
        more.insert(more.end(), {"--reward", "regex:[0-4]", "--answer-tokens", "24", "--batch", "16", "--group", "4",
                                 "--steps", "2", "--lr", "0"});
        must(toy.reward(out, more));
    };
    for (const char* norm : {"sequence", "tokens", "constant"}) run(norm, {"--loss-norm", norm, "--kl", "0.5"});
    const std::string samples = read_file(toy.dir + "/sequence/samples.jsonl");
    // The end token counts, and is no part of the text.
    CHECK(toy.losses("sequence", "\"cut\":")[0] < 1);
    CHECK(!contains(samples, "endoftext"));
    CHECK(contains(samples, R"("answer":"","reward":0.0)"));
    std::istringstream rows(samples);
    double tokens = 0, of_means[3] = {};
    int n = 0;
    for (std::string row; std::getline(rows, row) && n < 16; n++) {
        const nlohmann::json j = json_parse(row, "row", 8).take();
        const double advantage = j["advantage"].get<double>(), length = j["tokens"].get<double>();
        CHECK(length <= 24);
        tokens += length;
        of_means[0] -= advantage / 16, of_means[1] -= advantage * length, of_means[2] -= advantage * length / 24 / 16;
    }
    of_means[1] /= tokens;
    // The first step's losses, from its rows: all ratios are 1, and the reference is the policy.
    const char* norms[] = {"sequence", "tokens", "constant"};
    for (int i = 0; i < 3; i++) CHECK(toy.losses(norms[i])[0] == doctest::Approx(of_means[i]).epsilon(1e-4));
    CHECK(std::fabs(of_means[1]) > 1e-3);
    CHECK(toy.losses("tokens", "\"kl\":")[1] == doctest::Approx(0).epsilon(1e-9));
    // At a rate of 0 nothing is clipped, in any update.
    run("still", {"--updates", "3", "--clip", "1e-6"});
    CHECK(toy.losses("still", "\"clipped\":") == std::vector<double>{0, 0});
}

TEST_CASE("cuda command line: rewards are learnt as on a CPU; resumed, with the same bits") {
    NEED_EMULATED();
    const DigitsToy toy;
    must(toy.args("wide", {"--data", toy.dir + "/digits.bin", "--val", toy.dir + "/digits.bin", "--steps", "20",
                           "--channels", "64", "--seq-len", "32"}));
    auto train = [&](const std::string& out, const Words& more) {
        const ProcessResult r = run_emulated(toy.reward(out, with({"--from",
                                                                   toy.dir + "/wide",
                                                                   "--batch",
                                                                   "8",
                                                                   "--total-batch",
                                                                   "512",
                                                                   "--seq-len",
                                                                   "16",
                                                                   "--answer-tokens",
                                                                   "3",
                                                                   "--reward",
                                                                   "regex:^[0-4]",
                                                                   "--updates",
                                                                   "2",
                                                                   "--kl",
                                                                   "0.1",
                                                                   "--steps",
                                                                   "4",
                                                                   "--save-every",
                                                                   "2",
                                                                   "--lr",
                                                                   "1e-3"},
                                                                  more)));
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
    };
    for (const char* dtype : {"fp32", "bf16"}) {
        const std::string cpu = std::string("cpu_") + dtype, gpu = std::string("gpu_") + dtype;
        train(cpu, {"--dtype", dtype, "--device", "cpu"});
        train(gpu, {"--dtype", dtype, "--device", "cuda"});
        // In bf16 a rounding may make another token the sampled one.
        const bool exact = dtype[0] == 'f';
        if (exact) CHECK(toy.samples(cpu) == toy.samples(gpu));
        toy.same_losses(cpu, gpu, exact ? 1e-6 : 5e-3, {"\"loss\":"});
        toy.same_losses(cpu, gpu, exact ? 1e-5 : 0.15, {"\"grad_norm\":", "\"kl\":"});
        CHECK(toy.losses(cpu, "\"reward\":")[0] == toy.losses(gpu, "\"reward\":")[0]);
        train("parts", {"--dtype", dtype, "--device", "cuda"});
        fs::remove_all(toy.newest("parts"));
        train("parts", {"--dtype", dtype, "--device", "cuda", "--resume", "auto"});
        CHECK(toy.metrics("parts") == toy.metrics(gpu));
        CHECK(toy.samples("parts") == toy.samples(gpu));
        fs::remove_all(toy.dir + "/parts");
    }
    check_emulated_memory(toy.reward("memory", {"--from", toy.dir + "/wide", "--device", "cuda", "--batch", "2", "--kl",
                                                "0.1", "--total-batch", "256", "--seq-len", "16", "--steps", "2"}));
    // --batch auto takes a part of a group, if no whole one fits.
    Words parts = toy.reward("auto", {"--from", toy.dir + "/wide", "--device", "cuda", "--batch", "auto", "--group",
                                      "64", "--seq-len", "16", "--steps", "1"});
    const ProcessResult r = run_emulated(parts, {"EMU_MEMORY_MB=140"});
    INFO(r.err);
    REQUIRE(r.exit_code == 0);
    const int chosen = int(number(r.err, "--batch auto: "));
    CHECK((chosen > 1 && chosen < 64 && 64 % chosen == 0));
    CHECK(contains(read_file(toy.dir + "/auto/run.toml"), "total-batch = 1024\n"));
}
