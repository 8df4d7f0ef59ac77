// table.cpp - the functions of one instruction set, by name.
#include "cpu.h"

namespace ISA {
template <class F> struct Target;
template <class F> struct Target<F*> { typedef F type; };

// Those without parameters among their arguments; the files of the others fill in their entries.
#define EACH(X)                                                                                          \
    X(embedding_backward) X(attention_forward) X(attention_backward) X(attention_cached) X(gelu_forward) \
    X(gelu_backward) X(cross_entropy) X(sum_of_squares) X(column_sums) X(exponentials) X(norm_scratch)   \
    X(attention_scratch) X(matmul_scratch) X(gemv_scratch)
#define FILES(X) X(embedding) X(norm) X(matmul) X(gemv) X(adamw)

#define DECLARE(f) Target<decltype(Loops<float>::f)>::type f;
EACH(DECLARE)
#define DECLARE_FILE(file) void file##_entries(Loops<float>&), file##_entries(Loops<bf16>&);
FILES(DECLARE_FILE)

template <class P> static Loops<P> make() {
    Loops<P> l = {};
#define ENTRY(f) l.f = f;
    EACH(ENTRY)
#define FILL_IN(file) file##_entries(l);
    FILES(FILL_IN)
    return l;
}
template <> const Loops<float>& loops<float>() {
    static const Loops<float> table = make<float>();
    return table;
}
template <> const Loops<bf16>& loops<bf16>() {
    static const Loops<bf16> table = make<bf16>();
    return table;
}
}   // namespace ISA
