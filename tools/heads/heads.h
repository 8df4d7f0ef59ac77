// heads.h - a model with fewer attention heads, cut out of another one.
//
// A key/value head and the query heads that share it leave together: a group. Without grouped heads each is a group of
// one. The same number stays in every layer, as a Config has one number of heads. What the cut model computes is what
// the whole one would with the projection's columns of the removed heads at 0. Heads keep their size.
#pragma once
#include "model/decoder.h"

struct HeadSelection {
    std::vector<std::vector<int>> kept;    // (L): the groups, in their order
    int kv_heads = 0;    // into so many the key/value heads that stay are merged: each is the mean of neighbours
};

// How many of a layer's NKV groups leave: "30%" and "0.3" are parts of them, rounded, and one stays; "2" is a number of
// the NH query heads, which are whole groups. Exit 2: it says neither, or none would leave, or none stay.
Result<int> groups_to_remove(const std::string& heads, int NH, int NKV);
// The shape with `groups` groups in each layer and then kv_heads key/value heads. Exit 2: why it cannot be.
Result<Config> cut_config(const Config& c, int groups, int kv_heads);
// The `groups` groups of each layer with the largest sums of their heads' importance (L,NH); of equals the first ones.
// T5's biases are one table for all layers, by the head's number: with them the same ones stay in each, by the sum.
std::vector<std::vector<int>> most_important(const Config& c, const std::vector<double>& importance, int groups);
// The same number, drawn by a seed.
std::vector<std::vector<int>> random_groups(const Config& c, int groups, uint64_t seed);
// to: allocated with cut_config of from's shape; its weights become those of `from` that stay.
void cut_heads(Model& to, const Model& from, const HeadSelection& cut);
