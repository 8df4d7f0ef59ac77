// attention_maps.h - attention probabilities by the definition (layers/reference/reference.h) from
// the model's own queries and keys, and scores of heads. For `flatgpt inspect`.
#pragma once
#include <optional>

#include "model/decoder.h"

struct HeadIndex {
    int layer, head;
};    // 0-based
// Why layer l has no map; null: it has one.
const char* why_no_map(const Config& c, int l);
int layers_with_map(const Config& c);

// Runs the model over one sequence. each(i, p, visible) gets heads[i]'s probabilities (S,S), one
// row per query, and each query's number of visible keys (S); several threads call it at once.
// prefix: number of positions with bidirectional attention, for models that have them. after:
// called after each layer with a map; may be empty. bytes: limit on concurrent maps; one must fit.
typedef std::function<void(size_t i, const double* p, const int* visible)> EachMap;
constexpr int64_t MAP_BYTES = int64_t(4) << 30;
void attention_maps(Model& model, const std::vector<int>& tokens, int prefix, const std::vector<HeadIndex>& heads,
                    const EachMap& each, const std::function<void()>& after = {}, int64_t bytes = MAP_BYTES);
// Number of maps of S positions that fit into `bytes`; at most `most`.
int maps_that_fit(int S, int most, int64_t bytes = MAP_BYTES);

// Means over queries; none: not measured.
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
// choices: ids to draw from; begin: tokens put first. Uses at most `most` positions.
Repeated repeated_tokens(const std::vector<int>& choices, const std::vector<int>& begin, int most, uint64_t seed,
                         uint64_t number);

// A map of at most `most` rows and columns: a cell of `bin` queries by `bin` keys holds the mean
// over its queries of the sum over its keys.
struct SmallMap {
    int n, bin;
    std::vector<double> values;    // (n,n)
};
SmallMap small_map(const double* p, int S, int most);
