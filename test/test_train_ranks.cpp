// test_train_ranks.cpp - `flatgpt train` as several ranks under mpirun, on the CPU.
#include "sanitizers.h"
#include "base/philox.h"
#include "tensors.h"
#include "toy_ranks.h"

#include <sys/stat.h>
#include <thread>

TEST_CASE("train ranks: 2 and 4 are one process with the same global batch; ZeRO is plain to the bit") {
    NEED_MPIRUN();
    RanksToy toy;
    ProcessResult r = toy.run(1, "one");
    INFO(r.err);
    REQUIRE(r.exit_code == 0);
    for (int ranks : {2, 4})
        for (const char* zero : {"0", "1", "2"}) {
            const std::string out = std::to_string(ranks) + "_" + zero, plain = std::to_string(ranks) + "_0";
            r = toy.run(ranks, out, {"--zero", zero});
            INFO(out << "\n" << r.err);
            REQUIRE(r.exit_code == 0);
            CHECK(contains(r.err, std::to_string(ranks) + " ranks by Open MPI and MPI"));
            toy.same_losses(out, "one", 1e-5);
            if (zero[0] == '0') continue;
            // 16 sequences: with 2 ranks ZeRO-2 reduces two batches one by one, to other bits.
            if (zero[0] == '1' || ranks == 4) {
                CHECK(toy.metrics(out) == toy.metrics(plain));
                same_checkpoint(toy, out, plain);
            }
        }
    // One process evaluates the checkpoint of 4 ranks like any other.
    r = run_flatgpt({"eval", toy.dir + "/4_1", "--data", toy.dir + "/val.bin", "--eval-tokens", "1100", "--batch", "3",
                     "--dtype", "fp32", "--json"});
    INFO(r.err);
    REQUIRE(r.exit_code == 0);
    CHECK(number(r.out, "{\"loss\":") == doctest::Approx(toy.losses("4_1", "\"val_loss\":").back()).epsilon(1e-6));
    CHECK(run_flatgpt({"info", toy.newest("4_1")}).exit_code == 0);
}

TEST_CASE("train ranks: with dropout, too, 2 and 4 are one process with the same global batch") {
    NEED_MPIRUN();
    RanksToy toy;
    for (int ranks : {1, 2, 4}) {
        const ProcessResult r = toy.run(ranks, std::to_string(ranks), {"--dropout", "0.2"});
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
        toy.same_losses(std::to_string(ranks), "1", 1e-5);
    }
}

TEST_CASE("train ranks: rank 0's clock decides when all of them save") {
    NEED_MPIRUN();
    RanksToy toy;
    const ProcessResult r = toy.run(2, "a", {"--save-minutes", "1e-9", "--save-every", "0", "--keep", "0"});
    INFO(r.err);
    REQUIRE(r.exit_code == 0);
    CHECK(checkpoint_list(toy.dir + "/a").size() == 8);
    for (const std::string& dir : checkpoint_list(toy.dir + "/a")) CHECK(checkpoint_verify(dir).ok());
}

// Each rank's thread writes its tensors. The ranks then meet after one of the next steps, so that
// the checkpoint has its name long before the next one begins, behind the last step.
TEST_CASE("train ranks: checkpoints that threads write are whole before the next one begins") {
    NEED_MPIRUN();
    RanksToy toy;
    const ProcessResult r = toy.run(2, "a", {"--steps", "200", "--save-every", "100", "--keep", "0"});
    INFO(r.err);
    REQUIRE(r.exit_code == 0);
    const std::string rows = read_file(toy.dir + "/a/metrics.jsonl"), key = "\"time\":";
    const double last = std::stod(rows.substr(rows.rfind(key) + key.size()));
    struct stat manifest;
    REQUIRE(stat((toy.dir + "/a/step_00000100/MANIFEST").c_str(), &manifest) == 0);
    CHECK(double(manifest.st_mtim.tv_sec) + 1e-9 * double(manifest.st_mtim.tv_nsec) < last);
}

