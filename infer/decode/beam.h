// beam.h - beam search by transformers' rules: each step keeps the most probable partial texts.
#pragma once
#include "generate.h"

struct BeamSearch {
    int beams = 4;
    double length_penalty = 1;    // score: log-probability / tokens^length_penalty, end token included
};
// Returns the options.num best texts of each prompt, best first, with their scores. Probabilities
// are the model's own: options.sampling is ignored. A search ends when `beams` texts have ended and
// no running beam, scored at its present length, is better than the worst of them; or after
// options.tokens; or when the context is full (which a note reports). Texts are cut before
// options.stop and emitted whole. Exit 2: an impossible cache, or the prompt fills the context; 5:
// no memory.
Result<GenerationResult> beam_search(Model& model, const Tokenizer& tokenizer, const GenerationOptions& options,
                                     const BeamSearch& beam_options);
