// check_logits.h - a token is drawn only where all logits are finite.
#pragma once
#include <vector>

#include "base/common.h"

// Exit 6: a logit is NaN or infinite. Whatever token were taken then, it would not be the model's.
Status check_logits(const std::vector<float>& logits);