TEST_CASE("train ranks: bf16 parameters, with masters and without; ZeRO is plain to the bit") {
    NEED_MPIRUN();
    RanksToy toy;
    for (const std::string more : {"", "--stochastic-rounding"})
        for (const std::string zero : {"0", "1", "2"}) {
            std::vector<std::string> program =
                toy.program(zero + more, {"--dtype", "bf16", "--zero", zero, "--batch", "8"});
            if (!more.empty()) program.push_back(more);
            const ProcessResult r = run_process(mpirun(2, program), mpirun_options(120));
            INFO(r.err);
            REQUIRE(r.exit_code == 0);
            toy.same_losses(zero + more, "0", more.empty() ? 1e-6 : 2e-2);
            if (more.empty()) same_checkpoint(toy, zero, "0");
        }
}

TEST_CASE("train ranks: gradients that travel as bf16") {
    NEED_MPIRUN();
    RanksToy toy;
    for (const char* zero : {"0", "2"}) {
        const std::string out = std::string("bf16_") + zero;
        ProcessResult r = toy.run(2, out, {"--reduce-dtype", "bf16", "--zero", zero});
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
        r = toy.run(2, std::string("fp32_") + zero, {"--zero", zero});
        REQUIRE(r.exit_code == 0);
        toy.same_losses(out, std::string("fp32_") + zero, 2e-2);
        CHECK(toy.metrics(out) != toy.metrics(std::string("fp32_") + zero));
    }
}

TEST_CASE("train ranks: resumed at other world sizes 1, 2, 4, 1; bit-equal at the same one") {
    NEED_MPIRUN();
    RanksToy toy;
    ProcessResult r = toy.run(1, "whole", {"--steps", "16"});
    REQUIRE(r.exit_code == 0);
    const struct {
        const char *steps, *zero;
        int ranks;
    } parts[] = {{"4", "0", 1}, {"8", "2", 2}, {"12", "1", 4}, {"16", "0", 1}};
    for (auto& part : parts) {
        // --steps also sets the schedule: a run is cut short by removing its later checkpoints.
        r = toy.run(part.ranks, "parts", {"--steps", "16", "--zero", part.zero, "--resume", "auto", "--keep", "0"});
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
        for (const std::string& dir : checkpoint_list(toy.dir + "/parts"))
            if (std::stoi(dir.substr(dir.size() - 8)) > std::stoi(part.steps)) fs::remove_all(dir);
    }
    toy.same_losses("parts", "whole", 1e-5);

    // Without --total-batch, too, a resumed run keeps the size of step that it began with.
    const std::vector<std::string> own = {"--total-batch", "0"};
    for (const char* out : {"own4", "own1"}) {
        r = toy.run(4, out, own);
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
    }
    fs::remove_all(toy.newest("own1"));
    r = run_flatgpt({"train", "--config", toy.dir + "/own1/run.toml", "--resume", "auto"});
    INFO(r.err);
    REQUIRE(r.exit_code == 0);
    toy.same_losses("own1", "own4", 1e-5);

    for (const char* zero : {"0", "2"}) {
        const std::string whole = std::string("w") + zero, cut = std::string("c") + zero;
        for (const std::string& out : {whole, cut}) {
            r = toy.run(2, out, {"--zero", zero});
            REQUIRE(r.exit_code == 0);
        }
        fs::remove_all(toy.newest(cut));
        r = toy.run(2, cut, {"--zero", zero, "--resume", "auto"});
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
        CHECK(contains(r.err, "after step 4"));
        CHECK(toy.metrics(cut) == toy.metrics(whole));
        same_checkpoint(toy, cut, whole);
    }
}

