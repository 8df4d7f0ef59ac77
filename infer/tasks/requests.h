// requests.h - texts of requests as tokens, by lm-evaluation-harness's conventions.
#pragma once
#include "data/bpe.h"
#include "likelihood.h"

// Encodes context and each continuation as one text, as a model reads it; white space at the
// context's end counts to the continuation. If the context alone has n tokens, the continuation is
// scored on the tokens after the first n of both together, even where a token reaches across their
// border. An empty context becomes one token (prefix_token), so that there is one to predict from.
// If there are more than T + 1 tokens, the first ones are dropped. The results' group is 0. Exit 3:
// a continuation has no tokens, or more than T.
Result<std::vector<LikelihoodRequest>> encode_requests(const Tokenizer& tokenizer, const std::string& context,
                                                       const std::vector<std::string>& continuations, int T);
// A text's tokens: names of special tokens become these, and BOS precedes them if the tokenizer's
// files require it and the text does not begin with it.
std::vector<int> encode_context(const Tokenizer& tokenizer, const std::string& text);
int prefix_token(const Tokenizer& tokenizer);    // BOS, else EOS, else end-of-text, else 0

// Cuts a text of any length into windows that a model can read, so that each token is scored once.
// The first window begins with the token `prefix`, and scores up to `context` tokens. Each later
// window scores the next `stride` tokens, which are its last ones; the tokens before them repeat
// text that is already scored, as context. stride: 1 to context; if it is `context`, these are the
// windows of lm-evaluation-harness's loglikelihood_rolling. Windows have the groups `group`,
// group + 1 and so on. Empty if the text has no tokens.
std::vector<LikelihoodRequest> rolling_windows(const std::vector<int>& text, int prefix, int context, int stride,
                                               int64_t group);
int64_t count_words(const std::string& text);    // the parts that white space separates, empty ones included
