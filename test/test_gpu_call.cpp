// test_gpu_call.cpp - dev/gpu_pack.sh and dev/gpu_call.py without a GPU: binaries are stand-ins.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <sstream>

#include "test.h"

namespace fs = std::filesystem;

namespace {
std::vector<std::string> lines(const std::string& text) {
    std::vector<std::string> all;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
}
double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// False also for a zombie: a process that has ended and that its parent has not waited for.
bool lives(int pid) {
    const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
    return !stat.empty() && !contains(stat, ") Z ");
}

// A stand-in for test_cuda takes doctest's options and prints as test/count.h does. Its processes
// hold a shared lock; the case "fails beside others" needs it exclusively. If a file `alone`
// exists, the case "hangs" does so only in a process of its own.
const char* const TEST_CUDA = R"(
echo "test_cuda $*" >>log
names=("passes, 1" "fails" "passes: 3" "is skipped" "passes 5" "passes 6" "hangs" "passes 8" "ends in silence"
       "crashes" "fails beside others" "dies after it has passed")
first=1 last=12
for word; do
    case $word in -f=*) first=${word#-f=} ;; -l=*) last=${word#-l=} ;; esac
done
if [[ $* == *-ltc* ]]; then
    echo "a warning that is no case" >&2
    printf '[doctest] listing all test case names\n=========\n'
    printf '%s\n' "${names[@]}"
    printf '=========\n[doctest] unskipped test cases passing the current filters: 12\n'
    exit
fi
ended() { printf '%-7s %7.2f s  %s\n' "$1" 0.01 "$2"; }
hang() { echo $$ >>pids; trap '' TERM; while :; do sleep 0.1; done; }
exec 9<>lock
flock -s 9
status=0
for name in "${names[@]:first-1:last-first+1}"; do
    verdict=passed
    case $name in
        hangs) [ ! -e alone ] || [ $first = $last ] || exit 9; hang ;;
        *silence) exit 1 ;;
        crashes) echo "GPU failed: an illegal address"; exit 5 ;;
        fails) verdict=FAILED; echo "x.cpp:1: ERROR: CHECK( 1 == 2 ) is NOT correct!" ;;
        is*) verdict=skipped ;;
        *beside*) sleep 0.6; flock -u 9; flock -n -x 9 || verdict=FAILED ;;
    esac
    [ $verdict != FAILED ] || status=1
    ended $verdict "$name"
done
[[ $name != dies* ]] || exit 6
exit $status
)";
// The cases that do not pass, and their verdicts.
const std::map<std::string, std::string> OTHERS = {
    {"hangs", "hung"},     {"fails", "failed"},           {"is skipped", "skipped"},
    {"crashes", "exit 5"}, {"ends in silence", "exit 1"}, {"dies after it has passed", "exit 6"},
};
const char* const FLATGPT = R"(
echo "flatgpt $*" >>log
case "$*" in *--dry-run*) echo $$ >>pids; echo >hangs; trap '' TERM; while :; do sleep 0.1; done ;; esac
[ "$1" = train ] || exit 7
while [ "$1" != --out ]; do shift; done
mkdir -p "$2"
for step in {1..40}; do
    speed=500000 ms=65.50
    [ $step -gt 10 ] || speed=1000 ms=9000.0
    echo "{\"step\":$step,\"loss\":$((50 - step)).25,\"tokens_per_second\":$speed,\"ms\":$ms,\"mfu\":0.412}"
done >"$2/metrics.jsonl"
sleep 300 &    # must end with its step
echo $! >>pids
sleep 0.5
)";

// A shell command that prints a step's output as it was on an H200.
std::string printed(const std::string& step) {
    return "sed -n '/^" + step + " /,/^[a-z]/s/^    //p' '" +
           fs::absolute("dev/results/2026-11-27_NVIDIA-H200_a84e32b/summary.txt").string() + "'\n";
}
// A stand-in for `flatgpt train`: --steps steps; with --save-every a checkpoint every second step.
const char* const TRAINS = R"sh(
[ "$1" = train ] || { echo "flatgpt bench: expected a row" >&2; exit 2; }
[ -z "$RANK" ] || echo "8 steps of 32768 tokens, $WORLD_SIZE rank by torchrun and NCCL 2.28.9, cuda bf16 (NVIDIA H200)"
steps=40 saves=
while [ $# -gt 0 ]; do
    case $1 in --out) out=$2 ;; --steps) steps=$2 ;; --save-every) saves=yes ;; esac
    shift