namespace {
// Long enough to kill a rank in training. A sanitized run takes six times as long: fewer steps.
std::vector<std::string> long_run(const char* cp) {
    return {"--cp", cp, "--steps", ASAN || TSAN ? "200" : "1000", "--save-every", "100"};
}
// Limit in seconds for a run without kills, just below FLATGPT_TEST_LIMIT.
constexpr double WHOLE_RUN = 280;

std::vector<std::string> going_on(const char* cp, std::vector<std::string> more) {
    const std::vector<std::string> run = long_run(cp);
    more.insert(more.begin(), run.begin(), run.end());
    more.insert(more.end(), {"--resume", "auto"});
    return more;
}
// Runs `out` once for each i in [first, end) and kills or stops one of its two ranks; each run
// resumes the last. Returns how often the survivors named the rank. Called from several threads.
int kill_ranks(const RanksToy& toy, const char* cp, const std::string& out, int first, int end) {
    const std::string dir = toy.dir + "/notes_" + out;
    fs::create_directory(dir);
    int named = 0;
    for (int i = first; i < end; i++) {
        const int rank = i % 2, sent = i / 2 % 2 ? SIGSTOP : SIGKILL;
        forget_notes(dir);
        Killer killer{dir};
        Process p(mpirun(2, noted(dir, toy.program(out, going_on(cp, {"--timeout", "2"})))), mpirun_options(60));
        for (int k = 0; k < 4000 && p.running() && numbers(dir + "/pids").size() < 2; k++) usleep(1000);
        if (i % 8 < 6) wait_for_training(p);    // else killed anywhere in the set-up
        usleep(useconds_t(philox_uniform(philox(11, 1, uint64_t(i)).v[0]) * 300e3));
        const int pid = numbers(dir + "/pids")[rank];
        CHECK(pid > 0);
        if (pid > 0) kill(pid, sent);
        for (int k = 0; k < 8000 && p.running() && numbers(dir + "/codes").count(1 - rank) == 0; k++) usleep(1000);
        if (pid > 0 && sent == SIGSTOP) kill(pid, SIGKILL);
        for (auto [who, rank_pid] : numbers(dir + "/pids")) {
            for (int k = 0; k < 8000 && !gone(rank_pid); k++) usleep(1000);
            CHECK(gone(rank_pid));
        }
        for (int k = 0; k < 10000 && p.running(); k++) usleep(1000);
        p.send(SIGKILL);    // mpirun may hang after an early death
        const ProcessResult ended = p.wait();
        INFO("run " << i << ", rank " << rank << ", signal " << sent << "\n" << ended.err);
        std::map<int, int> codes = numbers(dir + "/codes");
        if (codes.count(1 - rank) && codes[1 - rank] == 0) {    // finished: start over
            fs::remove_all(toy.dir + "/" + out);
        } else if (contains(ended.err, " parameters, ")) {
            CHECK(codes[1 - rank] == 7);
            CHECK(contains(ended.err, "rank " + std::to_string(rank)));
            named++;
        } else {    // before rendezvous: ended by MPI's launcher
            CHECK(ended.exit_code != 0);
        }
    }
    return named;
}
}    // namespace

TEST_CASE("train ranks: killed or stopped at random moments a rank is named, the others exit 7; then the same bits") {
    NEED_MPIRUN();
    RanksToy toy;
    // Four runs with data parallel ranks, and four with ranks that share sequences (--cp 2), send
    // each rank each signal.
    const int runs = test_long() ? 40 : 8;
    const char* const cps[] = {"1", "2"};
    const std::string outs[] = {"killed_1", "killed_2"}, wholes[] = {"whole_1", "whole_2"};
    int named[2] = {};
    // Killed runs mostly wait, so two series and the uninterrupted runs go side by side.
    auto start = [&](const std::string& out, const std::vector<std::string>& args) {
        return std::make_unique<Process>(mpirun(2, toy.program(out, args)), mpirun_options(WHOLE_RUN));
    };
    std::unique_ptr<Process> whole[2];
    std::vector<std::thread> halves;
    for (int h = 0; h < 2; h++) {
        whole[h] = start(wholes[h], long_run(cps[h]));
        halves.emplace_back([&, h] { named[h] = kill_ranks(toy, cps[h], outs[h], h * runs / 2, (h + 1) * runs / 2); });
    }
    for (std::thread& half : halves) half.join();
    CHECK(named[0] + named[1] >= runs / 2);
    for (auto& run : whole) {
        const ProcessResult never = run->wait();
        INFO(never.err);
        REQUIRE(never.exit_code == 0);
    }
    for (int h = 0; h < 2; h++) whole[h] = start(outs[h], going_on(cps[h], {}));
    for (int h = 0; h < 2; h++) {
        const ProcessResult r = whole[h]->wait();
        INFO(r.err);
        REQUIRE(r.exit_code == 0);
        CHECK(toy.metrics(outs[h]) == toy.metrics(wholes[h]));
        same_checkpoint(toy, outs[h], wholes[h]);
    }
}

