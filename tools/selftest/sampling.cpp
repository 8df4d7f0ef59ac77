#include "sampling.h"
#include "selftest.h"

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    if (!op.sample) return;
    for (SampleParams draw :
         {SampleParams{.temperature = 0}, SampleParams{}, SampleParams{.temperature = 0.8, .top_k = 50},
          SampleParams{.min_p = 0.05}, SampleParams{.top_p = 0.9, .repetition = 1.2, .presence = 0.3}})
        CHECK_ROW(sample, 4, test.V, test.Vp(), draw);
});
