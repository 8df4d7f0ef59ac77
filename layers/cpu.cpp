// cpu.cpp - the CPU backend's memory, threads, choice of instruction set and tables.
#include "cpu.h"

#include <sched.h>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>

#include "base/memory.h"
#include "base/pool.h"

namespace {
// ---- memory -------------------------------------------------------------------------------------

constexpr int64_t PAGE = 4096, HUGE_PAGE = 2 << 20, BLOCK = 1 << 20;

int64_t mapped_size(int64_t bytes) {
    return round_up(std::max<int64_t>(bytes, 1), bytes < HUGE_PAGE ? PAGE : HUGE_PAGE);
}

// Large blocks start at a multiple of 2 MiB, so that Linux can use huge pages, from which reading
// is 20 to 25 % faster than from pages of 4 KiB.
void* allocate(int64_t bytes) {
    const int64_t size = mapped_size(bytes), slack = size < HUGE_PAGE ? 0 : HUGE_PAGE;
    void* p = mmap(nullptr, size_t(size + slack), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    if (!slack) return p;
    char *start = static_cast<char*>(p), *aligned = start + (-reinterpret_cast<uintptr_t>(p) & (HUGE_PAGE - 1));
    if (aligned > start) munmap(start, size_t(aligned - start));
    if (char* end = aligned + size, *last = start + size + slack; end < last) munmap(end, size_t(last - end));
    madvise(aligned, size_t(size), MADV_HUGEPAGE);    // may be refused: a hint, no error
    return aligned;
}
void release(void* p, int64_t bytes) {
    if (p) munmap(p, size_t(mapped_size(bytes)));
}
void zero(void* p, int64_t bytes) {
    each_chunk(ceil_div(bytes, BLOCK), [&](int64_t chunk, int) {
        const int64_t i = chunk * BLOCK;
        memset(static_cast<char*>(p) + i, 0, size_t(std::min(BLOCK, bytes - i)));
    });
}
void copy(void* to, const void* from, int64_t bytes) {
    each_chunk(ceil_div(bytes, BLOCK), [&](int64_t chunk, int) {
        const int64_t i = chunk * BLOCK;
        memcpy(static_cast<char*>(to) + i, static_cast<const char*>(from) + i, size_t(std::min(BLOCK, bytes - i)));
    });
}

struct Scratch {
    void* p = nullptr;
    int64_t bytes = 0;
} scratch;

// ---- cores and memory of this process -----------------------------------------------------------

// Calls visit(directory) for this process's cgroups that have the controller: its own, and each one
// above up to the root.
template <class Visit> void each_cgroup(const std::string& controller, Visit visit) {
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {    // "0::/path" (v2), "4:cpu,cpuacct:/path" (v1)
        std::istringstream fields(line);
        std::string id, controllers, path;
        if (!(std::getline(fields, id, ':') && std::getline(fields, controllers, ':') && std::getline(fields, path)))
            continue;
        if (!controllers.empty() && ("," + controllers + ",").find("," + controller + ",") == std::string::npos)
            continue;
        const std::string root = controllers.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/" + controller;
        while (true) {
            visit(root + (path == "/" ? "" : path));
            if (path.size() <= 1) break;
            path.resize(std::max<size_t>(path.rfind('/'), 1));
        }
    }
}

// Returns the CPU quota of a cgroup in cores; 0: no limit. v2 has one file with quota and period
// ("150000 100000", or "max 100000" without a limit), v1 has a file for each.
double quota(const std::string& directory) {
    std::ifstream v2(directory + "/cpu.max");
    double limit = 0, period = 0;
    if (!(v2 >> limit >> period)) {
        std::ifstream quota_us(directory + "/cpu.cfs_quota_us"), period_us(directory + "/cpu.cfs_period_us");
        if (!(quota_us >> limit && period_us >> period)) return 0;
    }
    return limit > 0 && period > 0 ? limit / period : 0;
}

int usable_cores() {
    const int cores = cpu_cores("/sys/devices/system/cpu");
    double limit = 0;
    each_cgroup("cpu", [&](const std::string& directory) {
        double q = quota(directory);
        limit = q > 0 && (limit == 0 || q < limit) ? q : limit;
    });
    return std::max(1, limit > 0 ? std::min(cores, int(std::ceil(limit))) : cores);
}

// The number after `key` in a file of "key number" lines; with no key, the first number. Returns -1
// if there is none ("max", no file).
int64_t number_in(const std::string& path, const std::string& key = "") {
    std::ifstream file(path);
    std::string word;
    while (!key.empty() && word != key && file >> word) {}
    int64_t n;
    return file >> n ? n : -1;
}
// Bytes left in a cgroup (v2 or v1). Inactive cached files count as used, but the kernel drops them
// under memory pressure: they are added back.
int64_t cgroup_free_bytes(const std::string& directory) {
    const int64_t limit =
        std::max(number_in(directory + "/memory.max"), number_in(directory + "/memory.limit_in_bytes"));
    const int64_t used =
        std::max(number_in(directory + "/memory.current"), number_in(directory + "/memory.usage_in_bytes"));
    const std::string stat = directory + "/memory.stat";
    const int64_t cached = std::max(number_in(stat, "inactive_file"), number_in(stat, "total_inactive_file"));
    return limit < 0 || used < 0 ? INT64_MAX : std::max<int64_t>(0, limit - used + std::max<int64_t>(0, cached));
}
int64_t free_bytes() {
    const int64_t kilobytes = number_in("/proc/meminfo", "MemAvailable:");
    int64_t least = kilobytes < 0 ? INT64_MAX : kilobytes * 1024;
    each_cgroup("memory", [&](const std::string& directory) { least = std::min(least, cgroup_free_bytes(directory)); });
    return least;
}

// ---- instruction sets and tables ----------------------------------------------------------------

const char* const ISA_KEY[ISA_COUNT] = {"base", "avx2", "avx512", "avx512bf16"};
const char* const ISA_NAME[ISA_COUNT] = {"baseline", "AVX2", "AVX-512", "AVX-512 with BF16"};

// The instruction set of this name; null or empty: the best one.
Result<Isa> isa_named(const char* key) {
    Isa best = Isa::base;
    std::string have;
    for (int i = 0; i < ISA_COUNT; i++)
        if (cpu_supports(Isa(i))) {
            best = Isa(i);
            if (key && !strcmp(key, ISA_KEY[i])) return best;
            have += std::string(have.empty() ? "" : ", ") + ISA_KEY[i];
        }
    if (!key || !*key) return best;
    return fail(Exit::usage, "FLATGPT_ISA=%s: expected an instruction set of this CPU: %s", key, have.c_str());
}

template <class P> Ops<float, P> table(Isa isa, Tiles tiles, std::string& name) {
    Ops<float, P> ops = cpu_kernels<P>(isa, tiles);
    const char* units[] = {ISA_NAME[int(isa)], "AMX", "AMX, pretended"};
    name = std::string("cpu ") + (sizeof(P) == 2 ? "bf16" : "fp32") + " (" + units[int(tiles)] + ")";
    ops.allocate = ops.allocate_host = allocate;
    ops.release = ops.release_host = release;
    ops.zero = zero;
    ops.copy = ops.upload = ops.download = ops.upload_async = ops.use_uploaded = ops.download_async = copy;
    const Ops<double>& plain = reference_ops();    // no faster version exists
    ops.mark = plain.mark;
    ops.wait = plain.wait;
    ops.add_losses = plain.add_losses;
    ops.step_verdict = plain.step_verdict;
    // The LM head's logits are computed in chunks of rows: 256 MiB hold about 1340 rows of GPT-2's.
    // Smaller chunks are slower, as each reads wte three times and adds to dwte.
    ops.logits_bytes = 256 << 20;
    ops.free_bytes = free_bytes;
    const char* missing = missing_operation<float, P>(ops);
    CHECK(!missing, "the operation %s is missing", missing);
    return ops;
}
}    // namespace

const char* cpu_isa_name(Isa isa) { return ISA_NAME[int(isa)]; }

void* cpu_scratch(int64_t bytes) {
    if (bytes > scratch.bytes) {
        release(scratch.p, scratch.bytes);
        scratch.bytes = mapped_size(bytes);
        scratch.p = allocate(scratch.bytes);
        if (!scratch.p) out_of_memory();    // in the middle of a step
    }
    return scratch.p;
}
int64_t cpu_scratch_allocated() { return scratch.bytes; }
int64_t cpu_scratch_size(int64_t bytes) { return mapped_size(bytes); }
void cpu_scratch_release() {
    release(scratch.p, scratch.bytes);
    scratch = {};
}

float cpu_alibi_slope(int head, int NH) { return float(alibi_slope(head, NH)); }
float cpu_retention_decay(int i, int n) { return float(retention_decay(i, n)); }

int cpu_cores(const std::string& system) {
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof mask, &mask) != 0) return pool_cores();
    std::set<std::string> cores;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &mask)) continue;
        std::string siblings = "cpu" + std::to_string(cpu);    // alone on its core, if the system does not tell
        std::getline(std::ifstream(system + "/" + siblings + "/topology/thread_siblings_list"), siblings);
        cores.insert(siblings);
    }
    return int(cores.size());
}
void cpu_set_threads(int threads) { pool_set_threads(threads > 0 ? threads : usable_cores()); }
int cpu_threads() { return pool_threads(); }

