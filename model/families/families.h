// families.h - one row per family of models: fields, config.json keys, tensor names, presets.
#pragma once
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "model/tensors.h"

// A published model's sizes. more: sets other fields in which it differs from its family.
struct Preset {
    const char* name;
    int V, T, L, NH, NKV, HS, C, F;
    void (*more)(Config& c) = nullptr;
};

// Maps a key of config.json to a field of Config. If a field has several keys, the first one in the
// file is read, and all are written.
struct ConfigKey {
    enum Form {
        as_is,
        or_none,          // 0 is written as null
        inverse,          // stored as 1 / the field
        scale,            // attention scale; 0 is written as 1/sqrt(HS)
        root,             // attention scale s, stored as s^-2
        torch_gelu,       // gelu_pytorch_tanh names the tanh form
        bert_position,    // "absolute": learned; "relative_key"
        any_gelu,         // as torch_gelu; reads every GELU as tanh form
        flag,             // true: value `on`; false: 0
        copy,             // written; must have this value when read
        positions,        // positions and the rows before position 0
        both_sides,       // twice the window without the token itself
        by_layer,         // as both_sides, a list with one value for each layer, or a number
        width,            // 0 is written as C
        t5_ffn,           // "relu" or "gated-gelu": also sets `gated`; T5's gated GELU is the tanh form
        width_root,       // true: the root of C; false: 1
        width_inverse,    // true: 1 / the root of C; false: 1
    };
    const char* key;
    ConfigRow::Member field;
    Form form = as_is;
    double absent = NAN;    // value if the key is absent; NAN: family_defaults()
    int on = 1;
};

struct Family {
    const char* type;            // model_type of config.json
    const char* architecture;    // transformers' class; null: it has none
    // model_type of config.json, if it is not `type`: that of T5's encoder is "t5", too, and
    // `architectures` tells the two families apart.
    const char* class_type = nullptr;
    std::vector<const char*> also = {};    // aliases in FAMILY:dN
    Config kinds = {};                     // fields common to all sizes
    void (*sized)(Config& c) = nullptr;    // sets fields that depend on the sizes
    std::vector<ConfigKey> keys = {};

    // Keys of config.json for RoPE: rope_parameters, and the older keys that are named here. If
    // theta is null, the family has no keys for RoPE.
    struct Rope {
        const char* theta = nullptr;
        const char* part = nullptr;     // rotated fraction of a head
        double usual = 1;               // the fraction if the key is absent
        const char* local = nullptr;    // theta of windowed layers
        bool by_layers = false;         // rope_parameters has an object per layer type
        bool scaled = true;             // transformers' class supports rope scaling
    } rope = {};
    // Keys of config.json that tell which layers have a window or RoPE.
    enum Layers : unsigned {
        types = 1,               // layer_types
        use_window = 2,          // use_sliding_window; with `types` also max_window_layers: first layer with a window
        every_other = 64,        // max_window_layers: below it, layers 0, 2, 4, ... have windows
        no_rope_layers = 4,      // no_rope_layers
        rope_if_windowed = 8,    // layers without a window have no RoPE
        neo = 16,                // attention_types
        pattern = 32,            // sliding_window_pattern
    };
    unsigned layers = 0;

    // Keys of config.json with constant values, as JSON text; "a/b" is key b in object a. written:
    // flatgpt writes the key. checked: a file with another value is refused, because flatgpt lacks
    // that kind of model.
    struct Fixed {
        const char* key;
        const char* value;
        bool written, checked;
    };
    std::vector<Fixed> fixed = {};

    // Our name of a tensor and its names in files, both without .weight and .bias: "ln1" stands for
    // ln1w and ln1b, "shared_fc" for fcw in a layer with experts. `file` has one name, or one for
    // each part that files store separately (Row::parts in tensors.cpp). # stands for the block's
    // number and @ for the expert's. A tensor without a row has our name in files.
    struct Name {
        const char* ours;
        std::vector<const char*> file;
        FileLayout layout = FileLayout::straight;
    };
    std::vector<Name> names = {};
    std::vector<Name> encoder_names = {};    // an encoder's tensors, if the family's kinds have one
    // A class of transformers with its head: the fields of Config, and the tensors' names, which
    // come before those of `names`. The first row whose kind is the model's is written, and the
    // first row of all is meant by a file without `architectures`. No rows: `architecture` is the
    // only class.
    struct Head {
        const char* architecture;
        HeadKind kind;
        HeadTransform transform;
        std::optional<Act> act;    // the transform's; none: the ffn's
        std::vector<Name> names;
        bool next_sentence = false;    // Config::next_sentence
    };
    std::vector<Head> heads = {};
    const Head* head_of(const Config& c) const;    // null: no row
    // Prefixes of tensor names. Files that flatgpt writes use the first; files that it reads use
    // any of them, or none. A model without a head is written without a prefix.
    std::vector<const char*> prefixes = {"model."};
    // Names of tensors that other programs write and flatgpt ignores. Each is the end of a name, or
    // with a * the beginning ("vision_tower.*").
    std::vector<const char*> redundant = {".rotary_emb.inv_freq"};
    // Parts of names in files of the model's own program, and what they are in Hugging Face's.
    std::vector<std::pair<const char*, const char*>> renames = {};
    std::vector<Preset> presets = {};
};
const std::vector<const Family*>& families();
// Exit 2: the model is an encoder-decoder, for which the command (such as "bench") has no sources.
Status check_no_encoder(const Config& c, const char* command);
// Feature that flatgpt lacks for a model_type, a class or a GGUF architecture that it cannot load;
// null: the name is unknown.
const char* missing_for(const std::string& name);
// Visible positions of nanochat's short windows at a context of T: a quarter of T, rounded up to a
// multiple of 128, and the token itself.
constexpr int nanochat_window(int T) { return (T / 4 + (T % 4 != 0) + 127) / 128 * 128 + 1; }
// The family of encoders alone, without the decoders of this family; null: there is none.
const Family* encoder_family(const Family& both);
// Families like Llama, like GPT-2, like BERT and like T5. families() joins them.
const std::vector<Family>& llama_families();
const std::vector<Family>& encoder_families();
const std::vector<Family>& encoder_decoder_families();
const std::vector<Family>& gpt_families();
