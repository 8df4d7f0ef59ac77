#include "lm_head.h"
#include "selftest.h"

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype dtype) {
    for (bool train : {true, false}) CHECK_ROW(cross_entropy, 64, test.V, test.Vp(), train, train);
    CHECK_ROW(cross_entropy, 16, test.V, test.Vp(), true, true, {0.7f, 3});
    CHECK_ROW(cross_entropy, 16, test.V, test.Vp(), true, true, {}, true);
    CHECK_ROW(cross_entropy, 16, test.V, test.Vp(), true, true, {0.7f, 3}, false, {0.01f, 0.1f});
    CHECK_ROW(lm_head_backward, 64, 256, test.Vp(), false, dtype);
    CHECK_ROW(lm_head_backward, 33, 40, 1003, true, dtype, false);
    for (bool binary : {false, true}) CHECK_ROW(value_loss, 64, 16, binary, true, false);
    CHECK_ROW(distill_loss, 64, test.V, test.Vp(), {2, 0.5f}, true);
});
