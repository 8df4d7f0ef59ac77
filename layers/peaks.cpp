// peaks.cpp - measures a CPU's peak speeds: loops of FMAs, of bf16 dots and of tile products, on
// random numbers in L1, and a sum over memory in huge pages.
#include "peaks.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/console.h"
#include "base/philox.h"
#include "base/pool.h"
#include "cpu.h"

namespace {
volatile float sink;    // keeps unused results from being optimised away
double loop_peak(float (*loop)(int64_t), double flops_per_round, int64_t rounds = 2000000) {
    double best = 1e9;
    for (int r = 0; r < 30; r++) {
        const double start = now_seconds();
        // A late thread's chunk goes to another, which makes this round slow: the best one counts.
        each_chunk(cpu_threads(), [&](int64_t, int) { sink = loop(rounds); });
        best = std::min(best, now_seconds() - start);
    }
    return flops_per_round * double(rounds) * cpu_threads() / best;
}

// The numbers that the loops multiply: random and read from L1, as in every product. Constants in
// registers need less power; with them FMAs are up to 12 % and AMX tiles up to 20 % faster (2 cores
// of an Intel server, 2026-11-22). bf16 loops read each 32-bit word as two numbers.
constexpr int STEPS = 16, ROWS = 8, COLUMNS = 64;
struct alignas(64) Random {
    float a[STEPS][ROWS], b[STEPS][COLUMNS];
    Random() {
        for (int k = 0; k < STEPS; k++) {
            for (int i = 0; i < ROWS; i++) a[k][i] = number(k * (ROWS + COLUMNS) + i);
            for (int j = 0; j < COLUMNS; j++) b[k][j] = number(k * (ROWS + COLUMNS) + ROWS + j);
        }
    }
    static float number(int i) {    // both halves are bf16 numbers near 1
        const uint32_t low = to_bf16(philox_normal(4, 1, uint64_t(i))).bits;
        const uint32_t bits = uint32_t(to_bf16(philox_normal(4, 2, uint64_t(i))).bits) << 16 | low;
        float f;
        memcpy(&f, &bits, 4);
        return f;
    }
};
const Random& random_numbers() {
    static const Random numbers;
    return numbers;
}

// Defines a function of n steps of rows x vectors independent vector multiply-adds: a product's
// inner loop, as wide as registers allow. It returns the sum of all results, so that the compiler
// cannot remove the multiply-adds.
#define PRODUCT_LOOP(name, target_name, width, rows, vectors, multiply_add)                                       \
    __attribute__((target(target_name))) float name(int64_t n) {                                                  \
        typedef float vec __attribute__((vector_size(4 * width)));                                                \
        static_assert(rows <= ROWS && vectors * width <= COLUMNS);                                                \
        const Random& from = random_numbers();                                                                    \
        vec s[rows * vectors] = {}, x[vectors];                                                                   \
        for (int64_t k = 0; k < n; k += STEPS) _Pragma("GCC unroll 4") for (int step = 0; step < STEPS; step++) { \
                _Pragma("GCC unroll 4") for (int v = 0; v < vectors; v++)                                         \
                    x[v] = *reinterpret_cast<const vec*>(from.b[step] + width * v);                               \
                _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++) {                                          \
                    const vec a = from.a[step][i] - vec{};                                                        \
                    _Pragma("GCC unroll 4") for (int v = 0; v < vectors; v++)                                     \
                        multiply_add(s[i * vectors + v], a, x[v]);                                                \
                }                                                                                                 \
            }                                                                                                     \
        for (int i = 1; i < rows * vectors; i++) s[0] += s[i];                                                    \
        return s[0][0];                                                                                           \
    }
#define MULTIPLY_ADD(s, a, x) s += a * x
}    // namespace

#if defined(__x86_64__)
#include <immintrin.h>

