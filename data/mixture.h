// mixture.h - several sources read together by weight: `--data 'a_*.bin=0.7,b_*.bin=0.3'` comes in,
// an order over the samples of all sources goes out.
//
// The order is a pure function of the weights, the sources' sizes, the seed and a sample's index in
// the run. So it does not depend on batches, ranks or interruptions. A mixture of one source has
// the order of that source alone.
//
// A binary tree over the sources decides how many of the first n samples each source has: a node
// passes round(n * left / (left + right)) of its samples to its left child. The counts never
// decrease with n, and they add up to n. Huffman's tree (1952) joins the lightest nodes first, so
// that a count differs from share * n by less than 2, and with two sources by at most 0.5. Within
// blocks of MIXTURE_BLOCK samples the sources come in a permuted order, so that no
// position in a step always has one source; the counts above hold at the blocks' ends.
//
// Each source is read without replacement: its j-th sample in the run is element j of its own
// epochs, each a permutation of its samples (`shuffled` in loader.h).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "data/samples.h"

constexpr int MIXTURE_BLOCK = 1024;

// An entry of a mixture's text: a pattern and its weight; without weights, the whole text.
struct MixtureEntry {
    std::string pattern;
    double weight = 1;
    std::string text = {};    // pattern and weight as given; empty: no weight
};
// Parses "PATTERN=WEIGHT,PATTERN=WEIGHT,...". A number behind an entry's last '=' is its weight. A
// text without weights is one entry, a list of patterns. Exit 2: a weight is not finite and above
// 0, or some entries have a weight and others none.
Result<std::vector<MixtureEntry>> mixture_parse(const std::string& text);

// The samples of all sources, one source behind the other, as one source with a part for each.
std::shared_ptr<const SampleSource> mixture_of(const std::vector<MixtureEntry>& entries,
                                               std::vector<std::shared_ptr<const SampleSource>> sources);

class MixtureOrder {
  public:
    MixtureOrder() = default;
    // Each part has samples, and a weight above 0.
    MixtureOrder(const std::vector<SamplePart>& parts, uint64_t seed);
    // The i-th sample of the run, by its number among the samples of all parts. Several threads may
    // call.
    int64_t at(int64_t i) const;
    std::vector<int64_t> drawn(int64_t n) const;    // samples of each part among the run's first n
    std::vector<double> shares() const;             // normalised weights

  private:
    struct Node {
        int64_t weight = 0;
        int left = -1, right = -1;    // children; -1: a part
    };
    struct Draw {
        int part;
        int64_t index;    // among the part's samples of the run
    };
    struct Blocks;
    std::vector<Node> nodes;       // parts first; the root is last
    std::vector<int64_t> begin;    // number of each part's first sample; last entry: all samples
    uint64_t seed = 0;
    std::shared_ptr<Blocks> blocks;    // two blocks, those computed last

    int64_t to_left(const Node& node, int64_t n) const;
    std::vector<int64_t> counts(int64_t n) const;
    int part_at(int64_t n) const;
    std::vector<Draw> block(int64_t number) const;
    Draw draw(int64_t i) const;
};
