// test_crash.cpp - an older checkpoint loads, whichever disk call fails, whenever the power goes.
#include "checkpoint/writer.h"
#include "toy_checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <sys/mount.h>

#include "test.h"

namespace fs = std::filesystem;

namespace {
// ---- a disk that fails --------------------------------------------------------------------------

enum class Fault { error, short_write };
// Disk is a table of plain functions, which share this state.
struct Faulty {
    static inline int64_t calls = 0, fail_at = 0;    // the failing call, counted from 1; 0: none
    static inline bool from_then_on = false;
    static inline Fault fault = Fault::error;
    static inline int error = EIO;
    static void reset(int64_t at, Fault f, int e, bool on) {
        calls = 0, fail_at = at, fault = f, error = e, from_then_on = on;
    }
    static bool now() { return ++calls == fail_at || (from_then_on && fail_at && calls > fail_at); }
    static bool failing() { return now() && fault == Fault::error; }
};
// sync does nothing, so that the tests do not wait for the real disk.
const Disk FAULTY = {
    [](const char* path) { return Faulty::failing() ? -Faulty::error : real_disk().open_write(path); },
    [](int fd, const void* data, int64_t bytes) {
        if (!Faulty::now()) return real_disk().write(fd, data, bytes);
        return Faulty::fault == Fault::error ? -int64_t(Faulty::error) : real_disk().write(fd, data, (bytes + 1) / 2);
    },
    [](int) { return Faulty::failing() ? -Faulty::error : 0; },
    [](int fd) {
        int rc = real_disk().close(fd);    // closed even when it reports an error
        return Faulty::failing() ? -Faulty::error : rc;
    },
    [](const char* from, const char* to, Overwrite overwrite) {
        return Faulty::failing() ? -Faulty::error : real_disk().rename(from, to, overwrite);
    },
    [](const char* path) { return Faulty::failing() ? -Faulty::error : real_disk().mkdir(path); },
    [](const char* path) { return Faulty::failing() ? -Faulty::error : real_disk().remove(path); },
    [](const char*) { return Faulty::failing() ? -Faulty::error : 0; },
};

// Writes a checkpoint by a thread, from a copy, while training changes the model.
Status write_beside(const std::string& run, const Disk& disk) {
    ToyCheckpoint toy(2);
    CheckpointWriter writer(run, -1, nullptr, disk);
    TRY(writer.begin(toy.g, Tokenizer(), toy_state(2, 2), {}, CheckpointWriter::Copy::yes));
    toy.poison();
    return writer.finish();
}

int open_files() { return int(std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator())); }
bool has_temporary(const std::string& run) {
    return std::any_of(fs::directory_iterator(run), fs::directory_iterator(),
                       [](auto& e) { return e.path().extension() == ".tmp"; });
}
void write_faulty(const std::string& run, int64_t step, uint64_t seed, const Disk& disk = FAULTY) {
    Status s = checkpoint_write(run, ToyCheckpoint(seed).g, Tokenizer(), toy_state(step, seed), disk);
    REQUIRE_MESSAGE(s.ok(), s.message);
}
// Loads the run's newest whole checkpoint, compares all of it, returns its seed. 0: none loads.
uint64_t loads(const std::string& run) {
    const Result<ModelSource> found = checkpoint_find(run, nullptr);
    if (!found.ok()) return 0;
    const std::string& dir = found.value.path;
    Result<TrainState> state = checkpoint_state(dir);
    REQUIRE_MESSAGE(state.ok(), state.status.message);
    ToyCheckpoint expected(state.value.seed), read(99);
    read.poison();
    CHECK(checkpoint_config(dir).value == expected.g.c);
    CHECK(checkpoint_weights(dir, read.g).ok());
    CHECK(checkpoint_optimizer(dir, read.g).ok());
    CHECK((same_bits(read.params, expected.params) && same_bits(read.m, expected.m) && same_bits(read.v, expected.v)));
    return state.value.seed;
}

