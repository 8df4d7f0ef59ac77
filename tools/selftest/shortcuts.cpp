#include "shortcuts.h"

#include "selftest.h"

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    const Heads h = {.NH = gpt2.NH, .NKV = gpt2.NH, .HS = gpt2.HS};
    CHECK_ROW(residual_mix_forward, 1024 * gpt2.C, 3, 1, true, false);
    CHECK_ROW(residual_mix_backward, 1024 * gpt2.C, 3, 1, true);
    CHECK_ROW(smear_forward, 4, 256, gpt2.C, 3, false);
    CHECK_ROW(smear_backward, 4, 256, gpt2.C, 3);
    CHECK_ROW(previous_tokens, 7, 64);
    CHECK_ROW(value_embedding_forward, 1024, gpt2.C, h, true);
    CHECK_ROW(value_embedding_backward, 1024, gpt2.C, h, true);
});
