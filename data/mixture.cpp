// mixture.cpp - see mixture.h.
#include "data/mixture.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <set>

#include "base/command.h"
#include "base/console.h"

// ---- text ---------------------------------------------------------------------------------------

namespace {
// Parses a number that takes all of `text`. "nan" and "inf" are numbers, too: as weights they are
// refused, as parts of names they would be searched for.
bool whole_number(const std::string& text, double* value) {
    if (text.empty() || text.find_first_of(" \t\n") == 0) return false;
    char* end = nullptr;
    *value = strtod(text.c_str(), &end);
    return *end == 0;
}
}    // namespace

Result<std::vector<MixtureEntry>> mixture_parse(const std::string& text) {
    std::vector<MixtureEntry> entries;
    std::vector<std::string> without;    // entries that have no weight
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find(',', begin), text.size());
        const std::string entry = text.substr(begin, end - begin);
        begin = end + 1;
        const size_t equals = std::min(entry.rfind('='), entry.size());
        double weight = 0;
        if (equals == entry.size() || !whole_number(entry.substr(equals + 1), &weight)) {
            without.push_back(entry);
            continue;
        }
        if (!(weight > 0 && std::isfinite(weight)))
            return fail(Exit::usage, "'%s': expected a finite weight above 0 behind '=', found %s", entry.c_str(),
                        entry.c_str() + equals + 1);
        if (equals == 0) return fail(Exit::usage, "'%s': expected a file or a pattern before '='", entry.c_str());
        entries.push_back({entry.substr(0, equals), weight, entry});
    }
    if (entries.empty()) return std::vector<MixtureEntry>{{text}};
    if (!without.empty())
        return fail(Exit::usage,
                    "'%s' has no weight, and '%s' has %g: expected a weight behind each entry (PATTERN=NUMBER), or "
                    "behind none",
                    without[0].c_str(), entries[0].pattern.c_str(), entries[0].weight);
    return entries;
}

// ---- weights ------------------------------------------------------------------------------------

namespace {
constexpr double WEIGHT_UNITS = int64_t(1) << 40;    // sum of the weights as integers

// Returns the weights as integers, whose products with counts are exact. The smallest share is
// 2^-40.
std::vector<int64_t> in_units(const std::vector<SamplePart>& parts) {
    double largest = 0, sum = 0;
    for (const SamplePart& part : parts) largest = std::max(largest, part.weight);
    for (const SamplePart& part : parts) sum += part.weight / largest;    // the weights' own sum may overflow
    std::vector<int64_t> units;
    for (const SamplePart& part : parts)
        units.push_back(std::max<int64_t>(1, std::llround(part.weight / largest / sum * WEIGHT_UNITS)));
    return units;
}
}    // namespace

// ---- samples ------------------------------------------------------------------------------------

namespace {
class MixtureSamples : public SampleSource {
  public:
    std::vector<MixtureEntry> entries;
    std::vector<std::shared_ptr<const SampleSource>> sources;
    std::vector<int64_t> begin = {0};    // number of each source's first sample; last entry: all
    std::vector<Shard> all_shards;

    int64_t samples() const override { return begin.back(); }
    int64_t tokens() const override {
        int64_t n = 0;
        for (const auto& source : sources) n += source->tokens();
        return n;
    }
    size_t source_of(int64_t sample) const {
        return size_t(std::upper_bound(begin.begin(), begin.end(), sample) - begin.begin() - 1);
    }
    int64_t targets(int64_t sample) const override {
        const size_t k = source_of(sample);
        return sources[k]->targets(sample - begin[k]);
    }
    Status read(int64_t sample, int* tokens, int* targets, std::vector<Text>* texts) const override {
        const size_t k = source_of(sample);
        return sources[k]->read(sample - begin[k], tokens, targets, texts);
    }
    uint64_t fingerprint() const override {
        const std::vector<int64_t> units = in_units(parts());    // they decide the order
        uint64_t h = fnv1a_words(FNV_OFFSET_BASIS, units.data(), int64_t(units.size() * sizeof units[0]));
        for (const auto& source : sources) {
            const uint64_t of_source = source->fingerprint();
            h = fnv1a_words(h, &of_source, sizeof of_source);
        }
        return h;
    }
    std::string text() const override {
        return formatted("a mixture of %zu sources, %s tokens, %s", sources.size(),
                         human_count(double(tokens())).c_str(), counted(samples(), "sequence").c_str());
    }
    std::string note() const override {
        std::string all;
        for (size_t k = 0; k < sources.size(); k++)
            if (const std::string note = sources[k]->note(); !note.empty())
                all += (all.empty() ? "" : "\n") + entries[k].pattern + ": " + note;
        return all;
    }
    double cropped() const override {
        double n = 0;    // tokens
        for (const auto& source : sources) n += source->cropped() * double(source->tokens());
        return n / double(tokens());
    }
    std::vector<SamplePart> parts() const override {
        std::vector<SamplePart> all;
        for (size_t k = 0; k < sources.size(); k++)
            all.push_back({entries[k].pattern, entries[k].weight, sources[k]->samples(), sources[k]->tokens()});
        return all;
    }
    const std::vector<Shard>& shards() const override { return all_shards; }
};
}    // namespace

