// test_sweep.cpp - sweeps: which runs they have, their table, and how they go on after signals.
#include "train/sweep.h"

#include <csignal>

#include "files/json.h"
#include "toy_run.h"

namespace {
std::string base_of(const Toy& toy) {
    return "data = \"" + toy.dir + "/train.bin\"\nout = \"" + toy.dir + "/s\"\nlayers = 2\n";
}
std::vector<std::string> names(const Result<std::vector<SweepRun>>& runs) {
    INFO(runs.status.message);
    REQUIRE(runs.ok());
    std::vector<std::string> all;
    for (const SweepRun& r : runs.value) all.push_back(r.name);
    return all;
}
// The names in the table on stdout, in its order, and the last word of each row.
std::vector<std::pair<std::string, std::string>> table(const std::string& out) {
    std::vector<std::pair<std::string, std::string>> rows;
    std::istringstream lines(out);
    std::string line;
    std::getline(lines, line);
    CHECK(line.starts_with("run "));
    while (std::getline(lines, line)) {
        const size_t end = line.find_last_not_of(' ') + 1, from = line.rfind(' ', end - 1) + 1;
        rows.push_back({line.substr(0, line.find(' ')), line.substr(from, end - from)});
    }
    return rows;
}
}    // namespace

TEST_CASE("sweep: the runs are the product of the lists, with short names") {
    Toy toy;
    const std::string base = base_of(toy);
    typedef std::vector<std::string> Names;
    CHECK(names(sweep_runs({"lr=1e-4,3e-4,1e-3"}, base)) == Names{"lr=1e-4", "lr=3e-4", "lr=1e-3"});
    CHECK(names(sweep_runs({"--total_batch=1k", "seed=1,2"}, base)) ==
          Names{"total-batch=1k_seed=1", "total-batch=1k_seed=2"});
    const auto runs = sweep_runs({"lr=1e-4,3e-4", "documents=true,false"}, base);
    CHECK(names(runs) == Names{"lr=1e-4_documents=true", "lr=1e-4_documents=false", "lr=3e-4_documents=true",
                               "lr=3e-4_documents=false"});
    CHECK(runs.value[3].arguments == Names{"--lr=3e-4", "--documents=false"});
    CHECK(names(sweep_runs({"val=runs/../a b'c.bin"}, base)) == Names{"val=runs-..-a-b-c.bin"});
    auto refused = [&](const std::vector<std::string>& lists, const std::string& says) {
        const auto r = sweep_runs(lists, base);
        INFO(r.status.message);
        CHECK(r.status.code == Exit::usage);
        CHECK(contains(r.status.message, says));
    };
    refused({"lr"}, "--set lr: expected OPTION=VALUE,VALUE,...");
    refused({"=1"}, "--set =1: expected OPTION=");
    refused({"--=1"}, "expected OPTION=");
    refused({"lr=1e-4,,1e-3"}, "found an empty one");
    refused({"lr="}, "found an empty one");
    refused({"lr=1e-4,1e-3,1e-4"}, "found '1e-4' twice");
    refused({"lr=1e-4", "--lr=1e-3"}, "there is a list for lr already");
    refused({"warmip=1"}, "unknown option --warmip; did you mean --warmup?");
    refused({"lr=1e-4,11"}, "--set lr: expected a number from -1 to 10, found '11'");
    refused({"lr-schedule=wsd,cosin"}, "found 'cosin'; did you mean cosine?");
    refused({"chat-val=x"}, "--set, chat-val=x: --chat-val needs --chat");
    refused({"out=a,b"}, "--out is the same for all runs");
    refused({"set=lr=1"}, "--set is the same for all runs");
    refused({"val=a/b,a-b"}, "val=a-b would be the directory of two runs");
    refused({"val=" + std::string(201, 'v')}, "too long a name");
    std::string many = "seed=1";
    for (int i = 2; i <= 40; i++) many += "," + std::to_string(i);
    std::string rates = "keep=1";
    for (int i = 2; i <= 40; i++) rates += "," + std::to_string(i);
    refused({many, rates}, "1600 runs or more; expected at most 1000");
}

