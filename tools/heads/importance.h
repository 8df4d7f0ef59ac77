// importance.h - the dependence of the loss on each attention head: Michel et al. 2019, equation 2.
//
// I_h = E_x |Att_h(x)^T dL(x)/dAtt_h(x)|, where x is a sequence, L(x) its mean loss and Att_h(x)
// head h's output at all positions, before the projection. With a factor on Att_h, the product is
// dL/dfactor at 1. No extra operation is needed: attention's projection is y = W Att, so dW is the
// sum over positions of dy Att^T, and dAtt = W^T dy. So W * dW, summed over head h's columns, is
// this sum of Att_h^T dAtt_h.
#pragma once
#include "data/loader.h"
#include "model/decoder.h"
#include "data/objective.h"

// (L,NH) in nats: the mean over every window of the loader's epoch. Its batches have one window of
// S tokens; the model must have gradients (RunMode::train). progress may be empty. Exit 1 naming
// layer, head and window: a value is not finite.
Result<std::vector<double>> head_importance(Model& model, Loader& loader, int S, const Objective& objective,
                                            const std::function<void(int64_t done, int64_t windows)>& progress = {});
// Cause and remedy of a non-finite value, for messages.
constexpr const char* NOT_FINITE =
    "the model has diverged or overflowed; take an earlier checkpoint (--checkpoint), "
    "or --dtype fp32";
// Adds |Att_h^T dL/dAtt_h| of the last backward pass to sums (L,NH).
void add_importance(const Model& model, std::vector<double>& sums);
