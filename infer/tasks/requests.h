// requests.h - texts of requests as tokens, by lm-evaluation-harness's conventions.
#pragma once
#include "data/bpe.h"
#include "likelihood.h"

// Encodes context and continuation together, so that a token may reach across their border. White
// space at the context's end counts to the continuation. The continuation's tokens are those behind
// as many as the context alone has. An empty context is the tokenizer's BOS or EOS token. Of more
// than T + 1 tokens the first are dropped. The result's group is 0. Exit 3: the continuation
// has no tokens, or more than T.
Result<LikelihoodRequest> encode_request(const Tokenizer& tokenizer, const std::string& context,
                                         const std::string& continuation, int T);
// A text's tokens: names of special tokens become these, and BOS precedes them if the tokenizer's
// files require it and the text does not begin with it.
std::vector<int> encode_context(const Tokenizer& tokenizer, const std::string& text);
int prefix_token(const Tokenizer& tokenizer);    // BOS, else EOS, else end-of-text, else 0

// A whole text's windows: each token is scored once. The first window begins with token `prefix`;
// each later one scores the next `stride` tokens, its last ones, after at least context - stride
// tokens. stride: 1 to context; with context, these are the windows of lm-evaluation-harness's
// loglikelihood_rolling. Windows have groups from `group` on. Empty if the text has no tokens.
std::vector<LikelihoodRequest> rolling_windows(const std::vector<int>& text, int prefix, int context, int stride,
                                               int64_t group);
int64_t count_words(const std::string& text);    // the parts that white space separates, empty ones included
