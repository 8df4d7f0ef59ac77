// test_runs.cpp - `flatgpt runs`, the state of runs, norms of tensors, several prompts for samples.
#include "files/json.h"
#include "files/safetensors.h"
#include "toy_ranks.h"
#include "train/report/run_state.h"

#include <sys/file.h>
#include <sys/stat.h>

using nlohmann::json;

namespace {
json rows_of(const std::string& run) {
    json rows = json::array();
    std::istringstream lines(read_file(run + "/metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) rows.push_back(json_parse(line, "row", 4).value);
    return rows;
}
json runs_in(const std::string& dir, const std::vector<std::string>& more = {}) {
    return json_parse(must(with({"runs", dir, "--json"}, more)).out, "runs", 8).value;
}
std::vector<std::string> names(const json& runs) {
    std::vector<std::string> all;
    for (const json& r : runs) all.push_back(fs::path(r["name"].get<std::string>()).filename());
    return all;
}
}    // namespace

TEST_CASE("runs: states, losses, sizes and speeds of all runs below a directory, also of broken ones") {
    Toy toy;
    const std::string dir = toy.dir + "/runs";
    must(toy.args("runs/done", {"--steps", "6", "--eval-every", "2", "--save-every", "3"}));
    must(toy.args("runs/deep/er/diverged", {"--steps", "20", "--lr", "10", "--grad-clip", "0", "--skip-loss-z", "0"}),
         0);
    auto make = [&](const std::string& name, const std::string& metrics, const std::string& lock) {
        fs::create_directories(dir + "/" + name);
        write_file(dir + "/" + name + "/metrics.jsonl", metrics);
        write_file(dir + "/" + name + "/lock", lock);
    };
    const std::string two =
        "{\"step\":1,\"loss\":9,\"val_loss\":1.5,\"tokens\":10}\n{\"step\":2,\"loss\":8,\"val_loss\":1.75,"
        "\"tokens\":20,\"tokens_per_second\":7}\n";
    make("killed", two, "host, pid 1, since then\nsteps 5\n");
    make("signal", two, "host, pid 1, since then\nsteps 5\nstopped after step 2: stopped by a signal\n");
    make("failed", two, "host, pid 1, since then\nsteps 5\nfailed after step 2: no \033[31mspace left\n");
    make("old", two, "host, pid 1, since then\n");    // an older version noted no steps
    write_file(dir + "/old/run.toml", "steps = 2\n");
    make("broken", "\xff{]\n{\"step\":\"x\",\"loss\":[],\"val_loss\":{}}\nnull\n{\"step\":7,",
         "\xff\xfe\nsteps zzz\nfailed");
    make("empty", "", "");
    fs::create_directory_symlink(dir, dir + "/loop");
    Process running(toy.started("runs/live", {"--steps", "1000000", "--save-minutes", "0"}));
    for (int i = 0; i < 20000 && running.running() && read_file(dir + "/live/metrics.jsonl").empty(); i++) usleep(1000);

    const json runs = runs_in(dir);
    REQUIRE(runs.size() == 9);
    std::map<std::string, json> by;
    for (const json& r : runs) by[fs::path(r["name"].get<std::string>()).filename()] = r;
    auto state = [&](const char* name) { return by.at(name)["state"].get<std::string>(); };
    CHECK(state("done") == "finished");
    CHECK(state("killed") == "stopped");
    CHECK(state("signal") == "stopped");
    CHECK(by["signal"]["reason"] == "stopped by a signal");
    CHECK(state("failed") == "failed");
    CHECK(state("old") == "finished");
    CHECK(state("live") == "running");
    CHECK(state("empty") == "stopped");
    CHECK(contains(by["broken"]["damage"].get<std::string>(), "metrics.jsonl:"));
    const json last = rows_of(dir + "/done").back();
    CHECK(by["done"]["step"] == 6);
    CHECK(by["done"]["steps"] == 6);
    CHECK(by["done"]["loss"] == last["loss"]);
    CHECK(by["done"]["tokens"] == last["tokens"]);
    double best = INFINITY;
    for (const json& row : rows_of(dir + "/done"))
        if (row.contains("val_loss")) best = std::min(best, row["val_loss"].get<double>());
    CHECK(by["done"]["best_val_loss"] == best);
    CHECK(by["done"]["parameters"] > 10000);
    CHECK(by["done"]["bytes"] > by["done"]["parameters"].get<double>() * 4);
    CHECK(by["done"]["tokens_per_second"] > 0);
    CHECK(by["killed"]["best_val_loss"] == 1.5);
    CHECK(by["killed"]["best_val_step"] == 1);
    CHECK(by["killed"]["steps"] == 5);
    CHECK(by["killed"]["parameters"] == 0);
    CHECK(names(runs)[0] == "failed");    // 1.5, as the three that follow by name
    CHECK(names(runs)[3] == "signal");
    CHECK(names(runs_in(dir, {"--sort", "name"}))[0] == "broken");
    CHECK(names(runs_in(dir, {"--sort", "tokens"}))[0] != "broken");
    const ProcessResult table = must({"runs", dir});
    CHECK(!contains(table.out, "\033"));
    CHECK(contains(table.out, "space left"));
    CHECK(count(table.out.begin(), table.out.end(), '\n') == 10);
    must({"runs", dir + "/none"}, 3, "no such directory");
    must({"runs", dir, "--sort", "size"}, 2, "one of val");
    must({"runs"}, 2);
    CHECK(contains(must({"runs", dir + "/done/step_00000006"}).err, "no runs below"));
}

TEST_CASE("runs: pipes, lines without end and steps out of range are named or ignored") {
    const std::string dir = temporary_directory();
    auto make = [&](const std::string& name, const std::string& metrics) {
        fs::create_directories(dir + "/" + name);
        write_file(dir + "/" + name + "/metrics.jsonl", metrics);
    };
    make("far", "{\"step\":1e300,\"val_loss\":7}\n{\"step\":4,\"loss\":8}\n");
    make("endless", "{\"step\":1,\"loss\":1}\n");
    fs::resize_file(dir + "/endless/metrics.jsonl", 1 << 30);    // a line of zeros, without blocks
    fs::create_directories(dir + "/pipe");
    REQUIRE(mkfifo((dir + "/pipe/metrics.jsonl").c_str(), 0600) == 0);
    const json runs = runs_in(dir, {"--sort", "name"});
    REQUIRE(names(runs) == std::vector<std::string>{"endless", "far", "pipe"});
    CHECK(contains(runs[0]["damage"].get<std::string>(), "metrics.jsonl:2: expected lines of at most"));
    CHECK(runs[0]["step"] == 1);
    CHECK(runs[1]["best_val_loss"] == 7);
    CHECK(runs[1]["best_val_step"] == -1);
    CHECK(runs[1]["step"] == 4);
    CHECK(contains(runs[2]["damage"].get<std::string>(), "found a FIFO"));
    must({"plot", dir + "/pipe"}, 3, "found a FIFO");
    must({"plot", dir + "/endless"}, 3, "metrics.jsonl:2: expected lines of at most");
}

TEST_CASE("runs: the lock file notes how a run ended, and forgets it when the run goes on") {
    Toy toy;
    const std::string run = toy.dir + "/a";
    Process p(toy.started("a", {"--steps", "100000"}));
    for (int i = 0; i < 20000 && p.running() && read_file(run + "/metrics.jsonl").empty(); i++) usleep(1000);
    CHECK(run_state(run, 1).state == "running");
    CHECK(run_state(run, 1).steps == 100000);
    p.send(SIGTERM);
    CHECK(p.wait().exit_code == 143);
    CHECK(run_state(run, 1).state == "stopped");
    CHECK(contains(run_state(run, 1).reason, "stopped by a signal"));
    CHECK(!contains(run_state(run, 1).reason, "to go on"));    // the message's command is not kept
    must(toy.args("a", {"--steps", "100000"}), 2, "holds checkpoints already");
    CHECK(contains(run_state(run, 1).reason, "stopped by a signal"));    // the failed start changed nothing
    // While `flatgpt runs` holds the lock for a moment, a run may begin.
    const int fd = open((run + "/lock").c_str(), O_RDONLY);
    REQUIRE(flock(fd, LOCK_SH) == 0);
    std::thread release([&] {
        usleep(30000);
        flock(fd, LOCK_UN);
    });
    const int64_t done = checkpoint_step(toy.newest("a"));
    const ProcessResult r = run_flatgpt(toy.args("a", {"--steps", std::to_string(done + 2), "--resume", "auto"}));
    release.join();
    close(fd);
    REQUIRE_MESSAGE(r.exit_code == 0, r.err);
    CHECK(run_state(run, done + 2).state == "finished");
    CHECK(run_state(run, done + 2).steps == done + 2);
}

TEST_CASE("norms: of weights, gradients and updates, equal to the checkpoints' and to the gradient norm") {
    Toy toy;
    for (const char* dtype : {"fp32", "bf16"}) {
        const std::string out = dtype;
        must(toy.args(out,
                      {"--steps", "6", "--norms-every", "2", "--save-every", "1", "--keep", "0", "--dtype", dtype}));
        for (const json& row : rows_of(toy.dir + "/" + out)) {
            const auto step = row["step"].get<int64_t>();
            REQUIRE(row.contains("norms") == (step % 2 == 0));
            if (step % 2) continue;
            double square = 0;
            int tensors = 0;
            for (const auto& [name, norms] : row["norms"].items()) {
                REQUIRE(norms.size() == 3);
                square += norms[1].get<double>() * norms[1].get<double>();
                tensors++;
            }
            CHECK(tensors >= 20);
            CHECK(std::sqrt(square) == doctest::Approx(row["grad_norm"].get<double>()).epsilon(1e-3));
            auto embeddings = [&](int64_t at) {
                const std::string path = toy.dir + "/" + out +
                                         formatted("/step_%08lld/model.safetensors", (long long)at);
                const SafetensorsFile file = SafetensorsFile::open(path).take();
                for (const TensorEntry& t : file.entries()) {
                    if (!t.name.ends_with("wte.weight")) continue;
                    REQUIRE(t.type == TensorType::f32);
                    std::vector<float> x(size_t((t.end - t.begin) / 4));
                    REQUIRE(file.read_bytes(file.data_begin() + t.begin, x.data(), t.end - t.begin).ok());
                    return x;
                }
                return std::vector<float>{};
            };
            const std::vector<float> now = embeddings(step), before = embeddings(step - 1);
            REQUIRE(!now.empty());
            double weights = 0, update = 0;
            for (size_t i = 0; i < now.size(); i++) {
                weights += double(now[i]) * now[i];
                update += std::pow(double(now[i]) - before[i], 2);
            }
            CHECK(row["norms"]["wte"][0] == doctest::Approx(std::sqrt(weights)).epsilon(1e-3));
            CHECK(row["norms"]["wte"][2] == doctest::Approx(std::sqrt(update)).epsilon(1e-3));
        }
    }
    std::vector<std::string> command = toy.args("whole", {"--steps", "9", "--norms-every", "2", "--save-every", "2"});
    must(command);
    killed_and_resumed(toy, command, {3, 6}, [](const std::string&) {});
    CHECK(contains(must(with(command, {"--dry-run"})).out, "weights before an update (--norms-every)"));
}

TEST_CASE("norms: the same with several ranks and with ZeRO") {
    NEED_MPIRUN();
    RanksToy toy;
    const std::vector<std::string> more = {"--norms-every", "4"};
    REQUIRE(toy.run(1, "one", more).exit_code == 0);
    const json one = rows_of(toy.dir + "/one");
    for (const char* zero : {"0", "1", "2"}) {
        const std::string out = std::string("zero") + zero;
        const ProcessResult r = toy.run(2, out, with(more, {"--zero", zero}));
        REQUIRE_MESSAGE(r.exit_code == 0, r.err);
        const json two = rows_of(toy.dir + "/" + out);
        for (const size_t i : {size_t(3), size_t(7)})
            for (const auto& [name, norms] : one[i]["norms"].items())
                for (size_t k = 0; k < 3; k++) {
                    INFO(out << " " << name << " " << k);
                    CHECK(two[i]["norms"][name][k].get<double>() ==
                          doctest::Approx(norms[k].get<double>()).epsilon(5e-3));
                }
    }
}

TEST_CASE("samples: each line of --sample-prompts, with validations or by --sample-every") {
    Toy toy;
    const std::string prompts = toy.dir + "/prompts.txt", one = toy.dir + "/one";
    write_file(prompts, "abc\n\nd\xc3\xa4 <b>\n");
    const std::vector<std::string> use = {"--sample-prompts", prompts, "--sample-tokens", "5"};
    const ProcessResult r = must(with(toy.args("a", {"--steps", "7", "--eval-every", "3"}), use));
    CHECK(contains(r.err, "--- sample after step 3 ---\nabc"));
    CHECK(contains(r.err, "\n---\nd\xc3\xa4 <b>"));
    for (const json& row : rows_of(toy.dir + "/a")) {
        const bool due = row["step"] == 3 || row["step"] == 6 || row["step"] == 7;
        REQUIRE(row.contains("samples") == due);
        CHECK(row.contains("val_loss") == due);
        if (!due) continue;
        REQUIRE(row["samples"].size() == 2);
        CHECK(row["samples"][0]["prompt"] == "abc");
        CHECK(row["samples"][1]["prompt"] == "d\xc3\xa4 <b>");
        CHECK(!row["samples"][0]["text"].get<std::string>().empty());
    }
    must(with(toy.args("b", {"--steps", "5", "--eval-every", "3", "--sample-every", "2"}), use));
    for (const json& row : rows_of(toy.dir + "/b"))
        CHECK(row.contains("samples") == (row["step"] != 1 && row["step"] != 3));
    const std::string planned = must(with(toy.args("c", {"--steps", "2"}), with(use, {"--dry-run"}))).out;
    CHECK(contains(planned, "keys and values of samples"));
    CHECK(!contains(must(with(toy.args("c", {"--steps", "2"}), {"--dry-run"})).out, "keys and values of samples"));
    // One prompt writes what the list's prompt writes.
    must(with(toy.args("c", {"--steps", "2", "--sample-every", "2"}),
              {"--sample-prompt", "abc", "--sample-tokens", "5"}));
    write_file(one, "abc\n");
    must(with(toy.args("d", {"--steps", "2", "--sample-every", "2"}),
              {"--sample-prompts", one, "--sample-tokens", "5"}));
    CHECK(rows_of(toy.dir + "/c")[1]["sample"] == rows_of(toy.dir + "/d")[1]["samples"][0]["text"]);
    must(with(toy.args("e", {"--steps", "2"}), {"--sample-prompts", toy.dir + "/none"}), 3, "none");
    CHECK(!fs::exists(toy.dir + "/e"));
    must(with(toy.args("e", {"--steps", "2"}), with(use, {"--sample-prompt", "x"})), 2, "--sample-prompt");
    must(with(toy.args("e", {"--steps", "2"}), {"--sample-tokens", "5"}), 2, "--sample-prompts");
    std::string many;
    for (int i = 0; i < 1001; i++) many += "x\n";
    write_file(one, many);
    must(with(toy.args("e", {"--steps", "2"}), {"--sample-prompts", one}), 2, "at most 1000 prompts");
}

TEST_CASE("report: a run keeps its page fresh, and the page says how the run ended") {
    Toy toy;
    const std::string page = toy.dir + "/a/report.html";
    Process p(with(toy.started("a", {"--steps", "100000"}), {"--report"}));
    for (int i = 0; i < 20000 && p.running() && read_file(page).empty(); i++) usleep(1000);
    CHECK(contains(read_file(page), "\"state\":\"running\""));
    CHECK(contains(read_file(page), "\"refresh\":30"));
    p.send(SIGINT);
    CHECK(p.wait().exit_code == 130);
    CHECK(contains(read_file(page), "\"state\":\"stopped\""));
    CHECK(contains(read_file(page), "\"refresh\":0"));
    const int64_t done = checkpoint_step(toy.newest("a"));
    must(with(toy.args("a", {"--steps", std::to_string(done + 3), "--resume", "auto"}), {"--report"}));
    CHECK(contains(read_file(page), "\"state\":\"finished\""));
    CHECK(contains(read_file(page), "\"summary\":{\"step\":" + std::to_string(done + 3)));    // also of the rows before
    CHECK(contains(read_file(page), "\"settings\":{"));
}
