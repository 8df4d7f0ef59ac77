// test_checkpoint_writer.cpp - checkpoints that a thread writes while the model changes.
#include "checkpoint/writer.h"

#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <thread>

#include "base/pool.h"
#include "comm/comm.h"
#include "toy_checkpoint.h"
#include "toy_run.h"

namespace {
using Copy = CheckpointWriter::Copy;
using Phase = CheckpointWriter::Phase;

// A disk whose first write waits until it is opened.
struct Gate {
    static inline std::mutex mutex;
    static inline std::condition_variable changed;
    static inline bool open = false, reached = false;
    static void set(bool to) {
        const std::lock_guard<std::mutex> held(mutex);
        open = to;
        reached = false;
        changed.notify_all();
    }
    static void pass() {
        std::unique_lock<std::mutex> held(mutex);
        reached = true;
        changed.notify_all();
        changed.wait_for(held, LIMIT, [] { return open; });
    }
    static bool await_writer() {
        std::unique_lock<std::mutex> held(mutex);
        return changed.wait_for(held, LIMIT, [] { return reached; });
    }
    static constexpr auto LIMIT = std::chrono::seconds(20);    // then a case fails
};
Disk gated_disk() {
    Disk disk = real_disk();
    disk.write = [](int fd, const void* data, int64_t bytes) {
        Gate::pass();
        return real_disk().write(fd, data, bytes);
    };
    disk.sync = [](int) { return 0; };
    return disk;
}
bool holds_seed(const std::string& dir, uint64_t seed) {
    ToyCheckpoint expected(seed), read(99);
    read.poison();
    REQUIRE(checkpoint_verify(dir).ok());
    REQUIRE(checkpoint_weights(dir, read.g).ok());
    REQUIRE(checkpoint_optimizer(dir, read.g).ok());
    return same_bits(read.params, expected.params) && same_bits(read.m, expected.m) && same_bits(read.v, expected.v);
}
int temporaries(const std::string& run) {
    return int(std::count_if(fs::directory_iterator(run), fs::directory_iterator(),
                             [](auto& e) { return e.path().extension() == ".tmp"; }));
}
}    // namespace

TEST_CASE("checkpoint writer: a thread writes what the model was when the checkpoint began") {
    const std::string run = temporary_directory();
    const Disk disk = gated_disk();
    CheckpointWriter writer(run, 1, nullptr, disk);
    std::vector<std::string> order;
    for (uint64_t seed : {1, 2, 3}) {
        Gate::set(false);
        ToyCheckpoint toy(seed);
        auto flush = [&] {
            return order.push_back(checkpoint_list(run).empty() ? "none" : checkpoint_list(run)[0]), Status{};
        };
        REQUIRE(writer.begin(toy.g, Tokenizer(), toy_state(int64_t(seed), seed), {}, Copy::yes, flush).ok());
        REQUIRE(Gate::await_writer());
        CHECK((writer.active() && writer.current_phase() == Phase::all && writer.finished_phase() == Phase::none));
        CHECK(temporaries(run) == 1);
        CHECK(order.size() == seed - 1);
        toy.poison();    // the next step's update
        Gate::set(true);
        REQUIRE(writer.advance().ok());    // waits: the thread does all phases of a single process
        CHECK(!writer.active());
        CHECK(writer.published());
        CHECK(order.size() == seed);
        REQUIRE(checkpoint_list(run).size() == 1);    // --keep 1
        CHECK(holds_seed(checkpoint_list(run)[0], seed));
        CHECK(temporaries(run) == 0);
    }
    // Files that the checkpoint relies on are flushed before it has its name.
    CHECK(order == std::vector<std::string>{"none", run + "/step_00000001", run + "/step_00000002"});
}

TEST_CASE("checkpoint writer: the thread's files are those of a checkpoint that is written at once") {
    const std::string run = temporary_directory();
    ToyCheckpoint toy(4);
    CheckpointWriter writer(run);
    for (int step : {1, 2}) {
        const Copy copy = step == 1 ? Copy::yes : Copy::no;
        REQUIRE(writer.begin(toy.g, Tokenizer::gpt2(), toy_state(7, 4), {}, copy).ok());
        REQUIRE(writer.finish().ok());
        fs::rename(run + "/step_00000007", run + "/" + std::to_string(step));
    }
    int files = 0;
    int64_t tensor_bytes = 0;
    for (auto& entry : fs::directory_iterator(run + "/1")) {
        files++;
        CHECK(same_file(entry.path(), run + "/2/" + entry.path().filename().string()));
        if (entry.path().extension() == ".safetensors") tensor_bytes += int64_t(entry.file_size());
    }
    CHECK(files >= 6);
    CHECK(CheckpointWriter::copy_bytes(toy.g) == tensor_bytes);
    CHECK(writer.kept_bytes() == tensor_bytes);
}

