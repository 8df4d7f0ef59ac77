// test_train_ring.cpp - `flatgpt train --cp` under mpirun, on the CPU.
#include "toy_ranks.h"

namespace {
// The step is 16 sequences of 32 however many ranks share them.
ProcessResult run(const RanksToy& toy, int ranks, int cp, const std::string& out, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"--cp", std::to_string(cp)});
    const ProcessResult r = toy.run(ranks, out, more);
    INFO(out << "\n" << r.err);
    REQUIRE(r.exit_code == 0);
    return r;
}
}    // namespace

TEST_CASE("train ring: several ranks that share sequences are one process, with their validation") {
    NEED_MPIRUN();
    RanksToy toy;
    run(toy, 1, 1, "one");
    for (auto [ranks, cp, zero] : {std::tuple{2, 2, "0"}, {4, 4, "1"}, {8, 8, "0"}, {4, 2, "0"}, {4, 2, "2"}}) {
        const std::string out = formatted("%d_%d_%s", ranks, cp, zero);
        run(toy, ranks, cp, out, {"--zero", zero});
        toy.same_losses(out, "one", 2e-6);
    }
    run(toy, 2, 2, "again");
    CHECK(toy.metrics("again") == toy.metrics("2_2_0"));
    same_checkpoint(toy, "again", "2_2_0");
}

TEST_CASE("train ring: windows, rotary positions and documents") {
    NEED_MPIRUN();
    RanksToy toy;
    const std::vector<std::string> kinds[] = {
        {"--model", "llama:d2", "--kv-heads", "1"}, {}, {"--window", "9"}, {"--window", "9", "--model", "llama:d2"}};
    int k = 0;
    for (const auto& kind : kinds) {
        const std::string one = "one" + std::to_string(k), four = "four" + std::to_string(k);
        for (auto [ranks, out] : {std::pair{1, one}, {4, four}}) {
            std::vector<std::string> program = toy.program(out, with(kind, {"--cp", std::to_string(ranks)}));
            if (k % 2) program.push_back("--documents");
            const ProcessResult r = run_process(ranks == 1 ? program : mpirun(ranks, program), mpirun_options(120));
            INFO(out << "\n" << r.err);
            REQUIRE(r.exit_code == 0);
        }
        toy.same_losses(four, one, 2e-6);
        k++;
    }
}

TEST_CASE("train ring: in bf16") {
    NEED_MPIRUN();
    RanksToy toy;
    run(toy, 1, 1, "one", {"--dtype", "bf16"});
    run(toy, 4, 4, "four", {"--dtype", "bf16"});
    toy.same_losses("four", "one", 5e-3);
}

TEST_CASE("train ring: a run is resumed with other rings, and without one; samples are written") {
    NEED_MPIRUN();
    RanksToy toy;
    const std::vector<std::string> all = {"--steps", "8", "--sample-every", "4", "--sample-tokens", "5"};
    run(toy, 1, 1, "whole", all);
    auto part = [&](int ranks, int cp) {
        run(toy, ranks, cp, "parts", with(all, {"--resume", "auto", "--save-every", "2", "--keep", "0"}));
        const std::string last = toy.dir + "/parts/step_0000000" + (ranks == 4 ? "4" : "2");
        for (const std::string& dir : checkpoint_list(toy.dir + "/parts"))    // as if it had been cut short
            if (cp > 1 && dir > last) fs::remove_all(dir);
    };
    part(2, 2);
    part(4, 2);
    part(1, 1);
    toy.same_losses("parts", "whole", 1e-5);
    CHECK(contains(toy.metrics("parts"), "\"sample\":"));
    CHECK(run_flatgpt({"info", toy.newest("parts")}).exit_code == 0);
}

TEST_CASE("train ring: what does not go with --cp is refused before the first step") {
    NEED_MPIRUN();
    RanksToy toy;
    auto refused = [&](int ranks, const std::vector<std::string>& more, const std::string& says) {
        const ProcessResult r = toy.run(ranks, "x", more);
        INFO(r.err);
        CHECK(r.exit_code == 2);
        CHECK(contains(r.err, says));
    };
    refused(1, {"--cp", "2"}, "a divisor of the number of ranks, found 1");
    refused(2, {"--cp", "2", "--seq-len", "30", "--total-batch", "480"}, "expected a multiple of 2 x cp = 4");
    refused(2, {"--cp", "2", "--dropout", "0.1"}, "--cp and --dropout exclude each other");
    refused(2, {"--cp", "2", "--chat", "x"}, "--chat");
    refused(2, {"--cp", "2", "--experts", "4"}, "expected a model without experts");
}

TEST_CASE("train ring: a dry run tells what a rank of a ring holds and sends") {
    Toy toy;
    const std::vector<std::string> program =
        with(toy.args("x", {"--seq-len", "64", "--ranks", "4", "--cp", "2"}), {"--dry-run"});
    const std::string said = must(program).out;
    INFO(said);
    // 2 layers, 3 messages a batch of 4 x 32 positions, 2 x 32 numbers of 4 bytes each
    CHECK(contains(said, "2 ranks share each sequence, 32 positions each; keys, values and their gradients: 196.6 kB"));
    CHECK(contains(said, "x 2 (rings)"));
    must(with(program, {"--gpu", "H100"}), 0, "2 ranks share each sequence, 32 positions each");
    CHECK(contains(said, "attention around the ranks"));
}
