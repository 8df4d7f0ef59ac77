// test_gpu_script.cpp - dev/gpu.sh without a GPU: its tools are stand-ins in a temporary tree.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <sstream>

#include "test.h"

namespace fs = std::filesystem;

namespace {
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
std::vector<std::string> lines(const std::string& text) {
    std::vector<std::string> all;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
}

// The libraries of the Makefile's LIBS that a machine may lack: not what the compiler brings, not what is optional.
std::vector<std::string> libraries() {
    std::vector<std::string> names;
    for (const std::string& line : lines(read_file("Makefile"))) {
        if (!line.starts_with("LIBS = ")) continue;
        std::istringstream words(line.substr(7));
        for (std::string word; words >> word;)
            if (word.starts_with("-l") && word != "-lpthread" && !word.ends_with(")")) names.push_back(word.substr(2));
    }
    return names;
}
const char* const HEADERS[] = {"CLI/CLI.hpp", "doctest/doctest.h", "nlohmann/json.hpp", "pcre2.h", "utf8proc.h",
                               "zlib.h", "zconf.h", "zstd.h", "zstd_errors.h"};

// A copy of the script, whose PATH begins with stand-ins. Each appends to `log` what it was asked.
struct Tree {
    std::string dir = temporary_directory(), results = dir + "/results";
    std::vector<std::string> environment;

    Tree() {
        fs::create_directories(dir + "/dev");
        for (const char* name : {"dev/gpu.sh", "dev/gpu_preflight.sh"})
            fs::copy_file(name, dir + "/" + name, fs::copy_options::overwrite_existing);
        tool("bin/nvidia-smi", R"(
case "$*" in
    *compute_cap*) echo "NVIDIA H100 80GB HBM3, 9.0, 580.65.06" ;;
    *-lms*) while [ -e "$0" ] && echo "1755, 2619, 650.25, 61, 0x0000000000000004"; do sleep 0.02; done ;;
    *) echo "1980 MHz, 2619 MHz, 120.00 W, 40, 0x0000000000000001" ;;
esac)");
        tool("bin/nvcc", R"(
case "$1" in
    --version) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit ;;
    --list-gpu-arch) printf 'compute_%s\n' 75 80 89 90 100; exit ;;