// Calls `what` on a fresh run from `prepare`, with the n-th disk call failing, for every n. If
// `invisible`, `what` must succeed all the same.
void fail_everywhere(Fault fault, int error, bool from_then_on, const std::function<void(const std::string&)>& prepare,
                     const std::function<Status(const std::string&)>& what, bool invisible) {
    const int files = open_files();
    int64_t n = 0;
    while (true) {
        Faulty::reset(0, fault, error, false);
        std::string run = temporary_directory();
        prepare(run);
        Faulty::reset(++n, fault, error, from_then_on);
        Status s = what(run);
        bool reached = Faulty::calls >= n;
        Faulty::reset(0, fault, error, false);
        INFO("call ", n, s.message);
        CHECK(loads(run) != 0);
        CHECK(open_files() == files);
        if (!reached || invisible) {
            CHECK(s.ok());
        } else if (!s.ok()) {
            CHECK(s.code == Exit::io);
            CHECK(s.message.find(run) != std::string::npos);
            CHECK(s.message.find(strerror(error)) != std::string::npos);
        }
        // Afterwards the next write and prune succeed and leave no temporary files.
        write_faulty(run, 3, 3);
        CHECK(loads(run) == 3);
        CHECK(checkpoint_prune(run, 1, FAULTY).ok());
        CHECK((checkpoint_list(run).size() == 1 && !has_temporary(run)));
        fs::remove_all(run);
        if (!reached) break;
    }
    CHECK(n > 5);
}
}    // namespace

TEST_CASE("checkpoint: the disk fails at the n-th call, for every n") {
    auto one = [](const std::string& run) { write_faulty(run, 1, 1); };
    auto two = [](const std::string& run) { write_faulty(run, 1, 1), write_faulty(run, 2, 1); };
    auto write = [](const std::string& run) {
        Status s = checkpoint_write(run, ToyCheckpoint(2).g, Tokenizer(), toy_state(2, 2), FAULTY);
        bool committed = checkpoint_list(run).size() == 2;
        if (!Faulty::from_then_on && !s.ok()) CHECK(!has_temporary(run));
        if (s.ok()) CHECK(committed);
        CHECK(loads(run) == (committed ? 2 : 1));
        return s;
    };
    auto beside = [&](const std::string& run) {
        const Status s = write_beside(run, FAULTY);
        if (!Faulty::from_then_on && !s.ok()) CHECK(!has_temporary(run));
        const bool committed = checkpoint_list(run).size() == 2;
        if (s.ok()) CHECK(committed);
        CHECK(loads(run) == (committed ? 2 : 1));
        return s;
    };
    auto beside_again = [](const std::string& run) { return write_beside(run, FAULTY); };
    auto again = [](const std::string& run) {    // over a checkpoint of the same step
        return checkpoint_write(run, ToyCheckpoint(2).g, Tokenizer(), toy_state(2, 2), FAULTY);
    };
    auto prune = [](const std::string& run) { return checkpoint_prune(run, 1, FAULTY); };
    for (int error : {EIO, ENOSPC, EDQUOT})
        for (bool on : {false, true}) {
            fail_everywhere(Fault::error, error, on, one, write, false);
            if (error == ENOSPC) fail_everywhere(Fault::error, error, on, one, beside, false);
            if (error == EIO) fail_everywhere(Fault::error, error, on, two, beside_again, false);
            if (error == EIO) fail_everywhere(Fault::error, error, on, two, again, false);
            if (error == EIO) fail_everywhere(Fault::error, error, on, two, prune, false);
        }
    fail_everywhere(Fault::error, EINTR, false, one, write, true);
    fail_everywhere(Fault::error, EINTR, false, two, prune, true);
    fail_everywhere(Fault::short_write, 0, false, one, write, true);
    fail_everywhere(Fault::short_write, 0, true, one, write, true);
}

TEST_CASE("checkpoint: a real disk that is full") {
    std::string run = temporary_directory();
    if (mount("tmpfs", run.c_str(), "tmpfs", 0, "size=128k")) SKIP("a tmpfs cannot be mounted here");
    int64_t written = 0;
    Status s;
    for (; s.ok() && written < 100; written += s.ok())
        s = checkpoint_write(run, ToyCheckpoint(1).g, Tokenizer(), toy_state(written, 1));
    CHECK((written > 1 && written < 100));
    CHECK(s.code == Exit::io);
    CHECK(s.message.find("No space left") != std::string::npos);
    CHECK(checkpoint_list(run).size() == size_t(written));
    CHECK(!has_temporary(run));
    CHECK(loads(run) == 1);
    CHECK(checkpoint_prune(run, 1).ok());
    CHECK(checkpoint_write(run, ToyCheckpoint(2).g, Tokenizer(), toy_state(500, 2)).ok());
    CHECK(loads(run) == 2);
    CHECK(umount2(run.c_str(), MNT_DETACH) == 0);
}

// ---- the power goes -----------------------------------------------------------------------------
//
// A strict reading of POSIX: a file's bytes are on the disk after its fsync, names in a directory
// after that of the directory. Until then each may be there or not, in any combination.

