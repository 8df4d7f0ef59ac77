// attention_maps.h - what heads attend to: probabilities by the definition (layers/reference/reference.h) from the
// model's own queries and keys, and scores of them. For `flatgpt inspect`.
#pragma once
#include <optional>

#include "model/decoder.h"

struct HeadIndex {
    int layer, head;
};    // from 0
// Why layer l has no map; null: it has.
const char* why_no_map(const Config& c, int l);
int layers_with_map(const Config& c);

// Runs the model over one sequence, and hands over heads[i]'s probabilities (S,S), a row for each query, and how many
// keys each query sees (S). Several threads may call `each` at once. prefix: positions that see each other, where the
// model has that. after: called after each layer that has a map; may be empty. bytes: the maps that are computed at the
// same time take no more; at least one must fit.
typedef std::function<void(size_t i, const double* p, const int* visible)> EachMap;
constexpr int64_t MAP_BYTES = int64_t(4) << 30;
void attention_maps(Model& model, const std::vector<int>& tokens, int prefix, const std::vector<HeadIndex>& heads,
                    const EachMap& each, const std::function<void()>& after = {}, int64_t bytes = MAP_BYTES);
// How many maps of S positions fit into that many bytes; at most `most`.
int maps_that_fit(int S, int most, int64_t bytes = MAP_BYTES);

// Means over queries; none: not measured. previous, first: the probability of the key before the query, and of key 0,
// over the queries after it.
struct HeadScores {
    typedef std::optional<double> Score;
    Score entropy = {};     // nats
    Score relative = {};    // entropy over the largest there could be, log of the visible keys; 0: no choice
    Score distance = {};    // positions between query and key: their mean, weighted by the keys' probabilities
    Score previous = {}, first = {};
    Score induction = {};     // Repeated's
    Score importance = {};    // importance.h
};
struct HeadSums {
    double entropy = 0, most = 0, distance = 0, previous = 0, first = 0, induction = 0;
    int64_t queries = 0, later = 0, repeats = 0;
    void add(const double* p, const int* visible, int S);
    void add_induction(const double* p, int S, int before, int length);
    HeadScores scores() const;
};

// Different random tokens, then the same ones again. A head's induction score is the mean probability, of each token of
// the second half, for the key after its earlier occurrence: what came next then. Elhage et al. 2021, Olsson et al.
// 2022.
struct Repeated {
    std::vector<int> tokens;
    int before, length;    // before: tokens at the beginning that are not repeated; length: of one half
};
constexpr int REPEATED_HALF = 64;    // the most tokens of a half
// choices: ids to draw from; begin: put before them. As many as `most` positions hold.
Repeated repeated_tokens(const std::vector<int>& choices, const std::vector<int>& begin, int most, uint64_t seed,
                         uint64_t number);

// A map of at most `most` rows and columns: cells of `bin` queries by `bin` keys hold the mean over the queries of the
// sum over the keys.
struct SmallMap {
    int n, bin;
    std::vector<double> values;    // (n,n)
};
SmallMap small_map(const double* p, int S, int most);