std::shared_ptr<const SampleSource> mixture_of(const std::vector<MixtureEntry>& entries,
                                               std::vector<std::shared_ptr<const SampleSource>> sources) {
    CHECK(entries.size() == sources.size() && !sources.empty());
    if (sources.size() == 1) return sources[0];
    auto all = std::make_shared<MixtureSamples>();
    for (const auto& source : sources) {
        all->begin.push_back(all->samples() + source->samples());
        all->all_shards.insert(all->all_shards.end(), source->shards().begin(), source->shards().end());
    }
    all->entries = entries;
    all->sources = std::move(sources);
    return all;
}

// ---- order --------------------------------------------------------------------------------------

constexpr uint64_t BLOCK_STREAM = 0xB10Cull << 48;

struct MixtureOrder::Blocks {
    std::mutex mutex;
    struct Entry {
        int64_t number = -1;
        std::vector<Draw> draws;
    } last[2];    // the loader's thread and its callers read at different indices
    int oldest = 0;
};

MixtureOrder::MixtureOrder(const std::vector<SamplePart>& parts, uint64_t key)
    : begin{0}, seed(key), blocks(std::make_shared<Blocks>()) {
    std::set<std::pair<int64_t, int>> roots;    // weight, index in nodes
    for (const int64_t units : in_units(parts)) {
        const SamplePart& part = parts[nodes.size()];
        CHECK(part.weight > 0 && part.samples > 0, "part %s", part.name.c_str());
        begin.push_back(begin.back() + part.samples);
        roots.emplace(units, int(nodes.size()));
        nodes.push_back({units});
    }
    while (roots.size() > 1) {
        const auto [a, left] = *roots.begin();
        roots.erase(roots.begin());
        const auto [b, right] = *roots.begin();
        roots.erase(roots.begin());
        roots.emplace(a + b, int(nodes.size()));
        nodes.push_back({a + b, left, right});
    }
}

int64_t MixtureOrder::to_left(const Node& node, int64_t n) const {
    const __int128 share = nodes[size_t(node.left)].weight;
    return int64_t((2 * share * n + node.weight) / (2 * node.weight));
}

std::vector<int64_t> MixtureOrder::counts(int64_t n) const {
    std::vector<int64_t> all(nodes.size(), n);
    const size_t parts = begin.size() - 1;
    for (size_t i = nodes.size(); i-- > parts;) {    // a node comes before its children
        const int64_t left = to_left(nodes[i], all[i]);
        all[size_t(nodes[i].left)] = left;
        all[size_t(nodes[i].right)] = all[i] - left;
    }
    all.resize(parts);
    return all;
}

// The part whose count grows from n to n + 1 samples.
int MixtureOrder::part_at(int64_t n) const {
    int i = int(nodes.size()) - 1;
    while (nodes[size_t(i)].left >= 0) {
        const Node& node = nodes[size_t(i)];
        const int64_t left = to_left(node, n);
        const bool goes_left = to_left(node, n + 1) > left;
        i = goes_left ? node.left : node.right;
        n = goes_left ? left : n - left;
    }
    return i;
}

std::vector<MixtureOrder::Draw> MixtureOrder::block(int64_t number) const {
    const int64_t first = number * MIXTURE_BLOCK;
    std::vector<int64_t> before = counts(first);
    std::vector<Draw> draws;
    for (int i = 0; i < MIXTURE_BLOCK; i++) {
        const int part = part_at(first + shuffled(seed ^ BLOCK_STREAM, number, MIXTURE_BLOCK, i));
        draws.push_back({part, before[size_t(part)]++});
    }
    return draws;
}

MixtureOrder::Draw MixtureOrder::draw(int64_t i) const {
    if (nodes.size() == 1) return {0, i};
    const int64_t number = i / MIXTURE_BLOCK;
    std::lock_guard lock(blocks->mutex);
    for (const Blocks::Entry& known : blocks->last)
        if (known.number == number) return known.draws[size_t(i % MIXTURE_BLOCK)];
    Blocks::Entry& entry = blocks->last[blocks->oldest];
    blocks->oldest = 1 - blocks->oldest;
    entry = {number, block(number)};
    return entry.draws[size_t(i % MIXTURE_BLOCK)];
}

int64_t MixtureOrder::at(int64_t i) const {
    const Draw d = draw(i);
    const int64_t first = begin[size_t(d.part)], n = begin[size_t(d.part) + 1] - first;
    // Sources of one size get permutations of their own; the first one has the seed's.
    const uint64_t key = seed + uint64_t(d.part) * 0x9E3779B97F4A7C15ull;
    return first + shuffled(key, d.index / n, n, d.index % n);
}

std::vector<int64_t> MixtureOrder::drawn(int64_t n) const {
    const int64_t whole = n / MIXTURE_BLOCK * MIXTURE_BLOCK;
    std::vector<int64_t> all = counts(whole);
    for (int64_t i = whole; i < n; i++) all[size_t(draw(i).part)]++;
    return all;
}

std::vector<double> MixtureOrder::shares() const {
    std::vector<double> all;
    for (size_t k = 0; k + 1 < begin.size(); k++) all.push_back(double(nodes[k].weight) / double(nodes.back().weight));
    return all;
}