done
mkdir -p "$out"
for ((step = 1; step <= steps; step++)); do
    echo "{\"step\":$step,\"loss\":7.25,\"tokens_per_second\":${SPEED:-500000},\"ms\":65.5,\"mfu\":0.41}"
    [ "$saves" ] && [ $((step % 2)) = 0 ] || continue
    mkdir -p "$out/step_0000000$step"
    for file in model optimizer; do echo $step >"$out/step_0000000$step/$file.safetensors"; done
    sleep 0.1
done >"$out/metrics.jsonl")sh";

// Copies of the scripts. Stand-ins log their calls in `dir`/log, and their pids before they hang.
struct Tree {
    std::string dir = temporary_directory(), results = dir + "/results";
    std::vector<std::string> environment;

    Tree() {
        for (const char* folder : {"/dev", "/bin", "/gpu", "/python"}) fs::create_directory(dir + folder);
        for (const char* script : {"dev/gpu_call.py", "dev/gpu_step.py"}) fs::copy_file(script, dir + "/" + script);
        tool("gpu/test_cuda", TEST_CUDA);
        tool("gpu/flatgpt", FLATGPT);
        tool("bin/nvidia-smi", R"(
case "$*" in
    *-lms*) while [ -e "$0" ] && echo "1755, 650.25, 0x0000000000000008, 40960"; do sleep 0.05; done ;;
    *) echo "NVIDIA H200, 580.65.06, 143771 MiB, 1980 MHz" ;;
esac)");
        tool("bin/compute-sanitizer", R"(
echo "sanitizer $*" >>log
printf '========= COMPUTE-SANITIZER\n========= Invalid __global__ read of size 4\n'
exit 9)");
        tool("bin/ncu", "exit 3");
        write_file(dir + "/gpu/commit", "0123abc\n");
        write_file(dir + "/python/torch.py", "import os, time\nos.chdir('" + dir + R"(')
print(os.getpid(), file=open("pids", "a"), flush=True)
time.sleep(300)
)");
        const char* path = getenv("PATH");
        environment = {"PATH=" + dir + "/bin:" + (path ? path : "/usr/bin:/bin"),
                       "GPU_BIN=" + dir + "/gpu",
                       "OUT=" + results,
                       "PYTHONPATH=" + dir + "/python",
                       "CASE_LIMIT=2",
                       "GPU_TESTS",
                       "TESTS_LIMIT",
                       "JOBS",
                       "VARIANT_ROWS",
                       "GPU_BEFORE",
                       "RANK",
                       "WORLD_SIZE",
                       "LOCAL_RANK"};
    }
    // Kills every stand-in that hangs, whatever the script under test has left running.
    ~Tree() {
        for (int pid : pids())
            if (lives(pid)) kill(pid, SIGKILL);
        // A killed script leaves its training run's --out folder in /dev/shm; the log names it.
        const std::string work = "/dev/shm/tmp", text = log();
        const size_t at = text.find(work), end = text.find("/run ", at);
        if (at != std::string::npos && end != std::string::npos) fs::remove_all(text.substr(at, end - at));
    }
    Tree(const Tree&) = delete;
    Tree& operator=(const Tree&) = delete;

    void tool(const std::string& name, const std::string& script) const {
        write_file(dir + "/" + name, "#!/bin/bash\ncd '" + dir + "' || exit 1\n" + script + "\n");
        fs::permissions(dir + "/" + name, fs::perms::owner_all);
    }
    void set(const std::string& name, const std::string& value) {
        for (std::string& entry : environment)
            if (entry.substr(0, entry.find('=')) == name) entry = name + "=" + value;
    }
    std::vector<std::string> command(const std::vector<std::string>& arguments) const {
        std::vector<std::string> words = {"python3", dir + "/dev/gpu_call.py"};
        words.insert(words.end(), arguments.begin(), arguments.end());
        return words;
    }
    ProcessOptions options(double timeout) const {
        ProcessOptions o;
        o.environment = environment;
        o.timeout = timeout;
        return o;
    }
    ProcessResult run(const std::vector<std::string>& arguments, double timeout = 60) const {
        return run_process(command(arguments), options(timeout));
    }
    std::string log() const { return read_file(dir + "/log"); }
    std::string summary() const { return read_file(results + "/summary.txt"); }
    std::string archived(const std::string& name) const {
        const ProcessResult r = run_process({"tar", "-xzOf", results + "/results.tar.gz", name});
        CHECK_MESSAGE(r.exit_code == 0, name << ": " << r.err);
        return r.out;
    }
    std::vector<int> pids() const {
        std::vector<int> all;
        for (const std::string& line : lines(read_file(dir + "/pids"))) all.push_back(std::stoi(line));
        return all;
    }
    // The row of a step in the summary; "" where the step did not end.
    std::string row(const std::string& name) const {
        for (const std::string& line : lines(summary()))
            if (line.starts_with(name + " ")) return line;
        return "";
    }
    // A GPU's machine returns 8 files at most: here are two, archive and summary, both whole.
    void check_results(bool last = true) const {
        int files = 0;
        for (const auto& entry : fs::recursive_directory_iterator(results)) files += entry.is_regular_file();
        CHECK(files >= 2);
        CHECK(files <= 8);
        const ProcessResult r = run_process({"tar", "-tzf", results + "/results.tar.gz"});
        CHECK_MESSAGE(r.exit_code == 0, r.err);
        CHECK(!summary().empty());
        if (last) CHECK(archived("summary.txt") == summary());    // during a call the archive may lag
    }
    void check_that_all_ended() const {
        for (int pid : pids()) {
            for (int i = 0; i < 500 && lives(pid); i++) usleep(2000);    // SIGKILL takes a moment
            CHECK_MESSAGE(!lives(pid), "process " << pid << " lives on");
        }
    }
    // {case: verdict}; each of test_cuda's twelve cases has exactly one.
    std::map<std::string, std::string> verdicts() const {
        std::map<std::string, std::string> found;
        for (const std::string& line : lines(archived("parts/tests.txt"))) {
            const size_t tab = line.find('\t');
            REQUIRE(tab != std::string::npos);
            CHECK_MESSAGE(found.emplace(line.substr(tab + 1), line.substr(0, tab)).second, line);
        }
        CHECK(found.size() == 12);
        return found;
    }
};
}    // namespace

