// test_train.cpp - `flatgpt train`: stopped, killed, resumed, damaged files, poisoned gradients.
#include "model/cost_table.h"
#include "base/philox.h"
#include "train/train.h"

#include <signal.h>
#include <sys/mount.h>

#include <sstream>
#include <thread>

#include "tensors.h"
#include "sanitizers.h"
#include "toy_run.h"
#include "toy_model.h"

namespace {
int poison_call = -1, backward_calls = 0;
float poison_value = NAN, poison_loss = 0;
int64_t free_memory = 0;
void poisoned_linear_backward(float* dx, GradTarget<float> dw, float* db, const float* dy, const float* x,
                              const float* w, int N, int C, int OC, Precision) {
    cpu_ops<float>().linear_backward(dx, dw, db, dy, x, w, N, C, OC, {});
    if (backward_calls++ == poison_call) dw.p[int64_t(OC) * C / 2] = poison_value;
}
void poisoned_lm_head_backward(float* dx, GradTarget<float> dw, float* db, const float* dy, const float* x,
                               const float* w, int N, int C, int OC, Precision) {
    poisoned_linear_backward(dx, dw, db, dy, x, w, N, C, OC, {});
}
void poisoned_linear_gelu_backward(float* dpre, GradTarget<float> dw, float* db, float* dpre_sum, const float* dy,
                                   const float* x, const float* w, const float* pre, int N, int C, int OC) {
    cpu_ops<float>().linear_gelu_backward(dpre, dw, db, dpre_sum, dy, x, w, pre, N, C, OC);
    if (backward_calls++ == poison_call) dw.p[int64_t(OC) * C / 2] = poison_value;
}
void poisoned_cross_entropy(float* loss, float* dlogits, const float* logits, const int* target, const float* weights,
                            float scale, LossPenalties more, Logits z, int N, int V, int Vp) {
    cpu_ops<float>().cross_entropy(loss, dlogits, logits, target, weights, scale, more, z, N, V, Vp);
    for (int n = 0; n < N; n++) loss[n] += poison_loss;
}
// A trainer that can be stepped by hand: two micro-batches a step.
struct Steps : Trainer {
    Ops<float> poisoned = cpu_ops<float>();
    std::vector<float> weights;    // copied by remember(), like the states
    std::vector<std::vector<char>> states;
    double last_loss = 0, norm = 0;
    bool skipped = false;
    Step last;
    Model& gpt() const { return *device.model; }
    float* params() const { return typed<float>(gpt(), gpt().store.params); }
    float* grads() const { return typed<float>(gpt(), gpt().store.grads); }
    void prepare(const Toy& toy) {
        poisoned.linear_backward = poisoned_linear_backward;
        poisoned.lm_head_backward = poisoned_lm_head_backward;
        if (poisoned.linear_gelu_backward) poisoned.linear_gelu_backward = poisoned_linear_gelu_backward;
        poisoned.cross_entropy = poisoned_cross_entropy;
        o.data = toy.dir + "/train.bin", o.tokenizer = toy.dir + "/tok.json", o.model = "d2";
        o.shape.L = 2, o.shape.NH = 2, o.shape.C = 32, o.batch = 2, o.seq_len = 32, o.total_batch = 128, o.steps = 100;
        device.model = std::make_unique<Model>(poisoned);
        REQUIRE(choose_model().ok());
        REQUIRE(choose_optimizer().ok());
        REQUIRE(choose_batch().ok());
        REQUIRE(open_data().ok());
        REQUIRE(plan_steps().ok());
        REQUIRE(device.model->allocate(config, plan).ok());
        REQUIRE(load().ok());
    }
    void step() {
        REQUIRE(issue().ok());
        last = outcome();
        last_loss = last.loss, norm = last.norm, skipped = last.skipped;
    }
    void remember() {
        const ParamStore& s = gpt().store;
        weights.assign(params(), params() + s.flat);
        states.clear();
        for (const StateArray& of : s.states) {
            const char* bytes = static_cast<char*>(of.p);
            states.emplace_back(bytes, bytes + 4 * s.flat);
        }
    }
    bool unchanged() const {
        const std::vector<StateArray>& now = gpt().store.states;
        auto same = [](const std::vector<char>& was, const StateArray& is) {
            return !memcmp(was.data(), is.p, was.size());
        };
        return !memcmp(weights.data(), params(), 4 * weights.size()) && states.size() == 2 &&
               std::equal(states.begin(), states.end(), now.begin(), same);
    }
};
}    // namespace