TEST_CASE("train ranks: a rank that is stopped before it has met the others is named") {
    NEED_MPIRUN();
    RanksToy toy;
    const std::string dir = toy.dir + "/notes";
    fs::create_directory(dir);
    Killer killer{dir};
    std::vector<std::string> program = toy.program("x", {"--timeout", "2"});
    program.insert(program.begin(), {"sh", "-c", "[ $OMPI_COMM_WORLD_RANK = 0 ] || kill -STOP $$; exec \"$@\"", "sh"});
    Process p(mpirun(2, noted(dir, program)), mpirun_options(60));
    for (int k = 0; k < 30000 && p.running() && !contains(p.err(), "together within"); k++) usleep(1000);
    CHECK(contains(p.err(),
                   "rank 0: MPI has not brought all 2 ranks together within 2 s (--timeout): stopped by a "
                   "signal: rank 1 (pid " +
                       std::to_string(numbers(dir + "/pids")[1]) + ")"));
    p.send(SIGKILL);
}

TEST_CASE("train ranks: a signal to one saves on all") {
    NEED_MPIRUN();
    RanksToy toy;
    ProcessResult r = toy.run(2, "whole", {"--steps", "40"});
    REQUIRE(r.exit_code == 0);
    const std::string dir = toy.dir + "/notes";
    fs::create_directory(dir);
    for (int rank : {0, 1}) {
        forget_notes(dir);
        const std::string out = "signal" + std::to_string(rank);
        Process p(mpirun(2, noted(dir, toy.program(out, {"--steps", "100000", "--lr-schedule", "constant"}))),
                  mpirun_options(60));
        wait_for_training(p);
        usleep(100000);
        kill(numbers(dir + "/pids")[rank], SIGINT);
        // A background process of a shell starts with SIGINT ignored, hence SIGTERM as well.
        kill(numbers(dir + "/pids")[rank], SIGTERM);
        r = p.wait();
        INFO(r.err);
        const std::map<int, int> codes = numbers(dir + "/codes");
        REQUIRE(codes.size() == 2);
        for (auto [who, code] : codes) CHECK((code == 130 || code == 143));
        CHECK(contains(r.err, "stopped by a signal of rank " + std::to_string(rank)));
        CHECK(!toy.newest(out).empty());
        CHECK(checkpoint_verify(toy.newest(out)).ok());
    }
}

