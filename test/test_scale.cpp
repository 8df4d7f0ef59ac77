// test_scale.cpp - dry runs: the bytes that ranks send, memory, GPUs that are not here.
#include "model/cost_table.h"
#include "train/gpu_plan.h"

#include "thread_ranks.h"
#include "toy_run.h"
#include "toy_model.h"

namespace {
const Config TOY = {.V = 37, .T = 9, .L = 3, .NH = 2, .C = 12, .F = 20};
constexpr int S = 7;

struct Job {
    Table op;
    Config c;
    Plan plan;
    CostComm messages(int batches = 1) const { return step_messages(op, c, plan, batches).value; }
};
Job gpt2(int ranks, int zero) {
    static const Table h100 = planned_table(gpu_named("h100").value, Dtype::bf16);
    const Plan plan = {.mode = RunMode::train, .B = 8, .S = 1024, .ranks = ranks, .zero = zero};
    return {h100, config_named("gpt2").value, plan};
}

// Communication of one rank in one step, measured on a model in double.
struct Sent {
    int64_t calls = 0;
    double bytes = 0;
};
Sent send_a_step(int ranks, int zero, int batches) {
    Meeting meeting(ranks);
    std::vector<Sent> sent(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; r++)
        threads.emplace_back([&, r] {
            ThreadComm comm(meeting, r, ranks);
            Model g(reference_ops());
            g.store.comm = &comm;
            toy_model(g, TOY, {.mode = RunMode::train, .B = 1, .S = S, .rank = r, .ranks = ranks, .zero = zero});
            const std::vector<int> tokens = toy_tokens(S, TOY.V, 1);
            g.train.begin();
            for (int i = 0; i < batches; i++) {
                g.batch.upload(tokens.data(), tokens.data(), 1, S);
                g.forward();
                g.loss(true, 1.0f / S);
                g.backward(i + 1 == batches);
            }
            g.train.update({1e-3f, 0.9f, 0.95f, 1e-8f, 0}, {}, 1);
            (void)g.train.finish();
            comm.join(comm.mark());
            sent[size_t(r)] = {comm.calls, comm.bytes};
        });
    for (std::thread& t : threads) t.join();
    for (const Sent& s : sent) CHECK((s.calls == sent[0].calls && s.bytes == sent[0].bytes));
    return sent[0];
}
}    // namespace

TEST_CASE("scale: calls and bytes of a step are those that the model makes") {
    for (int ranks : {2, 3, 4})
        for (int zero : {0, 1, 2})
            for (int batches : {1, 3}) {
                INFO("ranks " << ranks << " zero " << zero << " batches " << batches);
                const Sent sent = send_a_step(ranks, zero, batches);
                const Plan plan = {.mode = RunMode::train, .B = 1, .S = S, .ranks = ranks, .zero = zero};
                const CostComm counted = step_messages(reference_ops(), TOY, plan, batches).value;
                CHECK(counted.calls == sent.calls);
                CHECK(counted.sums + counted.gathers == doctest::Approx(sent.bytes).epsilon(1e-12));
            }
}

TEST_CASE("scale: gradients are summed beside the backward") {
    struct Joins : CostComm {
        int64_t joined = 0;
        using CostComm::CostComm;
        void join(int64_t mark) override { joined = std::max(joined, mark); }
    };
    for (int zero : {0, 1, 2}) {
        INFO("zero " << zero);
        const Job job = gpt2(16, zero);
        CostTable count(job.op);
        Joins comm(16);
        Model g(count.table);
        g.store.comm = &comm;
        REQUIRE(g.allocate(job.c, job.plan).ok());
        g.train.begin();
        g.batch.upload(nullptr, nullptr, job.plan.B, job.plan.S);
        g.forward(true);
        g.loss(true, 1);
        g.backward(true);
        CHECK(comm.calls == job.c.L + 1);
        CHECK(comm.joined <= (zero == 2 ? comm.calls - 2 : 0));    // ZeRO-2 reuses three buckets
        g.train.update({}, {}, 0);
        CHECK(comm.joined > job.c.L);
    }
}

