// cpu.h - what the CPU backend's files share: instruction sets, scratch memory, the loops of one instruction set.
//
// The loops (embedding, norm, matmul, attention*, ffn, lm_head, adamw, table) are compiled once per instruction set,
// into a namespace of its name, and chosen at run time. They use nothing inline of the standard library: of an
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
const Ops<float>& cpu_ops_isa(Isa isa, Dtype dtype);

// One buffer for all operations, as they run one after the other: grown to the largest request, never shrunk. Its
// content does not survive the call.
void* cpu_scratch(int64_t bytes);
int64_t cpu_scratch_held();
void cpu_scratch_release();

// C (+)= A B: A(m,k) = a[m*ra + k*ca], B(k,n) = b[k*rb + n*cb], C (M,N) dense.
struct Matmul {
    int M, N, K;
    const float* a; int64_t ra, ca;
    const float* b; int64_t rb, cb;
    float* c;
    bool add;      // C += instead of C =
    bool round;    // A and B are rounded to bf16 first
};

// What one instruction set provides. Ops' own entries mean what layers.h says.
struct Loops {
    decltype(Ops<float>::embedding_forward) embedding_forward;
    decltype(Ops<float>::embedding_backward) embedding_backward;
    decltype(Ops<float>::layernorm_forward) layernorm_forward;
    decltype(Ops<float>::layernorm_backward) layernorm_backward;
    decltype(Ops<float>::attention_forward) attention_forward;
    decltype(Ops<float>::attention_backward) attention_backward;
    // With the products of bf16 where the instruction set has them; the same functions as above otherwise.
    decltype(Ops<float>::attention_forward) attention_forward_bf16;
    decltype(Ops<float>::attention_backward) attention_backward_bf16;
    decltype(Ops<float>::attention_cached) attention_cached;
    decltype(Ops<float>::gelu_forward) gelu_forward;
    decltype(Ops<float>::gelu_backward) gelu_backward;
    decltype(Ops<float>::cross_entropy) cross_entropy;
    decltype(Ops<float>::sum_of_squares) sum_of_squares;
    decltype(Ops<float>::adamw) adamw;

    void (*matmul)(const Matmul& m);
    // linear_forward for the few rows of generation: N <= GEMV_ROWS, each weight read once, in address order
    void (*gemv)(float* y, const float* x, const float* w, const float* b, const float* residual, int N, int C, int OC,
                 bool round);
    void (*column_sums)(float* sums, const float* x, int N, int C);                   // sums[c] += sum_n x[n,c]
    void (*add_rows)(float* y, const float* x, const float* b, int N, int C);    // y = x + b; x or b may be null (zero)
    void (*to_bf16)(uint16_t* to, const float* from, int64_t n);                      // nearest, ties to even
    void (*exponentials)(float* y, const float* x, int64_t n);                        // y = exp(x): for the tests

    int64_t (*norm_scratch)(int N, int C);
    int64_t (*attention_scratch)(int B, int S, Heads h);
    int64_t (*matmul_scratch)(int M, int N, int K);
};
constexpr int GEMV_ROWS = 4;

namespace base { const Loops& loops(); }
namespace avx2 { const Loops& loops(); }
namespace avx512 { const Loops& loops(); }
namespace avx512bf16 { const Loops& loops(); }

// linear.cpp
const char* linear_library();    // "oneDNN 2.6", "own GEMM"
struct LinearEntries {
    decltype(Ops<float>::linear_forward) forward;
    decltype(Ops<float>::linear_backward) backward;
};
LinearEntries linear_entries(Isa isa, Dtype dtype);
int64_t linear_scratch(const Loops& loops, Dtype dtype, int N, int C, int OC);
const Loops& cpu_loops(Isa isa);
