// embeddings.h - one vector for a text, from the states behind the model's last norm.
#pragma once
#include <functional>

#include "model/model.h"

// How a text's states (S,C) become one vector (C): their mean over all positions, that of the first
// position (BERT's [CLS]) or of the last one (a causal model, whose last position has seen all).
enum class Pooling { mean, first, last };
inline const std::vector<std::string> POOLINGS = {"mean", "first", "last"};

// The pooling that a model's directory names, as sentence-transformers writes it in
// 1_Pooling/config.json; without that file, `last` for a causal model and `mean` for others. Exit
// 3: the file is damaged, or names a pooling that flatgpt lacks.
Result<Pooling> pooling_of(const std::string& directory, const Config& c);

struct EmbedOptions {
    Pooling pooling = Pooling::mean;
    int dims = 0;             // the vector's first numbers alone (Kusupati et al. 2022); 0: all C
    bool normalize = true;    // to length 1, after the cut
};
// Embeds texts of 1 to model.plan.S tokens: (texts, dims). Texts of similar length share a pass,
// padded to the longest one. Up to rounding, each has the vector that it would have alone. The
// model's plan must have spans unless its mask is causal.
std::vector<float> embed_texts(Model& model, const std::vector<std::vector<int>>& texts, const EmbedOptions& o,
                               const std::function<void(int64_t done, int64_t texts)>& progress = {});