TEST_CASE("scale: bytes halve with bf16; ZeRO-2 sends gradients after every batch") {
    Job job = gpt2(64, 0);
    const double sums = job.messages(4).sums, P = double(config_flat_size(job.c, 64));
    auto is = [](double x) { return doctest::Approx(x).epsilon(1e-5); };    // plus a few totals
    CHECK(sums == is(2 * 63 / 64.0 * 4 * P));
    job.plan.comm_dtype = Element::bf16;
    CHECK(job.messages(4).sums == is(sums / 2));
    job = gpt2(64, 1);
    CHECK(job.messages(4).sums == is(sums / 2));
    CHECK(job.messages(4).gathers == is(sums / 4));    // weights in bf16
    job.plan.zero = 2;
    CHECK(job.messages(4).sums == is(4 * sums / 2));
}

TEST_CASE("scale: memory of one of 512 ranks") {
    const Config c = config_named("gpt2").value;
    auto bytes = [&](int ranks, int zero) {
        const Plan plan = {.mode = RunMode::train, .B = 1, .S = 64, .ranks = ranks, .zero = zero};
        return double(total_bytes(memory_cost(cpu_ops<float>(), c, plan).value));
    };
    const double P = double(config_flat_size(c, 512)), one = bytes(1, 0);
    const std::vector<Bucket> b = config_buckets(c, 512);
    const double made = 4 * double(b[0].size + b[11].size + b[12].size);
    CHECK(bytes(512, 0) == doctest::Approx(one).epsilon(0.01));
    CHECK(one - bytes(512, 1) == doctest::Approx(8 * P * 511 / 512).epsilon(0.01));
    CHECK(one - bytes(512, 2) == doctest::Approx(12 * P * 511 / 512 - made).epsilon(0.01));
    Job job = gpt2(512, 1);
    auto scratch = [&](bool gpu) { return collective_scratch(job.op, job.c, job.plan, gpu); };
    CHECK(scratch(true) == 0);
    job.plan.comm_dtype = Element::bf16;
    CHECK(scratch(true) == 2 * b[0].size);
    CHECK(scratch(false) <= 512 * (256 << 10));
    job.plan.ranks = 1;
    CHECK(scratch(false) == 0);
}

TEST_CASE("scale: flatgpt train --dry-run --ranks 512") {
    Toy toy;
    for (const char* zero : {"0", "1", "2"}) {
        std::vector<std::string> a =
            toy.args("never", {"--ranks", "512", "--zero", zero, "--tflops", "0.01", "--bandwidth", "0.001",
                               "--node-ranks", "4", "--device", "cpu"});
        a.push_back("--dry-run");
        const ProcessResult r = run_flatgpt(a);
        INFO(r.out << r.err);
        REQUIRE(r.exit_code == 0);
        for (const char* row :
             {"65536 tokens = 4 x 32 x 1 (accumulated) x 512 (ranks)", "memory of a rank", "scratch of the collectives",
              "\nranks         512, 4 on each of 128 machines, --zero ", "\non the wire   each rank sends ",
              "\ntime          ", " of work at 0.01 TFLOP/s", " of sending at 0.001 GB/s to other machines, 10 within"})
            CHECK_MESSAGE(contains(r.out, row), row);
        CHECK(!fs::exists(toy.dir + "/never"));
    }
    // Each of 8 ranks on 2 machines sends 6 of 8 bytes within its machine and 1 to the other one (a
    // quarter of its machine's 4). The slower link counts.
    auto seconds = [&](const char* bandwidth, const char* node) {
        std::vector<std::string> a =
            toy.args("never", {"--ranks", "8", "--tflops", "1", "--bandwidth", bandwidth, "--node-ranks", node});
        a.insert(a.end(), {"--dry-run", "--device", "cpu"});
        const std::string out = run_flatgpt(a).out;
        const size_t at = out.find(" of sending");
        REQUIRE(at != out.npos);
        const size_t from = out.rfind("at least ", at);
        return std::pair(out.substr(from + 9, at - from - 9), number(out, "each rank sends ") * 8 / 7);
    };
    const auto [out_time, whole] = seconds("0.000001", "4");
    // `whole` is in kB, and the link carries 1 kB/s.
    CHECK_MESSAGE(atof(out_time.c_str()) == doctest::Approx(whole / 8).epsilon(0.01), out_time);
    CHECK(atof(seconds("0.000001", "1").first.c_str()) == doctest::Approx(whole * 7 / 8).epsilon(0.01));
    // The link within the machine is the slower one.
    CHECK(seconds("1000", "4").first == seconds("1000000", "4").first);
    // A single rank sends nothing.
    std::vector<std::string> a = toy.args("never");
    a.push_back("--dry-run");
    ProcessResult r = run_flatgpt(a);
    CHECK(r.exit_code == 0);
    CHECK(!contains(r.out, "on the wire"));
}

