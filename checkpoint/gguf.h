// gguf.h - models in GGUF files: metadata for the configuration, tensors with ggml's names and
// layouts.
//
// llama.cpp derives much from the architecture's name and ignores unknown keys. So a model is
// written only if the file, read back by llama.cpp's rules, is an equal model; otherwise the error
// names the fields that differ.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "data/bpe.h"
#include "files/gguf.h"
#include "model/model.h"
#include "model/families.h"
#include "reader.h"

// A --type of `convert`: formats of the matrices. Vectors and positions stay F32.
struct GgufFileType {
    const char* name;
    int number;    // general.file_type
    BlockType matrices;
    BlockType head;    // for lm_head, or tied embeddings
    bool mixed;        // more bits for some attn_v, ffn_down: llama.cpp's Q4_K_M
};
const std::vector<GgufFileType>& gguf_file_types();
const GgufFileType* find_gguf_file_type(const std::string& name);    // null: there is none

// Exit 3: why the model is not supported: the architecture, a key, or a tensor that is missing,
// superfluous or of another shape. After success every tensor of the model is in the file. unknown:
// keys of its architecture without a meaning in llama.cpp or flatgpt, ignored as in llama.cpp.
Result<Config> gguf_config(const GgufFile& file, std::vector<std::string>* unknown = nullptr);
// The formats of the rows of gguf_config's model in the file. The file must outlive the function.
WeightFormats gguf_stored(const GgufFile& file, const Config& c);
// The formats that a file of this type would have.
WeightFormats gguf_stored(const GgufFileType& type, const Config& c);
// Reads elements of gguf_config's model from the file, which must outlive the function.
ReadElements gguf_reader(const GgufFile& file, const Config& c);
// Loads the weights of gguf_config's model as floats; all threads load into host memory. Exit 3, 4.
Status gguf_weights(const GgufFile& file, Model& g);

// Writes the whole file; all threads encode its tensors, some rows at a time. vocabulary: the keys
// tokenizer.* and known general.* keys; name: used if general.name is missing. Exit 2: no GGUF
// architecture can express the model, and why; 1: a weight is out of the type's range; 3, 4: the
// reader failed.
Status gguf_save(const WeightsReader& weights, const GgufFileType& type, const std::string& name,
                 const GgufKeys& vocabulary, const FileSink& sink);

// ---- shared by gguf_config.cpp and gguf_tensors.cpp ---------------------------------------------

// llama.cpp's inputs and assumptions for a general.architecture, and the file's layout.
struct GgufArchitecture {
    const char* name;
    // model_types that share this architecture. If the file has a sliding window, the first type
    // with one is chosen.
    std::vector<const char*> families;
    std::vector<ConfigKey> keys = {};    // besides the common ones; a missing key means the family's default
    enum class Biases { qkv, any, all } biases = Biases::qkv;    // optional: qkv's, any; required: all
    bool permuted = false;                                       // q's and k's rows: RoPE pairs are neighbours
    bool fused_qkv = false, fused_up = false;
    bool needs_head = false;       // output.weight is required even if it is a copy
    bool may_untie = true;         // output.weight is allowed
    bool rope_freqs = false;       // rope_freqs.weight is read
    int window = -1;               // default of attention.sliding_window; -1: key ignored
    bool window_unused = false;    // transformers uses the window, llama.cpp ignores it
    int global_every = 0;          // default if the window's pattern is missing
    bool one_theta = false;        // windowed layers use rope.freq_base without scaling
    // The expert fields that it reads; without the width, feed_forward_length. normalises: the
    // factors of a token's experts are always divided by their sum, otherwise never.
    std::vector<ConfigRow::Member> experts = {};
    bool normalises = false;
    bool finetuned_rope = false;    // rope.scaling.finetuned switches RoPE on
    int wide_layers = 0;            // layer count of the 27B models: score scale 1 / sqrt(C / NH)
};
const GgufArchitecture* find_gguf_architecture(const std::string& name);
// Checks the architecture's keys that are not in `read`, returns unknown ones. Exit 3: one changes
// the model.
Result<std::vector<std::string>> gguf_unread_keys(const GgufMetadata& m, const std::set<std::string>& read,
                                                  const Config& c, const GgufArchitecture& a);
// Exit 2: no architecture expresses this model, or llama.cpp would run another, naming the fields.
Result<const GgufArchitecture*> gguf_architecture_for(const Config& c);

// A tensor of a file. For one matrix: the model's rows [first, first + rows). For experts: `run`
// rows of each; expert e's rows begin at row first + e * stride of the model's tensor.
struct GgufPiece {
    std::string name;
    int64_t first, rows;
    int heads = 0;                  // heads with permuted rows; 0: not permuted
    float add = 0;                  // added to the model's values in the file
    int64_t run = 0, stride = 0;    // 0: no experts
};
// fused_*: qkv, or gate and up, are one tensor in this file.
std::vector<GgufPiece> gguf_pieces(const Tensor& t, const Config& c, const GgufArchitecture& a, bool fused_qkv,
                                   bool fused_up);
std::vector<int64_t> gguf_shape(const Tensor& t, const GgufPiece& p);
// Llama 3's divisors of the RoPE frequencies (rope_dims / 2).
std::vector<float> gguf_rope_divisors(const Config& c);
GgufKeys gguf_metadata(const Config& c, const GgufArchitecture& a);