esac
echo "nvcc $*" >>log
while [ $# -gt 1 ]; do [ "$1" = -o ] && out=$2; shift; done
printf '#!/bin/sh\necho a kernel counts 32 of 32 threads\n' >"$out"
chmod +x "$out")");
        tool("bin/make", R"(
echo "make $* ARCH=$ARCH NO_DEPS=$NO_DEPS CPATH=$CPATH LIBRARY_PATH=$LIBRARY_PATH" >>log
mkdir -p build
case "$1" in build/test_cuda) cp test_cuda build/ ;; flatgpt) cp flatgpt_stub flatgpt ;; esac)");
        tool("bin/compute-sanitizer", R"(echo "sanitizer $*" >>log)");
        tool("test_cuda", R"(echo "test_cuda $*" >>log; echo "1 passed, 0 failed, 0 skipped")");
        tool("flatgpt_stub", R"(
echo "flatgpt $* ATTENTION=$FLATGPT_ATTENTION" >>log
while [ $# -gt 1 ]; do
    [ "$1" = --out ] && mkdir -p "$2" && echo '{"step":1}' >"$2/metrics.jsonl"
    [ "$1" = --data ] && cp "$2" tokens.bin
    shift
done)");
        for (const char* header : HEADERS) file(std::string("usr/include/") + header);
        for (const std::string& name : libraries()) file("usr/lib64/lib" + name + ".so");
        for (const char* name : {"include/cuda_runtime.h", "include/cublasLt.h", "lib64/libcublasLt.so",
                                 "include/nccl.h", "lib64/libnccl.so.2"})
            file(std::string("usr/local/cuda/") + name);
        environment = {"PATH=" + dir + "/bin:/usr/bin:/bin", "GPU_ROOT=" + dir, "OUT=" + results, "HOME=" + dir,
                       "GPU_SECONDS=5", "GPU_GRACE=1", "CPATH", "LIBRARY_PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV",
                       "CONDA_PREFIX", "CUDA_HOME", "CUDA_ARCH", "GPU_PARTS", "FLATGPT_ATTENTION", "CXX"};
    }
    void tool(const std::string& name, const std::string& script) {
        file(name, "#!/bin/bash\n" + script + "\n");
        fs::permissions(dir + "/" + name, fs::perms::owner_all);
    }
    void file(const std::string& name, const std::string& text = "") {
        fs::create_directories(fs::path(dir + "/" + name).parent_path());
        write_file(dir + "/" + name, text);
    }
    void lose(const std::string& name) { REQUIRE(fs::remove_all(dir + "/" + name) > 0); }
    ProcessOptions options(const std::string& parts) const {
        ProcessOptions o;
        o.environment = environment;
        if (!parts.empty()) o.environment.push_back("GPU_PARTS=" + parts);
        o.timeout = 120;
        return o;
    }
    std::vector<std::string> command(const std::string& argument = "") const {
        std::vector<std::string> a = {"/bin/bash", dir + "/dev/gpu.sh"};
        if (!argument.empty()) a.push_back(argument);
        return a;
    }
    ProcessResult run(const std::string& argument, const std::string& parts = "") const {
        return run_process(command(argument), options(parts));
    }
    std::string log() const { return read_file(dir + "/log"); }
    std::string summary() const { return read_file(results + "/summary.txt"); }
    std::string part(const std::string& name) const { return read_file(results + "/parts/" + name + ".txt"); }
    std::string archived() const {    // the names in the archive, which must be whole
        const ProcessResult r = run_process({"tar", "-tzf", results + "/results.tar.gz"});
        CHECK_MESSAGE(r.exit_code == 0, r.err);
        return r.out;
    }
};

// The row of a part in the summary; "" where it did not run.
std::string row(const Tree& t, const std::string& name) {
    for (const std::string& line : lines(t.summary()))
        if (line.starts_with(name + " ")) return line;
    return "";
}
}    // namespace

TEST_CASE("gpu script: bash and its linter take it") {
    for (const char* name : {"dev/gpu.sh", "dev/gpu_preflight.sh"}) {
        const ProcessResult r = run_process({"/bin/bash", "-n", name});
        CHECK_MESSAGE(r.exit_code == 0, r.err);
    }
    if (!fs::exists("/usr/bin/shellcheck")) SKIP("no shellcheck");
    const ProcessResult r = run_process({"/usr/bin/shellcheck", "-x", "dev/gpu.sh", "dev/gpu_preflight.sh"});
    CHECK_MESSAGE(r.exit_code == 0, r.out);
}

TEST_CASE("gpu script: each test of the CUDA backend is in one group") {
    const char* binary = "build/emu/test_cuda";
    if (!fs::exists(binary)) SKIP("no build/emu/test_cuda: make test builds it");
    auto cases = [&](const std::string& filter) {
        std::vector<std::string> a = {binary, "-ltc", "-nv"}, names;
        if (!filter.empty()) a.push_back(filter);
        const ProcessResult r = run_process(a);
        REQUIRE(r.exit_code == 0);
        for (const std::string& line : lines(r.out))
            if (!line.starts_with("[doctest]") && !line.starts_with("===")) names.push_back(line);
        return names;
    };
    std::map<std::string, int> times;
    const ProcessResult groups = run_process({"/bin/bash", "dev/gpu.sh", "groups"});
    REQUIRE(groups.exit_code == 0);
    for (const std::string& line : lines(groups.out)) {
        const size_t tab = line.rfind('\t');
        REQUIRE(tab != std::string::npos);
        const std::vector<std::string> names = cases(line.substr(tab + 1));
        CHECK_MESSAGE(!names.empty(), line);
        for (const std::string& name : names) times[name]++;
    }
    const std::vector<std::string> all = cases("");
    CHECK(all.size() > 90);
    CHECK(times.size() == all.size());
    for (const std::string& name : all) CHECK_MESSAGE(times[name] == 1, name);
}

