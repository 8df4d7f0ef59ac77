// test_faults.cpp - writes, reads, memory or descriptors that the system refuses during a command:
// metrics.jsonl has no gap afterwards, and no process ends by a signal.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sanitizers.h"
#include "toy_run.h"

namespace {
const std::vector<std::string> STEPS = {"--steps", "8", "--eval-every", "4", "--keep", "0", "--threads", "1"};

void same_end(const Toy& toy, const std::string& a, const std::string& b) {
    CHECK(toy.metrics(a) == toy.metrics(b));
    for (const char* name : {"/model.safetensors", "/optimizer.safetensors"})
        CHECK(same_file(toy.newest(a) + name, toy.newest(b) + name));
}
std::vector<std::string> shell(const std::string& script, const std::vector<std::string>& program) {
    std::vector<std::string> all = {"sh", "-c", script, "sh"};
    all.insert(all.end(), program.begin(), program.end());
    return all;
}
}    // namespace

TEST_CASE("faults: a validation that cannot be read is repeated by the resumed run") {
    Toy toy;
    must(toy.args("whole", STEPS));
    const std::string good = read_file(toy.dir + "/val.bin");
    std::string bad = good;
    for (size_t i = 1024; i + 1 < bad.size(); i += 20) bad[i] = bad[i + 1] = '\xff';    // an id beyond the vocabulary
    write_file(toy.dir + "/val.bin", bad);
    must(toy.args("cut", STEPS), 3, "val.bin");
    CHECK(fs::path(toy.newest("cut")).filename() == "step_00000004");    // saved, without a row in metrics.jsonl
    CHECK(checkpoint_state(toy.newest("cut")).value.unwritten.starts_with("{\"step\":4,"));
    must(with(toy.args("cut", STEPS), {"--resume", "auto"}), 3, "val.bin");    // val.bin still bad
    write_file(toy.dir + "/val.bin", good);
    must(with(toy.args("cut", STEPS), {"--resume", "auto"}));
    same_end(toy, "cut", "whole");
    const TrainState state = checkpoint_state(toy.newest("cut")).value;
    CHECK(state.best_loss == checkpoint_state(toy.newest("whole")).value.best_loss);
    CHECK(state.unwritten.empty());
}

TEST_CASE("faults: rows that metrics.jsonl did not take are written by the resumed run") {
    Toy toy;
    must(toy.args("whole", STEPS));
    const int full = memfd_create("full", MFD_ALLOW_SEALING);    // a disk without room for one byte
    if (full < 0 || fcntl(full, F_ADD_SEALS, F_SEAL_GROW) != 0) SKIP("no memory file can be sealed here");
    fs::create_directory(toy.dir + "/cut");
    const std::string rows = toy.dir + "/cut/metrics.jsonl";
    fs::create_symlink("/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(full), rows);
    must(toy.args("cut", STEPS), 4, "metrics.jsonl: cannot be written");
    CHECK(fs::path(toy.newest("cut")).filename() == "step_00000001");
    must(with(toy.args("cut", STEPS), {"--resume", "auto"}), 4, "metrics.jsonl: cannot be written");    // still full
    fs::remove(rows);
    close(full);
    must(with(toy.args("cut", STEPS), {"--resume", "auto"}));
    same_end(toy, "cut", "whole");
}

TEST_CASE("faults: a state of another step than its directory's, or of more data than there is, is refused") {
    Toy toy;
    must(toy.args("a", STEPS));
    const std::vector<std::string> more = with(toy.args("a", STEPS), {"--resume", "auto"});
    const std::string dir = toy.newest("a"), kept = toy.dir + "/step_8_kept";
    fs::copy(dir, kept);
    CHECK(checkpoint_state(kept).ok());    // no step number in the name
    forge(dir, [](TrainState& s) { s.step = 7; });
    must(more, 3, "state.json: step: expected 8, the number in its directory's name, found 7");
    forge(kept, [](TrainState& s) { s.epoch = s.index = (int64_t(1) << 62) - 1; });
    must(with(toy.args("b", STEPS), {"--resume", kept}), 3, "expected less than 2^62 sequences");
}

TEST_CASE("faults: without standard files, progress goes nowhere, and into no file of the run") {
    Toy toy;
    for (const std::string closed : {"2>&-", "<&- 2>&-", "<&- >&- 2>&-"}) {
        INFO(closed);
        fs::remove_all(toy.dir + "/a");
        CHECK(run_process(shell("exec \"$@\" " + closed, toy.started("a", STEPS))).exit_code == 0);
        for (const char* name : {"/lock", "/run.toml", "/metrics.jsonl"}) {
            const std::string text = read_file(toy.dir + "/a" + name);
            CHECK_FALSE(text.empty());
            CHECK_FALSE(contains(text, "step 8/8"));
        }
    }
    const ProcessResult said = run_process(shell("exec \"$@\" >&-", {flatgpt_binary(), "info", toy.dir + "/a"}));
    CHECK(said.exit_code == 4);
    CHECK(contains(said.err, "cannot write to standard output"));
}

TEST_CASE("faults: a file beyond the limit of its size is exit 4, no signal") {
    Toy toy;
    const ProcessResult r = run_process(shell("ulimit -f 64; exec \"$@\"", toy.started("a", STEPS)));    // 32 KiB
    CHECK(r.signal == 0);
    CHECK(r.exit_code == 4);
    CHECK(contains(r.err, "File too large"));
}

// ---- memory -------------------------------------------------------------------------------------

namespace {
// Replaces the C library's allocators: call number FAIL_MALLOC, or FAIL_MMAP, returns no memory.
const char FAILING[] = R"(
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <sys/mman.h>
extern "C" {
void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void*, size_t);
static long calls[2], fail[2] = {-1, -1};
static bool fails(int which) {
    if (fail[which] < 0) {
        const char* text = getenv(which ? "FAIL_MMAP" : "FAIL_MALLOC");
        fail[which] = text ? atol(text) : 0;
    }
    if (__sync_add_and_fetch(&calls[which], 1) != fail[which]) return false;
    errno = ENOMEM;
    return true;
}
void* malloc(size_t n) { return fails(0) ? nullptr : __libc_malloc(n); }
void* calloc(size_t a, size_t n) { return fails(0) ? nullptr : __libc_calloc(a, n); }
void* realloc(void* p, size_t n) { return fails(0) ? nullptr : __libc_realloc(p, n); }
void* mmap(void* at, size_t n, int protection, int flags, int fd, off_t offset) {
    static auto real = reinterpret_cast<decltype(&mmap)>(dlsym(RTLD_NEXT, "mmap"));
    return fd < 0 && fails(1) ? MAP_FAILED : real(at, n, protection, flags, fd, offset);
}
[[gnu::destructor]] static void count() {
    if (const char* path = getenv("FAIL_COUNT"))
        if (FILE* f = fopen(path, "w")) fprintf(f, "%ld %ld", calls[0], calls[1]), fclose(f);
}
}
)";
}    // namespace

