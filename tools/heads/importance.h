// importance.h - how much a model's loss depends on each of its attention heads: Michel et al. 2019, equation 2.
//
// I_h = E_x |Att_h(x)^T dL(x)/dAtt_h(x)|, where x is a sequence, L(x) its mean loss and Att_h(x) what head h makes of
// all its positions, before the projection. Were that multiplied by a factor, the product would be dL/dfactor at 1.
// No operation is needed for it: attention's projection is y = W Att, so dW is the sum over positions of dy Att^T, and
// dAtt = W^T dy. So the products of W and dW, added up over head h's columns, are that sum of Att_h^T dAtt_h.
#pragma once
#include "data/loader.h"
#include "model/decoder.h"
#include "data/objective.h"

// (L,NH) in nats: the mean over every window of the loader's epoch. Its batches are of one window of S tokens; the
// model has room for gradients of one (RunMode::train). progress may be empty. Exit 1 naming layer, head and window: one is
// not finite.
Result<std::vector<double>> head_importance(Model& model, Loader& loader, int S, const Objective& objective,
                                            const std::function<void(int64_t done, int64_t windows)>& progress = {});
// Why a number is not finite, and what to do, for messages.
constexpr const char* NOT_FINITE =
    "the model has diverged or overflowed; take an earlier checkpoint (--checkpoint), "
    "or --dtype fp32";
// Adds |Att_h^T dL/dAtt_h| of the last backward pass to sums (L,NH).
void add_importance(const Model& model, std::vector<double>& sums);
