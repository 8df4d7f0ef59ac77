#include "embedding.h"
#include "selftest.h"

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    CHECK_ROW(embedding_forward, 4, 500, gpt2.C, test.V, 500);
    CHECK_ROW(embedding_backward, 4, 1024, gpt2.C, test.V, 0.3);
    CHECK_ROW(embedding_backward, 4, 1024, gpt2.C, test.V, 0.3, true, 3);
});
