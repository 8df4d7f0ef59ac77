// cpu.h - what the CPU backend's files share: instruction sets, scratch memory, the loops of one instruction set.
//
// The loops (embedding, norm, matmul, gemv, attention, ffn, lm_head, adamw, table) are compiled once per instruction
// set, into a namespace of its name, and chosen at run time. They use nothing inline of the standard library: of an
// inline function that several objects hold the linker keeps one, for all CPUs (the Makefile rejects such an object).
#pragma once
#include <stdint.h>

#include "layers.h"

// Any CPU; AVX2 and FMA (x86-64-v3); AVX-512 F, BW, CD, DQ, VL (x86-64-v4); that and AVX512-BF16.
enum class Isa { base, avx2, avx512, avx512bf16 };
constexpr int ISA_COUNT = 4;

// First thing in main: starts the program again with GOMP_SPINCOUNT set, unless the user has set a policy. libgomp
// reads it before main; its own choice is to spin for milliseconds in every barrier. 40 steps of a small model beside
// four other busy processes on 2 cores took 25 s so, 5 to 8 s with 20000; far less costs small models dear on an idle
// machine (0.4 s -> 4 s with 2000). 2026-11-21.
void cpu_spin_less(char** argv);

bool cpu_supports(Isa isa);
Status cpu_check();    // exit 2: FLATGPT_ISA (base, avx2, avx512, avx512bf16) names no instruction set of this CPU
// The table of one instruction set, which the CPU must have. cpu_ops() is this for the best one, or FLATGPT_ISA's.
template <class P> const Ops<float, P>& cpu_ops_isa(Isa isa);

// One buffer for all operations, as they run one after the other: grown to the largest request, never shrunk. Its
// content does not survive the call.
void* cpu_scratch(int64_t bytes);
int64_t cpu_scratch_held();
void cpu_scratch_release();

// C (+)= A B: A(m,k) = a[m*ra + k*ca], B(k,n) = b[k*rb + n*cb], C (M,N) dense.
template <class P> struct Matmul {
    int M, N, K;
    const float* a; int64_t ra, ca;
    const P* b; int64_t rb, cb;
    float* c;
    bool add;      // C += instead of C =
    bool round;    // A and B are rounded to bf16 first
};

// What one instruction set provides, of parameters of type P. Ops' own entries mean what layers.h says.
template <class P> struct Loops {
    typedef Ops<float, P> Table;
    decltype(Table::embedding_forward) embedding_forward;
    decltype(Table::embedding_backward) embedding_backward;
    decltype(Table::layernorm_forward) layernorm_forward;
    decltype(Table::layernorm_backward) layernorm_backward;
    decltype(Table::attention_forward) attention_forward;
    decltype(Table::attention_backward) attention_backward;
    decltype(Table::attention_cached) attention_cached;
    decltype(Table::gelu_forward) gelu_forward;
    decltype(Table::gelu_backward) gelu_backward;
    decltype(Table::cross_entropy) cross_entropy;
    decltype(Table::sum_of_squares) sum_of_squares;
    decltype(Table::adamw) adamw;
    decltype(Table::from_floats) from_floats;
    decltype(Table::to_floats) to_floats;

    void (*matmul)(const Matmul<P>& m);
    // linear_forward for the few rows of generation: N <= GEMV_ROWS, each weight read once, in address order
    decltype(Table::linear_forward) gemv;
    void (*column_sums)(float* sums, const float* x, int N, int C);                   // sums[c] += sum_n x[n,c]
    void (*add_rows)(float* y, const float* x, const P* b, int N, int C);        // y = x + b; x or b may be null (zero)
    void (*exponentials)(float* y, const float* x, int64_t n);                        // y = exp(x): for the tests

    int64_t (*norm_scratch)(int N, int C);
    int64_t (*attention_scratch)(int B, int S, Heads h);
    int64_t (*matmul_scratch)(int M, int N, int K);
    int64_t (*gemv_scratch)(int C);    // of bf16
};
constexpr int GEMV_ROWS = 4;

namespace base { template <class P> const Loops<P>& loops(); }
namespace avx2 { template <class P> const Loops<P>& loops(); }
namespace avx512 { template <class P> const Loops<P>& loops(); }
namespace avx512bf16 { template <class P> const Loops<P>& loops(); }

// linear.cpp
const char* linear_library();    // "oneDNN 2.6", "own GEMM"
template <class P> struct LinearEntries {
    decltype(Ops<float, P>::linear_forward) forward;
    decltype(Ops<float, P>::linear_backward) backward;
};
template <class P> LinearEntries<P> linear_entries(Isa isa);
template <class P> int64_t linear_scratch(const Loops<P>& loops, int N, int C, int OC);
template <class P> const Loops<P>& cpu_loops(Isa isa);
