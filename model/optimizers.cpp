// optimizers.cpp - the optimizers' rows, and the shapes of their states.
#include "model/optimizers.h"

const Optimizer ADAMW = {
    .name = "adamw",
    .eps = 1e-8f,
    .states = {{"m"}, {"v"}},
    .update =
        [](const OptimizerRange& r) {
            r.op.adamw(r.w, r.master, static_cast<float*>(r.states[0]), static_cast<float*>(r.states[1]), r.dw,
                       r.groups, r.n, r.step, r.params, r.seed);
        },
};
const std::vector<const Optimizer*>& optimizers() {
    static const std::vector<const Optimizer*> all = {&ADAMW};
    return all;
}

std::vector<Tensor> state_tensors(const std::vector<Tensor>& tensors, StateSize size) {
    std::vector<Tensor> all;
    for (Tensor t : tensors) {
        if (t.frozen || (size == StateSize::row && (t.vector || t.bucket == 0))) continue;
        if (size == StateSize::parameter) {
            all.push_back(t);
            continue;
        }
        t.offset = all.empty() ? 0 : round_up(all.back().offset + all.back().rows, 64);
        t.cols = 1;
        t.vector = true;
        all.push_back(t);
    }
    return all;
}
std::vector<BlockMatrix> block_matrices(const std::vector<Tensor>& tensors) {
    std::vector<BlockMatrix> all;
    size_t i = 0;
    const std::vector<Tensor> states = state_tensors(tensors, StateSize::row);
    for (const Tensor& t : tensors) {
        if (t.frozen || t.vector || t.bucket == 0) continue;
        const int64_t rows = t.rows / t.experts, first_row = states[i++].offset;
        for (int e = 0; e < t.experts; e++)
            all.push_back({t.bucket, t.offset + e * rows * t.cols, rows, t.cols, first_row + e * rows});
    }
    return all;
}
