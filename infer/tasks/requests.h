// requests.h - texts of requests as tokens, by lm-evaluation-harness's conventions.
#pragma once
#include "data/bpe.h"
#include "likelihood.h"

// Encodes context and continuation together, so that a token may reach across their border. White
// space at the context's end counts to the continuation. The continuation's tokens are those behind
// as many as the context alone has. An empty context is the tokenizer's BOS or EOS token. If all are
// more than T + 1 tokens, the first are dropped. The result's group is 0. Exit 3: the continuation
// has no tokens, or more than T.
Result<LikelihoodRequest> encode_request(const Tokenizer& tokenizer, const std::string& context,
                                         const std::string& continuation, int T);
// A text's tokens: names of special tokens become these, and BOS precedes them if the tokenizer's
// files require it and the text does not begin with it.
std::vector<int> encode_context(const Tokenizer& tokenizer, const std::string& text);
int prefix_token(const Tokenizer& tokenizer);    // BOS, else EOS, else end-of-text, else 0