TEST_CASE("gpu call: bash, its linter and python take the scripts") {
    const ProcessResult bash = run_process({"/bin/bash", "-n", "dev/gpu_pack.sh"});
    CHECK_MESSAGE(bash.exit_code == 0, bash.err);
    ProcessOptions o;
    o.environment = {"PYTHONPYCACHEPREFIX=" + temporary_directory()};
    const ProcessResult python = run_process({"python3", "-m", "py_compile", "dev/gpu_call.py", "dev/gpu_step.py"}, o);
    CHECK_MESSAGE(python.exit_code == 0, python.err);
    if (!fs::exists("/usr/bin/shellcheck")) SKIP("no shellcheck");
    const ProcessResult r = run_process({"/usr/bin/shellcheck", "-x", "dev/gpu_pack.sh"});
    CHECK_MESSAGE(r.exit_code == 0, r.out);
}

TEST_CASE("gpu call: every case has one verdict, a hang costs its own limit, the steps behind it run") {
    Tree t;
    const double began = now();
    const ProcessResult r = t.run({"60", "machine", "tests", "sanitizer", "bench", "ncu", "train"});
    INFO(r.out << r.err << t.log());
    CHECK(r.exit_code == 0);
    CHECK(now() - began < 20);    // twice 2 s in its group, once alone
    t.check_results();
    t.check_that_all_ended();
    for (const auto& [name, verdict] : t.verdicts()) {
        const auto other = OTHERS.find(name);
        const std::string expected = other == OTHERS.end() ? "passed" : other->second;
        CHECK_MESSAGE(verdict == expected, name);
    }
    CHECK(contains(t.summary(), "12 cases, 7 of them again"));
    CHECK(contains(t.summary(), "1 exit 1, 1 exit 5, 1 exit 6, 1 failed, 1 hung, 6 passed, 1 skipped; "));
    for (const char* line : {"FAILED 1: fails\n        x.cpp:1: ERROR: CHECK( 1 == 2 )", "FAILED over 2 s: hangs\n",
                             "FAILED 5: crashes\n        GPU failed: an illegal address\n"})
        CHECK_MESSAGE(contains(t.summary(), line), line);
    // Each case's name precedes its output, since a case that hangs prints nothing.
    CHECK(t.archived("parts/cases-6-10.txt").starts_with("6: passes 6\n7: hangs\n8: "));
    CHECK(t.archived("parts/cases-7-7.txt") == "7: hangs\n");
    for (const char* tool : {"synccheck", "memcheck"})
        CHECK_MESSAGE(contains(t.log(), std::string("sanitizer --tool ") + tool), tool);
    CHECK(contains(t.log(), "--tool synccheck --print-limit 3 " + t.dir + "/gpu/test_cuda -f=7 -l=7\n"));
    CHECK(contains(t.summary(), "FAILED memcheck 9: crashes\n        ========= Invalid __global__ read of size 4\n"));
    // A step that prints nothing has a row, too, with its exit status.
    CHECK(contains(t.row("machine"), " exit 0 "));
    CHECK(contains(t.row("bench"), " exit 7 "));
    CHECK(contains(t.row("ncu-forward"), " exit 3 "));
    CHECK(contains(t.row("ncu-token"), " exit 3 "));
    CHECK(contains(t.row("train"), " exit 0 "));
    CHECK(contains(t.row("train"), "SM 1755-1755 MHz, 650 W, SLOWED 0x0000000000000008"));
    CHECK(contains(t.summary(),
                   "steps 11 to 40: median 500000 tokens/s, 65.5 ms, MFU 41.2 %; loss 49.250 to 10.250; "
                   "most memory 40960 MiB\n"));
    CHECK(r.out == t.summary());
}

