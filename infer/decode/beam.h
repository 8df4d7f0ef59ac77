// beam.h - the likeliest texts by beam search, by transformers' rules: each step keeps the likeliest beginnings.
#pragma once
#include "generate.h"

struct BeamSearch {
    int beams = 4;
    double length_penalty = 1;    // score: the sum of log-probabilities / (tokens, the end among them)^length_penalty
};
// The options.num best texts of each prompt, best first, and their scores. Probabilities are the model's own:
// options.sampling is not asked. Ends when as many texts as beams have ended and the best beginning, at its length, has
// no better score than the worst of them; or after options.tokens, or where the context is full, which is said in a
// note. Texts are cut before options.stop, and given out whole. exit 2: an impossible cache, a prompt that fills the
// context; 5
Result<GenerationResult> beam_search(Model& model, const Tokenizer& tokenizer, const GenerationOptions& options,
                                     const BeamSearch& beam_options);
