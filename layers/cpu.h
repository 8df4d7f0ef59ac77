// cpu.h - shared by the CPU backend's files: instruction sets, scratch, kernels.
//
// The CPU kernels (LOOPS in the Makefile) are compiled once per instruction set, into a namespace
// of its name, and chosen at run time. They use no inline function of the standard library: the
// linker would keep one copy of it for all CPUs, and that copy may need AVX-512 (the Makefile
// rejects such an object).
#pragma once
#include <stdint.h>

#include "ops.h"
#include "layers/quant/packed.h"

// base: any CPU. avx2: AVX2 and FMA (x86-64-v3). avx512: AVX-512 F, BW, CD, DQ, VL (x86-64-v4).
// avx512bf16: AVX512-BF16 as well.
enum class Isa { base, avx2, avx512, avx512bf16 };
constexpr int ISA_COUNT = 4;

bool cpu_supports(Isa isa);
const char* cpu_isa_name(Isa isa);    // display name: "AVX-512 with BF16"
// Whether the CPU has VNNI, dot products of four bytes, for this instruction set's vectors.
bool cpu_has_vnni(Isa isa);
// Distances, in bytes, at which loops over packed weights prefetch: weights in floats (fp32, bf16,
// fp16), and weights in blocks of integers. With 0 a loop prefetches what it reads anyway, which
// leaves prefetching to the hardware.
struct PrefetchDistance {
    int floats = 8192, blocks = 8192;
};
// Returns the distances that were measured on this kind of CPU, or the default. Zen 4's hardware
// prefetchers read whole streams ahead, and software prefetches only displace them: without
// software prefetches one thread reads q8_0 weights at 32 GB/s instead of 18, other types 1 to 11 %
// faster (EPYC, 2026-11-29). Intel's prefetchers look at most 4 KiB ahead, and software prefetches
// from further ahead hinder them: a token of GPT-2 in fp32 reads at 97 % of the memory's speed with
// 2 KiB, at 89 % with 8 KiB (2 cores of a Xeon with AMX, 2026-11-26). On Zen 5 eight sequences of
// q8_0 take 17 % longer with half of the default (2 cores, 2026-11-25, medians of three alternating
// rounds).
PrefetchDistance cpu_prefetch_distance();
// Whether the CPU multiplies tiles of bf16 and Linux grants them to this process (requested once).
bool cpu_has_amx();
bool cpu_has_amx_int8();    // tiles of bytes, too
// Whether pairs of bf16 are multiplied more slowly than floats, where AVX512-BF16 exists. On Intel
// a core does 87 GFLOP/s in pairs and 174 by FMAs (a Xeon of model 207, 2026-12-01); on Zen 4 and 5
// pairs have twice the FMAs' rate.
bool cpu_has_slow_pairs();
// The number of cores that the CPUs of the affinity mask lie on. CPUs that share a core
// (hyper-threads) share its arithmetic units and caches, so a second thread should gain little in
// products (not measured). system: /sys/devices/system/cpu. A CPU that it does not describe counts
// as a core.
int cpu_cores(const std::string& system);

// The unit that multiplies matrices. none: vectors of the instruction set. amx: AMX tiles.
// emulated: an emulation of AMX tiles in plain C++, with the same bits. Tiles multiply bf16, or
// bytes of packed weights: a product of floats is FLOAT_PRODUCTS products of bf16 (amx.cpp).
enum class Tiles { none, amx, emulated };
constexpr int FLOAT_PRODUCTS = 6;

// The instruction set and its tiles. Environment variables choose:
//   FLATGPT_ISA   base, avx2, avx512, avx512bf16: the newest to be used. Only the last allows AMX.
//   FLATGPT_AMX   pretend: AMX's kernels with emulated tiles, on any CPU (slow); refuse: no tiles.
// By default tiles multiply where the CPU has them and the kernel grants them.
struct CpuChoice {
    Isa isa;
    Tiles tiles;
};
// The choice for these values of the variables (null or empty: not set). slow_pairs: a CPU without
// tiles gets avx512bf16 only if `isa` names it, else avx512. Exit 2: an unknown value, or an
// instruction set that this CPU lacks.
Result<CpuChoice> cpu_choice(const char* isa, const char* amx, bool has_amx, bool slow_pairs);
// Checks the environment's values; exit 2 as above. Must precede the two functions below.
Status cpu_check();
const CpuChoice& cpu_chosen();
Isa cpu_isa();    // cpu_chosen().isa
// Table of one instruction set with these tiles; the CPU must have both. cpu_ops() is the table for
// cpu_chosen().
template <class P> const Ops<float, P>& cpu_ops_isa(Isa isa, Tiles tiles = Tiles::none);
// The table for packed weights, which are only read: operations that need gradients are null.
const Ops<float, PackedWeight>& cpu_packed_ops_isa(Isa isa, Tiles tiles = Tiles::none);

// One scratch buffer for all operations, because they run one after the other. It grows to the
// largest request and never shrinks. Its content does not survive the operation.
void* cpu_scratch(int64_t bytes);
int64_t cpu_scratch_allocated();
int64_t cpu_scratch_size(int64_t bytes);    // bytes held after a request for `bytes`
void cpu_scratch_release();

float cpu_alibi_slope(int head, int NH);    // alibi_slope(), for the CPU kernels
float cpu_retention_decay(int i, int n);    // retention_decay()

