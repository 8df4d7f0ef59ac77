// table.cpp - the functions of one instruction set, by name.
#include "layers/simd/tile.h"
#include "layers/simd/vec.h"

namespace ISA {
// Functions of one name. Where these are templates, their files fill in the entries themselves.
#define EACH(X)                                                                                          \
    X(embedding_backward) X(attention_forward) X(attention_backward) X(attention_cached) X(gelu_forward) \
    X(gelu_backward) X(cross_entropy) X(sum_of_squares) X(matmul) X(column_sums) X(exponentials)
#define FILES(X) X(embedding) X(norm) X(linear) X(adamw)

#define DECLARE(f) Target<decltype(Loops<float>::f)>::type f; Target<decltype(Loops<bf16>::f)>::type f;
EACH(DECLARE)
#define DECLARE_FILE(file) void file##_entries(Loops<float>&), file##_entries(Loops<bf16>&);
FILES(DECLARE_FILE)

Target<decltype(Ops<float>::attention_forward)>::type attention_forward_bf16;
Target<decltype(Ops<float>::attention_backward)>::type attention_backward_bf16;

int64_t norm_scratch(int N, int C), attention_scratch(const CallSizes& call);
int64_t linear_scratch(const CallSizes& call, bool bf16_weights);
template <class P> static int64_t scratch_bytes(const CallSizes& call) {
    switch (call.operation) {
        case Operation::layernorm_backward: return cpu_scratch_size(norm_scratch(call.rows, call.in));
        case Operation::linear_forward:
        case Operation::linear_backward:
        case Operation::linear_gelu_forward:
        case Operation::linear_gelu_backward: return cpu_scratch_size(linear_scratch(call, sizeof(P) == 2));
        case Operation::attention_forward:
        case Operation::attention_backward:
        case Operation::attention_cached: return cpu_scratch_size(attention_scratch(call));
        default: return 0;
    }
}

template <class P> static Loops<P> make() {
    Loops<P> l = {};
#define ENTRY(f) l.f = f;
    EACH(ENTRY)
#define FILL_IN(file) file##_entries(l);
    FILES(FILL_IN)
    if constexpr (sizeof(P) == 2) {
        l.attention_forward = attention_forward_bf16;
        l.attention_backward = attention_backward_bf16;
        l.attention_rounds = NATIVE_BF16;
    }
    l.scratch_bytes = scratch_bytes<P>;
    return l;
}
template <> Loops<float> loops<float>() { return make<float>(); }
template <> Loops<bf16> loops<bf16>() { return make<bf16>(); }
}   // namespace ISA