TEST_CASE("scale: --dry-run needs no data, and says what it then assumes") {
    Toy toy;
    auto said = [&](std::vector<std::string> args, int code = 0) {
        args.insert(args.begin(), {"train", "--layers", "1", "--heads", "2", "--channels", "16", "--seq-len", "32",
                                   "--device", "cpu", "--dry-run"});
        const ProcessResult r = run_flatgpt(args);
        INFO(r.out << r.err);
        CHECK(r.exit_code == code);
        return code ? r.err : r.out;
    };
    const std::string nothing = said({});
    CHECK(contains(nothing, "vocabulary 50257"));
    CHECK(contains(nothing, "data          none given (--data); the vocabulary is assumed to be GPT-2's"));
    CHECK(contains(nothing, "step          256 tokens = 8 x 32 x 1 (accumulated)\n"));
    CHECK(contains(nothing, "FLOP per step\n"));
    CHECK(contains(nothing, "total "));
    for (const std::vector<std::string>& given :
         {std::vector<std::string>{"--vocab", "257"}, {"--tokenizer", toy.dir + "/tok.json"}}) {
        const std::string text = said(given);
        CHECK(contains(text, "vocabulary 257"));
        CHECK(contains(text, "data          none given (--data)\n"));
    }
    CHECK(contains(said({"--steps", "7"}), "(accumulated); 7 steps = 1.8k tokens\n"));
    CHECK(contains(said({"--steps", "7", "--warmup", "8"}, 2), "--warmup 8 is longer than --steps 7"));
    CHECK(contains(said({"--data", toy.dir + "/train.bin", "--vocab", "257"}), " epochs\n"));
    // A model named by --model brings its vocabulary.
    CHECK(contains(run_flatgpt({"train", "--model", "qwen3-0.6b", "--dry-run"}).out, "vocabulary 151936, "));
    // Sequences have 2048 tokens by default, even if the context is 131072.
    const std::string long_context = run_flatgpt({"train", "--model", "llama-3.2-1b", "--dry-run"}).out;
    CHECK(contains(long_context, "context 131072"));
    CHECK(contains(long_context, "tokens = 8 x 2048 x 1 (accumulated)"));
    const ProcessResult r = run_flatgpt({"train", "--out", toy.dir + "/a"});
    CHECK(
        (r.exit_code == 2 &&
         contains(r.err,
                  "--data, --chat, --prefer, --prompts, --labels, --pairs or --dry-run is required: training shards")));
}