TEST_CASE("sweep: the table is sorted by loss, a diverged run is a row of it, and runs that ended are not repeated") {
    Toy toy;
    // The rate 10 without a clip diverges (exit 6).
    std::vector<std::string> command =
        toy.args("s", {"--set", "lr=10,1e-5,3e-3", "--steps", "300", "--warmup", "0", "--grad-clip", "0",
                       "--weight-decay", "10", "--eval-every", "100"});
    command.erase(std::find(command.begin(), command.end(), "--lr"),
                  std::find(command.begin(), command.end(), "--lr") + 2);
    const ProcessResult r = must(command, 0, "run 3 of 3: " + toy.dir + "/s/lr=3e-3");
    const auto rows = table(r.out);
    REQUIRE(rows.size() == 3);
    CHECK(rows[0] == std::pair<std::string, std::string>{"lr=3e-3", "best"});
    CHECK(rows[1].first == "lr=1e-5");
    CHECK(rows[2] == std::pair<std::string, std::string>{"lr=10", "diverged"});
    // Each run is what it would be alone.
    must(toy.args("alone", {"--lr", "3e-3", "--steps", "300", "--warmup", "0", "--grad-clip", "0", "--weight-decay",
                            "10", "--eval-every", "100"}));
    CHECK(toy.metrics("alone") == toy.metrics("s/lr=3e-3"));
    const auto json = json_parse(read_file(toy.dir + "/s/sweep.json"), "sweep.json", 5);
    REQUIRE(json.ok());
    const auto& best = json.value["runs"][0];
    CHECK(best["options"]["lr"] == "3e-3");
    CHECK(best["steps"] == 300);
    CHECK(best["tokens"] == 300 * 128);
    const std::string metrics = toy.metrics("alone"), last = metrics.substr(metrics.rfind("{\"step\""));
    CHECK(best["val_loss"].get<double>() == number(last, "\"val_loss\":"));
    CHECK(json.value["runs"][2]["exit"] == 6);
    // Again: nothing runs.
    const ProcessResult again = must(command, 0, "run 1 of 3, lr=10, has ended already");
    CHECK(again.out == r.out);
    CHECK(!contains(again.err, "parameters,"));
    // A list with one value more runs that one alone; other options let all go on.
    Toy::set(command, "--set", "lr=3e-3,1e-3");
    const ProcessResult more = must(command, 0, "run 1 of 2, lr=3e-3, has ended already");
    CHECK(contains(more.err, "run 2 of 2: "));
    Toy::set(command, "--steps", "310");
    must(command, 0, "resumed from " + toy.dir + "/s/lr=3e-3/step_00000300");
    CHECK(contains(toy.newest("s/lr=3e-3"), "step_00000310"));
    // A run whose directory was removed starts again; the other has ended.
    fs::remove_all(toy.dir + "/s/lr=1e-3");
    const ProcessResult afresh = must(command, 0, "run 1 of 2, lr=3e-3, has ended already");
    CHECK(contains(afresh.err, "run 2 of 2: "));
    CHECK(contains(toy.newest("s/lr=1e-3"), "step_00000310"));
    // Its directory is no run's, and a run's is no sweep's.
    Toy::set(command, "--out", toy.dir + "/alone");
    must(command, 2, "holds a run; a sweep needs a directory of its own");
}

TEST_CASE("sweep: what only a dry run finds is refused before any run starts") {
    Toy toy;
    must(toy.args("s", {"--set", "warmup=2,9", "--steps", "5"}), 2, "--set, warmup=9 is refused:\n");
    CHECK(!fs::exists(toy.dir + "/s"));
    must(toy.args("s", {"--set", "val=" + toy.dir + "/val.bin," + toy.dir + "/none.bin", "--steps", "5"}), 3,
         "none.bin");
    CHECK(!fs::exists(toy.dir + "/s"));
    must(with(toy.args("s", {"--set", "seed=1"}), {"--dry-run"}), 2, "--set and --dry-run exclude each other");
}

TEST_CASE("sweep: a file of another program stays as it is, and so does the file of --config") {
    Toy toy;
    const std::string dir = toy.dir + "/s", json = dir + "/sweep.json", toml = dir + "/sweep.toml";
    fs::create_directory(dir);
    const std::string options = "steps = 3\n";
    write_file(toml, options);
    const std::vector<std::string> command = with(toy.args("s", {"--set", "seed=1"}), {"--config", toml});
    for (const char* other : {"mine", "{}", "[]", R"({"config":1,"runs":[]})", R"({"config":"","runs":[1]})",
                              R"({"config":"","runs":[{"name":"a"}]})"}) {
        write_file(json, other);
        must(command, 2, "sweep.json was not written by a sweep, and would be overwritten");
        CHECK(read_file(json) == other);
    }
    fs::remove(json);
    must(with(command, {"--steps", "0", "--warmup", "1.5"}), 2, "--set, seed=1 is refused:\n");
    CHECK(!fs::exists(json));
    must(command);
    CHECK(read_file(toml) == options);
    CHECK(contains(toy.newest("s/seed=1"), "step_00000003"));
    must(with(command, {"--resume", toy.newest("s/seed=1")}), 2, "each run of a sweep goes on with its own checkpoint");
    must(with(command, {"--resume", "auto"}), 0, "has ended already");
}

TEST_CASE("sweep: a recipe fills in what is not given, as in a run alone") {
    Toy toy;
    std::vector<std::string> command =
        toy.args("s", {"--recipe", "compute-optimal", "--tokens", "1280", "--set", "seed=1"});
    must(command, 0, "recipe compute-optimal");
    CHECK(contains(read_file(toy.dir + "/s/seed=1/run.toml"), "\noptimizer = \"muon\"\n"));
}

