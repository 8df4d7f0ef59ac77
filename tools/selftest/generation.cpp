#include "generation.h"
#include "selftest.h"

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    if (op.norm_linear_forward)
        for (int N : {1, 3}) {
            CHECK_ROW(norm_linear_forward, N, gpt2.C, 3 * gpt2.C);
            CHECK_ROW(norm_linear_forward, N, 4096, 256, RMSNORM, false);
        }
    if (op.norm_ffn_forward)
        for (bool gated : {false, true})
            CHECK_ROW(norm_ffn_forward, 2, gpt2.C, gpt2.F, gated ? Act::silu : Act::gelu_tanh, gated);
    if (op.rope_attention_cached)
        for (auto norm : {QkNormRope::QkNorm::none, QkNormRope::QkNorm::head})
            CHECK_ROW(rope_attention_cached, 2, 1, 1000, {16, 8, 128}, {128, false, norm});
});