TEST_CASE("faults: memory that is refused anywhere ends each command with exit 5, and leaves what was whole") {
    if (ASAN || TSAN) SKIP("a sanitizer has these functions itself");
    Toy toy;
    write_file(toy.dir + "/failing.cpp", FAILING);
    const std::string library = toy.dir + "/failing.so", counts = toy.dir + "/counts";
    if (run_process({"c++", "-shared", "-fPIC", "-o", library, toy.dir + "/failing.cpp", "-ldl"}).exit_code != 0)
        SKIP("no compiler here makes a library");
    must(toy.args("model", {"--steps", "1", "--threads", "1"}));
    const std::string run = toy.dir + "/run", text = toy.dir + "/m.gguf";
    const std::vector<std::string> train = toy.args("run", {"--steps", "4", "--save-every", "2", "--threads", "1"});
    const std::vector<std::string> commands[] = {
        train,
        {"sample", toy.dir + "/model", "--tokens", "4", "--seed", "1", "--threads", "1"},
        {"convert", toy.dir + "/model", text}};
    for (const std::vector<std::string>& command : commands) {
        const bool trains = command[0] == "train";
        auto failing = [&](const std::string& variable) {
            fs::remove_all(run), fs::remove(text);
            ProcessOptions o;
            o.environment = {"LD_PRELOAD=" + library, variable};
            return run_flatgpt(command, o);
        };
        REQUIRE(failing("FAIL_COUNT=" + counts).exit_code == 0);
        long mallocs = 0, mmaps = 0;
        REQUIRE(sscanf(read_file(counts).c_str(), "%ld %ld", &mallocs, &mmaps) == 2);
        std::vector<std::string> each;
        for (long i = 1; i <= mmaps; i++) each.push_back("FAIL_MMAP=" + std::to_string(i));
        const int parts = test_long() ? 400 : 4;
        for (int i = 1; i <= parts; i++) each.push_back("FAIL_MALLOC=" + std::to_string(mallocs * i / parts - 100));
        int refused = 0;
        for (const std::string& variable : each) {
            const ProcessResult r = failing(variable);
            INFO(command[0] << ", " << variable << ": exit " << r.exit_code << ", signal " << r.signal << "\n"
                            << r.err);
            CHECK((r.exit_code == 5 || r.exit_code == 0));    // 0: a library worked without that memory
            refused += r.exit_code == 5;
            if (r.exit_code == 5) CHECK(contains(r.err, "out of memory"));
            if (!trains || !fs::exists(run)) continue;
            for (const std::string& dir : checkpoint_list(run)) CHECK(checkpoint_verify(dir).ok());
            CHECK(fs::file_size(run + "/metrics.jsonl") > 0);    // no run directory without a step
        }
        CHECK(refused >= 2);
    }
}