TEST_CASE("gpu call: cut off in the middle of a step, it leaves all that came before") {
    Tree t;
    Process p(t.command({"60", "machine", "train", "train", "bench", "dry"}), t.options(60));
    auto until = [&](auto happened) {
        for (int i = 0; i < 15000 && p.running() && !happened(); i++) usleep(2000);
    };
    // Results are replaced, never rewritten: a hard link to an early file keeps its bytes.
    until([&] { return contains(t.summary(), "machine "); });
    const std::string early = t.dir + "/early.tar.gz", summary = t.dir + "/early.txt";
    fs::create_hard_link(t.results + "/results.tar.gz", early);
    fs::create_hard_link(t.results + "/summary.txt", summary);
    const std::string before[] = {read_file(early), read_file(summary)};
    until([&] { return fs::exists(t.dir + "/hangs"); });
    p.send(SIGKILL);
    const ProcessResult r = p.wait();
    INFO(r.out << r.err << t.summary());
    REQUIRE(r.signal == SIGKILL);
    CHECK(!r.timed_out);
    CHECK(read_file(early) == before[0]);
    CHECK(read_file(summary) == before[1]);
    t.check_results();
    CHECK(contains(t.row("machine"), " exit 0 "));
    CHECK(contains(t.row("train"), " exit 0 "));
    CHECK(contains(t.row("bench"), " exit 7 "));
    CHECK(t.row("dry-run").empty());
    // A step that runs twice leaves both outputs; its figures come before the next step begins.
    for (const char* part : {"train-metrics", "train-metrics-2"})
        CHECK(lines(t.archived(std::string("parts/") + part + ".jsonl")).size() == 40);
    CHECK(contains(t.summary(), "median 500000 tokens/s"));
}

