// families.h - a family of models is one row: its kinds, its config.json, its tensors' names, its presets.
#pragma once
#include <cmath>
#include <string>
#include <vector>

#include "tensors.h"

// A known size. more: what it has that its family's other models have not.
struct Preset {
    const char* name;
    int V, T, L, NH, NKV, HS, C, F;
    void (*more)(Config& c) = nullptr;
};

// A field of config.json, and the field of Config that it says. A field of Config with several keys is read from the
// first that is there; all are written.
struct ConfigKey {
    enum Form {
        as_is,
        or_none,       // null: 0, none
        inverse,       // 1 / the number
        scale,         // the scores' factor, where 0 stands for 1/sqrt(HS)
        root,          // the same; the number is scale^-2
        torch_gelu,    // the tanh form is called gelu_pytorch_tanh
        any_gelu,      // the same, and every GELU is the tanh form
        flag,          // true: the kind `on`; false: the first kind
        copy,          // written; a file where it differs describes a model we cannot run
    };
    const char* key;
    ConfigRow::Member field;
    Form form = as_is;
    double absent = NAN;    // what a file without the key means; NAN: what plain() has, and sizes must be there
    int on = 1;
};

struct Family {
    const char* type;                      // model_type of config.json
    const char* architecture;              // the class of transformers that loads it
    std::vector<const char*> also = {};    // further names of it in FAMILY:dN
    Config kinds = {};                     // what its models have in common, whatever their sizes
    void (*sized)(Config& c) = nullptr;    // sets kinds that follow from sizes, after plain() has set those
    std::vector<ConfigKey> keys = {};

    // config.json's rotation: rope_parameters, and the older spelling, whose keys these are. theta null: neither.
    struct Rope {
        const char* theta = nullptr;
        const char* part = nullptr;     // the part of a head that turns
        double usual = 1;               // that part where a file does not say
        const char* local = nullptr;    // theta of layers with a window
        bool by_layers = false;         // rope_parameters has one object for each kind of layer
        bool scaled = true;             // its class knows the scalings
    } rope = {};
    // Which layers have a window or turn.
    enum Layers : unsigned {
        types = 1,               // layer_types
        use_window = 2,          // use_sliding_window; with `types` also max_window_layers: from it on layers have one
        every_other = 64,        // max_window_layers the other way round: of the layers before it 0, 2, 4, ... have one
        no_rope_layers = 4,      // no_rope_layers
        rope_if_windowed = 8,    // layers without a window do not turn
        neo = 16,                // attention_types
        pattern = 32,            // sliding_window_pattern
    };
    unsigned layers = 0;

    // Further keys of config.json, as JSON text; a/b: b of the object a. checked: a file with another value describes a
    // model we cannot run.
    struct Fixed {
        const char* key;
        const char* value;
        bool written, checked;
    };
    std::vector<Fixed> fixed = {};

    // The names in files of the model's tensors `ours`, less .weight and .bias: "ln1" is of ln1w and ln1b. One name, or
    // one for each of its parts (tensors.cpp); # is the block's number, @ the expert's. "shared_fc" is of fcw in a
    // layer with experts. Without a row files have our names.
    struct Name {
        const char* ours;
        std::vector<const char*> file;
        FileLayout layout = FileLayout::straight;
    };
    std::vector<Name> names = {};
    // What names begin with: in our files the first of these; in others' files any of them, or nothing.
    std::vector<const char*> prefixes = {"model."};
    // Tensors in other exporters' files that are not needed: endings of names, or beginnings ("vision_tower.*").
    std::vector<const char*> redundant = {".rotary_emb.inv_freq"};
    std::vector<Preset> presets = {};
};
const std::vector<const Family*>& families();
// What a model of another model_type has that flatgpt lacks; null where nothing is known.
const char* missing_for(const std::string& type);
// What families() joins.
const std::vector<Family>& llama_families();
const std::vector<Family>& gpt_families();
