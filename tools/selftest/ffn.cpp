#include "ffn.h"
#include "selftest.h"

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    for (Act act : ACTS)
        for (bool gated : {false, true}) {
            CHECK_ROW(activation_forward, act, gated, 32, gpt2.F);
            CHECK_ROW(activation_backward, act, gated, 32, gpt2.F);
        }
    CHECK_ROW(activation_backward, Act::gelu_tanh, false, 32, gpt2.F, true);
    CHECK_ROW(stream_activation_forward, Act::gelu, 32, gpt2.C);
});