TEST_CASE("checkpoint writer: what fails in the thread ends the checkpoint, and the next one is written") {
    const std::string run = temporary_directory();
    ToyCheckpoint toy(1);
    CheckpointWriter writer(run, 2);
    auto full = [] { return fail(Exit::io, "metrics.jsonl: the disk is full"); };
    REQUIRE(writer.begin(toy.g, Tokenizer(), toy_state(1, 1), {}, Copy::yes, full).ok());
    const Status s = writer.finish();
    CHECK((s.code == Exit::io && s.message == "metrics.jsonl: the disk is full"));
    CHECK((!writer.active() && !writer.published() && fs::is_empty(run)));
    REQUIRE(writer.begin(toy.g, Tokenizer(), toy_state(2, 1), {}, Copy::yes).ok());
    CHECK(writer.finish().ok());
    CHECK((writer.published() && checkpoint_list(run).size() == 1));
    CheckpointWriter nowhere(run + "/none");
    CHECK(nowhere.begin(toy.g, Tokenizer(), toy_state(3, 1), {}, Copy::yes).code == Exit::io);
    CHECK(!nowhere.active());
}

TEST_CASE("checkpoint writer: a slow thread goes on at full speed when its caller waits") {
    const std::string run = temporary_directory();
    ToyCheckpoint toy(1);
    {
        CheckpointWriter writer(run);
        writer.share = 1e-9;    // a microsecond of work takes 17 minutes
        REQUIRE(writer.begin(toy.g, Tokenizer(), toy_state(1, 1), {}, Copy::yes).ok());
        REQUIRE(writer.finish().ok());
        REQUIRE(writer.begin(toy.g, Tokenizer(), toy_state(2, 1), {}, Copy::yes).ok());
        CHECK(temporaries(run) == 1);
    }
    // The destructor waits, too.
    CHECK(temporaries(run) == 0);
    CHECK(checkpoint_list(run) == std::vector{run + "/step_00000001", run + "/step_00000002"});
}

TEST_CASE("checkpoint writer: pruning reads the files of no checkpoint that this writer has written") {
    const std::string run = temporary_directory();
    auto write = [&](CheckpointWriter& writer, int step) {
        ToyCheckpoint toy{uint64_t(step)};
        REQUIRE(writer.begin(toy.g, Tokenizer(), toy_state(step, uint64_t(step)), {}, Copy::yes).ok());
        REQUIRE(writer.finish().ok());
    };
    auto steps = [&] {
        std::vector<int64_t> all;
        for (const std::string& dir : checkpoint_list(run)) all.push_back(checkpoint_step(dir));
        return all;
    };
    CheckpointWriter writer(run, 2);
    for (int step : {1, 2, 3}) write(writer, step);
    CHECK(steps() == std::vector<int64_t>{2, 3});
    // A bit that the disk has lost goes unseen, a file that became shorter does not: 3 then is no
    // whole one, and two others are kept.
    flip_in_file(run + "/step_00000003/model.safetensors", 4000);
    write(writer, 4);
    CHECK(steps() == std::vector<int64_t>{3, 4});
    fs::resize_file(run + "/step_00000004/optimizer.safetensors", 100);
    write(writer, 5);
    CHECK(steps() == std::vector<int64_t>{3, 4, 5});
    // Another process has seen none of them.
    CheckpointWriter other(run, 2);
    write(other, 6);
    CHECK(steps() == std::vector<int64_t>{5, 6});
    // A resumed run has verified the checkpoint that it begins with.
    CheckpointWriter resumed(run, 2);
    resumed.add_whole(run + "/step_00000006");
    flip_in_file(run + "/step_00000006/model.safetensors", 4000);
    write(resumed, 7);
    CHECK(steps() == std::vector<int64_t>{6, 7});
}

