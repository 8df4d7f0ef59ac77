#include "norm.h"
#include "selftest.h"

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    for (NormForm form : {LAYERNORM, RMSNORM})
        for (int width : {gpt2.C, 1600}) {    // width of GPT-2 XL
            CHECK_ROW(norm_forward, 1024, width, form);
            CHECK_ROW(stream_norm_forward, 1024, width, form);
            CHECK_ROW(norm_backward, 1024, width, form);
        }
    CHECK_ROW(add_scaled, 1024 * gpt2.C, Sum::apart);
    CHECK_ROW(add_scaled, 1024 * gpt2.C, Sum::apart, {0.1f, 1, 1024 * gpt2.C});
    CHECK_ROW(drop_inputs, 1024 * gpt2.C, {0.1f, 1, 1024 * gpt2.C});
});
