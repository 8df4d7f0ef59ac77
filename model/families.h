// families.h - a family of models is one row: how its config.json, its presets and its tensors are called.
#pragma once
#include <string>
#include <vector>

#include "config.h"

struct Family {
    const char* type;            // model_type of config.json
    const char* architecture;    // the class of transformers that loads it
    int spelling;                // which of ConfigRow::keys
    // What its models have in common, whatever their sizes. Sizes that follow from others: ffn(channels), null: 4 C;
    // the head size, 0: channels / heads; the part of a head that turns.
    Config kinds = {};
    int (*ffn)(int C) = nullptr;
    int head_size = 0;
    double rope_part = 1;
    std::vector<std::pair<const char*, Config>> presets;
    std::vector<const char*> lacks;    // names of ConfigRows that this class has no field for

    // Further keys of config.json, as JSON text. checked: a file with another value describes a model we cannot run.
    struct Fixed { const char* key; const char* value; bool written, checked; };
    std::vector<Fixed> fixed;

    // The names in files of the model's tensor `ours`: one, or one for each of its pieces (tensors.cpp); # is the
    // block's number. The family lacks a tensor that has no row.
    struct Name { const char* ours; std::vector<const char*> file; bool transposed = false; };
    std::vector<Name> names;
    const char* prefix;    // comes before each name; files may leave it out
    // Tensors in other exporters' files that are not needed, without the prefix. head: a copy of wte; redundant:
    // endings of the other names.
    const char* head;
    std::vector<const char*> redundant;
};
const std::vector<const Family*>& families();
