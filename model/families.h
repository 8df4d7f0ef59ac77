// families.h - one row per family of models: fields, config.json keys, tensor names, presets.
#pragma once
#include <cmath>
#include <string>
#include <vector>

#include "tensors.h"

// A published size. more: sets the fields in which it differs from its family's other models.
struct Preset {
    const char* name;
    int V, T, L, NH, NKV, HS, C, F;
    void (*more)(Config& c) = nullptr;
};

// A key of config.json and its field of Config. If a field has several keys, the first one present
// is read, and all are written.
struct ConfigKey {
    enum Form {
        as_is,
        or_none,       // 0 is written as null
        inverse,       // 1 / the number
        scale,         // attention scale; 0 is written as 1/sqrt(HS)
        root,          // attention scale, stored as scale^-2
        torch_gelu,    // the tanh form is called gelu_pytorch_tanh
        any_gelu,      // as torch_gelu; every GELU is the tanh form
        flag,          // true: value `on`; false: value 0
        copy,          // written; another value is refused when read
    };
    const char* key;
    ConfigRow::Member field;
    Form form = as_is;
    double absent = NAN;    // value if absent; NAN: family_defaults(), sizes required
    int on = 1;
};

struct Family {
    const char* type;                      // model_type of config.json
    const char* architecture;              // transformers' class
    std::vector<const char*> also = {};    // aliases in FAMILY:dN
    Config kinds = {};                     // fields common to all sizes
    void (*sized)(Config& c) = nullptr;    // sets fields that follow from the sizes
    std::vector<ConfigKey> keys = {};

    // RoPE in config.json: rope_parameters, and the older keys named here. theta null: neither.
    struct Rope {
        const char* theta = nullptr;
        const char* part = nullptr;     // rotated fraction of a head
        double usual = 1;               // the fraction if the key is absent
        const char* local = nullptr;    // theta of windowed layers
        bool by_layers = false;         // rope_parameters: one object per kind of layer
        bool scaled = true;             // the class supports scalings
    } rope = {};
    // Keys of config.json that select the layers with a window or with RoPE.
    enum Layers : unsigned {
        types = 1,               // layer_types
        use_window = 2,          // use_sliding_window; with `types` also max_window_layers: the first with a window
        every_other = 64,        // max_window_layers: below it, layers 0, 2, 4, ... have a window
        no_rope_layers = 4,      // no_rope_layers
        rope_if_windowed = 8,    // layers without a window have no RoPE
        neo = 16,                // attention_types
        pattern = 32,            // sliding_window_pattern
    };
    unsigned layers = 0;

    // Constant keys of config.json, as JSON text; a/b: b in object a. checked: another value is
    // refused, because flatgpt lacks that kind of model.
    struct Fixed {
        const char* key;
        const char* value;
        bool written, checked;
    };
    std::vector<Fixed> fixed = {};

    // Tensor names in files, without .weight and .bias: "ln1" covers ln1w and ln1b, "shared_fc" is
    // fcw in a layer with experts. `file`: one name, or one per part (tensors.cpp); # is the
    // block's number, @ the expert's. A tensor without a row has our name in files.
    struct Name {
        const char* ours;
        std::vector<const char*> file;
        FileLayout layout = FileLayout::straight;
    };
    std::vector<Name> names = {};
    // Prefixes of tensor names: our files have the first, other files any of them or none.
    std::vector<const char*> prefixes = {"model."};
    // Tensors of other exporters' files to ignore: ends of names, or beginnings ("vision_tower.*").
    std::vector<const char*> redundant = {".rotary_emb.inv_freq"};
    std::vector<Preset> presets = {};
};
const std::vector<const Family*>& families();
// The feature of an unsupported model_type that flatgpt lacks; null: unknown type.
const char* missing_for(const std::string& type);
// The parts of families().
const std::vector<Family>& llama_families();
const std::vector<Family>& gpt_families();
