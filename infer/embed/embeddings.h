// embeddings.h - one vector for a text, from the states behind the model's last norm.
#pragma once
#include <optional>

#include "model/model.h"

// How a text's states (S,C) become one vector (C): their mean, the first position's state (BERT's
// [CLS]), or the last position's, which in a causal model has attended to all.
enum class Pooling { mean, first, last };
inline const std::vector<std::string> POOLINGS = {"mean", "first", "last"};
// The pooling if a model's directory names none.
inline Pooling usual_pooling(MaskKind mask) { return mask == MaskKind::causal ? Pooling::last : Pooling::mean; }

// A layer behind the pooling (sentence-transformers' Dense): y = act(w x + b).
struct DenseLayer {
    int in, out;
    std::vector<float> w, b;    // (out,in), (out)
    bool tanh;                  // the activation; else there is none
};

// Settings of a sentence-transformers directory.
struct SentenceConfig {
    std::optional<Pooling> pooling;
    std::vector<DenseLayer> layers;
    int longest = 0;    // tokens of a text, with those around it; 0: not given
};
int gguf_pooling(Pooling pooling);    // the value of GGUF's pooling_type
// Reads 1_Pooling/config.json and, for max_seq_length, sentence_bert_config.json, where they exist;
// without it, beside a pooling, tokenizer_config.json's model_max_length.
// The Dense layers that modules.json names are read from config.json and model.safetensors of their
// directories. Exit 3: a file is damaged; the pooling or an activation is not supported;
// modules.json lists an unknown module, or the modules are not in the order Transformer, Pooling,
// Dense, Normalize. Of a GGUF file only pooling_type is read.
Result<SentenceConfig> sentence_config(const std::string& directory);

struct EmbedOptions {
    Pooling pooling = Pooling::mean;
    std::vector<DenseLayer> layers = {};    // the first one's `in` is C
    int dims = 0;                           // the vector's first numbers alone (Kusupati et al. 2022); 0: all
    bool normalize = true;                  // to length 1, after the cut
    int width(int C) const { return layers.empty() ? C : layers.back().out; }    // before the cut to dims
};
// Embeds texts of 1 to model.plan.S tokens: (texts, dims). Texts of similar length share a pass,
// padded to the longest one. Up to rounding, each has the vector that it would have alone.
// Plan::spans must be set unless the model's mask is causal.
std::vector<float> embed_texts(Model& model, const std::vector<std::vector<int>>& texts, const EmbedOptions& o);