#if defined(__x86_64__)
#include <cpuid.h>

bool cpu_supports(Isa isa) {
    switch (isa) {
        case Isa::avx512bf16: return cpu_supports(Isa::avx512) && __builtin_cpu_supports("avx512bf16");
        case Isa::avx512: return __builtin_cpu_supports("x86-64-v4");
        case Isa::avx2: return __builtin_cpu_supports("x86-64-v3");
        default: return true;
    }
}
bool cpu_has_bf16() { return cpu_isa() == Isa::avx512bf16; }
bool cpu_has_slow_pairs() { return __builtin_cpu_is("intel"); }
bool cpu_has_vnni(Isa isa) {
    constexpr unsigned AVX_VNNI = 1u << 4;
    if (isa >= Isa::avx512) return __builtin_cpu_supports("avx512vnni");
    unsigned a, b, c, d;
    return isa == Isa::avx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && a & AVX_VNNI;
}
PrefetchDistance cpu_prefetch_distance() {
    if (__builtin_cpu_is("intel")) return {.floats = 2048};
    const bool zen_4 = __builtin_cpu_is("amdfam19h") && __builtin_cpu_supports("avx512f");    // Zen 3 has none
    if (zen_4) return {.floats = 0, .blocks = 0};
    return {};
}
// The tile registers are state of a thread, which Linux saves and restores. Linux must support this
// (XCR0) and grant the registers to each process (arch_prctl, since Linux 5.16). Without the grant,
// tile instructions raise SIGILL.
static bool granted_amx() {
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    constexpr unsigned OSXSAVE = 1u << 27, AMX_BF16 = 1u << 22, AMX_TILE = 1u << 24, TILE_STATES = 3u << 17;
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & AMX_BF16) || !(d & AMX_TILE)) return false;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (a & TILE_STATES) == TILE_STATES && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
bool cpu_has_amx() {
    static const bool granted = granted_amx();
    return granted;
}
bool cpu_has_amx_int8() {
    constexpr unsigned AMX_INT8 = 1u << 25;
    unsigned a, b, c, d;
    return cpu_has_amx() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && d & AMX_INT8;
}
template <class P> CpuKernels<P> cpu_kernels(Isa isa, Tiles tiles) {
    switch (isa) {
        case Isa::avx512bf16: return avx512bf16::kernels<P>(tiles);
        case Isa::avx512: return avx512::kernels<P>(tiles);
        case Isa::avx2: return avx2::kernels<P>(tiles);
        default: return base::kernels<P>(tiles);
    }
}
#else
bool cpu_supports(Isa isa) { return isa == Isa::base; }
bool cpu_has_bf16() { return false; }
bool cpu_has_slow_pairs() { return false; }
bool cpu_has_vnni(Isa) { return false; }
PrefetchDistance cpu_prefetch_distance() { return {}; }
bool cpu_has_amx() { return false; }
bool cpu_has_amx_int8() { return false; }
template <class P> CpuKernels<P> cpu_kernels(Isa, Tiles tiles) { return base::kernels<P>(tiles); }
#endif
template CpuKernels<float> cpu_kernels(Isa, Tiles);
template CpuKernels<bf16> cpu_kernels(Isa, Tiles);

