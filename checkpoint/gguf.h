// gguf.h - models in GGUF files: the configuration from metadata, tensors with ggml's names and
// layouts.
//
// llama.cpp derives much from the architecture's name and ignores unknown keys. So a model is
// written only if the file, read by llama.cpp's rules, gives an equal model; otherwise the error
// names the fields that differ.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "data/bpe.h"
#include "files/gguf.h"
#include "model/model.h"
#include "model/families/families.h"
#include "reader.h"

// A value of `flatgpt convert --type`: the matrices' formats. Vectors and positions stay F32.
struct GgufFileType {
    const char* name;
    int number;    // general.file_type
    BlockType matrices;
    BlockType head;    // for lm_head or tied embeddings
    bool mixed;        // some attn_v and ffn_down get more bits: Q4_K_M
};
const std::vector<GgufFileType>& gguf_file_types();
std::vector<std::string> quantize_types();    // values of --quantize: none, and names of types in blocks
const GgufFileType* find_gguf_file_type(const std::string& name);    // null: unknown name

// Derives the model's Config from the file. Exit 3: the model is not supported, because of its
// architecture, a key, or a tensor that is missing, superfluous or of another shape. On success,
// the file has every tensor of the model. unknown: gets the keys of the file's architecture that
// neither llama.cpp nor flatgpt knows; both ignore such keys.
Result<Config> gguf_config(const GgufFile& file, std::vector<std::string>* unknown = nullptr);
// Formats, by row, of the model's matrices in the file, which must outlive the result.
WeightFormats gguf_stored(const GgufFile& file, const Config& c);
// Formats, by row, that matrices would have in a file of this type.
WeightFormats gguf_stored(const GgufFileType& type, const Config& c);
// Reads elements of the model's tensors from the file, which must outlive the returned function.
ReadElements gguf_reader(const GgufFile& file, const Config& c);
// Loads the weights into the model, converted to its formats; all threads do so if the model is in
// host memory. Exit 3: the file is damaged. Exit 4: it cannot be read.
Status gguf_weights(const GgufFile& file, Model& g);

// Writes the whole file. All threads encode its tensors, some rows at a time. vocabulary: the keys
// tokenizer.* and known general.* keys. name: used if general.name is not among these keys. Exit 2:
// no GGUF architecture can express the model, and the message gives the reason; 1: a weight is out
// of the type's range; 3, 4: reading the weights failed.
Status gguf_save(const WeightsReader& weights, const GgufFileType& type, const std::string& name,
                 const GgufKeys& vocabulary, const FileSink& sink);

// ---- shared by gguf_config.cpp and gguf_tensors.cpp ---------------------------------------------

// One value of general.architecture: the keys that llama.cpp reads for it, llama.cpp's assumptions,
// and the file's layout.
struct GgufArchitecture {
    const char* name;
    // model_types that share this architecture. A file gets the first one whose family has a
    // window, experts and segments just as the file has them, or else the first one.
    std::vector<const char*> families;
    std::vector<ConfigKey> keys = {};    // besides common keys; missing: the family's default
    GgufKeys fixed = {};                 // keys with one value, which every file has
    // Biases in files. none: no biases; qkv: optional for qkv; any: optional; all: required.
    enum class Biases { none, qkv, any, all } biases = Biases::qkv;
    bool permuted = false;    // q's and k's rows are ordered for adjacent RoPE pairs
    bool fused_qkv = false, fused_up = false;
    bool needs_head = false;       // output.weight is required, even as a copy
    bool may_untie = true;         // output.weight may differ from the embeddings
    bool rope_freqs = false;       // rope_freqs.weight is read
    int window = -1;               // attention.sliding_window if absent; -1: key ignored
    bool two_sided = false;        // attention.sliding_window is 2 * (window - 1)
    bool window_unused = false;    // transformers uses the window, llama.cpp ignores it
    int global_every = 0;          // global_every if the file has no pattern
    bool one_theta = false;        // windowed layers use rope.freq_base without scaling
    // Fields about experts for which this architecture has keys. If it has none for expert_ffn, an
    // expert's width is feed_forward_length. normalises: llama.cpp always divides the factors of a
    // token's experts by their sum; if false, it never does.
    std::vector<ConfigRow::Member> experts = {};
    bool normalises = false;
    bool finetuned_rope = false;    // key rope.scaling.finetuned turns RoPE on
    int wide_layers = 0;            // 27B models' layers: score scale 1 / sqrt(C / NH)
    bool body = false;              // an encoder without its head of tokens
    bool mean_pooled = false;       // a classifier's pooling if classifier.pooling_type is absent
    bool names_act = false;         // key hidden_activation
    // Tensors with other names than those in gguf_tensors.cpp: ours, the file's.
    std::vector<std::pair<std::string, const char*>> names = {};
    // An encoder-decoder: its two stacks' names begin with enc. and dec. llama.cpp does not scale
    // its logits. If the file has gates, `gated` is the activation.
    bool stacks = false;
    Act gated = Act::gelu_tanh;
    // The prefix of a block's names. Blocks of an encoder without a decoder, which our names call
    // the model's, are the encoder's in files.
    std::string stack(const Config& c, bool encoder) const {
        return !stacks ? "" : encoder || !c.encoder_layers ? "enc." : "dec.";
    }
};
// Returns the model that a GGUF file holds. As llama.cpp's converter does, it drops an encoder's
// head of tokens and pooler, and keeps a classifier's head.
Config gguf_model(Config c);
const GgufArchitecture* find_gguf_architecture(const std::string& name);
// Checks the architecture's keys that are not in `read`, and returns those that are unknown. Exit
// 3: a key changes the model in a way that flatgpt lacks.
Result<std::vector<std::string>> gguf_unread_keys(const GgufMetadata& m, const std::set<std::string>& read,
                                                  const Config& c, const GgufArchitecture& a);
// Returns the architecture that expresses c. Exit 2: none does, or llama.cpp would run another
// model; the message names the fields that differ.
Result<const GgufArchitecture*> gguf_architecture_for(const Config& c);

// A tensor of a file, and the rows of the model's tensor that it holds. Without experts these are
// rows [first, first + rows). With experts they are `run` rows of each expert; those of expert e
// begin at row first + e * stride.
struct GgufPiece {
    std::string name;
    int64_t first, rows;
    int heads = 0;                  // heads whose rows are permuted; 0: none
    float add = 0;                  // file's values = model's values + add
    int64_t run = 0, stride = 0;    // 0: no experts
};
// Tensors of a file that together hold t. fused_qkv: the file has q, k and v as one tensor;
// fused_up: it has gate and up as one.
std::vector<GgufPiece> gguf_pieces(const Tensor& t, const Config& c, const GgufArchitecture& a, bool fused_qkv,
                                   bool fused_up);
std::vector<int64_t> gguf_shape(const Tensor& t, const GgufPiece& p);
// Divisors of RoPE's frequencies in rope_freqs.weight (rope_dims / 2), for llama3 scaling.
std::vector<float> gguf_rope_divisors(const Config& c);
GgufKeys gguf_metadata(const Config& c, const GgufArchitecture& a);