TEST_CASE("gpu script: what is missing is said before anything is built, and where it was looked for") {
    struct Loss { const char *path, *name, *place; };
    for (const Loss& lost : std::initializer_list<Loss>{
             {"bin/nvcc", "nvcc", "/usr/local/cuda*"},
             {"usr/local/cuda/include/cublasLt.h", "cublasLt.h", "/usr/local/cuda/include"},
             {"usr/local/cuda/lib64/libcublasLt.so", "libcublasLt", "/usr/local/cuda/lib64"},
             {"usr/local/cuda/include/nccl.h", "nccl.h", "/usr/include"},
             {"usr/include/CLI/CLI.hpp", "CLI/CLI.hpp", "/carry/include"},
             {"usr/lib64/libpcre2-8.so", "libpcre2-8", "/carry/lib"}}) {
        Tree t;
        t.lose(lost.path);
        const ProcessResult r = t.run("");
        INFO(r.out << r.err);
        CHECK(r.exit_code == 2);
        CHECK(has(r.out, std::string("MISSING  ") + lost.name + " "));
        CHECK(has(r.out, lost.place));
        CHECK(has(r.err, "nothing was run"));
        CHECK(!has(t.log(), "make"));
    }
    // All of it at once, not one after the other.
    Tree t;
    for (const char* name : {"bin/nvcc", "usr/local/cuda", "usr/include/pcre2.h", "bin/nvidia-smi"}) t.lose(name);
    const ProcessResult r = t.run("preflight");
    INFO(r.out << r.err);
    CHECK(r.exit_code == 5);
    for (const char* name : {"a GPU", "nvcc", "cublasLt.h", "libcublasLt", "nccl.h", "pcre2.h"})
        CHECK_MESSAGE(has(r.out, std::string("MISSING  ") + name + " "), name);
}

TEST_CASE("gpu script: every header and library of the build is looked for, and the recipe for carry/ has them") {
    REQUIRE(libraries().size() >= 3);
    Tree t;
    for (const char* header : HEADERS) t.lose(std::string("usr/include/") + header);
    for (const std::string& name : libraries()) t.lose("usr/lib64/lib" + name + ".so");
    const ProcessResult r = t.run("preflight");
    INFO(r.out << r.err);
    CHECK(r.exit_code == 2);
    for (const char* header : HEADERS) CHECK_MESSAGE(has(r.out, std::string("MISSING  ") + header + " "), header);
    for (const std::string& name : libraries()) CHECK_MESSAGE(has(r.out, "MISSING  lib" + name + " "), name);

    // As somebody would take it from the head of the script: the lines of the comment that are set in.
    std::string recipe;
    for (const std::string& line : lines(read_file("dev/gpu.sh"))) {
        const bool begun = !recipe.empty(), ended = begun && !recipe.ends_with("&&\n");
        if (!ended && (begun || line.starts_with("#   mkdir"))) recipe += line.substr(4) + "\n";
    }
    for (const char* header : HEADERS)
        if (!fs::exists(std::string("/usr/include/") + header)) SKIP("the headers are not in /usr/include");
    const ProcessResult carried = run_process({"/bin/bash", "-c", "cd \"$0\" && " + recipe, t.dir});
    INFO(recipe << carried.err);
    CHECK(carried.exit_code == 0);
    const ProcessResult with = t.run("preflight");
    INFO(with.out << with.err);
    CHECK(with.exit_code == 0);
    CHECK(has(with.out, t.dir + "/carry/lib/libz.so"));
}