TEST_CASE("train ranks: who differs in configuration, binary, data or weights is named; all exit 7") {
    NEED_MPIRUN();
    RanksToy toy;
    const std::string dir = toy.dir + "/notes", other = toy.dir + "/flatgpt";
    fs::create_directory(dir);
    fs::copy_file(fs::canonical(flatgpt_binary()), other);
    std::ofstream(other, std::ios::app) << "x";
    for (const char* place : {"/a", "/b"}) fs::create_directory(toy.dir + place);
    fs::copy_file(toy.dir + "/train.bin", toy.dir + "/a/train.bin");
    fs::copy_file(toy.dir + "/val.bin", toy.dir + "/b/train.bin");
    for (const char* place : {"a", "b"}) {
        ProcessResult r =
            toy.run(1, std::string("from_") + place, {"--steps", "1", "--seed", place[0] == 'a' ? "1" : "2"});
        REQUIRE(r.exit_code == 0);
        fs::rename(toy.newest(std::string("from_") + place), toy.dir + "/" + place + "/start");
    }
    auto both = [&](std::vector<std::string> first, std::vector<std::string> second) {
        forget_notes(dir);
        std::vector<std::string> all = mpirun(1, noted(dir, first));
        all.insert(all.end(), {":", "-n", "1"});
        second = noted(dir, second);
        all.insert(all.end(), second.begin(), second.end());
        ProcessResult r = run_process(all, mpirun_options());
        for (auto [rank, code] : numbers(dir + "/codes")) CHECK(code == 7);
        CHECK(numbers(dir + "/codes").size() == 2);
        CHECK(contains(r.err, "rank 1"));
        return r.err;
    };
    CHECK(contains(both(toy.program("x"), toy.program("x", {"--lr", "2e-3"})), "lr = 0.002"));
    std::vector<std::string> changed = toy.program("x");
    changed[0] = other;
    CHECK(contains(both(toy.program("x"), changed), "binary"));
    auto in = [&](const char* place, const char* flag, const char* value) {
        std::vector<std::string> p = toy.program("x", {flag, value});
        p.insert(p.begin(), {"env", "-C", toy.dir + "/" + place});
        p[3] = fs::absolute(flatgpt_binary());
        return p;
    };
    CHECK(contains(both(in("a", "--data", "train.bin"), in("b", "--data", "train.bin")), "data"));
    CHECK(contains(both(in("a", "--from", "start"), in("b", "--from", "start")), "weights"));
    CHECK(!fs::exists(toy.dir + "/x/step_00000004"));
    // An error of one rank alone is reported to the others.
    const std::string text = both(toy.program("x"), toy.program("x", {"--data", toy.dir + "/none.bin"}));
    CHECK(contains(text, "data"));
}

TEST_CASE("train ranks: a rank that fails alone in a step ends with its own exit code, the other with 7") {
    NEED_MPIRUN();
    RanksToy toy;
    const std::string dir = toy.dir + "/notes";
    fs::create_directory(dir);
    for (const char* place : {"/0", "/1"}) {
        fs::create_directory(toy.dir + place);
        fs::copy_file(toy.dir + "/train.bin", toy.dir + place + "/train.bin");
    }
    std::fstream shard(toy.dir + "/1/train.bin", std::ios::in | std::ios::out | std::ios::binary);
    for (int token = 2000; token < 20000; token += 400) shard.seekp(1024 + 2 * token).write("\xff\xff", 2);
    shard.close();
    for (const char* zero : {"0", "1", "2"}) {
        forget_notes(dir);
        Killer killer{dir};
        ProcessResult r = toy.run_apart(
            "alone", {"--data", "train.bin", "--zero", zero, "--batch", "2", "--steps", "100", "--channels", "128"});
        INFO(r.err);
        CHECK(!r.timed_out);
        // mpirun may end before a rank that it has lost.
        for (int k = 0; k < 3000 && numbers(dir + "/codes").size() < 2; k++) usleep(1000);
        CHECK(numbers(dir + "/codes") == std::map<int, int>{{0, 7}, {1, 3}});
        CHECK(contains(r.err, "rank 0: rank 1"));
        CHECK(contains(r.err, "expected less than 257, the vocabulary"));
    }
}

TEST_CASE("train ranks: --out must be the same directory on all machines") {
    NEED_MPIRUN();
    RanksToy toy;
    for (const char* place : {"/notes", "/0", "/1"}) fs::create_directory(toy.dir + place);
    ProcessResult r = toy.run_apart("x", {"--out", "own"});
    INFO(r.err);
    CHECK(numbers(toy.dir + "/notes/codes") == std::map<int, int>{{0, 7}, {1, 4}});
    CHECK(contains(r.err, "--out own is another directory here than on rank 0"));
}