namespace {
struct Call {
    enum Kind { mkdir, create, write, sync, rename, remove, sync_dir } kind;
    std::string a, b;
};
struct Recorder {
    static inline std::vector<Call> calls;
    static inline std::map<int, std::string> open;
    static int note(Call::Kind kind, int rc, const char* a, const char* b = "") {
        if (rc >= 0) calls.push_back({kind, a, b});
        return rc;
    }
};
const Disk RECORDING = {
    [](const char* path) {
        int fd = real_disk().open_write(path);
        Recorder::open[fd] = path;
        return Recorder::note(Call::create, fd, path);
    },
    [](int fd, const void* data, int64_t bytes) {
        int64_t n = real_disk().write(fd, data, bytes);
        Recorder::calls.push_back({Call::write, Recorder::open[fd], {static_cast<const char*>(data), size_t(n)}});
        return n;
    },
    [](int fd) { return Recorder::note(Call::sync, 0, Recorder::open[fd].c_str()); },
    [](int fd) { return real_disk().close(fd); },
    [](const char* a, const char* b, Overwrite overwrite) {
        return Recorder::note(Call::rename, real_disk().rename(a, b, overwrite), a, b);
    },
    [](const char* path) { return Recorder::note(Call::mkdir, real_disk().mkdir(path), path); },
    [](const char* path) { return Recorder::note(Call::remove, real_disk().remove(path), path); },
    [](const char* path) { return Recorder::note(Call::sync_dir, 0, path); },
};

// The state that the disk surely holds (durable), and later changes, of which it may hold any.
class SimulatedDisk {
    struct Node {
        bool directory;
        std::string now = {}, durable = {};
        std::map<std::string, int> names = {}, durable_names = {};
    };
    struct Change {
        int directory;
        std::string from, to;
        int node;
    };    // from "": created; to "": removed; else renamed

  public:
    explicit SimulatedDisk(const std::string& run) : run(run) {
        nodes.push_back({.directory = true});
        for (auto& e : fs::recursive_directory_iterator(run)) {    // existing files are durable
            int id = add(e.path(), e.is_directory());
            if (!e.is_directory()) nodes[size_t(id)].now = nodes[size_t(id)].durable = read_file(e.path());
        }
        for (Node& n : nodes) n.durable_names = n.names;
        pending.clear();
    }
    void apply(const Call& c) {
        int node = c.kind == Call::create || c.kind == Call::mkdir ? add(c.a, c.kind == Call::mkdir) : find(c.a);
        if (c.kind == Call::write) nodes[size_t(node)].now += c.b;
        if (c.kind == Call::sync) nodes[size_t(node)].durable = nodes[size_t(node)].now;
        if (c.kind == Call::rename || c.kind == Call::remove) {
            std::string to = c.kind == Call::rename ? fs::path(c.b).filename().string() : "";
            pending.push_back({find(fs::path(c.a).parent_path()), fs::path(c.a).filename(), to, node});
            change(nodes[size_t(pending.back().directory)].names, pending.back());
        }
        if (c.kind != Call::sync_dir) return;
        for (const Change& p : pending)
            if (p.directory == node) change(nodes[size_t(node)].durable_names, p);
        std::erase_if(pending, [&](const Change& p) { return p.directory == node; });
    }
    // Visits each state that a power cut may leave now: path -> bytes (directories end in "/").
    void crash_states(const std::function<void(const std::map<std::string, std::string>&)>& visit) const {
        std::vector<size_t> dirty;
        for (size_t i = 0; i < nodes.size(); i++)
            if (nodes[i].now != nodes[i].durable) dirty.push_back(i);
        REQUIRE(pending.size() + 2 * dirty.size() < 16);
        for (unsigned subset = 0; subset < 1u << pending.size(); subset++) {
            std::vector<Node> disk = nodes;
            for (size_t i = 0; i < pending.size(); i++)
                if (subset >> i & 1) change(disk[size_t(pending[i].directory)].durable_names, pending[i]);
            for (unsigned contents = 0; contents < std::pow(3, dirty.size()); contents++) {
                unsigned digits = contents;
                for (size_t i : dirty) {    // unsynced bytes: none, half or all
                    size_t sure = nodes[i].durable.size(), more = nodes[i].now.size() - sure;
                    disk[i].durable = nodes[i].now.substr(0, sure + more * (digits % 3) / 2);
                    digits /= 3;
                }
                std::map<std::string, std::string> files;
                collect(disk, 0, "", &files);
                visit(files);
            }
        }
    }

  private:
    std::string run;
    std::vector<Node> nodes;
    std::vector<Change> pending;