TEST_CASE("train: two runs, the same bits; then eval and sample") {
    Toy toy;
    for (const char* out : {"a", "b"}) {
        ProcessResult r = run_flatgpt(toy.args(out, {"--steps", "60", "--eval-every", "20", "--sample-every", "30"}));
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
    }
    CHECK(toy.metrics("a") == toy.metrics("b"));
    CHECK(contains(toy.metrics("a"), "\"val_loss\":"));
    CHECK(contains(toy.metrics("a"), "\"sample\":"));
    CHECK(same_file(toy.newest("a") + "/model.safetensors", toy.newest("b") + "/model.safetensors"));
    CHECK(same_file(toy.newest("a") + "/optimizer.safetensors", toy.newest("b") + "/optimizer.safetensors"));

    ProcessResult e = run_flatgpt({"eval", toy.dir + "/a", "--data", toy.dir + "/val.bin", "--json"});
    INFO(e.err);
    CHECK(e.exit_code == 0);
    double loss = 0, perplexity = 0, bits = 0;
    long long tokens = 0;
    CHECK(sscanf(e.out.c_str(), "{\"loss\":%lf,\"perplexity\":%lf,\"bits_per_byte\":%lf,\"tokens\":%lld}", &loss,
                 &perplexity, &bits, &tokens) == 4);
    CHECK(tokens == 1999 / 32 * 32);
    CHECK(loss < 3.5);    // log 64 = 4.16: only the alphabet learnt
    CHECK(perplexity == doctest::Approx(std::exp(loss)));
    CHECK(bits == doctest::Approx(loss / std::log(2.0)));    // one byte per token

    auto sample = [&](std::vector<std::string> more) {
        std::vector<std::string> a = {"sample", toy.dir + "/a", "--prompt", "abc", "--ignore-end"};
        a.insert(a.end(), more.begin(), more.end());
        if (std::find(a.begin(), a.end(), "--tokens") == a.end()) a.insert(a.end(), {"--tokens", "40"});
        ProcessResult r = run_flatgpt(a);
        INFO(r.err);
        CHECK(r.exit_code == 0);
        return r;
    };
    CHECK(sample({"--seed", "3"}).out == sample({"--seed", "3"}).out);
    CHECK(sample({"--seed", "3"}).out != sample({"--seed", "4"}).out);
    CHECK(sample({"--temperature", "0"}).out == sample({"--top-k", "1"}).out);
    CHECK(sample({"--num", "3"}).out.find("--- 3 ---") != std::string::npos);
    CHECK(contains(sample({"--json", "--num", "2"}).out, "{\"number\":1,\"sample\":1,\"prompt\":\"abc\""));
    CHECK(contains(sample({"--tokens", "100"}).err, "context of 32 tokens is full"));
    ProcessResult piped =
        run_flatgpt({"sample", toy.dir + "/a", "--prompt-file", "-", "--tokens", "5"}, {"abc", {}, {}, 60});
    CHECK(piped.out.substr(0, 3) == "abc");
}

