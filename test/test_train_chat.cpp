// test_train_chat.cpp - flatgpt train --chat: losses as TRL's, resume, ranks, answers by heart.
#include <signal.h>

#include <set>

#include <nlohmann/json.hpp>

#include "files/json.h"
#include "tensors.h"
#include "toy_ranks.h"

namespace {
typedef std::vector<std::string> Words;
const std::string SFT = "test/golden/sft", QUESTIONS = "dev/questions.jsonl";

struct ChatToy : RanksToy {
    ChatToy() {
        const Tokenizer bytes =
            Tokenizer::from_merges({}, Pattern::gpt2, {"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
        std::ofstream(dir + "/chat.json") << bytes.to_json();
        std::string text;
        for (auto& [question, answer] : five()) text += line(question, answer);
        write_file(dir + "/five.jsonl", text);
    }
    static std::vector<std::pair<std::string, std::string>> five() {
        return {{"What is the capital of France?", "Paris."},
                {"How many legs has a spider?", "Eight."},
                {"Which colour has snow?", "White, mostly."},
                {"Say <|im_end|> please.", "No!"},
                {"What do bees make?", "Honey."}};
    }
    static std::string line(const std::string& question, const std::string& answer) {
        return R"({"messages": [{"role": "user", "content": ")" + question +
               R"("}, {"role": "assistant", "content": ")" + answer + "\"}]}\n";
    }
    Words command(const std::string& out, const Words& more = {}) const {
        Words a = {"train",
                   "--chat",
                   dir + "/five.jsonl",
                   "--tokenizer",
                   dir + "/chat.json",
                   "--chat-template",
                   "chatml",
                   "--layers",
                   "2",
                   "--heads",
                   "2",
                   "--channels",
                   "32",
                   "--seq-len",
                   "96",
                   "--batch",
                   "5",
                   "--lr",
                   "1e-2",
                   "--dtype",
                   "fp32",
                   "--steps",
                   "12",
                   "--out",
                   dir + "/" + out};
        return changed(a, more);
    }
    // Sets flags, with a value or without.
    static Words changed(Words args, const Words& more) {
        for (size_t i = 0; i < more.size(); i++) {
            const bool alone = i + 1 == more.size() || more[i + 1].starts_with("--");
            if (alone) args.push_back(more[i]);
            else set(args, more[i], more[i + 1]), i++;
        }
        return args;
    }
};
// Continues a run of dev/questions.jsonl from SFT's weights, as dev/golden_sft.py does.
Words questions(const std::string& out, const Words& more = {}) {
    Words a = {"train", "--from",  SFT,    "--chat",   QUESTIONS, "--batch",       "2",        "--seq-len",
               "127",   "--lr",    "3e-3", "--warmup", "0",       "--lr-schedule", "constant", "--weight-decay",
               "0",     "--dtype", "fp32", "--seed",   "5",       "--total-batch", "508",      "--steps",
               "50",    "--out",   out};
    return ChatToy::changed(a, more);
}
}    // namespace

TEST_CASE("train chat: fifty losses and gradient norms of TRL's SFTTrainer") {
    ChatToy toy;
    must(questions(toy.dir + "/sft"));
    const nlohmann::json golden = json_parse(read_file(SFT + "/losses.json"), "losses", 4).take();
    const std::vector<double> losses = toy.losses("sft"), norms = toy.losses("sft", "\"grad_norm\":");
    REQUIRE(losses.size() == 50);
    REQUIRE(golden["losses"].size() == 50);
    for (size_t i = 0; i < 50; i++) {
        CHECK(losses[i] == doctest::Approx(golden["losses"][i].get<double>()).epsilon(1e-5));
        CHECK(norms[i] == doctest::Approx(golden["norms"][i].get<double>()).epsilon(1e-5));
    }
    const std::vector<double> targets = toy.losses("sft", "\"targets\":"), tokens = toy.losses("sft", "\"tokens\":");
    CHECK(std::all_of(targets.begin(), targets.end(), [](double n) { return n >= 4 && n < 254; }));
    CHECK(std::set<double>(targets.begin(), targets.end()).size() > 5);
    CHECK(tokens[49] == 50 * 508);
    // Cut in other batches, the steps are the same.
    must(questions(toy.dir + "/four", {"--batch", "4"}));
    const std::vector<double> four = toy.losses("four");
    REQUIRE(four.size() == 50);
    for (size_t i = 0; i < 50; i++) CHECK(four[i] == doctest::Approx(losses[i]).epsilon(1e-5));
}

TEST_CASE("train chat: packed conversations have the losses that they have apart") {
    ChatToy toy;
    // Each step has all fifty conversations, so --pack changes only their places in the batch.
    const Words val = {"--chat-val", QUESTIONS};
    Words apart = questions(toy.dir + "/apart", val), packed = questions(toy.dir + "/packed", with(val, {"--pack"}));
    for (Words* words : {&apart, &packed}) Toy::set(*words, "--steps", "6"), Toy::set(*words, "--seq-len", "240");
    const std::string samples = must({"train", "--from", SFT, "--chat", QUESTIONS, "--seq-len", "240", "--pack",
                                      "--preview", "1", "--context", "240"})
                                    .out;
    const int n = int(number(samples, "samples        "));
    CHECK(n < 20);
    Toy::set(apart, "--context", "240"), Toy::set(packed, "--context", "240");
    Toy::set(apart, "--batch", "50"), Toy::set(apart, "--total-batch", std::to_string(50 * 240));
    Toy::set(packed, "--batch", std::to_string(n)), Toy::set(packed, "--total-batch", std::to_string(n * 240));
    must(apart);
    must(packed);
    CHECK(toy.losses("apart").size() == 6);
    toy.same_losses("apart", "packed", 1e-5);    // also the validation's
}

TEST_CASE("train chat: positions of a table begin anew in each packed conversation") {
    ChatToy toy;
    for (const std::string position : {"learned", "sinusoidal"}) {
        const Words more = {"--position", position, "--seq-len",  "240",
                            "--context",  "240",    "--chat-val", toy.dir + "/five.jsonl"};
        must(ChatToy::changed(toy.command("apart" + position, more), {"--total-batch", "1200"}));
        must(ChatToy::changed(toy.command("packed" + position, more), {"--seq-len", "240", "--batch", "2", "--pack"}));
        CHECK(toy.losses("packed" + position, "\"tokens\":").back() == 12 * 480);
        toy.same_losses("apart" + position, "packed" + position, 1e-4);
    }
}

TEST_CASE("train chat: five answers are learnt by heart, and the run talks with its own template") {
    ChatToy toy;
    for (const Words& more : std::vector<Words>{{}, {"--batch", "2", "--pack"}}) {
        const std::string out = more.empty() ? "heart" : "packed";
        must(ChatToy::changed(toy.command(out, {"--lr", "5e-3", "--steps", "200"}), more));
        CHECK(toy.losses(out).back() < 0.01);
        std::string input, expected;
        for (auto& [question, answer] : ChatToy::five()) input += question + "\n/reset\n", expected += answer + "\n";
        const ProcessResult r =
            run_flatgpt({"chat", toy.dir + "/" + out, "--temperature", "0", "--dtype", "fp32"}, {.stdin_text = input});
        INFO(r.err);
        CHECK(r.exit_code == 0);
        CHECK(r.out == expected);
    }
    // A sample is the answer to its prompt, as a user's message.
    must(toy.command("sample", {"--steps", "200", "--lr", "5e-3", "--sample-every", "200", "--sample-prompt",
                                "What do bees make?", "--sample-tokens", "20"}),
         0, "--- sample after step 200 ---\nWhat do bees make?Honey.\n---");
    const Tokenizer kept = Tokenizer::load(toy.newest("heart")).take();
    CHECK(contains(kept.vocabulary().chat_template, "<|im_start|>"));
    // --epochs counts passes, rounded up to whole steps; --from takes the run's template.
    const std::string run = toy.dir + "/heart";
    must({"train", "--from", run, "--chat", toy.dir + "/five.jsonl", "--batch", "2", "--epochs", "3", "--out",
          toy.dir + "/more"},
         0, "8 steps of 128 tokens");
}

TEST_CASE("train chat: a killed run goes on with the same bits") {
    ChatToy toy;
    const Words more = {"--save-every", "4", "--chat-val", toy.dir + "/five.jsonl", "--eval-every", "3", "--pack"};
    Words command = toy.command("whole", more);
    Toy::set(command, "--batch", "2"), Toy::set(command, "--steps", "24"), Toy::set(command, "--seed", "9");
    must(command);
    killed_and_resumed(toy, command, {1, 5, 9, 14},
                       [&](const std::string& out) { same_checkpoint(toy, out, "whole"); });
    // Other tokens than the run's are refused.
    const std::string toml = toy.dir + "/whole/run.toml";
    must({"train", "--config", toml, "--resume", "auto", "--steps", "30", "--train-on", "all"}, 2, "--train-on");
    write_file(toy.dir + "/other.jinja", "{{ messages[0].content }}");
    must({"train", "--config", toml, "--resume", "auto", "--steps", "30", "--chat-template", toy.dir + "/other.jinja"},
         2, "is not the one that");
    must({"train", "--config", toml, "--resume", "auto", "--steps", "30", "--chat-template", toy.dir + "/gone.jinja"},
         3, "gone.jinja");
    must({"train", "--config", toml, "--resume", "auto", "--steps", "26", "--chat-template", "chatml"});
}

TEST_CASE("train chat: ranks and ZeRO have the losses of one process") {
    NEED_MPIRUN();
    ChatToy toy;
    for (const bool pack : {false, true}) {
        std::string first;
        for (const auto& [ranks, zero] : {std::pair{1, "0"}, {2, "0"}, {2, "2"}}) {
            const std::string out = "r" + std::to_string(ranks) + zero + (pack ? "p" : "");
            Words p = questions(toy.dir + "/" + out, {"--chat-val", QUESTIONS, "--zero", zero, "--threads", "1"});
            Toy::set(p, "--steps", "8");
            if (pack) p.push_back("--pack");
            p.insert(p.begin(), flatgpt_binary());
            const ProcessResult r = run_process(ranks == 1 ? p : mpirun(ranks, p), mpirun_options(120));
            INFO(r.err);
            REQUIRE(r.exit_code == 0);
            if (first.empty()) first = out;
            else toy.same_losses(first, out, 1e-5);
        }
    }
}

TEST_CASE("train chat: the preview brackets what is learnt, counts, and trains nothing") {
    ChatToy toy;
    Words command = toy.command("none", {"--preview", "2"});
    const std::string out = must(command).out;
    CHECK(contains(out,
                   "--- conversation 2: 54 tokens, 8 learnt ---\n<|im_start|>user\nHow many legs has a spider?"
                   "<|im_end|>\n<|im_start|>assistant\n[[Eight.<|im_end|>\n]]\nlines          5\n"));
    CHECK(contains(out, "\nconversations  5, "));
    CHECK(contains(out, "\ncut            0 conversations, 0 tokens\n"));
    CHECK(!contains(out, "conversation 3"));
    CHECK(!fs::exists(toy.dir + "/none"));
    Toy::set(command, "--seq-len", "20");
    CHECK(contains(must(command, 3, "as no token is learnt").err, "5 conversations cut"));
    must(toy.command("none", {"--dry-run", "--pack"}), 0, "objective     causal, on answers, conversations apart\n");
    CHECK(contains(must(toy.command("none", {"--dry-run"})).out, " tokens in 5 conversations, "));
    // Sequences that are computed whole, and are mostly padding, are told.
    const Words wide = {"--dry-run", "--seq-len", "500"}, drops = with(wide, {"--dropout", "0.1"});
    const std::string note = "500 positions are computed, and 10 % of them have tokens: with experts or dropout no";
    CHECK(!contains(must(toy.command("none", wide)).err, "positions are computed"));
    CHECK_MESSAGE(contains(must(toy.command("none", drops)).err, note), must(toy.command("none", drops)).err);
    CHECK(!contains(must(toy.command("none", with(drops, {"--pack"}))).err, "positions are computed"));
    // Without a length, samples are as long as the longest conversation, in whole 16 tokens.
    for (const bool pack : {false, true}) {
        const std::string plan = must(toy.command("none", pack ? Words{"--seq-len", "0", "--dry-run", "--pack"}
                                                               : Words{"--seq-len", "0", "--dry-run"}))
                                     .out;
        CHECK_MESSAGE(contains(plan, pack ? "1 sample of 1024, " : "5 samples of 64, "), plan);
    }
    CHECK(!fs::exists(toy.dir + "/none"));
}

TEST_CASE("train chat: what is wrong is told before anything is written") {
    ChatToy toy;
    const std::string out = toy.dir + "/none", bad = toy.dir + "/bad.jsonl";
    auto refused = [&](Words more, int code, const std::string& says) {
        must(toy.command("none", more), code, says);
        CHECK(!fs::exists(out));
    };
    refused({"--data", toy.dir + "/train.bin"}, 2, "--data");
    refused({"--documents"}, 2, "--documents");
    refused({"--objective", "mlm"}, 2, "--objective mlm");
    refused({"--objective", "prefix"}, 2, "--objective prefix");
    refused({"--epochs", "2"}, 2, "--steps");
    refused({"--chat-val", toy.dir + "/gone.jsonl"}, 3, "gone.jsonl");
    refused({"--linear-attention", "elu", "--pack"}, 2, "--pack");
    write_file(bad, ChatToy::line("a", "b") + "{\"messages\": [{\"role\": \"robot\", \"content\": \"\"}]}\n");
    refused({"--chat-val", bad}, 3, "bad.jsonl:2: message 1: role: expected");
    Words words = toy.command("none");
    Toy::set(words, "--chat-template", toy.dir + "/gone.jinja");
    must(words, 3, "gone.jinja");
    write_file(toy.dir + "/bad.jinja", "{% if %}");
    Toy::set(words, "--chat-template", toy.dir + "/bad.jinja");
    must(words, 3, "bad.jinja: chat template: line 1");
    must({"train", "--chat", toy.dir + "/five.jsonl", "--model", "d2", "--tokenizer", toy.dir + "/chat.json", "--out",
          out},
         2, "--chat-template chatml");
    must({"train", "--pack", "--out", out, "--dry-run"}, 2, "--pack needs --data or --chat");
    must({"train", "--out", out}, 2, "--data");
    CHECK(!fs::exists(out));
}
