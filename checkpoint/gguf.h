// gguf.h - models in GGUF files: the metadata is the configuration, tensors have ggml's names and layouts.
//
// llama.cpp fixes much by the architecture's name and passes over keys that it does not know. Therefore a model is
// written only if the file, read back by the rules of llama.cpp, is the same model; else the fields that differ are
// named.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "data/bpe.h"
#include "files/gguf.h"
#include "model/model.h"
#include "model/families.h"
#include "reader.h"

// A --type of `convert`: how matrices are stored. Vectors and positions stay F32.
struct GgufFileType {
    const char* name;
    int number;    // general.file_type
    BlockType matrices;
    BlockType head;    // the embeddings' where they are the head too, else the head's
    bool mixed;        // some of attn_v and ffn_down have more bits, as in llama.cpp's Q4_K_M
};
const std::vector<GgufFileType>& gguf_file_types();
const GgufFileType* find_gguf_file_type(const std::string& name);    // null: there is none

// exit 3: what we cannot run, and why: the architecture, a key, or a tensor that is missing, superfluous or of another
// shape. After that every tensor of the model is in the file.
// unknown: keys of its architecture that neither llama.cpp nor flatgpt gives a meaning; passed over as llama.cpp does.
Result<Config> gguf_config(const GgufFile& file, std::vector<std::string>* unknown = nullptr);
// How the file stores the rows of a tensor of gguf_config's model. The file must outlive the function.
WeightFormats gguf_stored(const GgufFile& file, const Config& c);
// As a file of this type would.
WeightFormats gguf_stored(const GgufFileType& type, const Config& c);
// The numbers of gguf_config's model, where they lie in the file, which must outlive the function.
ReadElements gguf_reader(const GgufFile& file, const Config& c);
// The weights of gguf_config's model, as floats, by all threads where the model is in host memory. Exit 3, 4.
Status gguf_weights(const GgufFile& file, Model& g);

// The whole file, its tensors encoded by all threads, some rows at a time. vocabulary: the keys tokenizer.*, and of
// general.* what is known; name: where that lacks one. Exit 2: no architecture of GGUF can say this model, and why;
// exit 1: a weight that the type cannot hold; 3, 4: as of the reader.
Status gguf_save(const WeightsReader& weights, const GgufFileType& type, const std::string& name,
                 const GgufKeys& vocabulary, const FileSink& sink);

// ---- between gguf_config.cpp and gguf_tensors.cpp -------------------------------------------------------------------

// What llama.cpp reads and takes for granted by general.architecture, and how the file lies.
struct GgufArchitecture {
    const char* name;
    // The model_types that it carries. A file is read as the first that has a window where the file has one.
    std::vector<const char*> families;
    std::vector<ConfigKey> keys = {};    // besides those that all have; without its key a field is as in the family
    enum class Biases { qkv, any, all } biases = Biases::qkv;    // may be there: those of qkv, any; or all have to be
    bool permuted = false;    // q's and k's rows lie so that neighbours turn together
    bool fused_qkv = false, fused_up = false;
    bool needs_head = false;       // output.weight has to be there even if it is a copy
    bool may_untie = true;         // output.weight may be there
    bool rope_freqs = false;       // rope_freqs.weight is read
    int window = -1;               // where attention.sliding_window is missing; -1: the key counts for nothing
    bool window_unused = false;    // llama.cpp's converter writes it, transformers runs with it, llama.cpp without
    int global_every = 0;          // where a window's pattern is not given
    bool one_theta = false;        // layers with a window turn by rope.freq_base, but without its scaling
    // Which fields of layers with experts it reads; without the width feed_forward_length is it. Whether it always
    // divides the factors of a token's experts by their sum, or never does.
    std::vector<ConfigRow::Member> experts = {};
    bool normalises = false;
    bool finetuned_rope = false;    // rope.scaling.finetuned says whether there is a rotation at all
    int wide_layers = 0;            // with so many layers scores are divided by sqrt(channels / heads): the 27B models
};
const GgufArchitecture* find_gguf_architecture(const std::string& name);
// The architecture's keys that are not in `read`. Exit 3: one makes this another model. Else those that are unknown.
Result<std::vector<std::string>> gguf_unread_keys(const GgufMetadata& m, const std::set<std::string>& read,
                                                  const Config& c, const GgufArchitecture& a);
// exit 2: no architecture carries this model, or llama.cpp would run it otherwise: which fields differ.
Result<const GgufArchitecture*> gguf_architecture_for(const Config& c);

// A tensor of a file. Of one matrix: the model's rows [first, first + rows). Of experts: `run` rows of each; expert e's
// begin at row first + e * stride of the model's tensor.
struct GgufPiece {
    std::string name;
    int64_t first, rows;
    int heads = 0;                  // whose rows are permuted; 0: as they are
    float add = 0;                  // the file's numbers are larger by this
    int64_t run = 0, stride = 0;    // 0: not of experts
};
// fused: qkv, and gate and up, are one tensor each in this file.
std::vector<GgufPiece> gguf_pieces(const Tensor& t, const Config& c, const GgufArchitecture& a, bool fused_qkv,
                                   bool fused_up);
std::vector<int64_t> gguf_shape(const Tensor& t, const GgufPiece& p);
// Llama 3's divisors of RoPE's frequencies (rope_dims / 2).
std::vector<float> gguf_rope_divisors(const Config& c);
GgufKeys gguf_metadata(const Config& c, const GgufArchitecture& a);