TEST_CASE("scale: --dry-run plans for a GPU that is not here") {
    Toy toy;
    ProcessOptions none;
    none.environment = {"CUDA_VISIBLE_DEVICES="};
    auto plan = [&](const std::vector<std::string>& more) {
        std::vector<std::string> a = toy.args("never", {"--model", "gpt2", "--layers", "0", "--heads", "0",
                                                        "--channels", "0", "--dtype", "auto", "--tokenizer", "gpt2"});
        for (size_t i = 0; i + 1 < more.size(); i += 2) Toy::set(a, more[i], more[i + 1]);
        a.push_back("--dry-run");
        return run_flatgpt(a, none);
    };
    // Bytes per parameter are the CUDA backend's: bf16 weights, fp32 gradients, m, v and masters.
    const double P = double(config_flat_size(config_named("gpt2").value, 512)), MiB = 1 << 20;
    ProcessResult r = plan({"--device", "cuda", "--ranks", "512", "--zero", "1"});
    INFO(r.out << r.err);
    REQUIRE(r.exit_code == 0);
    CHECK(contains(r.out, "operations    H100 SXM 80 GB bf16, by its data sheet\n"));
    CHECK(contains(r.out, "--gpu NAME plans for another"));
    CHECK(number(r.out, "\n  parameters") == doctest::Approx(2 * P / MiB).epsilon(0.01));
    CHECK(number(r.out, "\n  gradients") == doctest::Approx(4 * P / MiB).epsilon(0.01));
    CHECK(number(r.out, "\n  optimizer state") == doctest::Approx((12 * P / 512 + P / 64) / MiB).epsilon(0.05));
    CHECK(number(r.out, "\n  scratch of the operations") >= 32);
    CHECK(contains(r.out, "the driver (a guess)"));
    CHECK(contains(r.out, "512, 8 on each of 64 machines"));
    CHECK(contains(r.out, "50 GB/s to other machines, 370 within"));
    CHECK(contains(r.out, "of work at 445 TFLOP/s"));
    CHECK(contains(plan({"--gpu", "h100", "--ranks", "512"}).out, "data sheet\nmemory of a rank"));

    // --gpu finds a GPU however its name is written, and its memory bounds the plan.
    r = plan({"--gpu", "RTX 4090", "--model", "gpt2-xl"});
    INFO(r.out << r.err);
    CHECK(r.exit_code == 0);
    CHECK(contains(r.out, "GeForce RTX 4090 24 GB bf16, by its data sheet"));
    CHECK(contains(r.out, "more than this GPU's 22.35 GiB"));
    CHECK(contains(plan({"--gpu", "a100", "--dtype", "fp32"}).out, "A100 SXM 40 GB fp32"));
    CHECK(contains(plan({"--gpu", "a100-80"}).out, "A100 SXM 80 GB bf16"));
    auto fits = [&](const char* gpu) {
        return number(plan({"--gpu", gpu, "--batch", "auto", "--model", "gpt2-xl", "--seq-len", "1024"}).err, "auto: ");
    };
    const double a100 = fits("a100-80"), h200 = fits("h200");
    CHECK(a100 >= 1);
    CHECK(h200 > a100);

    auto refused = [&](const std::vector<std::string>& more, int code, const char* why) {
        const ProcessResult r = plan(more);
        CHECK(r.exit_code == code);
        CHECK_MESSAGE(contains(r.err, why), r.err);
    };
    refused({"--gpu", "nothing"}, 2, "--gpu nothing: expected one of h100, h100-pcie, h200, b200, a100-40, a100-80, ");
    refused({"--gpu", "h101"}, 2, "did you mean h100?");
    refused({"--gpu", "v100"}, 2, "--gpu v100: compute capability 7.0, needed is 8.0");
    refused({"--gpu", "h100", "--device", "cpu"}, 2, "--gpu and --device cpu exclude each other");
    refused({"--gpu", "l4", "--model", "gpt2-xl", "--batch", "auto", "--seq-len", "1024"}, 5, "out of memory");
    r = run_flatgpt(toy.args("never", {"--gpu", "h100"}), none);
    CHECK(r.exit_code == 2);
    CHECK(contains(r.err, "--gpu needs --dry-run"));
    r = run_flatgpt(toy.args("never", {"--device", "cuda"}), none);    // training needs a real GPU
    CHECK(r.exit_code == 5);
    CHECK(!fs::exists(toy.dir + "/never"));
}

TEST_CASE("scale: a dry run under a launcher is of its ranks, and said once") {
    Toy toy;
    std::vector<std::string> a = toy.args("never", {"--tflops", "1"});
    a.push_back("--dry-run");
    ProcessOptions o;
    o.environment = {"RANK=0", "WORLD_SIZE=4", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1"};
    ProcessResult r = run_flatgpt(a, o);
    INFO(r.err);
    CHECK(r.exit_code == 0);
    CHECK(contains(r.out, "x 4 (ranks)"));
    o.environment[0] = "RANK=1";
    r = run_flatgpt(a, o);
    CHECK(r.exit_code == 0);
    CHECK(r.out.empty());
}

TEST_CASE("scale: wrong flags are exit 2") {
    Toy toy;
    auto refused = [&](std::vector<std::string> more, bool dry, const char* why) {
        std::vector<std::string> a = toy.args("never", more);
        if (dry) a.push_back("--dry-run");
        const ProcessResult r = run_flatgpt(a);
        INFO(r.out << r.err);
        CHECK(r.exit_code == 2);
        CHECK(contains(r.err, why));
    };
    refused({"--bandwidth", "50"}, false, "--bandwidth needs --dry-run");
    refused({"--tflops", "1"}, false, "--tflops needs --dry-run");
    refused({"--node-ranks", "8"}, false, "--node-ranks needs --dry-run");
    refused({"--ranks", "512", "--bandwidth", "-1"}, true, "--bandwidth: expected a number");
    refused({"--ranks", "512", "--tflops", "nan"}, true, "--tflops: expected a number");
    refused({"--ranks", "512", "--zero", "3"}, true, "--zero: expected a whole number from 0 to 2");
    refused({"--ranks", "512", "--reduce-dtype", "fp16"}, true, "--reduce-dtype: expected one of fp32, bf16");
    refused({"--ranks", "512", "--total-batch", "1024"}, true, "is not a multiple of batch x seq-len x ranks = 65536");
}