namespace {
#define MULTIPLY_ADD_PAIRS(s, a, x) \
    s = _mm512_dpbf16_ps(s, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(x))
PRODUCT_LOOP(fma_base, "sse2", 4, 2, 4, MULTIPLY_ADD)
PRODUCT_LOOP(fma_avx2, "avx2,fma", 8, 4, 3, MULTIPLY_ADD)
PRODUCT_LOOP(fma_avx512, "avx512f", 16, 8, 3, MULTIPLY_ADD)
PRODUCT_LOOP(bf16_loop, "avx512f,avx512bf16", 16, 8, 3, MULTIPLY_ADD_PAIRS)
double fma_peak(Isa isa) {
    switch (isa) {
        case Isa::avx512bf16:
        case Isa::avx512: return loop_peak(fma_avx512, 2 * 8 * 3 * 16);
        case Isa::avx2: return loop_peak(fma_avx2, 2 * 4 * 3 * 8);
        default: return loop_peak(fma_base, 2 * 2 * 4 * 4);
    }
}
// FLOP/s of bf16 dots; 0 if the instruction set has none.
double bf16_peak(Isa isa) { return isa == Isa::avx512bf16 ? loop_peak(bf16_loop, 4 * 8 * 3 * 16) : 0; }

constexpr int TILE_ROWS = 16, TILE_BYTES = 64;    // size of 8 tiles: 16x16 sums, 16x32 bf16
constexpr double TILE_FLOPS = 2.0 * 16 * 16 * 32;
struct alignas(64) TileConfig {    // Intel's manual, "LDTILECFG"
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
};
alignas(64) uint16_t tile_numbers[4][TILE_ROWS * TILE_BYTES / 2];    // filled by tile_peak

// Runs n rounds of four products: two tiles of A (tmm4, tmm5) times two of B (tmm6, tmm7), which
// are loaded from L1 in each round, as in every real product.
float tile_loop(int64_t n) {
    TileConfig config;
    for (int i = 0; i < 8; i++) config.bytes[i] = TILE_BYTES, config.rows[i] = TILE_ROWS;
    __asm__ volatile(
        "ldtilecfg %0\n\ttilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3" ::"m"(config));
    for (int64_t k = 0; k < n; k++)
        __asm__ volatile(
            "tileloadd (%0,%4,1), %%tmm4\n\ttileloadd (%2,%4,1), %%tmm6\n\t"
            "tileloadd (%3,%4,1), %%tmm7\n\ttdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t"
            "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\ttileloadd (%1,%4,1), %%tmm5\n\t"
            "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\ttdpbf16ps %%tmm7, %%tmm5, %%tmm3" ::"r"(tile_numbers[0]),
            "r"(tile_numbers[1]), "r"(tile_numbers[2]), "r"(tile_numbers[3]), "r"(int64_t(TILE_BYTES))
            : "memory");
    alignas(64) float sums[TILE_ROWS * 16];
    __asm__ volatile("tilestored %%tmm0, (%0,%1,1)\n\ttilerelease" ::"r"(sums), "r"(int64_t(TILE_BYTES)) : "memory");
    return sums[0];
}
// Random numbers are a fifth slower than zeros (2 cores of an Intel server, 2026-11-22).
double tile_peak() {
    for (int t = 0; t < 4; t++)
        for (int i = 0; i < TILE_ROWS * TILE_BYTES / 2; i++)
            tile_numbers[t][i] = to_bf16(philox_normal(4, uint64_t(t), uint64_t(i))).bits;
    return loop_peak(tile_loop, 4 * TILE_FLOPS, 300000);
}
}    // namespace