TEST_CASE("gpu script: a GPU that cannot be used is exit 5") {
    auto refused = [](const char* smi, const char* why) {
        Tree t;
        t.tool("bin/nvidia-smi", smi);
        t.environment.push_back("GPU_SECONDS=1");
        const ProcessResult r = t.run("");
        INFO(r.out << r.err);
        CHECK(r.exit_code == 5);
        CHECK(has(r.out, "MISSING  a GPU "));
        CHECK(has(r.out, why));
        CHECK(!has(t.log(), "make"));
    };
    refused("trap '' TERM; while :; do sleep 0.1; done", "no answer");
    refused("echo 'NVIDIA-SMI has failed because it could not communicate with the driver'; exit 9",
            "could not communicate");
    refused("echo 'Tesla V100-SXM2-16GB, 7.0, 550.54.15'", "compute capability 70");
    refused("exit 0", "lists none");
    Tree t;    // all is there, but does not work together
    t.tool("bin/nvcc", R"(
case "$1" in
    --version) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit ;;
    --list-gpu-arch) echo compute_90; exit ;;
esac
echo "fatal: cannot find cc1plus"; exit 1)");
    ProcessResult r = t.run("preflight");
    INFO(r.out << r.err);
    CHECK(r.exit_code == 2);
    CHECK(has(r.out, "cannot find cc1plus"));
}

TEST_CASE("gpu script: what pip installed and what was carried along is used") {
    Tree t;
    const std::string pip = "venv/lib/python3.11/site-packages/nvidia/";
    t.lose("usr/local/cuda");
    t.lose("usr/include/CLI");
    t.file(pip + "cuda_runtime/include/cuda_runtime.h");
    t.file(pip + "cu13/include/cublasLt.h");
    t.file(pip + "cu13/lib/libcublasLt.so.13");    // without the name that the linker wants
    t.file(pip + "nccl/include/nccl.h");
    t.file(pip + "nccl/lib/libnccl.so.2");
    t.file("carry/include/CLI/CLI.hpp");
    t.environment.push_back("VIRTUAL_ENV=" + t.dir + "/venv");
    t.tool("bin/make", R"(
echo "make CPATH=$CPATH LD_LIBRARY_PATH=$LD_LIBRARY_PATH NO_DEPS=$NO_DEPS" >>log
readlink "${LIBRARY_PATH%%:*}/libcublasLt.so" >>log)");
    const ProcessResult r = t.run("", "build");
    INFO(r.out << r.err << t.log());
    CHECK(r.exit_code == 0);
    for (const std::string folder : {"cu13/include", "nccl/include", "cu13/lib", "nccl/lib"})
        CHECK_MESSAGE(has(t.log(), t.dir + "/" + pip + folder), folder);
    CHECK(has(t.log(), t.dir + "/carry/include"));
    CHECK(has(t.log(), "NO_DEPS=1"));
    CHECK(has(t.log(), "\n" + t.dir + "/" + pip + "cu13/lib/libcublasLt.so.13\n"));
}

TEST_CASE("gpu script: the code that is built") {
    auto arch = [](const char* device, const char* asked) {
        Tree t;
        t.tool("bin/nvidia-smi", std::string("echo '") + device + "'");
        if (*asked) t.environment.push_back(std::string("CUDA_ARCH=") + asked);
        const ProcessResult r = t.run("", "build");
        CHECK_MESSAGE(r.exit_code == 0, r.out << r.err);
        const size_t at = t.log().find("ARCH=");
        return t.log().substr(at, t.log().find(' ', at) - at);
    };
    CHECK(arch("NVIDIA H100, 9.0, 580", "") == "ARCH=90a");
    CHECK(arch("NVIDIA A100, 8.0, 580", "") == "ARCH=80");
    CHECK(arch("NVIDIA GB999, 17.2, 999", "") == "ARCH=100");    // newer than nvcc: the newest that it has
    CHECK(arch("NVIDIA A10, 8.6, 580", "") == "ARCH=80");
    CHECK(arch("NVIDIA A10, 8.6, 580", "89") == "ARCH=89");
}