// Stand-ins print what an H200 printed. dev/results keeps those of the first
// call, of another card and of another day.
TEST_CASE("gpu call: a rehearsal of the planned calls; figures beside those of the day's call before") {
    Tree t;
    t.set("CASE_LIMIT", "1");
    t.tool("gpu/flatgpt", "if [[ \"$*\" == bench*training* ]]; then " + printed("steps") +
                              "elif [[ \"$*\" == bench* ]]; then " + printed("bench") + "else " + TRAINS + "\nfi");
    t.tool("gpu/ladder_token", printed("ladder_token"));
    t.tool("bin/ncu", printed("ncu-forward"));
    t.tool("dev/torch", printed("torch"));
    write_file(t.dir + "/dev/compare_torch.py", "import os\nos.execv('" + t.dir + "/dev/torch', ['torch'])\n");
    write_file(t.dir + "/gpu/losses.flags", "--steps 2\n"), write_file(t.dir + "/gpu/losses.txt", "7.25\n7.25\n");
    const auto call = [&](const std::vector<std::string>& words) {
        std::string command = "\npython3 dev/gpu_call.py";
        for (const std::string& word : words) command += " " + word;
        CHECK_MESSAGE(contains(read_file("dev/results/PENDING.md"), command + " "), command);
        Process p(t.command(words), t.options(60));
        while (p.running()) {
            usleep(300000);
            if (fs::exists(t.results + "/summary.txt")) t.check_results(false);
            if (words[2] == "tests" && contains(t.log(), "test_cuda -f="))    // the list is archived before cases run
                CHECK(contains(t.archived("parts/list.txt"), "\nhangs\n"));
        }
        const std::string out = p.wait().out;
        CHECK(out == t.summary());
        CHECK(out.size() < 12000);                    // returned characters of output: 12000 at most
        for (const std::string& line : lines(out))    // all steps have run, and ended well
            CHECK_MESSAGE((line.starts_with(" ") || !contains(line, " exit ") || contains(line, " exit 0")), line);
        CHECK((!contains(out, "NOT RUN") && !contains(out, "the script failed")));
        CHECK(contains(out, "    training step B=32 T=1024  "));
        t.check_results();
        return out;
    };
    std::string out = call({"330", "machine", "tests", "losses", "bits", "train", "ranks", "bench", "ncu"});
    INFO(out);
    t.verdicts();
    for (const char* part : {"losses fp32            0: 2 of 2 steps, largest difference from the CPU's fp32 0.00e",
                             "    the same bits; ", "1 rank by torchrun and NCCL 2.28.9", " median 500000 tokens/s"})
        CHECK_MESSAGE(contains(out, part), part);
    CHECK(!contains(out, "before: "));
    const auto keep = [&](const std::string& name, const std::string& text) {
        fs::create_directories(t.dir + "/dev/results/" + name);
        write_file(t.dir + "/dev/results/" + name + "/summary.txt", text);
    };
    const std::string today = out.substr(0, 10);
    keep(today + "_NVIDIA-H200_0123abc", out);
    keep(today + "_NVIDIA-H200_old", "machine  exit 0\n    NVIDIA H200, 1\ntrain  exit 0\n    steps 11 to 40: old");
    keep(today + "_NVIDIA-H100_0123abc", "9999-12-31 00:00:00\n    NVIDIA H100 80GB HBM3, 1\n");
    const std::string other_day = out.substr(0, 4) + "-00-00_NVIDIA-H200_0123abc";
    keep(other_day, "9999-12-31 00:00:00\n    NVIDIA H200, 1\n");
    t.environment.push_back("SPEED=600000");
    out = call({"290", "machine", "torch", "train", "profile", "bench", "token"});
    CHECK(contains(out, "    beside figures that have changed: " + today + "_NVIDIA-H200_0123abc\n"));
    CHECK(contains(out, "    steps 11 to 40: median 600000 tokens/s, 65.5 ms, MFU 41.0 %; loss 7.250 to 7.250; most "));
    CHECK(contains(out, " MiB   before: steps 11 to 40: median 500000 tokens/s, 65.5 ms"));    // bench's are unchanged
    t.set("GPU_BEFORE", t.dir + "/dev/results/" + other_day);
    CHECK(contains(t.run({"30", "machine"}).out, "    beside figures that have changed: " + other_day + "\n"));
}