TEST_CASE("sweep: with other options no run has ended, even if the sweep is killed in the first one") {
    Toy toy;
    std::vector<std::string> command = toy.args("s", {"--set", "seed=1,2", "--steps", "3"});
    must(command);
    const std::vector<std::string> more = {"--set", "seed=1,2", "--steps", "100000", "--save-minutes", "0"};
    Process p(toy.started("s", more));
    auto rows = [&] {
        const std::string text = read_file(toy.dir + "/s/seed=1/metrics.jsonl");
        return std::count(text.begin(), text.end(), '\n');
    };
    for (int i = 0; i < 60000 && p.running() && rows() < 5; i++) usleep(1000);
    p.send(SIGKILL);
    p.wait();
    const auto json = json_parse(read_file(toy.dir + "/s/sweep.json"), "sweep.json", 5);
    REQUIRE(json.ok());
    CHECK(contains(json.value["config"].get<std::string>(), "steps = 100000\n"));
    for (const auto& run : json.value["runs"]) CHECK(run["exit"] == -1);
}

TEST_CASE("sweep: exit codes are known where the launcher ignores SIGCHLD") {
    Toy toy;
    std::vector<std::string> program = {"sh", "-c", "trap '' CHLD; exec \"$@\"", "sh"};
    for (const std::string& word : toy.started("s", {"--set", "seed=1", "--steps", "3", "--out", "/dev/null/x"}))
        program.push_back(word);
    CHECK(run_process(program).exit_code == 4);
    Toy::set(program, "--out", toy.dir + "/s");
    Toy::set(program, "--warmup", "9");
    const ProcessResult r = run_process(program);
    INFO(r.err);
    CHECK(r.exit_code == 2);    // the dry run's
}

TEST_CASE("sweep: a run that is killed is a row, and the others run all the same") {
    Toy toy;
    std::vector<std::string> command = toy.args("s", {"--set", "seed=1,2", "--steps", "100000", "--save-minutes", "0"});
    std::vector<std::string> program = command;
    program.insert(program.begin(), flatgpt_binary());
    Process p(program);
    // Both are killed in turn; a run's lock names its process.
    for (const char* run : {"/s/seed=1", "/s/seed=2"}) {
        std::string lock;
        for (int i = 0; i < 60000 && p.running() && !contains(lock, "\n"); i++, usleep(1000))
            lock = read_file(toy.dir + run + "/lock");
        REQUIRE(contains(lock, ", pid "));
        kill(int(number(lock, ", pid ")), SIGKILL);
    }
    const ProcessResult r = p.wait();
    INFO(r.err);
    CHECK(r.exit_code == 1);
    CHECK(contains(r.out, "failed: exit 137"));
    CHECK(table(r.out).size() == 2);
    CHECK(contains(r.err, "seed=1 failed with exit code 137; the same command starts it again"));
}

TEST_CASE(
    "sweep: a signal stops the run with a checkpoint; the same command goes on to the same bits, also after kill -9") {
    Toy toy;
    const std::vector<std::string> more = {"--set", "seed=1,2", "--steps", "400"};
    must(toy.args("whole", more));
    int stopped = 0;
    for (int number : {SIGTERM, SIGINT, SIGKILL}) {
        const std::string out = "s" + std::to_string(number);
        std::vector<std::string> command = toy.args(out, more);
        Process p(toy.started(out, more));
        const std::string second = toy.dir + "/" + out + "/seed=2";
        auto rows = [&] {
            const std::string text = read_file(second + "/metrics.jsonl");
            return std::count(text.begin(), text.end(), '\n');
        };
        for (int i = 0; i < 60000 && p.running() && rows() < 30; i++) usleep(1000);
        p.send(number);
        const ProcessResult r = p.wait();
        INFO(r.err);
        stopped += r.exit_code == 128 + number || r.signal == SIGKILL;
        if (r.exit_code == 128 + number) CHECK(contains(r.err, "the same command goes on with it"));
        // The run of a killed sweep stops by itself; until then it holds its lock.
        ProcessResult again;
        for (int i = 0; i < 200; i++) {
            again = run_flatgpt(command);
            if (!contains(again.err, "another flatgpt train is using")) break;
            usleep(50000);
        }
        INFO(again.err);
        CHECK(again.exit_code == 0);
        CHECK(contains(again.err, "run 1 of 2, seed=1, has ended already"));
        CHECK(contains(again.err,
                       r.exit_code || r.signal ? "resumed from " + second : "run 2 of 2, seed=2, has ended already"));
        for (const char* run : {"/seed=1", "/seed=2"}) {
            CHECK(toy.metrics(out + run) == toy.metrics(std::string("whole") + run));
            CHECK(same_file(toy.newest(out + run) + "/model.safetensors",
                            toy.newest(std::string("whole") + run) + "/model.safetensors"));
        }
    }
    CHECK(stopped > 0);
}