TEST_CASE("gpu script: groups first, what hangs is killed, what fails is looked into, all is kept") {
    Tree t;
    t.tool("test_cuda", R"(
echo "test_cuda $*" >>log
case "$*" in
    *tce*) echo "the rest"; exit 0 ;;
    *bulk*) trap '' TERM; while :; do sleep 0.1; done ;;
    *sm90*) echo "FAILED 0.1 s attention sm90"; exit 1 ;;
esac
echo "1 passed, 0 failed, 0 skipped")");
    const ProcessResult r = t.run("");
    INFO(r.out << r.err << t.log());
    CHECK(r.exit_code == 1);
    // In this order.
    size_t at = 0;
    for (const char* step :
         {"make build/test_cuda ARCH=90a", "test_cuda -tc=ptx*", "test_cuda -tc=hopper: tensor*",
          "test_cuda -tc=hopper: products*", "test_cuda -tc=hopper: bulk*",
          "sanitizer --error-exitcode 9 --tool synccheck build/test_cuda -tc=hopper: bulk*",
          "test_cuda -tc=attention sm90*",
          "sanitizer --error-exitcode 9 --tool memcheck build/test_cuda -tc=attention sm90*",
          "test_cuda -tc=linear*,cuda linear*", "test_cuda -tce=ptx*,", "make flatgpt", "flatgpt selftest",
          "flatgpt bench --device cuda --filter attention", "--steps 10 ATTENTION=sm80",
          "flatgpt bench --device cuda --batch 32", "make gpu-time ARGS=--measured ", "--steps 50 ATTENTION=sm80",
          "--dry-run", "--zero 2", "make ladders", "--tool racecheck"}) {
        const size_t found = t.log().find(step, at);
        CHECK_MESSAGE(found != std::string::npos, step);
        if (found != std::string::npos) at = found;
    }
    CHECK(has(row(t, "tests-ptx"), "exit   0"));
    CHECK(has(row(t, "tests-hopper-bulk"), "exit 137"));
    CHECK(has(row(t, "tests-hopper-bulk"), "over its limit and killed"));
    CHECK(has(row(t, "tests-attention-sm90"), "exit   1"));
    CHECK(has(row(t, "tests-rest"), "exit   0"));
    CHECK(has(row(t, "from here on"), "FLATGPT_ATTENTION=sm80"));
    // Clocks beside every figure.
    CHECK(has(row(t, "tests-hopper-bulk"), "SM 1755 to 1755 MHz, 650 W, 61 C, slowed by sw_power_cap"));
    for (const char* line : {"before: 1980 MHz, 2619 MHz, 120.00 W, 40, 0x", "after:  1980 MHz", "during: SM 1755 to",
                             "clocks_event_reasons.active", "exit 0"})
        CHECK_MESSAGE(has(t.part("train"), line), line);
    const ProcessResult tokens =
        run_flatgpt({"train", "--data", t.dir + "/tokens.bin", "--dry-run", "--device", "cpu"});
    CHECK_MESSAGE(tokens.exit_code == 0, tokens.err);
    CHECK(has(tokens.out, "1.8M tokens in 1 shard, 1757 windows of 1024"));
    const std::string names = t.archived();
    for (const char* name : {"summary.txt", "parts/machine.txt", "parts/tests-ptx.txt", "parts/train.txt",
                             "parts/train-metrics.jsonl", "parts/tests-hopper-bulk-synccheck.txt"})
        CHECK_MESSAGE(has(names, name), name);
    CHECK(!fs::exists(t.results + "/.results.tmp"));
}