TEST_CASE("train: killed at 50 random moments, resumed each time: the same losses and weights, bit for bit") {
    Toy toy;
    const std::vector<std::string> flags = {"--steps", "600", "--save-every", "10",  "--eval-every", "50",
                                            "--keep",  "2",   "--resume",     "auto"};
    ProcessResult unbroken = run_flatgpt(toy.args("unbroken", flags), {{}, {}, {}, 120});
    INFO(unbroken.err);
    REQUIRE(unbroken.exit_code == 0);
    const int kills = test_long() ? 500 : 50;
    int killed = 0, saved = 0, round = 0;
    // A fast machine ends a run before 50 kills; then another run begins.
    for (int i = 0; killed < kills; round++) {
        const std::string out = "killed" + std::to_string(round);
        for (int signal = SIGKILL; signal == SIGKILL && killed < kills; i++) {
            Process p(toy.started(out, flags));
            wait_for_training(p);
            // Every other kill comes after a new checkpoint, however slow the machine is.
            const std::string before = toy.newest(out);
            for (int k = 0; i % 2 && k < 10000 && p.running() && toy.newest(out) == before; k++) usleep(2000);
            usleep(useconds_t(philox(17, 0, uint64_t(i)).v[0] % 100000));
            p.send(SIGKILL);
            signal = p.wait().signal;
            killed += signal == SIGKILL;
            saved += signal == SIGKILL && !checkpoint_list(toy.dir + "/" + out).empty();
        }
        ProcessResult last = run_flatgpt(toy.args(out, flags), {{}, {}, {}, 120});
        INFO(last.err);
        REQUIRE(last.exit_code == 0);
        CHECK(toy.metrics(out) == toy.metrics("unbroken"));
        for (const char* file : {"model.safetensors", "optimizer.safetensors"})
            CHECK(same_file(toy.newest(out) + "/" + file, toy.newest("unbroken") + "/" + file));
        Result<TrainState> a = checkpoint_state(toy.newest(out)), b = checkpoint_state(toy.newest("unbroken"));
        REQUIRE(a.ok());
        REQUIRE(b.ok());
        a.value.metrics_bytes = b.value.metrics_bytes;    // differs with the clock's digits
        a.value.config = b.value.config;                  // differs in --out
        CHECK(a.value == b.value);
        for (auto& entry : fs::directory_iterator(toy.dir + "/" + out)) CHECK(!contains(entry.path().string(), ".tmp"));
    }
    MESSAGE(killed << " kills in " << round << " runs, " << saved << " with a checkpoint");
    CHECK(saved >= kills / 3);
}

TEST_CASE("train: SIGINT and SIGTERM save and say so; the resumed run has the same bits") {
    Toy toy;
    const std::vector<std::string> flags = {"--steps", "400", "--resume", "auto"};
    REQUIRE(run_flatgpt(toy.args("unbroken", flags)).exit_code == 0);
    for (auto [number, code] : {std::pair{SIGINT, 130}, std::pair{SIGTERM, 143}}) {
        Process p(toy.started("stopped", flags));
        wait_for_training(p);
        usleep(100000);
        p.send(number);
        ProcessResult r = p.wait();
        INFO(r.err);
        if (r.exit_code == 0) continue;    // it had finished
        CHECK(r.exit_code == code);
        CHECK(contains(r.err, "--resume auto"));
        CHECK(!toy.newest("stopped").empty());
    }
    REQUIRE(run_flatgpt(toy.args("stopped", flags)).exit_code == 0);
    CHECK(toy.metrics("stopped") == toy.metrics("unbroken"));
    CHECK(same_file(toy.newest("stopped") + "/model.safetensors", toy.newest("unbroken") + "/model.safetensors"));
}

TEST_CASE("train: a damaged newest checkpoint is named and the one before is used") {
    Toy toy;
    REQUIRE(run_flatgpt(toy.args("a", {"--steps", "20", "--save-every", "10"})).exit_code == 0);
    std::string weights = toy.newest("a") + "/model.safetensors", bytes = read_file(weights);
    bytes[bytes.size() / 2] ^= 1;
    std::ofstream(weights, std::ios::binary) << bytes;
    ProcessResult r = run_flatgpt(toy.args("a", {"--steps", "30", "--resume", "auto"}));
    INFO(r.err);
    CHECK(r.exit_code == 0);
    CHECK(contains(r.err, "step_00000020"));
    CHECK(contains(r.err, "after step 10"));
    ProcessResult s = run_flatgpt({"sample", weights.substr(0, weights.rfind('/')), "--tokens", "3"});
    CHECK(s.exit_code == 3);    // requested by name: not silently replaced
}

