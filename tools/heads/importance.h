// importance.h - the dependence of the loss on each attention head: Michel et al. 2019, equation 2.
//
// I_h = E_x |Att_h(x)^T dL(x)/dAtt_h(x)|, where x is a sequence, L(x) its mean loss and Att_h(x)
// head h's output at all positions, before the projection. The product is also dL/df at f = 1 if
// Att_h is multiplied by a factor f. No extra operation is needed: attention's projection is
// y = W Att, so dW is the sum over positions of dy Att^T, and dAtt = W^T dy. The elements of
// W * dW, summed over head h's columns, are therefore the sum over positions of Att_h^T dAtt_h.
#pragma once
#include "data/loader.h"
#include "model/decoder.h"
#include "data/objective.h"

// Returns the importance of each head (L,NH), in nats: the mean over all windows of the loader's
// epoch. A batch of the loader is one window of S tokens; the model needs gradients
// (RunMode::train). progress may be empty. Exit 1: a value is not finite; the message names layer,
// head and window.
Result<std::vector<double>> head_importance(Model& model, Loader& loader, int S, const Objective& objective,
                                            const std::function<void(int64_t done, int64_t windows)>& progress = {});
// Cause and remedy of a non-finite value, for messages.
constexpr const char* NOT_FINITE =
    "the model has diverged or overflowed; take an earlier checkpoint (--checkpoint), "
    "or --dtype fp32";
// Adds |Att_h^T dL/dAtt_h| of the last backward pass to sums (L,NH).
void add_importance(const Model& model, std::vector<double>& sums);
