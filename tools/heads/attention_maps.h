// attention_maps.h - attention maps (the probabilities of heads) and scores of heads, for
// `flatgpt inspect`. The reference (layers/reference/reference.h) computes maps from the model's
// queries and keys.
#pragma once
#include <optional>

#include "model/decoder.h"

struct HeadIndex {
    int layer, head;
};    // 0-based
// Returns the reason why layer l has no map, or null if it has one.
const char* why_no_map(const Config& c, int l);
int layers_with_map(const Config& c);

// Runs the model over one sequence of S tokens. each(i, p, visible) is called for each of `heads`,
// by several threads at once: p (S,S) has heads[i]'s probabilities, one row per query, and visible
// (S) each query's number of visible keys. prefix is the number of positions with bidirectional
// attention, for models that have them. after, unless empty, is called after each layer with a map.
// bytes limits the maps that are in memory at once; one must fit.
typedef std::function<void(size_t i, const double* p, const int* visible)> EachMap;
constexpr int64_t MAP_BYTES = int64_t(4) << 30;
void attention_maps(Model& model, const std::vector<int>& tokens, int prefix, const std::vector<HeadIndex>& heads,
                    const EachMap& each, const std::function<void()>& after = {}, int64_t bytes = MAP_BYTES);
// Returns how many maps of S positions fit into `bytes`, at most `most`.
int maps_that_fit(int S, int most, int64_t bytes = MAP_BYTES);

// Scores of a head or of a layer: means over queries. A score that was not measured is empty.
struct HeadScores {
    typedef std::optional<double> Score;
    Score entropy = {};       // nats
    Score relative = {};      // entropy / log(visible keys); 0: no choice
    Score distance = {};      // mean query-key distance in positions, weighted by probability
    Score previous = {};      // probability of the key before the query
    Score first = {};         // probability of key 0, over later queries
    Score induction = {};     // for repeated tokens
    Score importance = {};    // importance.h
};
struct HeadSums {
    double entropy = 0, most = 0, distance = 0, previous = 0, first = 0, induction = 0;
    int64_t queries = 0, later = 0, repeats = 0;
    void add(const double* p, const int* visible, int S);
    void add_induction(const double* p, int S, int before, int length);
    HeadScores scores() const;
};

// Distinct random tokens, repeated once. A head's induction score is the mean probability, over
// tokens of the second half, of the key after the token's earlier occurrence (Elhage et al. 2021,
// Olsson et al. 2022).
struct Repeated {
    std::vector<int> tokens;
    int before, length;    // before: unrepeated tokens at the start; length: of one half
};
constexpr int REPEATED_HALF = 64;    // maximum tokens of a half
// Returns random tokens of `choices`, repeated, after the tokens `begin`: at most `most` in all.
// seed and number determine them.
Repeated repeated_tokens(const std::vector<int>& choices, const std::vector<int>& begin, int most, uint64_t seed,
                         uint64_t number);

// A map of at most `most` rows and columns: a cell of `bin` queries by `bin` keys holds the mean
// over its queries of the sum over its keys.
struct SmallMap {
    int n, bin;
    std::vector<double> values;    // (n,n)
};
SmallMap small_map(const double* p, int S, int most);
