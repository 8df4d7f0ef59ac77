// test_emulated.cpp - commands with --device cuda by build/emu/flatgpt, whose GPU is emulated.
#include <signal.h>

#include "emulated.h"
#include "mpirun.h"
#include "toy_run.h"

namespace {
// Arguments that train a model with heads of 32, small enough for the emulated GPU.
std::vector<std::string> small(const Toy& toy, const std::string& out, std::vector<std::string> more = {}) {
    std::vector<std::string> a = toy.args(out, {"--device", "cuda", "--channels", "64", "--batch", "2"});
    for (size_t i = 0; i + 1 < more.size(); i += 2) Toy::set(a, more[i], more[i + 1]);
    return a;
}
}    // namespace

TEST_CASE("cuda command line: a run resumed in the middle has the same bits; eval and sample read it") {
    NEED_EMULATED();
    Toy toy;
    const std::vector<std::string> newer = {"EMU_CC=90"};    // fp8 needs sm_89
    for (const char* dtype : {"bf16", "fp32", "fp8", "fp8-block"}) {
        const std::string whole = std::string("whole_") + dtype, parts = std::string("parts_") + dtype;
        auto train = [&](const std::string& out, const std::vector<std::string>& more = {}) {
            auto args = small(toy, out, {"--dtype", dtype, "--steps", "8", "--save-every", "4", "--layers", "3"});
            args.insert(args.end(), more.begin(), more.end());
            return run_emulated(args, newer);
        };
        ProcessResult r = train(whole);
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
        r = train(parts);
        REQUIRE(r.exit_code == 0);
        fs::remove_all(toy.newest(parts));
        CHECK(contains(toy.newest(parts), "step_00000004"));
        r = train(parts, {"--resume", "auto"});
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
        CHECK(toy.metrics(whole) == toy.metrics(parts));
        for (const char* file : {"/model.safetensors", "/optimizer.safetensors"})
            CHECK(same_file(toy.newest(whole) + file, toy.newest(parts) + file));
        CHECK(number(toy.metrics(whole), "\"step\":8,\"loss\":") < number(toy.metrics(whole), "\"step\":1,\"loss\":"));
    }
    for (const char* other : {"whole_bf16", "whole_fp8-block"}) CHECK(toy.metrics("whole_fp8") != toy.metrics(other));
    // Metrics of every dtype have mfu, relative to the peak of bf16.
    for (const char* run : {"/whole_bf16", "/whole_fp32", "/whole_fp8", "/whole_fp8-block"})
        CHECK(contains(read_file(toy.dir + run + "/metrics.jsonl"), "\"mfu\":"));

    // A checkpoint by the clock (--save-minutes) waits for the running step and changes no weight.
    const ProcessResult clock = run_emulated(
        small(toy, "clock",
              {"--dtype", "fp32", "--steps", "8", "--save-minutes", "1e-9", "--keep", "0", "--layers", "3"}),
        newer);
    INFO(clock.err);
    REQUIRE(clock.exit_code == 0);
    CHECK(checkpoint_list(toy.dir + "/clock").size() >= 4);
    CHECK(same_file(toy.newest("clock") + "/model.safetensors", toy.newest("whole_fp32") + "/model.safetensors"));

    // One checkpoint gives the same loss and text on both devices.
    std::vector<std::string> eval = {
        "eval", toy.dir + "/whole_fp32", "--data", toy.dir + "/val.bin", "--eval-tokens", "512", "--json", "--device"};
    auto on = [&](const char* device) {
        std::vector<std::string> a = eval;
        a.push_back(device);
        ProcessResult r = run_emulated(a);
        INFO(r.err);
        CHECK(r.exit_code == 0);
        return number(r.out, "{\"loss\":");
    };
    CHECK(on("cuda") == doctest::Approx(on("cpu")).epsilon(5e-3));
    auto text = [&](const char* device) {
        ProcessResult r = run_emulated({"sample", toy.dir + "/whole_fp32", "--prompt", "abc", "--tokens", "12",
                                        "--temperature", "0", "--ignore-end", "--dtype", "fp32", "--device", device});
        INFO(r.err);
        CHECK(r.exit_code == 0);
        return r.out;
    };
    CHECK(text("cuda") == text("cpu"));
}