TEST_CASE("train: what cannot be done is said in one line with the right exit code") {
    Toy toy;
    toy.write("big", 2000, 3, 250);    // ids up to 313, vocabulary of 257
    std::ofstream(toy.dir + "/short.bin") << "abc";
    REQUIRE(run_flatgpt(toy.args("a", {"--steps", "4"})).exit_code == 0);
    auto check = [&](int code, const char* word, std::vector<std::string> args) {
        ProcessResult r = run_flatgpt(args);
        INFO(r.err);
        CHECK(r.exit_code == code);
        CHECK(contains(r.err, word));
    };
    auto with = [&](const char* out, const std::string& flag, const std::string& value) {
        return toy.args(out, {"--steps", "4", flag, value});
    };
    auto resumed = [&](const std::string& flag, const std::string& value) {
        return toy.args("a", {"--steps", "4", "--resume", "auto", flag, value});
    };
    check(2, "--resume auto", with("a", "--steps", "4"));
    check(2, "64 channels", resumed("--channels", "64"));
    check(2, "--seed", resumed("--seed", "6"));
    toy.write("other", 2000, 4);
    check(2, "other shards", resumed("--data", toy.dir + "/other.bin"));
    check(2, "multiple", with("b", "--channels", "33"));
    check(2, "--total-batch", with("b", "--total-batch", "100"));
    for (const char* tokens : {"16", "48"})    // 0.5 and 1.5 sequences of 32
        check(2, "--seq-len 32", toy.args("b", {"--steps", "4", "--batch", "auto", "--total-batch", tokens}));
    check(2, "--warmup", with("b", "--warmup", "5"));
    check(2, "gpt3", with("b", "--model", "gpt3"));
    check(3, "nothing*.bin", with("b", "--data", toy.dir + "/nothing*.bin"));
    check(3, "short.bin", with("b", "--data", toy.dir + "/short.bin"));
    check(3, "big.bin", with("b", "--data", toy.dir + "/big.bin"));
    check(3, "train.bin", with("b", "--tokenizer", toy.dir + "/train.bin"));
    check(3, "nowhere", with("b", "--from", toy.dir + "/nowhere"));
    check(5, "CUDA", with("b", "--device", "cuda"));
    check(4, "--out", with("b", "--out", "/proc/flatgpt"));
}

TEST_CASE("train: --batch auto is the largest that fits and divides the step") {
    Ops<float> op = cpu_ops<float>();
    op.free_bytes = [] { return free_memory; };
    // Sequences per step. 0: no --total-batch; negative: two CPU ranks share the memory.
    for (int rows : {0, 7, 60, 5000, -60}) {
        Trainer t;
        t.progress.quiet = true;
        if (rows < 0) t.ranks.info.local_ranks = 2, rows = -rows;
        t.device.model = std::make_unique<Model>(op);
        t.config = {65, 32, 2, 2, 32, 128, 1e-5f};
        auto needs = [&](int B) {
            return total_bytes(memory_cost(op, t.config, {RunMode::train, B, 32}).value) * 20 / 19 + 20;
        };
        for (int room : {0, 1, 59, 300}) {    // sequences that fit
            free_memory = (room ? needs(room) : needs(1) / 2) * t.ranks.info.local_ranks;
            t.o.batch = 0, t.o.seq_len = 32, t.o.total_batch = rows * 32;
            const Status s = t.choose_batch();
            if (s.ok()) t.agree_on_batch();
            int best = std::min(room, rows ? std::min(rows, 4096) : 256);
            while (rows && best && rows % best) best--;
            CAPTURE(rows);
            CAPTURE(room);
            CHECK(s.code == (room ? Exit::ok : Exit::device));
            CHECK(t.o.batch == best);
        }
    }
}