// Flushes each cache line. Reading 64 MB of other memory instead was not enough: the 6 MB of
// norm_forward stayed in a cache, and its measured speed was 187 % of what memory allows (two cores
// of Zen 5, 32 MB of L3, 2026-11-21).
void cpu_flush(const void* p, int64_t bytes) {
    const char* from = static_cast<const char*>(p);
    constexpr int64_t PIECE = 1 << 16;
    each_chunk(ceil_div(bytes, PIECE), [&](int64_t chunk, int) {
        for (int64_t i = chunk * PIECE; i < std::min(bytes, (chunk + 1) * PIECE); i += 64) _mm_clflush(from + i);
    });
    _mm_mfence();
}
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
namespace {
PRODUCT_LOOP(fma_base, "default", 4, 2, 4, MULTIPLY_ADD)
double fma_peak(Isa) { return loop_peak(fma_base, 2 * 2 * 4 * 4); }
double bf16_peak(Isa) { return 0; }
double tile_peak() { return 0; }
}    // namespace
void cpu_flush(const void*, int64_t) {
    for (int64_t i = 0; i < 4; i++) (void)cpu_read();    // no flush instruction: other memory replaces it
}
#define WIDE
#endif

namespace {
constexpr int64_t PART = 64 << 20, PARTS = 4;    // bytes; more than most CPUs' last level cache

// The sum of n 64-byte lines, n even. Prefetching makes it 8 % faster (Zen 5, 2026-11-21).
WIDE int64_t sum_lines(const int64_t* p, int64_t n) {
    typedef uint64_t line __attribute__((vector_size(64)));    // unsigned: the sum may overflow
    line a = {}, b = {};
    for (int64_t i = 0; i < n; i += 2) {
        __builtin_prefetch(p + 8 * i + 8 * 64);
        __builtin_prefetch(p + 8 * i + 8 * 65);
        a += *reinterpret_cast<const line*>(p + 8 * i);
        b += *reinterpret_cast<const line*>(p + 8 * i + 8);
    }
    a += b;
    return int64_t(a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7]);
}
}    // namespace

// Each call reads the next of PARTS parts, so that none of it is in a cache. A part is small, so
// that other work on the machine disturbs only some calls.
double cpu_read() {
    static int next = 0;
    static const int64_t* far_memory = [] {
        void* memory = cpu_ops<float>().allocate(PART * PARTS);
        CHECK(memory, "no memory");
        return static_cast<int64_t*>(memset(memory, 1, PART * PARTS));
    }();
    const int64_t* from = far_memory + PART / 8 * (next++ % PARTS);
    int64_t sums[64];
    const double start = now_seconds();
    each_chunk(64,
               [&](int64_t block, int) { sums[block] = sum_lines(from + block * (PART / 64 / 8), PART / 64 / 64); });
    sink = float(sums[0]);
    return double(PART) / (now_seconds() - start);
}

namespace {
Peaks vector_peaks(bool bf16) {
    Peaks peak;
    peak.flops = fma_peak(cpu_isa());
    // Intel's bf16 dots have half the FLOP/s of its FMAs: the larger peak counts.
    peak.products = std::max(bf16 ? bf16_peak(cpu_isa()) : 0, peak.flops);
    for (int r = 0; r < 61; r++) peak.bytes = std::max(peak.bytes, cpu_read());
    return peak;
}
}    // namespace

const Peaks& cpu_peaks(const Table& op) {
    static std::optional<Peaks> vectors[2], tiles[2];
    const bool half = op.parameter == Element::bf16;
    if (!vectors[half]) vectors[half] = vector_peaks(half);
    const Table by_tiles = half ? Table(cpu_ops<::bf16>()) : Table(cpu_ops<float>());
    if (op.linear_forward != by_tiles.linear_forward || cpu_chosen().tiles != Tiles::amx) return *vectors[half];
    if (!tiles[half]) {
        const double peak = tile_peak() / (half ? 1 : FLOAT_PRODUCTS);
        tiles[half] = vectors[half];
        tiles[half]->products = std::max(vectors[half]->products, peak);
        tiles[half]->tiles = true;
    }
    return *tiles[half];
}
const Peaks& cpu_fma_peaks() { return cpu_peaks(Table(cpu_ops_isa<float>(cpu_isa()))); }
const Peaks& cpu_peaks(bool bf16) { return bf16 ? cpu_peaks(cpu_ops<::bf16>()) : cpu_peaks(cpu_ops<float>()); }
