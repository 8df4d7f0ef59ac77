// test_train_distill.cpp - flatgpt train --teacher: losses, resume, ranks, refusals.
#include <nlohmann/json.hpp>

#include "emulated.h"
#include "sanitizers.h"
#include "toy_ranks.h"

namespace {
typedef std::vector<std::string> Words;

struct DistillToy : RanksToy {
    std::string teacher = dir + "/teacher";
    DistillToy() { must(args("teacher", {"--steps", "30", "--channels", "48"})); }
    Words student(const std::string& out, const Words& more = {}) const {
        return args(out, with({"--teacher", teacher, "--steps", "8"}, more));
    }
};
}    // namespace

TEST_CASE("distillation: a student learns its teacher's probabilities") {
    DistillToy toy;
    // Without the teacher's part, the losses are those of tokens.
    must(toy.args("plain", {"--steps", "8"}));
    must(toy.student("zero", {"--distill-mix", "0"}));
    toy.same_losses("plain", "zero", 1e-5);
    // A student that is its teacher has nothing to learn.
    Words same = toy.args("same", {"--teacher", toy.teacher, "--distill-mix", "1", "--steps", "1", "--channels", "48"});
    same.insert(same.end(), {"--from", toy.teacher});
    must(same);
    CHECK(std::fabs(toy.losses("same")[0]) < 1e-5);
    // With the teacher alone, the divergence falls, and with it the loss on tokens.
    must(toy.student("alone", {"--distill-mix", "1", "--steps", "40", "--eval-every", "20"}));
    const std::vector<double> divergence = toy.losses("alone"), tokens = toy.losses("alone", "\"val_loss\":");
    CHECK(divergence[39] < 0.5 * divergence[0]);
    CHECK(tokens.back() < toy.losses("plain")[0] - 0.5);
    // The teacher may be a file of a few bits; its probabilities are nearly the same.
    must({"convert", toy.teacher, toy.dir + "/teacher.gguf", "--type", "f16"});
    must(toy.args("packed", {"--teacher", toy.dir + "/teacher.gguf", "--steps", "8"}));
    must(toy.student("exact"));
    toy.same_losses("exact", "packed", 2e-3);
    must(toy.student("documents", {"--distill-temperature", "1"}));
}

TEST_CASE("distillation: a resumed run has the same bits, ranks have the same losses") {
    DistillToy toy;
    must(toy.student("whole", {"--save-every", "4"}));
    must(toy.student("half", {"--save-every", "4"}));
    fs::remove_all(toy.newest("half"));
    must({"train", "--config", toy.dir + "/half/run.toml", "--resume", "auto"});
    CHECK(toy.metrics("half") == toy.metrics("whole"));
    same_checkpoint(toy, "half", "whole");
    NEED_MPIRUN();
    for (const auto& [ranks, zero] : {std::pair{1, "0"}, {2, "0"}, {2, "2"}}) {
        const std::string out = "ranks" + std::to_string(ranks) + zero;
        const ProcessResult r = toy.run(ranks, out, {"--teacher", toy.teacher, "--zero", zero});
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
        toy.same_losses("ranks10", out, 1e-5);
    }
}

TEST_CASE("distillation: --dry-run tells the teacher's memory, of every kind of file") {
    if (ASAN) SKIP("AddressSanitizer has memory of its own");
    const RanksToy toy;
    must(toy.args("large", {"--steps", "1", "--channels", "512", "--heads", "8", "--layers", "12"}));
    must({"convert", toy.dir + "/large", toy.dir + "/large.gguf", "--type", "q8_0"});
    for (const char* name : {"/large", "/large.gguf"}) {
        CAPTURE(std::string(name));
        Words a =
            toy.args(std::string("of") + name, {"--teacher", toy.dir + name, "--steps", "2", "--channels", "128"});
        Toy::set(a, "--dtype", "auto");
        CHECK(contains(check_memory(a, 7e7), "  the teacher  "));
    }
    must(with(toy.args("none", {"--teacher", toy.dir + "/gone"}), {"--dry-run"}), 3, "gone");
}

TEST_CASE("distillation: a teacher that does not fit is told before anything is written") {
    DistillToy toy;
    must(toy.args("none", {"--teacher", "test/golden/sft", "--steps", "2"}), 2, "this model's tokenizer (257 tokens)");
    must(toy.args("none", {"--teacher", toy.dir + "/gone", "--steps", "2"}), 3, "gone");
    must(toy.student("none", {"--seq-len", "64"}), 2, "is shorter than --seq-len 64");
    must(toy.student("none", {"--distill-mix", "1.5"}), 2, "--distill-mix");
    CHECK(!fs::exists(toy.dir + "/none/metrics.jsonl"));
}

TEST_CASE("cuda command line: a teacher's probabilities are learnt as on a CPU, in the memory that a dry run tells") {
    NEED_EMULATED();
    const RanksToy toy;
    must(toy.args("teacher", {"--steps", "10", "--channels", "128"}));
    auto student = [&](const std::string& device, const std::string& dtype, const Words& more = {}) {
        return toy.args(device + dtype, with({"--teacher", toy.dir + "/teacher", "--steps", "4", "--channels", "64",
                                              "--batch", "2", "--dtype", dtype, "--device", device},
                                             more));
    };
    must(student("cpu", "fp32"));
    REQUIRE(run_emulated(student("cuda", "fp32")).exit_code == 0);
    toy.same_losses("cpufp32", "cudafp32", 1e-4);
    for (const char* dtype : {"fp32", "bf16"})
        check_emulated_memory(student("cuda", dtype, {"--out", toy.dir + "/memory" + dtype}));
    // The teacher's part limits --batch auto, too.
    auto batch = [&](const Words& more) {
        const ProcessResult r =
            run_emulated(toy.args("auto" + std::to_string(more.size()),
                                  with({"--channels", "64", "--batch", "auto", "--total-batch", "2048", "--steps", "1",
                                        "--dtype", "fp32", "--device", "cuda"},
                                       more)),
                         {"EMU_MEMORY_MB=140"});
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
        return number(r.err, "--batch auto: ");
    };
    const double with_teacher = batch({"--teacher", toy.dir + "/teacher"});
    CHECK(with_teacher < batch({}));
}