TEST_CASE("train: one directory, one run") {
    Toy toy;
    Process first(toy.started("a", {"--steps", "1000000"}));
    wait_for_training(first);
    ProcessResult second = run_flatgpt(toy.args("a", {"--steps", "4"}));
    CHECK(second.exit_code == 2);
    CHECK(contains(second.err, "another flatgpt train"));
    first.send(SIGKILL);
    first.wait();
    CHECK(run_flatgpt(toy.args("a", {"--steps", "4"})).exit_code == 0);    // lock freed by death
}

TEST_CASE("train: fine-tuning starts from a checkpoint's weights") {
    Toy toy;
    REQUIRE(run_flatgpt(toy.args("a", {"--steps", "40"})).exit_code == 0);
    std::vector<std::string> tune = {"train",
                                     "--from",
                                     toy.dir + "/a",
                                     "--data",
                                     toy.dir + "/train.bin",
                                     "--out",
                                     toy.dir + "/b",
                                     "--batch",
                                     "4",
                                     "--steps",
                                     "2",
                                     "--lr",
                                     "0",
                                     "--dtype",
                                     "fp32"};
    ProcessResult r = run_flatgpt(tune);
    INFO(r.err);
    REQUIRE(r.exit_code == 0);
    CHECK(same_file(toy.newest("a") + "/model.safetensors",
                    toy.newest("b") + "/model.safetensors"));    // lr 0 changes nothing
    CHECK(same_file(toy.newest("a") + "/tokenizer.json", toy.newest("b") + "/tokenizer.json"));
}

TEST_CASE("train: a gradient that is not finite never reaches the weights") {
    Toy toy;
    Steps t;
    t.prepare(toy);
    for (int i = 0; i < 40; i++) t.step();
    // Two micro-batches: the head, and four products in each of two blocks.
    const int calls = 2 * (1 + 2 * 4);
    for (int call = 0; call < calls; call++)
        for (float value : {NAN, INFINITY, -INFINITY}) {
            t.remember();
            backward_calls = 0, poison_call = call, poison_value = value;
            const int64_t skips = t.state.skipped;
            t.step();
            CHECK(backward_calls == calls);
            CHECK(t.skipped);
            CHECK(t.state.skipped == skips + 1);
            CHECK(t.state.bad_in_a_row == 1);
            CHECK(t.unchanged());
            poison_call = -1;
            CHECK(!std::isfinite(t.norm));
            t.step();
            CHECK(!t.skipped);
            CHECK(t.state.bad_in_a_row == 0);
            CHECK(t.state.grad_norm.score(100 * t.norm) > 6);    // the detector still works
        }
}

TEST_CASE("train: --skip-norm-z and --skip-loss-z leave out the update of an outlier, and only when asked") {
    Toy toy;
    for (bool by_loss : {false, true})
        for (bool asked : {true, false}) {
            Steps t;
            t.prepare(toy);
            for (int i = 0; i < 40; i++) t.step();
            (by_loss ? t.o.skip_loss_z : t.o.skip_norm_z) = asked ? 20 : 0;
            t.remember();
            (by_loss ? poison_loss : poison_value) = 100;
            poison_call = by_loss ? -1 : 3, backward_calls = 0;
            t.step();
            poison_loss = 0, poison_call = -1;
            CHECK((by_loss ? t.last_loss : t.norm) > 90);
            CHECK(t.skipped == asked);
            CHECK(t.unchanged() == asked);
            CHECK(t.state.skipped == asked);
            CHECK(t.state.bad_in_a_row == 0);
            t.step();
            CHECK(!t.skipped);
            CHECK(!t.unchanged());
        }
}