TEST_CASE("gpu script: older drivers call the reasons otherwise; without a sanitizer it goes on") {
    Tree t;
    t.tool("bin/nvidia-smi", R"(
case "$*" in
    *compute_cap*) echo "NVIDIA A100-SXM4-40GB, 8.0, 515.43" ;;
    *clocks_event_reasons*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2 ;;
    *-lms*) while [ -e "$0" ] && echo "1410, 1215, 400, 61, 0x0000000000000048"; do sleep 0.02; done ;;
    *) echo "1410 MHz, 1215 MHz, 60 W, 40, 0x0" ;;
esac)");
    t.tool("test_cuda", "sleep 0.2; case $* in *ptx*) exit 1 ;; esac");
    t.lose("bin/compute-sanitizer");
    const ProcessResult r = t.run("", "build tests");
    INFO(r.out << r.err << t.summary());
    CHECK(r.exit_code == 1);
    CHECK(has(t.part("tests-ptx"), "clocks_throttle_reasons.active"));
    CHECK(has(row(t, "tests-linear"), "slowed by hw_slowdown+hw_thermal"));
    CHECK(row(t, "tests-ptx-memcheck").empty());
    CHECK(row(t, "train").empty());
}

TEST_CASE("gpu script: cut off in the middle, it leaves all that came before") {
    for (int signal : {SIGKILL, SIGTERM}) {
        Tree t;
        t.tool("test_cuda", R"(
echo "test_cuda $*" >>log
case "$*" in *tc=*tensor*) echo $$ >pid; trap '' TERM; while :; do sleep 0.1; done ;; esac)");
        t.environment.push_back("GPU_SECONDS=50");
        Process p(t.command(), t.options("build tests"));
        for (int i = 0; i < 20000 && p.running() && read_file(t.dir + "/pid").empty(); i++) usleep(2000);
        p.send(signal);
        const ProcessResult r = p.wait();
        INFO(r.out << r.err << t.summary());
        CHECK(!r.timed_out);
        CHECK((signal == SIGKILL ? r.signal == SIGKILL : r.exit_code == 143));
        CHECK(has(row(t, "build-tests"), "exit   0"));
        CHECK(has(row(t, "tests-ptx"), "exit   0"));
        CHECK(has(t.part("tests-hopper-tensor"), "before: "));
        CHECK(has(t.archived(), "parts/tests-ptx.txt"));
        CHECK(row(t, "cut off here").empty() == (signal == SIGKILL));
        const int hung = std::stoi(read_file(t.dir + "/pid"));
        if (signal == SIGTERM) {    // its part has ended with it
            auto lives = [&] {    // as more than a row of the process table that nobody has read
                const std::string stat = read_file("/proc/" + std::to_string(hung) + "/stat");
                return !stat.empty() && !has(stat, ") Z ");
            };
            for (int i = 0; i < 5000 && lives(); i++) usleep(2000);
            CHECK(!lives());
        } else {
            kill(hung, SIGKILL);
        }
    }
}

// The binaries of the kernels' tests are asked for a GPU: none is a failure.
TEST_CASE("gpu script: test_cuda without a GPU fails and says so") {
    auto fails = [](const char* binary, std::vector<std::string> environment) {
        ProcessOptions o;
        o.environment = environment;
        const ProcessResult r = run_process({binary}, o);
        INFO(r.out << r.err);
        CHECK(r.exit_code == 5);
        CHECK(has(r.out, "FAILED: no test of the CUDA backend ran: "));
        CHECK(has(r.out, "\n0 passed, 1 failed, 0 skipped\n"));
    };
    const bool emulated = fs::exists("build/emu/test_cuda"), real = fs::exists("build/test_cuda");
    if (emulated) fails("build/emu/test_cuda", {"EMU_DEVICES=0"});
    if (real) fails("build/test_cuda", {"CUDA_VISIBLE_DEVICES="});
    if (!emulated && !real) SKIP("neither build/emu/test_cuda nor build/test_cuda is built");
}
