// check_logits.h - refuses to sample from logits that are not finite.
#pragma once
#include <vector>

#include "base/common.h"

// Checks that all logits are finite. Exit 6: a logit is NaN or infinite.
Status check_logits(const std::vector<float>& logits);
