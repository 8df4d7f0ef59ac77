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

// Settings of a sentence-transformers directory.
struct SentenceConfig {
    std::optional<Pooling> pooling;
    int longest = 0;    // tokens of a text, with those around it; 0: not given
};
int gguf_pooling(Pooling pooling);    // the value of GGUF's pooling_type
// Reads 1_Pooling/config.json and, for max_seq_length, sentence_bert_config.json, where they exist;
// without it, beside a pooling, tokenizer_config.json's model_max_length.
// Exit 3: a file is damaged, the pooling is another one, or modules.json lists a module besides
// Transformer, Pooling and Normalize. A GGUF file has its pooling_type alone.
Result<SentenceConfig> sentence_config(const std::string& directory);

struct EmbedOptions {
    Pooling pooling = Pooling::mean;
    int dims = 0;             // the vector's first numbers alone (Kusupati et al. 2022); 0: all C
    bool normalize = true;    // to length 1, after the cut
};
// Embeds texts of 1 to model.plan.S tokens: (texts, dims). Texts of similar length share a pass,
// padded to the longest one. Up to rounding, each has the vector that it would have alone.
// Plan::spans must be set unless the model's mask is causal.
std::vector<float> embed_texts(Model& model, const std::vector<std::vector<int>>& texts, const EmbedOptions& o);
