// test_sweep_ranks.cpp - sweeps whose runs several ranks share: as processes with torchrun's
// variables, and under mpirun.
#include <csignal>

#include "base/console.h"
#include "files/json.h"
#include "mpirun.h"
#include "rank_job.h"
#include "toy_run.h"

namespace {
const std::vector<std::string> RUNS = {"/seed=1", "/seed=2", "/seed=3", "/seed=4"};
const std::vector<std::string> MORE = {"--set", "seed=1,2,3,4", "--steps", "400"};

struct SweepToy : Toy {
    explicit SweepToy(std::vector<std::string> more = MORE) {
        const ProcessResult r = must(args("whole", more));
        whole = lines(r.out);
        REQUIRE(whole.size() == 5);
        const size_t end = r.err.find(" thread");
        REQUIRE(end != std::string::npos);
        threads = atoi(&r.err[r.err.rfind(' ', end - 1)]);
    }
    std::vector<std::string> whole;    // the table of one process
    int threads;                       // the threads of each of its runs

    // The table's lines without minutes, which differ.
    static std::vector<std::string> lines(const std::string& out) {
        std::vector<std::string> all;
        std::istringstream text(out);
        for (std::string line, word; std::getline(text, line);) {
            std::istringstream words(line);
            for (all.push_back(""); words >> word;)
                if (word.size() < 3 || word[word.size() - 2] != '.') all.back() += word + " ";
        }
        return all;
    }
    std::string json(const std::string& out) const {
        auto file = json_parse(read_file(dir + "/" + out + "/sweep.json"), "sweep.json", 6);
        REQUIRE(file.ok());
        for (auto& run : file.value["runs"]) run.erase("seconds");
        return file.value["runs"].dump();
    }
    int64_t rows(const std::string& run) const {
        const std::string text = read_file(dir + "/" + run + "/metrics.jsonl");
        return std::count(text.begin(), text.end(), '\n');
    }
    void is_whole(const std::string& out) const {
        CHECK(json(out) == json("whole"));
        for (const std::string& run : RUNS) {
            CHECK(metrics(out + run) == metrics("whole" + run));
            CHECK(same_file(newest(out + run) + "/model.safetensors", newest("whole" + run) + "/model.safetensors"));
        }
    }
};

struct Two {
    std::unique_ptr<Process> rank[2];
    Two(const std::vector<std::string>& first, const std::vector<std::string>& second) {
        const std::string port = "MASTER_PORT=" + std::to_string(free_port());
        for (int r = 0; r < 2; r++) {
            ProcessOptions o;
            const std::string number = std::to_string(r);
            o.environment = {"RANK=" + number,     "WORLD_SIZE=2", "LOCAL_RANK=" + number,
                             "LOCAL_WORLD_SIZE=2", port,           "MASTER_ADDR=127.0.0.1"};
            rank[r] = std::make_unique<Process>(r ? second : first, o);
        }
    }
    // Waits until both ranks have a run of at least 30 steps.
    void wait(const SweepToy& toy, const std::string& out) {
        auto busy = [&] { return std::ranges::count_if(RUNS, [&](auto& run) { return toy.rows(out + run) >= 30; }); };
        for (int i = 0; i < 20000 && rank[0]->running() && rank[1]->running() && busy() < 2; i++) usleep(1000);
        REQUIRE(busy() >= 2);
    }
    ProcessResult expect(int r, int code) {
        ProcessResult result = rank[r]->wait();
        INFO("rank " << r << ": " << result.err);
        CHECK(result.signal == 0);
        CHECK(result.exit_code == code);
        if (r > 0) CHECK(result.out + result.err == "");    // rank 0 alone prints
        return result;
    }
};
}    // namespace

TEST_CASE("sweep ranks: two share the runs, and the table is that of one process to the bit") {
    SweepToy toy;
    Two two(toy.started("s", MORE), toy.started("s", MORE));
    two.wait(toy, "s");    // at once
    // Another sweep is refused as long as one of the ranks is there.
    must(toy.args("s", MORE), 2, "another sweep is using this directory");
    const ProcessResult r = two.expect(0, 0);
    two.expect(1, 0);
    CHECK(SweepToy::lines(r.out) == toy.whole);
    CHECK(contains(r.err, "2 ranks share 4 runs"));
    CHECK(contains(r.err, "; 0 runs left"));
    CHECK(!contains(r.err, "parameters,"));
    toy.is_whole("s");
    for (const std::string& run : RUNS) {
        const std::string log = read_file(toy.dir + "/s" + run + ".log");
        CHECK(contains(log, "400/400"));
        CHECK(contains(log, counted(std::max(1, toy.threads / 2), "thread")));
        CHECK(!contains(read_file(toy.dir + "/s" + run + "/run.toml"), "\nrank"));
    }
    must(toy.args("s", MORE), 0, "run 4 of 4, seed=4, has ended already");
}

