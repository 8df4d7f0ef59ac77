#include "linear_attention.h"
#include "selftest.h"

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    for (LinearAttention kind : LINEARS) {
        const Heads h = {.NH = 4, .NKV = 2, .HS = gpt2.HS, .linear = kind};
        CHECK_ROW(linear_attention_forward, 1, 200, h);
        CHECK_ROW(linear_attention_backward, 1, 200, h);
        for (int S : {1, 100}) CHECK_ROW(linear_attention_cached, 3, S, 500, h);
    }
});
