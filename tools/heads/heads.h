// heads.h - removes attention heads from a model.
//
// The unit of removal is a group: a key/value head and the query heads that share it (without
// grouped heads one head). Every layer keeps an equal number, because a Config has one number of
// heads. The cut model computes what the whole one would with zeros in the projection's columns of
// removed heads. Head size is unchanged.
#pragma once
#include "model/decoder.h"

struct HeadSelection {
    std::vector<std::vector<int>> kept;    // (L): kept groups, ascending
    int kv_heads = 0;                      // key/value heads after merging neighbours by their mean
};

// Number of a layer's NKV groups to remove: "30%" and "0.3" are fractions, rounded, of which one
// group always stays; "2" is a number of the NH query heads, in whole groups. Exit 2: invalid, or
// no group removed or kept.
Result<int> groups_to_remove(const std::string& heads, int NH, int NKV);
// The configuration with `groups` groups a layer, merged to kv_heads key/value heads. Exit 2: why
// not.
Result<Config> cut_config(const Config& c, int groups, int kv_heads);
// The `groups` groups of each layer with the largest sums of importance (L,NH); ties: the first.
// With T5's biases, one table for all layers by head, layers keep equal groups, by the sum over
// layers.
std::vector<std::vector<int>> most_important(const Config& c, const std::vector<double>& importance, int groups);
// Random groups instead, chosen by a seed.
std::vector<std::vector<int>> random_groups(const Config& c, int groups, uint64_t seed);
// to: allocated with cut_config of from's configuration; gets the kept weights of `from`.
void cut_heads(Model& to, const Model& from, const HeadSelection& cut);