TEST_CASE("cuda command line: a growing batch and its noise are a CPU's; resumed, with the same bits") {
    NEED_EMULATED();
    Toy toy;
    auto train = [&](const std::string& out, const std::vector<std::string>& more = {}) {
        auto args = small(toy, out, {"--total-batch", "256", "--batch-warmup", "4", "--steps", "6"});
        for (size_t i = 0; i + 1 < more.size(); i += 2) Toy::set(args, more[i], more[i + 1]);
        args.push_back("--noise-scale");
        const ProcessResult r = run_emulated(args);
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
    };
    train("whole", {"--save-every", "1", "--keep", "0"});
    for (const char* step : {"1", "3"}) {
        train("parts", {"--resume", toy.dir + "/whole/step_0000000" + step});
        CHECK(contains(toy.metrics("whole"), toy.metrics("parts")));
        CHECK(same_file(toy.newest("whole") + "/model.safetensors", toy.newest("parts") + "/model.safetensors"));
        fs::remove_all(toy.dir + "/parts");
    }
    train("cpu", {"--device", "cpu"});
    for (const char* key : {"\"critical_batch\":", "\"tokens\":"}) {
        const std::string gpu = toy.metrics("whole"), cpu = toy.metrics("cpu");
        const double last = number(gpu.substr(gpu.rfind("{\"step\"")), key);
        CHECK(last == doctest::Approx(number(cpu.substr(cpu.rfind("{\"step\"")), key)).epsilon(0.01));
    }
}

TEST_CASE("cuda command line: Muon, states of 8 bits and an average are a CPU's; resumed, with the same bits") {
    NEED_EMULATED();
    Toy toy;
    auto train = [&](const std::string& out, const std::vector<std::string>& more = {}) {
        auto args = small(toy, out,
                          {"--optimizer", "normuon", "--state-dtype", "int8,bf16", "--ema", "0.9", "--steps", "4",
                           "--eval-every", "2"});
        for (size_t i = 0; i + 1 < more.size(); i += 2) Toy::set(args, more[i], more[i + 1]);
        args.insert(args.end(), {"--clip-groups", "--cautious-decay"});
        const ProcessResult r = run_emulated(args);
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
    };
    train("whole", {"--save-every", "2", "--keep", "0"});
    train("rest", {"--resume", toy.dir + "/whole/step_00000002"});
    CHECK(contains(toy.metrics("whole"), toy.metrics("rest")));
    for (const char* file : {"/model.safetensors", "/optimizer.safetensors"})
        CHECK(same_file(toy.newest("whole") + file, toy.newest("rest") + file));
    train("cpu", {"--device", "cpu"});
    const std::string gpu = toy.metrics("whole"), cpu = toy.metrics("cpu");
    for (const char* key : {"\"loss\":", "\"val_loss\":", "\"val_loss_average\":"}) {
        const double last = number(gpu.substr(gpu.rfind("{\"step\"")), key);
        CHECK(last == doctest::Approx(number(cpu.substr(cpu.rfind("{\"step\"")), key)).epsilon(1e-3));
    }
}

