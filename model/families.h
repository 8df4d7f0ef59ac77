// families.h - a family of models is one row: how its config.json, its presets and its tensors are called.
#pragma once
#include <string>
#include <vector>

#include "config.h"

struct Family {
    const char* type;            // model_type of config.json
    const char* architecture;    // the class of transformers that loads it
    int spelling;                // which of ConfigRow::keys
    std::vector<std::pair<const char*, Config>> presets;

    // Further keys of config.json, as JSON text. checked: a file that says otherwise is of a model that we cannot run.
    struct Fixed { const char* key; const char* value; bool written, checked; };
    std::vector<Fixed> fixed;

    // The model's tensor `ours` in a file: one name, or one for each of its parts (tensors.cpp); # is the block. A
    // tensor that has no row is one that the family lacks.
    struct Name { const char* ours; std::vector<const char*> file; bool transposed = false; };
    std::vector<Name> names;
    const char* prefix;    // of names; files may leave it out
    // Tensors of other exporters' files that say nothing new, without the prefix: a copy of wte; endings of the others.
    const char* head;
    std::vector<const char*> redundant;
};
const std::vector<const Family*>& families();