// Both ranks of a job as threads, each with a model, a connection to the other and a disk. A rank
// with Copy::no is one that lacks memory for the copy.
TEST_CASE("checkpoint writer: two ranks agree, whichever of them has no memory for a copy or a full disk") {
    Disk full = real_disk();
    full.write = [](int, const void*, int64_t) -> int64_t { return errno = ENOSPC, -1; };
    const Copy yes = Copy::yes, no = Copy::no;
    for (const auto& [first, second, broken] :
         {std::tuple{yes, yes, -1}, {yes, no, -1}, {no, yes, -1}, {yes, yes, 1}, {yes, no, 1}, {yes, yes, 0}}) {
        CAPTURE(broken);
        const std::string run = temporary_directory();
        const Listener listener = Listener::open("127.0.0.1", 0).value;
        Status ended[2], again[2];
        bool named[2] = {};
        auto rank = [&, copies = std::array{first, second}, bad = broken](int r) {
            RankInfo info;
            info.rank = r;
            info.ranks = 2;
            auto peers = Coordinator::rendezvous(info, r ? Listener() : listener, "127.0.0.1", listener.port,
                                                 job_token("test_checkpoint_writer"), 20);
            if (!peers.ok()) return void(ended[r] = peers.status);
            ToyCheckpoint toy(5, ToyCheckpoint::config(), r, 2);
            CheckpointWriter writer(run, 1, peers.value.get(), r == bad ? full : real_disk());
            ended[r] = writer.begin(toy.g, Tokenizer(), toy_state(1, 5), {}, copies[size_t(r)]);
            if (ended[r].ok()) ended[r] = writer.finish();
            named[r] = writer.published();
            CheckpointWriter other(run, 1, peers.value.get());
            again[r] = other.begin(toy.g, Tokenizer(), toy_state(2, 5), {}, copies[size_t(r)]);
            if (copies[size_t(r)] == yes) toy.poison();
            if (again[r].ok()) again[r] = other.finish();
        };
        std::thread peer(rank, 1);
        rank(0);
        peer.join();
        for (int r : {0, 1}) {
            CAPTURE(r);
            INFO(ended[r].message);
            CHECK(ended[r].code == (broken < 0 ? Exit::ok : r == broken ? Exit::io : Exit::peer));
            CHECK(named[r] == (broken < 0));
            CHECK(again[r].ok());
        }
        REQUIRE(checkpoint_list(run) == std::vector{run + "/step_00000002"});
        CHECK(holds_seed(checkpoint_list(run)[0], 5));
        CHECK(temporaries(run) == 0);
    }
}

TEST_CASE("train: a checkpoint is the same, byte for byte, with --async-save=false") {
    Toy toy;
    for (const char* mode : {"on", "off"}) {
        auto command = toy.args(mode, {"--steps", "24", "--save-every", "3", "--keep", "0", "--eval-every", "6"});
        command.push_back(mode == std::string("on") ? "--async-save=true" : "--async-save=false");
        REQUIRE(run_flatgpt(command).exit_code == 0);
    }
    const auto on = checkpoint_list(toy.dir + "/on"), off = checkpoint_list(toy.dir + "/off");
    REQUIRE((on.size() == 8 && off.size() == 8));
    for (size_t i = 0; i < on.size(); i++) {
        CHECK(checkpoint_verify(on[i]).ok());
        for (const char* file : {"model.safetensors", "optimizer.safetensors", "config.json", "tokenizer.json"})
            CHECK(same_file(on[i] + "/" + file, off[i] + "/" + file));
        TrainState a = checkpoint_state(on[i]).value, b = checkpoint_state(off[i]).value;
        CHECK((a.step == int64_t(i + 1) * 3 && a.best_step == b.best_step && a.index == b.index));
        CHECK((a.loss == b.loss && a.best_loss == b.best_loss && a.updates == b.updates));
    }
}

TEST_CASE("train: a checkpoint that a thread writes is whole before the next one begins") {
    Toy toy;
    const ProcessResult r = run_flatgpt(
        toy.args("run", {"--steps", "4000", "--save-every", "2000", "--keep", "0", "--layers", "1", "--batch", "1"}));
    REQUIRE_MESSAGE(r.exit_code == 0, r.err);
    // The next checkpoint is begun behind the last row.
    const std::string rows = read_file(toy.dir + "/run/metrics.jsonl");
    const nlohmann::json last = nlohmann::json::parse(rows.substr(rows.rfind('\n', rows.size() - 2) + 1));
    struct stat manifest;
    REQUIRE(stat((toy.dir + "/run/step_00002000/MANIFEST").c_str(), &manifest) == 0);
    CHECK(last["step"] == 4000);
    CHECK(double(manifest.st_mtim.tv_sec) + 1e-9 * double(manifest.st_mtim.tv_nsec) < last["time"].get<double>());
}