TEST_CASE("gpu call: the deadline holds, and what it cut off is not called a hang") {
    Tree t;
    write_file(t.dir + "/alone", "");
    t.set("CASE_LIMIT", "40");
    t.set("GPU_TESTS", "*");
    const double began = now();
    const ProcessResult r = t.run({"10", "tests", "dry", "bench"}, 14);
    INFO(r.out << r.err << t.log());
    CHECK(!r.timed_out);
    CHECK(now() - began < 10.5);    // 10 s, and the interpreter's start and end
    CHECK(r.exit_code == 0);
    t.check_results();
    t.check_that_all_ended();
    std::map<std::string, std::string> verdicts = t.verdicts();
    CHECK(verdicts["hangs"] == "not run");
    CHECK(verdicts["fails"] == "failed");    // the time for a third run is over
    CHECK(verdicts["passes 6"] == "passed");
    for (const char* line : {"test_cuda -tc=* -ltc -nv\n", "test_cuda -tc=* -f=6 -l=10\n"})
        CHECK_MESSAGE(contains(t.log(), line), line);
    CHECK(contains(t.row("bench"), "NOT RUN: the time is over"));
    Tree slow;    // its step `dry` hangs
    const double start = now();
    const ProcessResult s = slow.run({"9", "dry", "bench"}, 13);
    INFO(s.out << s.err);
    CHECK(!s.timed_out);
    CHECK(now() - start < 9.5);
    CHECK(contains(slow.row("dry-run"), " over "));
    CHECK(contains(slow.row("bench"), "NOT RUN"));
    slow.check_results();
    slow.check_that_all_ended();
}

TEST_CASE("gpu call: without a GPU nothing else runs; without a binary the other steps do") {
    Tree t;
    t.tool("gpu/test_cuda", "echo 'FAILED: no test of the CUDA backend ran: expected a GPU'; exit 5");
    ProcessResult r = t.run({"30", "machine", "tests", "train", "bench"});
    INFO(r.out << r.err << t.log());
    CHECK(contains(t.row("machine"), " exit 5 "));
    CHECK(contains(t.summary(), "    FAILED: no test of the CUDA backend ran: expected a GPU\n"));
    CHECK(contains(t.summary(), "no GPU that these binaries can use: the rest is not run"));
    CHECK(!contains(t.log(), "flatgpt"));
    CHECK((t.row("tests").empty() && t.row("train").empty() && t.row("bench").empty()));
    t.check_results();
    Tree bare;
    for (const char* name : {"/gpu/test_cuda", "/bin/ncu", "/bin/nvidia-smi"}) REQUIRE(fs::remove(bare.dir + name));
    r = bare.run({"30", "tests", "ncu", "losses", "train"});
    INFO(r.out << r.err);
    CHECK(r.exit_code == 0);
    CHECK(contains(bare.row("tests"), "No such file or directory"));
    CHECK(contains(bare.row("ncu-forward"), "No such file or directory"));
    CHECK(contains(bare.row("losses"), "the script failed: FileNotFoundError"));
    CHECK(contains(bare.row("train"), " exit 0 "));
    bare.check_results();
}

TEST_CASE("gpu call: what is not a step is refused, with the names of all steps") {
    Tree t;
    for (const std::vector<std::string>& arguments :
         {std::vector<std::string>{"30", "machine", "test"}, {"machine", "tests"}, {"30"}, {}}) {
        const ProcessResult r = t.run(arguments);
        INFO(r.out << r.err);
        CHECK(r.exit_code != 0);
        CHECK(contains(r.err, "expected SECONDS STEP..., steps are machine tests sanitizer"));
        CHECK(!contains(r.err, "Traceback"));
    }
    CHECK(contains(t.run({"30", "test"}).err, "30 test: expected"));
    CHECK(t.log().empty());
    CHECK(!fs::exists(t.results));
}

// Without a GPU these tests fail; they are not skipped.
TEST_CASE("gpu call: test_cuda without a GPU fails and says so") {
    auto fails = [](const char* binary, std::vector<std::string> environment) {
        ProcessOptions o;
        o.environment = environment;
        const ProcessResult r = run_process({binary}, o);
        INFO(r.out << r.err);
        CHECK(r.exit_code == 5);
        CHECK(contains(r.out, "FAILED: no test of the CUDA backend ran: "));
        CHECK(contains(r.out, "\n0 passed, 1 failed, 0 skipped\n"));
    };
    const bool emulated = fs::exists("build/emu/test_cuda"), real = fs::exists("build/test_cuda");
    if (emulated) fails("build/emu/test_cuda", {"EMU_DEVICES=0"});
    if (real) fails("build/test_cuda", {"CUDA_VISIBLE_DEVICES="});
    if (!emulated && !real) SKIP("neither build/emu/test_cuda nor build/test_cuda is built");
}