// C (M,N) = A B with A(m,k) = a[m*ra + k*ca], B(k,n) = b[k*rb + n*cb]; A and B each have one stride
// of 1. If Y is bf16, A is rounded to bf16. Then the fields from `bias` on that are not null are
// applied, in their order. If `panel` is not 0, B lies in panels of this many columns, K*panel
// elements each, and n counts columns within a panel. Only tiles support panels, with cb = 1.
template <class X, class Y> struct Matmul {
    static constexpr bool is_bf16 = sizeof(Y) == 2;
    int M, N, K;
    const X* a;
    int64_t ra, ca;
    const Y* b;
    int64_t rb, cb;
    float* c;
    bool add = false;             // C += instead of C =
    Tiles tiles = Tiles::none;    // unit that multiplies
    int panel = 0;
    const Y* bias = nullptr;            // (N)      C += bias
    const float* residual = nullptr;    // (M,N)    C += residual
    const float* gelu_of = nullptr;     // (M,N)    C *= gelu'(gelu_of)
    Y* gelu = nullptr;                  // (M,N)    = gelu(C); with tiles it may be C
    float* row_sums = nullptr;          // (M)      += sum_k A(m,k), not rounded
};

// y (N,OC) = x (N,C) w^T + b + residual, w packed (packed.h). b, residual may be null.
struct PackedProduct {
    float* y;
    const float* x;
    const PackedWeight* w;
    const float *b, *residual;
    int N, C, OC;
    bool vnni;                         // from cpu_has_vnni
    Tiles tiles = Tiles::none;         // for weights in bf16
    Tiles byte_tiles = Tiles::none;    // for weights in blocks of integers
    PrefetchDistance ahead = {};
    bool gelu = false;           // y = gelu of the sum above
    Precision precision = {};    // prefill: tiles multiply floats, too
};

// Kernels of one instruction set for parameters of type P: the entries of Ops except those that
// cpu.cpp defines (memory, add_losses, step_verdict), kernels for packed weights, and functions for
// tests. Inputs of products (Ops::I) have type P.
template <class P> struct CpuKernels : Ops<float, P> {
    Tiles tiles = Tiles::none;    // unit that multiplies in the entries below
    void (*matmul)(const Matmul<P, P>& m);
    void (*gradient_matmul)(const Matmul<float, P>& m);
    void (*exponentials)(float* y, const float* x, int64_t n);    // y = exp(x)
    void (*packed_linear)(const PackedProduct& p);
    void (*packed_experts)(const PackedProduct& p, Routes routes, Router r);    // experts_forward, N positions
    int64_t (*packed_scratch)(const CallSizes& call, Tiles tiles);              // scratch bytes of either
    // dx (p.y) = dy (p.x) w, for the rows of w from `from` on
    void (*packed_gradient)(const PackedProduct& p, int64_t from);
    int64_t (*packed_gradient_scratch)(int N, int C, int OC);
    // inverse_row_norms of one row, with the columns of b from `from` to `to`
    float (*inverse_row_norm)(const float* w, const float* a, const float* b, float scale, int from, int to, int C);
    int64_t (*scratch[int(Operation::count)])(const CallSizes& call);    // an operation's scratch bytes; null: none
};
// Enters a CPU kernel (P: the type of parameters) and its scratch bytes into the table.
#define REGISTER_CPU_WITH_SCRATCH(name, function, bytes)            \
    void name##_entry(CpuKernels<float>& l) {                       \
        using P [[maybe_unused]] = float;                           \
        l.name = function, l.scratch[int(Operation::name)] = bytes; \
    }                                                               \
    void name##_entry(CpuKernels<bf16>& l) {                        \
        using P [[maybe_unused]] = bf16;                            \
        l.name = function, l.scratch[int(Operation::name)] = bytes; \
    }
#define REGISTER_CPU(name, function) REGISTER_CPU_WITH_SCRATCH(name, function, nullptr)
// Enters function<P, tiles> and its scratch bytes<P, tiles>, with the tiles that the table has.
#define REGISTER_CPU_TILES(name, function, bytes)                                       \
    template <class P, Tiles tiles> static void enter_##name(CpuKernels<P>& l) {        \
        l.name = function<P, tiles>, l.scratch[int(Operation::name)] = bytes<P, tiles>; \
    }                                                                                   \
    template <class P> static void enter_##name##_by(CpuKernels<P>& l) {                \
        if (l.tiles == Tiles::none) enter_##name<P, Tiles::none>(l);                    \
        if (l.tiles == Tiles::amx) enter_##name<P, Tiles::amx>(l);                      \
        if (l.tiles == Tiles::emulated) enter_##name<P, Tiles::emulated>(l);            \
    }                                                                                   \
    void name##_entry(CpuKernels<float>& l) { enter_##name##_by(l); }                   \
    void name##_entry(CpuKernels<bf16>& l) { enter_##name##_by(l); }

namespace base {
template <class P> CpuKernels<P> kernels(Tiles tiles);
}
namespace avx2 {
template <class P> CpuKernels<P> kernels(Tiles tiles);
}
namespace avx512 {
template <class P> CpuKernels<P> kernels(Tiles tiles);
}
namespace avx512bf16 {
template <class P> CpuKernels<P> kernels(Tiles tiles);
}

template <class P> CpuKernels<P> cpu_kernels(Isa isa, Tiles tiles = Tiles::none);