TEST_CASE("cuda command line: pairs of answers are learnt as on a CPU; resumed, with the same bits") {
    NEED_EMULATED();
    Toy toy;
    std::vector<std::string> base = small(toy, "base", {"--steps", "1"});
    Toy::set(base, "--device", "cpu");
    must(base);
    std::string pairs;
    for (char c = 'a'; c <= 'h'; c++)
        pairs += std::string(R"({"prompt": "the )") + c + R"(", "chosen": " is an answer", "rejected": " no"})" + "\n";
    write_file(toy.dir + "/pairs.jsonl", pairs);
    auto train = [&](const std::string& out, const std::string& device, const std::vector<std::string>& more = {}) {
        std::vector<std::string> args = {"train",
                                         "--from",
                                         toy.dir + "/base",
                                         "--prefer",
                                         toy.dir + "/pairs.jsonl",
                                         "--prefer-val",
                                         toy.dir + "/pairs.jsonl",
                                         "--device",
                                         device,
                                         "--dtype",
                                         "fp32",
                                         "--batch",
                                         "4",
                                         "--total-batch",
                                         "256",
                                         "--seq-len",
                                         "32",
                                         "--lr",
                                         "1e-3",
                                         "--steps",
                                         "4",
                                         "--save-every",
                                         "2",
                                         "--out",
                                         toy.dir + "/" + out};
        args.insert(args.end(), more.begin(), more.end());
        return device == "cpu" ? must(args) : run_emulated(args);
    };
    (void)train("cpu", "cpu");
    const ProcessResult r = train("gpu", "cuda");
    INFO(r.err);
    REQUIRE(r.exit_code == 0);
    const std::string cpu = toy.metrics("cpu"), gpu = toy.metrics("gpu");
    for (int step = 1; step <= 4; step++)
        for (const char* key :
             {"\"loss\":", "\"grad_norm\":", "\"margin\":", "\"logp_chosen\":", "\"logp_rejected\":"}) {
            auto value = [&](const std::string& metrics) {
                const std::string row = metrics.substr(metrics.find("{\"step\":" + std::to_string(step)));
                return number(row, key);
            };
            CHECK(value(gpu) == doctest::Approx(value(cpu)).epsilon(1e-3));
        }
    CHECK(number(gpu, "\"val_margin\":") == doctest::Approx(number(cpu, "\"val_margin\":")).epsilon(1e-3));
    CHECK(number(gpu, "\"val_margin\":") > 0);
    REQUIRE(train("parts", "cuda").exit_code == 0);
    fs::remove_all(toy.newest("parts"));
    REQUIRE(train("parts", "cuda", {"--resume", "auto"}).exit_code == 0);
    CHECK(toy.metrics("parts") == gpu);
    CHECK(same_file(toy.newest("parts") + "/model.safetensors", toy.newest("gpu") + "/model.safetensors"));
}

TEST_CASE("cuda command line: a GPU with too little memory") {
    NEED_EMULATED();
    Toy toy;
    ProcessResult r = run_emulated(small(toy, "a", {"--channels", "512", "--steps", "1"}), {"EMU_MEMORY_MB=32"});
    CHECK(r.exit_code == 5);
    CHECK(contains(r.err, "out of memory"));
    CHECK(contains(r.err, "--batch"));
    // --batch auto chooses a batch that fits.
    r = run_emulated(small(toy, "b", {"--batch", "auto", "--steps", "1", "--total-batch", "256", "--channels", "256"}),
                     {"EMU_MEMORY_MB=168"});
    INFO(r.err);
    CHECK(r.exit_code == 0);
    CHECK(contains(r.err, "--batch auto: "));
    const double chosen = number(r.err, "--batch auto: ");
    CHECK(chosen >= 1);
    CHECK(chosen < 8);
    CHECK(8 % int(chosen) == 0);    // 256 tokens are 8 sequences
    CHECK(contains(read_file(toy.dir + "/b/run.toml"), "batch = " + std::to_string(int(chosen)) + "\n"));
}

TEST_CASE("cuda command line: --dry-run tells the memory within 2 %") {
    NEED_EMULATED();
    Toy toy;
    for (const char* recompute : {"none", "blocks"})
        for (const char* dtype : {"bf16", "fp32"}) {
            check_emulated_memory(
                small(toy, std::string(recompute) + dtype,
                      {"--dtype", dtype, "--recompute", recompute, "--steps", "1", "--channels", "128"}));
        }
}

TEST_CASE("cuda command line: fp8 is for training on new GPUs, and for sizes that it takes") {
    NEED_EMULATED();
    Toy toy;
    const std::vector<std::string> old = {"EMU_CC=86"}, newer = {"EMU_CC=89"};
    auto refused = [&](int code, const char* why, const std::vector<std::string>& more,
                       const std::vector<std::string>& environment, const std::vector<std::string>& flags = {}) {
        auto args = small(toy, "a", {"--dtype", "fp8", "--layers", "3", "--steps", "1"});
        for (size_t i = 0; i + 1 < more.size(); i += 2) Toy::set(args, more[i], more[i + 1]);
        args.insert(args.end(), flags.begin(), flags.end());
        const ProcessResult r = run_emulated(args, environment);
        INFO(r.err);
        CHECK(r.exit_code == code);
        CHECK(contains(r.err, why));
    };
    refused(5, "needed is 8.9", {}, old);
    refused(2, "needs a GPU", {"--device", "cpu"}, newer);
    refused(2, "at least 3 blocks", {"--layers", "2"}, newer);
    refused(2, "multiples of 16", {"--seq-len", "28"}, newer);
    refused(2, "multiples of 16", {"--channels", "40"}, newer);
    refused(2, "needed is 8.9", {"--gpu", "a100-80"}, newer, {"--dry-run"});
    refused(0, "", {"--gpu", "h100"}, old, {"--dry-run"});
    const std::vector<std::string> blocks = {"--dtype", "fp8-block"};
    refused(5, "needed is 9.0 (Hopper); bf16 works", blocks, old);
    refused(5, "needed is 9.0 (Hopper); fp8 works", blocks, newer);
    refused(2, "needed is 9.0 (Hopper); fp8 works", {"--dtype", "fp8-block", "--gpu", "b200"}, old, {"--dry-run"});
    refused(0, "", {"--dtype", "fp8-block", "--gpu", "h200"}, old, {"--dry-run"});
    refused(5, "version 12.8, needed is 12.9", blocks, {"EMU_CC=90", "EMU_CUBLASLT=120803"});
    refused(2, "fp8-block: the model has 2 blocks", {"--dtype", "fp8-block", "--layers", "2"}, {"EMU_CC=90"});
    refused(0, "", {}, newer);
    ProcessResult r = run_emulated(
        {"eval", toy.dir + "/a", "--data", toy.dir + "/val.bin", "--eval-tokens", "512", "--device", "cuda"},
        newer);    // a run of fp8, evaluated with bf16 products
    INFO(r.err);
    CHECK(r.exit_code == 0);
    for (const char* dtype : {"fp8", "fp8-block"}) {
        r = run_emulated({"sample", toy.dir + "/a", "--dtype", dtype, "--device", "cuda"}, {"EMU_CC=90"});
        CHECK(r.exit_code == 2);
        CHECK(contains(r.err, "for training"));
    }
}

TEST_CASE("cuda command line: no GPU") {
    NEED_EMULATED();
    Toy toy;
    ProcessResult r = run_emulated(small(toy, "a", {"--steps", "1"}), {"EMU_DEVICES=0"});
    CHECK(r.exit_code == 5);
    CHECK(contains(r.err, "--device cuda: "));
    r = run_emulated(small(toy, "a", {"--steps", "1", "--device", "auto"}), {"EMU_DEVICES=0"});
    INFO(r.err);
    CHECK(r.exit_code == 0);
    CHECK(contains(r.err, "cpu fp32"));
    r = run_emulated({"info", "--devices"}, {"EMU_DEVICES=0"});
    CHECK(r.exit_code == 0);
    CHECK(contains(r.out, "GPU   none: "));
    r = run_emulated({"info", "--devices"});
    CHECK(contains(r.out, "compute capability"));
}

TEST_CASE("cuda command line: bench takes a step and a token apart") {
    NEED_EMULATED();
    auto bench = [](const char* dtype, const char* filter) {
        ProcessResult r =
            run_emulated({"bench",   "--device", "cuda",      "--dtype",    dtype,    "--profile", "--layers",
                          "2",       "--heads",  "2",         "--channels", "64",     "--vocab",   "61",
                          "--batch", "2",        "--seq-len", "16",         "--json", "--filter",  filter});
        INFO(r.err);
        CHECK(r.exit_code == 0);
        return r.out;
    };
    std::string rows = bench("bf16", "training");
    CHECK(contains(rows, "\"profile\":\"training step B=2 T=16\",\"name\":\"attention_backward\""));
    CHECK(contains(rows, "\"name\":\"everything else, on the host\""));
    rows = bench("fp32", "generation, 1 ");
    CHECK(contains(rows, "\"profile\":\"generation, a token of 1 sequence\",\"name\":\"attention_cached\""));
    CHECK(contains(rows, "\"name\":\"sum\""));
}

TEST_CASE("cuda: every rung of the ladders in dev/ is right") {
    NEED_EMULATED();
    int found = 0;
    for (const fs::directory_entry& entry : fs::directory_iterator(fs::path(emulated_binary()).parent_path())) {
        const std::string name = entry.path().filename().string();
        if (name.rfind("ladder_", 0) != 0 || name.find('.') != std::string::npos) continue;
        ProcessOptions o;
        o.timeout = 120;
        ProcessResult r = run_process({entry.path().string()}, o);
        INFO(name << "\n" << r.out << r.err);
        CHECK(r.exit_code == 0);
        found++;
    }
    CHECK(found >= 7);    // layernorm, attention forward and backward, lm_head, linear, rope, token
}

TEST_CASE("cuda: a token by one kernel is right in any order of its blocks") {
    const fs::path ladder = fs::path(emulated_binary()).parent_path() / "ladder_token";
    if (!fs::exists(ladder)) SKIP("no build/emu/ladder_token: make test builds it");
    for (const char* seed : {"0", "1"}) {
        ProcessOptions o;
        o.timeout = 120;
        o.environment = {"EMU_CC=90", std::string("EMU_SEED=") + seed};
        ProcessResult r = run_process({ladder.string()}, o);
        INFO(r.out << r.err);
        CHECK(r.exit_code == 0);
        CHECK(contains(r.out, "one kernel, loads across phases"));
        CHECK(!contains(r.out, "WRONG"));
    }
}

TEST_CASE("cuda command line: one rank of a launcher's says by what it would send, or why by nothing") {
    NEED_EMULATED();
    Toy toy;
    std::vector<std::string> environment = {"RANK=0", "WORLD_SIZE=1", "LOCAL_RANK=0"};
    ProcessResult r = run_emulated(small(toy, "with", {"--steps", "2"}), environment);
    INFO(r.err);
    REQUIRE(r.exit_code == 0);
    CHECK(contains(r.err, ", 1 rank by torchrun and NCCL 2."));
    CHECK(!contains(r.err, "NCCL does not start"));
    environment.push_back("EMU_NCCL_VERSION=21000");
    r = run_emulated(small(toy, "without", {"--steps", "2"}), environment);
    INFO(r.err);
    REQUIRE(r.exit_code == 0);
    CHECK(contains(r.err,
                   "note: torchrun started one rank on a GPU, and NCCL does not start: NCCL's version is 21000, "
                   "needed is 2.14 or newer. The run goes on without it"));
    CHECK(contains(r.err, ", 1 rank by torchrun, "));
    // The norm's squares are added up by buckets or all at once, which may change its last digit.
    for (const char* key : {"\"loss\":", "\"val_loss\":", "\"grad_norm\":"}) {
        const double with = number(toy.metrics("with"), key), without = number(toy.metrics("without"), key);
        CHECK(with == doctest::Approx(without).epsilon(1e-12));
    }
    CHECK(same_file(toy.newest("with") + "/model.safetensors", toy.newest("without") + "/model.safetensors"));
}

TEST_CASE("cuda command line: 2 ranks by NCCL are one GPU with the same global batch; resumed, the same bits") {
    NEED_EMULATED();
    NEED_MPIRUN();
    Toy toy;
    const std::vector<std::string> global = {"--total-batch", "256", "--steps", "8", "--save-every", "4"};
    auto ranks = [&](const std::string& out, std::vector<std::string> more) {
        more.insert(more.end(), global.begin(), global.end());
        std::vector<std::string> a = small(toy, out, more);
        a.insert(a.begin(), emulated_binary());
        ProcessResult r = run_process(mpirun(2, a), mpirun_options(120));
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
        return r.err;
    };
    for (const char* dtype : {"fp32", "bf16"}) {
        const std::string one = std::string("one_") + dtype;
        std::vector<std::string> alone = global;
        alone.insert(alone.end(), {"--dtype", dtype});
        ProcessResult r = run_emulated(small(toy, one, alone));
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
        const double loss = number(toy.metrics(one), "\"step\":8,\"loss\":");
        for (const char* zero : {"0", "1", "2"}) {
            const std::string out = std::string(dtype) + zero, plain = std::string(dtype) + "0";
            CHECK(contains(ranks(out, {"--dtype", dtype, "--zero", zero}), "2 ranks by Open MPI and NCCL"));
            CHECK(number(toy.metrics(out), "\"step\":8,\"loss\":") ==
                  doctest::Approx(loss).epsilon(dtype[0] == 'f' ? 1e-5 : 1e-3));
            if (zero[0] == '1') CHECK(toy.metrics(out) == toy.metrics(plain));
            if (zero[0] == '0') continue;
            const std::string before = toy.metrics(out), whole = read_file(toy.newest(out) + "/MANIFEST");
            fs::remove_all(toy.newest(out));
            ranks(out, {"--dtype", dtype, "--zero", zero, "--resume", "auto"});
            CHECK(toy.metrics(out) == before);
        }
    }
    std::vector<std::string> taught = small(toy, "taught", {"--teacher", toy.dir + "/one_fp32"});
    taught.insert(taught.begin(), emulated_binary());
    const ProcessResult refused = run_process(mpirun(2, taught), mpirun_options(120));
    CHECK(refused.exit_code == 2);
    CHECK(contains(refused.err, "on GPUs a teacher is for one rank, found 2: each would time"));
    CHECK(!ranks("wire", {"--dtype", "bf16", "--zero", "1", "--reduce-dtype", "bf16"}).empty());
    CHECK(number(toy.metrics("wire"), "\"step\":8,\"loss\":") ==
          doctest::Approx(number(toy.metrics("bf160"), "\"step\":8,\"loss\":")).epsilon(1e-2));
}

TEST_CASE("cuda command line: GPUs that share sequences are one GPU; the same bits twice") {
    NEED_EMULATED();
    NEED_MPIRUN();
    Toy toy;
    auto train = [&](int ranks, const std::string& out, std::vector<std::string> more) {
        more.insert(more.end(), {"--cp", std::to_string(ranks), "--total-batch", "128", "--steps", "3", "--seq-len",
                                 "64", "--batch", "1", "--eval-tokens", "256", "--eval-every", "3"});
        std::vector<std::string> a = small(toy, out, more);
        a.push_back("--documents");
        a.insert(a.begin(), emulated_binary());
        const ProcessResult r = run_process(ranks == 1 ? a : mpirun(ranks, a), mpirun_options(200));
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
    };
    for (const char* dtype : {"fp32", "bf16"}) {
        const std::string name = dtype;
        train(1, name + "1", {"--dtype", dtype});
        train(2, name + "2", {"--dtype", dtype, "--zero", "1"});
        train(2, name + "again", {"--dtype", dtype, "--zero", "1"});
        CHECK(toy.metrics(name + "again") == toy.metrics(name + "2"));
        for (const char* key : {"\"step\":1,\"loss\":", "\"step\":3,\"loss\":", "\"val_loss\":"})
            CHECK(number(toy.metrics(name + "2"), key) ==
                  doctest::Approx(number(toy.metrics(name + "1"), key)).epsilon(dtype[0] == 'f' ? 1e-5 : 3e-3));
    }
    train(4, "four", {"--dtype", "fp32", "--window", "20"});
    train(1, "one", {"--dtype", "fp32", "--window", "20"});
    CHECK(number(toy.metrics("four"), "\"step\":3,\"loss\":") ==
          doctest::Approx(number(toy.metrics("one"), "\"step\":3,\"loss\":")).epsilon(1e-5));
}

TEST_CASE("cuda command line: one rank of two finds no GPU") {
    NEED_EMULATED();
    NEED_MPIRUN();
    Toy toy;
    std::vector<std::string> all = {"mpirun", "-n", "1"}, rank = small(toy, "a", {"--device", "auto"});
    rank.insert(rank.begin(), emulated_binary());
    all.insert(all.end(), rank.begin(), rank.end());
    all.insert(all.end(), {":", "-n", "1", "env", "EMU_DEVICES=0"});
    all.insert(all.end(), rank.begin(), rank.end());
    ProcessResult r = run_process(all, mpirun_options(60));
    INFO(r.err);
    CHECK(r.exit_code == 7);
    CHECK(contains(r.err, "the ranks differ: rank 1"));
    CHECK(contains(r.err, "has operations = cpu"));
}

TEST_CASE("cuda command line: a rank that dies is named by the one that waits for it in NCCL") {
    NEED_EMULATED();
    NEED_MPIRUN();
    Toy toy;
    std::vector<std::string> a = small(toy, "a", {"--steps", "100000", "--timeout", "3"});
    a.insert(a.begin(), emulated_binary());
    const std::string script = "echo $OMPI_COMM_WORLD_RANK $$ >>" + toy.dir + "/pids; exec \"$@\"";
    a.insert(a.begin(), {"sh", "-c", script, "sh"});
    Process p(mpirun(2, a), mpirun_options(60));
    wait_for_training(p);
    usleep(200000);
    const std::string pids = read_file(toy.dir + "/pids");
    kill(int(number(pids, pids[0] == '1' ? "1 " : "\n1 ")), SIGKILL);
    ProcessResult r = p.wait();
    INFO(r.err);
    CHECK(r.exit_code != 0);
    CHECK(!r.timed_out);
    CHECK(contains(r.err, "rank 0: rank 1"));
    CHECK(contains(r.err, "died"));
}
