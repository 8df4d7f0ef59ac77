// heads.h - removes attention heads from a model.
//
// The unit of removal is a group: a key/value head and the query heads that share it (one head
// without grouped-query attention). Every layer keeps an equal number of groups, because a Config
// has one number of heads. The smaller model computes exactly the output of the original with zeros
// in the projection's columns of removed heads. Head size is unchanged.
#pragma once
#include "model/decoder.h"

struct HeadSelection {
    std::vector<std::vector<int>> kept;    // (L): indices of kept groups, ascending
    int kv_heads = 0;                      // key/value heads after merging neighbours by their mean
};

// Parses `heads`, the number of a layer's NKV groups to remove. "30%" and "0.3" are fractions,
// rounded, and leave at least one group; "2" counts query heads of the NH and must be whole groups.
// Exit 2: invalid, or no group is removed or kept.
Result<int> groups_to_remove(const std::string& heads, int NH, int NKV);
// The configuration with `groups` groups a layer, merged to kv_heads key/value heads. Exit 2: why
// not.
Result<Config> cut_config(const Config& c, int groups, int kv_heads);
// Selects in each layer the `groups` groups with the largest sums of importance (L,NH); of ties,
// the first. T5 has one table of position biases by head for all layers, so there all layers keep
// equal groups, chosen by the sum over layers.
std::vector<std::vector<int>> most_important(const Config& c, const std::vector<double>& importance, int groups);
// Selects random groups in each layer, by a seed.
std::vector<std::vector<int>> random_groups(const Config& c, int groups, uint64_t seed);
// to: allocated with cut_config of from's configuration; gets the kept weights of `from`.
void cut_heads(Model& to, const Model& from, const HeadSelection& cut);
