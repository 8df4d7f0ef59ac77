// rolling.h - log-likelihoods of whole texts, in windows of the context's length.
#pragma once
#include "requests.h"

// A text's windows: each token is scored once. The first window begins with BOS or EOS; each later
// one scores the next `stride` tokens, its last ones, after context - stride + 1 tokens before them.
// stride: 1 to context; with context it is lm-evaluation-harness's loglikelihood_rolling. Windows
// have group numbers from `group` on. Empty if the text has no tokens.
std::vector<LikelihoodRequest> rolling_windows(const std::vector<int>& text, int prefix, int context, int stride,
                                               int64_t group);
int64_t count_words(const std::string& text);    // the parts that white space separates, empty ones included
