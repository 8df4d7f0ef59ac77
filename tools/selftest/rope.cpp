#include "rope.h"
#include "selftest.h"

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    const Heads h = {16, 8, 128}, llama = {9, 3, 64};    // heads of Qwen 3 and of SmolLM2
    const QkNormRope rope = {64}, normed = {128, false, QkNormRope::QkNorm::head},
                     all = {32, true, QkNormRope::QkNorm::all};
    CHECK_ROW(rope_forward, 2, 512, -1, llama, rope, true);
    CHECK_ROW(rope_forward, 2, 128, 300, h, normed);
    CHECK_ROW(rope_forward, 2, 128, 300, h, all);
    CHECK_ROW(rope_backward, 2, 512, llama, rope);
    CHECK_ROW(rope_backward, 2, 128, h, normed);
    CHECK_ROW(rope_backward, 2, 128, h, all);
});