TEST_CASE("train ranks: a full disk on one rank is a warning that names it, and no checkpoint") {
    NEED_MPIRUN();
    RanksToy toy;
    const std::string dir = toy.dir + "/notes";
    fs::create_directory(dir);
    std::vector<std::string> all = mpirun(1, noted(dir, toy.program("full"))), second = toy.program("full");
    // ulimit -f 64 is 32 KiB: too little for the second rank's part of the checkpoint.
    second.insert(second.begin(), {"sh", "-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\"", "sh"});
    second = noted(dir, second);
    all.insert(all.end(), {":", "-n", "1"});
    all.insert(all.end(), second.begin(), second.end());
    ProcessResult r = run_process(all, mpirun_options());
    INFO(r.err);
    CHECK(numbers(dir + "/codes")[0] == 7);
    CHECK(numbers(dir + "/codes")[1] == 4);
    CHECK(contains(r.err, "warning: no checkpoint of step 4"));
    CHECK(contains(r.err, "rank 1"));
    CHECK(toy.newest("full").empty());
    CHECK(toy.losses("full").size() == 8);    // all steps done
}

TEST_CASE("train ranks: a rank whose memory breaks is named: its NaN, or at the next checkpoint one flipped bit") {
    NEED_MPIRUN();
    RanksToy toy;
    const std::string dir = toy.dir + "/notes";
    fs::create_directory(dir);
    // With rate 0 the saved weights are those that any run of this seed begins with.
    ProcessResult r = toy.run(1, "start", {"--steps", "1", "--lr", "0"});
    REQUIRE(r.exit_code == 0);
    Result<SafetensorsFile> file = SafetensorsFile::open(toy.newest("start") + "/model.safetensors");
    REQUIRE(file.ok());
    float row[32];
    for (const TensorEntry& e : file.value.entries())
        if (e.name == "transformer.wte.weight") REQUIRE(read_tensor(file.value, e, 0, 32, row).ok());
    const std::string bytes(reinterpret_cast<const char*>(row), sizeof row);
    for (bool nan : {true, false}) {
        forget_notes(dir);
        Killer killer{dir};
        const std::string out = nan ? "nan" : "bit";
        std::vector<std::string> more = {"--steps",       "1000000",  "--lr",         "0",
                                         "--lr-schedule", "constant", "--save-every", nan ? "0" : "500"};
        Process p(mpirun(2, noted(dir, toy.program(out, more))), mpirun_options(60));
        wait_for_training(p);
        std::string broken = bytes;
        if (nan) memset(broken.data(), 0xff, broken.size());
        else broken[0] ^= 1;
        const int found = poke(numbers(dir + "/pids")[1], bytes, broken);
        if (found == 0) {
            p.send(SIGKILL);
            SKIP("the memory of another process cannot be written here");
        }
        r = p.wait();
        INFO(r.err);
        std::map<int, int> codes = numbers(dir + "/codes");
        CHECK(codes[0] == 7);
        CHECK(codes[1] == (nan ? 6 : 7));
        CHECK(contains(r.err, nan ? "the loss of rank 1" : "the ranks differ: rank 1"));
        if (nan) {
            // None is saved, because the ranks' weights differ.
            CHECK(checkpoint_verify(toy.newest(out)).code != Exit::ok);
        }
    }
}

TEST_CASE("train ranks: by variables alone, one of two that waits in vain, and one of one") {
    Toy toy;
    ProcessOptions o;
    o.environment = {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1", "LOCAL_RANK=0"};
    std::vector<std::string> args = toy.args("x", {"--steps", "2", "--timeout", "1"});
    ProcessResult r = run_flatgpt(args, o);
    CHECK(r.exit_code == 7);
    CHECK(contains(r.err, "127.0.0.1"));
    o.environment[0] = "RANK=0", o.environment[1] = "WORLD_SIZE=1";    // one rank waits for nobody
    r = run_flatgpt(args, o);
    INFO(r.err);
    CHECK(r.exit_code == 0);
    CHECK(contains(r.err, ", 1 rank by torchrun, cpu "));
    // By flags. run.toml does not hold a rank's identity.
    r = run_flatgpt(toy.args("y", {"--steps", "2", "--rank", "0", "--ranks", "1", "--master", "127.0.0.1:1"}));
    REQUIRE(r.exit_code == 0);
    const std::string toml = read_file(toy.dir + "/y/run.toml");
    for (const char* key : {"rank", "ranks", "local-rank", "master"})
        CHECK_FALSE(contains(toml, "\n" + std::string(key) + " = "));
}
