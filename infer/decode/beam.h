// beam.h - beam search by transformers' rules: each step keeps the most probable prefixes.
#pragma once
#include "generate.h"

struct BeamSearch {
    int beams = 4;
    double length_penalty = 1;    // score: log-probability / tokens^length_penalty, end token included
};
// Returns the options.num best texts of each prompt, best first, with their scores. Probabilities
// are the raw model's: options.sampling is ignored. Ends when `beams` texts have ended and the best
// prefix, scored at its length, is no better than the worst of them; or after options.tokens; or
// when the context is full (a note reports it). Texts are cut before options.stop and emitted
// whole. exit 2: an impossible cache, or the prompt fills the context; 5
Result<GenerationResult> beam_search(Model& model, const Tokenizer& tokenizer, const GenerationOptions& options,
                                     const BeamSearch& beam_options);
