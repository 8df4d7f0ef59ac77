// table.cpp - the functions of one instruction set, by name.
#include "cpu.h"

namespace ISA {
template <class F> struct Target;
template <class F> struct Target<F*> { typedef F type; };

#define EACH(X)                                                                                             \
    X(embedding_forward) X(embedding_backward) X(layernorm_forward) X(layernorm_backward)                   \
    X(attention_forward) X(attention_backward) X(attention_forward_bf16) X(attention_backward_bf16)         \
    X(attention_cached) X(gelu_forward) X(gelu_backward) X(cross_entropy) X(sum_of_squares) X(adamw)        \
    X(matmul) X(gemv) X(column_sums) X(add_rows) X(to_bf16)                                                 \
    X(exponentials) X(norm_scratch) X(attention_scratch) X(matmul_scratch)

#define DECLARE(f) Target<decltype(Loops::f)>::type f;
EACH(DECLARE)

#define ENTRY(f) .f = f,
const Loops& loops() {
    static constexpr Loops table = {EACH(ENTRY)};
    return table;
}
}   // namespace ISA
