#include "linear.h"
#include "selftest.h"

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype dtype) {
    const int C = gpt2.C, F = gpt2.F;
    // Numbers of rows as in training (256, 64), then as in generation (3, 1).
    for (int N : {256, 64, 3, 1}) CHECK_ROW(linear_forward, N, C, 3 * C, true, Residual::none, dtype);
    CHECK_ROW(linear_forward, 256, C, C, true, Residual::apart, dtype);
    CHECK_ROW(linear_forward, 256, F, C, true, Residual::in_y, dtype);
    CHECK_ROW(linear_forward, 16, C, test.Vp(), false, Residual::none, dtype);
    CHECK_ROW(linear_backward, 256, C, 3 * C, true, true, dtype);
    CHECK_ROW(linear_backward, 256, F, C, true, true, dtype, false);
    CHECK_ROW(linear_backward, 8192, 128, 256, true, true, dtype);    // sums of 8192 products
    CHECK_ROW(linear_backward, 64, 256, test.Vp(), true, false, dtype);
    CHECK_ROW(linear_backward, 256, C, F, true, true, dtype, true, false);    // frozen weights
    CHECK_ROW(keep_blocks, RowBlocks{3, {0, C, 2 * C, 3 * C}, {0, 16, 16, 48}}, 3 * C, 48);
    CHECK_ROW(inverse_row_norms, RowBlocks{3, {0, C, 2 * C, 3 * C}, {0, 16, 16, 48}}, C);
    CHECK_ROW(scale_columns_forward, 256, 3 * C, true, true, false);
    CHECK_ROW(scale_columns_backward, 8192, C, true);
    if (op.linear_gelu_forward && !is_fp8(dtype)) CHECK_ROW(linear_gelu_forward, 256, C, F, dtype);
    if (op.linear_gelu_backward && !is_fp8(dtype)) CHECK_ROW(linear_gelu_backward, 256, F, C, dtype);
});
