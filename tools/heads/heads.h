// heads.h - removes attention heads from a model.
//
// The unit of removal is a group: a key/value head and the query heads that share it (one head
// without grouped-query attention). Every layer keeps an equal number of groups, because a Config
// has one number of heads. Unless key/value heads are merged, the smaller model computes exactly
// the output of the original with zeros in the projection's columns of removed heads. Head size is
// unchanged.
#pragma once
#include "model/decoder.h"

struct HeadSelection {
    std::vector<std::vector<int>> kept;    // (L): indices of kept groups, ascending
    int kv_heads = 0;                      // key/value heads after merging neighbours by their mean
};

// Returns the number of groups to remove from a layer of NH heads in NKV groups. `heads` is a
// fraction of the groups, "30%" or "0.3", which is rounded and leaves at least one group; or it is
// a number of heads, such as "2", which must be whole groups. Exit 2: `heads` is invalid, or no
// group would be removed or kept.
Result<int> groups_to_remove(const std::string& heads, int NH, int NKV);
// Returns the configuration with `groups` groups in each layer, whose key/value heads are merged to
// kv_heads. Exit 2: this model's heads cannot be removed or merged so; the message has the reason.
Result<Config> cut_config(const Config& c, int groups, int kv_heads);
// Selects in each layer the `groups` groups with the largest sums of importance (L,NH), the first
// ones if sums are equal. T5's position biases are one table for all layers, so all its layers keep
// equal groups, chosen by the sum over layers.
std::vector<std::vector<int>> most_important(const Config& c, const std::vector<double>& importance, int groups);
// Selects random groups in each layer, by a seed.
std::vector<std::vector<int>> random_groups(const Config& c, int groups, uint64_t seed);
// Copies the kept weights of `from` to a model that was allocated with cut_config of from's
// configuration. A merged key/value head becomes the mean of the old ones.
void cut_heads(Model& to, const Model& from, const HeadSelection& cut);