template <class P> const Ops<float, P>& cpu_ops_isa(Isa isa, Tiles tiles) {
    CHECK(cpu_supports(isa), "no %s here", ISA_NAME[int(isa)]);
    CHECK(tiles != Tiles::amx || (isa == Isa::avx512bf16 && cpu_has_amx()), "no AMX here");
    struct Made {
        Ops<float, P> ops;
        std::string name;
    };
    static std::mutex mutex;
    static std::optional<Made> made[ISA_COUNT][3];
    const std::lock_guard<std::mutex> lock(mutex);
    std::optional<Made>& m = made[int(isa)][int(tiles)];
    if (!m) {
        m.emplace();
        m->ops = table<P>(isa, tiles, m->name);
        m->ops.name = m->name.c_str();
    }
    return m->ops;
}
template const Ops<float>& cpu_ops_isa(Isa, Tiles);
template const Ops<float, bf16>& cpu_ops_isa(Isa, Tiles);

Result<CpuChoice> cpu_choice(const char* isa, const char* amx, bool has_amx, bool slow_pairs) {
    const Isa set = TRY(isa_named(isa));
    const std::string tiles = amx ? amx : "";
    if (tiles == "pretend") return CpuChoice{set, Tiles::emulated};
    if (!tiles.empty() && tiles != "refuse")
        return fail(Exit::usage, "FLATGPT_AMX=%s: expected pretend or refuse", amx);
    if (has_amx && tiles.empty() && set == Isa::avx512bf16) return CpuChoice{set, Tiles::amx};
    const bool named = isa && *isa;
    return CpuChoice{slow_pairs && !named ? std::min(set, Isa::avx512) : set, Tiles::none};
}
static Result<CpuChoice> choice_of_environment() {
    return cpu_choice(getenv("FLATGPT_ISA"), getenv("FLATGPT_AMX"), cpu_has_amx(), cpu_has_slow_pairs());
}
Status cpu_check() { return choice_of_environment().status; }
const CpuChoice& cpu_chosen() {
    static const Result<CpuChoice> choice = choice_of_environment();
    CHECK(choice.ok(), "%s", choice.status.message.c_str());
    return choice.value;
}
Isa cpu_isa() { return cpu_chosen().isa; }

template <class P> const Ops<float, P>& cpu_ops() {
    static const Ops<float, P>& chosen = cpu_ops_isa<P>(cpu_chosen().isa, cpu_chosen().tiles);
    return chosen;
}
template const Ops<float>& cpu_ops();
template const Ops<float, bf16>& cpu_ops();