TEST_CASE("train: the first update moves each weight by the rate that is reported for it") {
    Toy toy;
    Steps t;
    t.o.lr = 0.02, t.o.warmup = 4, t.o.weight_decay = 0, t.o.grad_clip = 0, t.o.lr_schedule = "constant";
    t.prepare(toy);
    t.remember();
    t.step();
    t.metrics = fopen((toy.dir + "/metrics.jsonl").c_str(), "w");
    setvbuf(t.metrics, nullptr, _IONBF, 0);
    REQUIRE(t.report(t.last, 1).ok());
    const double lr = number(read_file(toy.dir + "/metrics.jsonl"), "\"lr\":");
    CHECK(lr == doctest::Approx(0.02 / 4));
    int64_t moved = 0;
    for (size_t i = 0; i < t.weights.size(); i++) {
        if (std::fabs(t.grads()[i]) < 1e-4f) continue;    // too near AdamW's eps, 1e-8
        moved++;
        const double by = (double(t.weights[i]) - double(t.params()[i])) / std::copysign(lr, double(t.grads()[i]));
        CHECK(std::fabs(by - 1) < 1e-3);
    }
    CHECK(moved > 1000);
}

TEST_CASE("train: three bad gradients in a row end the run with exit 6 and whole weights") {
    Toy toy;
    ProcessResult r = run_flatgpt(
        toy.args("a", {"--steps", "2000", "--lr", "10", "--warmup", "0", "--grad-clip", "0", "--weight-decay", "10"}));
    INFO(r.err);
    REQUIRE(r.exit_code == 6);
    auto opened = SafetensorsFile::open(toy.newest("a") + "/model.safetensors");
    REQUIRE(opened.ok());
    for (const TensorEntry& e : opened.value.entries()) {
        std::vector<float> x(size_t((e.end - e.begin) / 4));
        REQUIRE(read_tensor(opened.value, e, 0, int64_t(x.size()), x.data()).ok());
        for (float f : x) REQUIRE(std::isfinite(f));
    }
    std::vector<bool> skips;
    std::istringstream rows(toy.metrics("a"));
    for (std::string row; std::getline(rows, row);) skips.push_back(contains(row, "\"skipped\":true"));
    REQUIRE(skips.size() > 3);
    CHECK(std::vector<bool>(skips.end() - 4, skips.end()) == std::vector<bool>{false, true, true, true});
}

TEST_CASE("train: gradient accumulation equals the larger batch") {
    Toy toy;
    auto losses = [&](const char* out, const char* batch) {
        REQUIRE(run_flatgpt(toy.args(out, {"--steps", "10", "--total-batch", "256", "--batch", batch})).exit_code == 0);
        std::vector<double> all;
        std::istringstream lines(toy.metrics(out));
        for (std::string line; std::getline(lines, line);) all.push_back(number(line, "\"loss\":"));
        return all;
    };
    std::vector<double> a = losses("a", "8"), b = losses("b", "2");
    REQUIRE((a.size() == 10 && b.size() == 10));
    for (size_t i = 0; i < 10; i++) CHECK(b[i] == doctest::Approx(a[i]).epsilon(1e-5));
}

TEST_CASE("train: --dry-run tells the memory within 3 %") {
    if (ASAN) SKIP("AddressSanitizer has memory of its own");
    Toy toy;
    for (const char* dtype : {"fp32", "bf16"}) {
        check_memory(
            toy.args(dtype, {"--steps", "2", "--channels", "512", "--heads", "8", "--layers", "8", "--dtype", dtype}),
            3e8);
    }
}

TEST_CASE("train: a full disk costs a checkpoint, never an older one") {
    Toy toy;
    const std::string disk = toy.dir + "/disk";
    fs::create_directory(disk);
    if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1500k") != 0) SKIP("no tmpfs may be mounted here");
    // A checkpoint takes about 500 kB: the disk has room for two, not for all that --keep 0 keeps.
    std::vector<std::string> a = toy.args("disk/run", {"--steps", "60", "--save-every", "10", "--keep", "0"});
    ProcessResult r = run_flatgpt(a);
    INFO(r.err);
    CHECK(r.exit_code == 4);
    CHECK(contains(r.err, "no checkpoint of step"));
    auto left = checkpoint_list(disk + "/run");
    CHECK(left.size() >= 1);
    for (const std::string& dir : left) CHECK(checkpoint_verify(dir).ok());
    for (auto& entry : fs::directory_iterator(disk + "/run")) CHECK(!contains(entry.path().string(), ".tmp"));
    umount(disk.c_str());
}