TEST_CASE("sweep ranks: the run of a rank that is killed is continued by the other, and by the same command") {
    SweepToy toy;
    int all = 0;
    for (int killed : {1, 0}) {
        const std::string out = "killed" + std::to_string(killed);
        Two two(toy.started(out, MORE), toy.started(out, MORE));
        two.wait(toy, out);
        two.rank[killed]->send(SIGKILL);
        CHECK(two.rank[killed]->wait().signal == SIGKILL);
        const ProcessResult r = two.expect(1 - killed, 0);
        if (killed == 1) CHECK(SweepToy::lines(r.out) == toy.whole);
        const ProcessResult again = must(toy.args(out, MORE), 0, "run 4 of 4, seed=4, has ended already");
        CHECK(!contains(again.err, "parameters,"));
        CHECK(SweepToy::lines(again.out) == toy.whole);
        toy.is_whole(out);
        int resumed = 0;
        for (const std::string& run : RUNS)
            resumed += contains(read_file(toy.dir + "/" + out + run + ".log"), "resumed from");
        CHECK(resumed <= 1);
        all += resumed;
    }
    CHECK(all > 0);
}

TEST_CASE("sweep ranks: a signal stops all runs with checkpoints, and the same command goes on to the same bits") {
    SweepToy toy;
    for (int number : {SIGTERM, SIGINT}) {
        const std::string out = "s" + std::to_string(number);
        {
            Two two(toy.started(out, MORE), toy.started(out, MORE));
            two.wait(toy, out);
            for (auto& rank : two.rank) rank->send(number);
            CHECK(contains(two.expect(0, 128 + number).err, "stopped by a signal; the same command goes on with it"));
            two.expect(1, 128 + number);
        }
        int stopped = 0;
        for (const std::string& run : RUNS) {
            const int64_t rows = toy.rows(out + run);
            stopped += rows > 0 && rows < 400;
            CHECK((rows > 0) == !toy.newest(out + run).empty());
        }
        CHECK(stopped > 0);
        Two two(toy.started(out, MORE), toy.started(out, MORE));
        CHECK(SweepToy::lines(two.expect(0, 0).out) == toy.whole);
        two.expect(1, 0);
        toy.is_whole(out);
    }
}

TEST_CASE("sweep ranks: a wrong combination is reported once, and nothing is written") {
    Toy toy;
    auto refused = [&](const std::vector<std::string>& a, const std::vector<std::string>& b, int code, int other,
                       const std::string& says) {
        Two two(a, b);
        const ProcessResult r = two.expect(0, code);
        INFO(r.err);
        CHECK(contains(r.err, says));
        two.expect(1, other);
        CHECK(!fs::exists(toy.dir + "/s"));
    };
    std::vector<std::string> wrong = toy.started("s", {"--set", "warmup=2,9", "--steps", "5"});
    refused(wrong, wrong, 2, 0, "--set, warmup=9 is refused:\n");
    wrong = toy.started("s", {"--set", "seed=1,x"});
    refused(wrong, wrong, 2, 2, "--set seed: expected a whole number");
    refused(toy.started("s", MORE), toy.started("s", {"--set", "seed=1,2,3,4", "--steps", "401"}), 7, 2,
            "--set: other options than on rank 0");
    Two apart(toy.started("s", MORE), toy.started("other", MORE));
    CHECK(contains(apart.expect(0, 7).err, "other options"));
}

TEST_CASE("sweep ranks: every run saves before it ends even if mpirun kills the ranks at once") {
    NEED_MPIRUN();
    const std::vector<std::string> slow = {"--set", "seed=1,2,3,4", "--total-batch", "16384", "--steps", "8"};
    SweepToy toy(slow);
    const std::vector<std::string> program = mpirun(2, toy.started("s", slow));
    {
        Process p(program, mpirun_options(60, {"OMPI_MCA_odls_base_sigkill_timeout=0"}));
        auto busy = [&] { return std::ranges::count_if(RUNS, [&](auto& run) { return toy.rows("s" + run) >= 2; }); };
        for (int i = 0; i < 20000 && p.running() && busy() < 2; i++) usleep(1000);
        p.send(SIGTERM);
        const ProcessResult r = p.wait();
        INFO(r.err);
        CHECK(r.exit_code != 0);
    }
    // The new ranks wait for the end of the runs that still save.
    const ProcessResult r = run_process(program, mpirun_options());
    INFO(r.err);
    CHECK(r.exit_code == 0);
    CHECK(SweepToy::lines(r.out) == toy.whole);
    toy.is_whole("s");
    int resumed = 0;
    for (const std::string& run : RUNS) resumed += contains(read_file(toy.dir + "/s" + run + ".log"), "resumed from");
    CHECK(resumed > 0);
}