    int find(const fs::path& path) const {
        int at = 0;
        if (path != run)
            for (auto& part : path.lexically_relative(run)) at = nodes[size_t(at)].names.at(part);
        return at;
    }
    int add(const fs::path& path, bool directory) {
        int id = int(nodes.size());
        nodes.push_back({.directory = directory});
        pending.push_back({find(path.parent_path()), "", path.filename(), id});
        change(nodes[size_t(pending.back().directory)].names, pending.back());
        return id;
    }
    static void change(std::map<std::string, int>& names, const Change& c) {
        if (c.from.empty()) names[c.to] = c.node;
        else if (c.to.empty()) names.erase(c.from);
        else if (names.contains(c.from) && names.contains(c.to)) std::swap(names[c.from], names[c.to]);
        else if (names.contains(c.from)) names[c.to] = names[c.from], names.erase(c.from);
    }
    static void collect(const std::vector<Node>& disk, int at, const std::string& prefix,
                        std::map<std::string, std::string>* files) {
        for (auto& [name, id] : disk[size_t(at)].durable_names) {
            const Node& n = disk[size_t(id)];
            (*files)[prefix + name + (n.directory ? "/" : "")] = n.durable;
            if (n.directory) collect(disk, id, prefix + name + "/", files);
        }
    }
};

// Counts over crash states. damaged: incomplete checkpoints that are not marked as temporary.
struct Outcome {
    int states = 0, refused = 0, wrong = 0, stuck = 0, damaged = 0;
};
// Runs `what`, then loads from every state in which a crash may leave the run: the seed must be one
// of `allowed`, and `last` once `what` has returned. dishonest: fsync of a directory does nothing.
Outcome crash_everywhere(const std::string& run, const std::function<Status(const std::string&)>& what,
                         const std::set<uint64_t>& allowed, uint64_t last, bool dishonest = false) {
    SimulatedDisk disk(run);
    Recorder::calls.clear();
    REQUIRE(what(run).ok());
    Outcome o;
    std::set<std::map<std::string, std::string>> seen;
    const std::string place = temporary_directory();
    for (size_t n = 0; n <= Recorder::calls.size(); n++) {
        if (n) {
            const Call& c = Recorder::calls[n - 1];
            if (!dishonest || c.kind != Call::sync_dir) disk.apply(c);
        }
        bool end = n == Recorder::calls.size();
        if (end) seen.clear();
        disk.crash_states([&](const std::map<std::string, std::string>& files) {
            if (!seen.insert(files).second) return;
            fs::remove_all(place);
            fs::create_directory(place);
            for (auto& [path, bytes] : files)
                if (path.ends_with('/')) fs::create_directory(place + "/" + path);
                else write_file(place + "/" + path, bytes);
            uint64_t seed = loads(place);
            o.states++;
            for (const std::string& dir : checkpoint_list(place)) o.damaged += !checkpoint_verify(dir).ok();
            o.refused += seed == 0;
            o.wrong += seed != 0 && (end ? seed != last : !allowed.contains(seed));
            // From this state the run can go on and write the same step again.
            bool goes_on = checkpoint_write(place, ToyCheckpoint(5).g, Tokenizer(), toy_state(2, 5), FAULTY).ok() &&
                           checkpoint_prune(place, 1, FAULTY).ok() && loads(place) == 5 && !has_temporary(place);
            o.stuck += !goes_on;
        });
    }
    return o;
}
}    // namespace

TEST_CASE("checkpoint: the power goes at any moment") {
    Faulty::reset(0, Fault::error, 0, false);
    auto write = [](const std::string& run) {
        return checkpoint_write(run, ToyCheckpoint(2).g, Tokenizer(), toy_state(2, 2), RECORDING);
    };
    auto beside = [](const std::string& run) { return write_beside(run, RECORDING); };
    auto prune = [](const std::string& run) { return checkpoint_prune(run, 1, RECORDING); };
    struct Row {
        const char* what;
        int before;    // checkpoints, all of seed 1
        std::function<Status(const std::string&)> act;
        uint64_t last;
    };
    for (const Row& row :
         {Row{"write", 1, write, 2}, Row{"write over", 2, write, 2}, Row{"write by a thread", 1, beside, 2},
          Row{"write over by a thread", 2, beside, 2}, Row{"prune", 2, prune, 1}}) {
        std::string run = temporary_directory();
        for (int step = 1; step <= row.before; step++) write_faulty(run, step, 1);
        Outcome o = crash_everywhere(run, row.act, {1, row.last}, row.last);
        printf("%s: %d crash states\n", row.what, o.states);
        CHECK(o.states >= 60);
        CHECK(o.refused == 0);
        CHECK(o.wrong == 0);
        CHECK(o.stuck == 0);
        CHECK(o.damaged == 0);
    }
    // The simulation detects a disk whose fsync of directories does nothing: it loses a checkpoint.
    std::string run = temporary_directory();
    write_faulty(run, 1, 1);
    CHECK(crash_everywhere(run, write, {1, 2}, 2, true).wrong > 0);
}
