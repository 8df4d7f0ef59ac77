#include "experts.h"
#include "selftest.h"

// The routers are OLMoE's and DeepSeek-V3's. Widths are OLMoE's (2048, and 1024 in an expert), but
// products of experts have only an eighth of the width, 256, to save time.
static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype dtype) {
    const Router olmoe = {.E = 64, .K = 8, .normalise = false}, deepseek = {.E = 256, .K = 8, .sigmoid = true};
    constexpr int N = 48, C = 256, F = 1024;
    for (Router r : {olmoe, deepseek}) {
        CHECK_ROW(router_forward, r, 4, 1024, LogitKind::random);
        CHECK_ROW(router_backward, r, 4, 1024, LogitKind::random, 1, 0.1f);
    }
    CHECK_ROW(experts_gather, olmoe, 1024, 2048);
    CHECK_ROW(experts_combine, olmoe, 1024, 2048, Residual::in_y, true);
    CHECK_ROW(experts_combine_backward, olmoe, 1024, 2048, true);
    for (LogitKind spread : {LogitKind::random, LogitKind::one}) {
        CHECK_ROW(experts_forward, olmoe, N, C, F, spread, dtype);
        CHECK_ROW(experts_backward, olmoe, N, C, F, spread, dtype, spread == LogitKind::random);
    }
    CHECK_ROW(row_gate_forward, 1024, 2048);
    CHECK_ROW(row_gate_backward, 1024, 2048, true);
});
