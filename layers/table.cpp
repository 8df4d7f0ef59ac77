// table.cpp - the functions of one instruction set, by name.
#include "layers/simd/tile.h"
#include "layers/simd/vec.h"

namespace ISA {
// Operations whose arguments hold no parameters. The files of the others fill in their entries themselves.
#define EACH(X)                                                                                          \
    X(embedding_backward) X(attention_forward) X(attention_backward) X(attention_cached) X(gelu_forward) \
    X(gelu_backward) X(cross_entropy) X(sum_of_squares) X(column_sums) X(exponentials)
#define FILES(X) X(embedding) X(norm) X(matmul) X(linear) X(adamw)

#define DECLARE(f) Target<decltype(Loops<float>::f)>::type f;
EACH(DECLARE)
#define DECLARE_FILE(file) void file##_entries(Loops<float>&), file##_entries(Loops<bf16>&);
FILES(DECLARE_FILE)

Target<decltype(Ops<float>::attention_forward)>::type attention_forward_bf16;
Target<decltype(Ops<float>::attention_backward)>::type attention_backward_bf16;

int64_t norm_scratch(int N, int C), attention_scratch(int B, int S, Heads h), gemv_scratch(int C);
int64_t linear_scratch(int N, int C, int OC, bool bf16_weights);
static int64_t beside_products(int B, int S, int C, Heads h) {
    const int64_t norm = norm_scratch(B * S, C), attention = attention_scratch(B, S, h);
    return norm > attention ? norm : attention;
}
template <class P> static int64_t scratch_bytes(int B, int S, int C, int F, int Vp, int head_rows, Heads h) {
    const int N = B * S, packed = (h.NH + 2 * h.NKV) * h.HS;
    const int forms[][3] = {{N, C, packed}, {N, h.NH * h.HS, C}, {N, C, F}, {N, F, C}, {head_rows, C, Vp}};
    int64_t most = beside_products(B, S, C, h);
    for (const auto& [rows, in, out] : forms)
        if (int64_t linear = linear_scratch(rows, in, out, sizeof(P) == 2); linear > most) most = linear;
    return cpu_scratch_size(most);
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
    l.scratch_beside_products = beside_products;
    l.gemv_scratch = gemv_scratch;
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
