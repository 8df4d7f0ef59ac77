// reference_sampling.cpp - the definition of `sample`: sort, truncate, add up.
#include <algorithm>
#include <vector>

#include "layers/sampling.h"
#include "reference.h"

namespace reference {
namespace {
struct Token {
    double score, weight;
    int id;
};
bool likelier(const Token& a, const Token& b) { return a.score != b.score ? a.score > b.score : a.id < b.id; }
double total(const std::vector<Token>& all) {
    double sum = 0;
    for (const Token& t : all) sum += t.weight;
    return sum;
}

// Draws a token from `all`, whose tokens are in the order of their ids.
int drawn(std::vector<Token> all, const SampleParams& d, const SampleState& at) {
    const Token top = *std::min_element(all.begin(), all.end(), likelier);
    if (d.temperature == 0 || !std::isfinite(top.score)) return top.id;
    const bool some = d.top_k > 0 && size_t(d.top_k) < all.size();
    if (some || d.top_p < 1) std::sort(all.begin(), all.end(), likelier);
    if (some) all.resize(size_t(d.top_k));
    for (Token& t : all) t.weight = weight_of(t.score, top.score, d);
    if (d.top_p < 1) {
        const double part = d.top_p * total(all);
        double covered = 0;
        size_t n = 0;
        do covered += all[n++].weight;
        while (n < all.size() && covered < part);
        all.resize(n);
    }
    std::erase_if(all, [&](const Token& t) { return t.weight < d.min_p; });
    const double part = random_part(total(all), d, at);
    double sum = 0;
    for (const Token& t : all)
        if ((sum += t.weight) > part) return t.id;
    return top.id;
}
}    // namespace

void sample(int* ids, int* token_counts, SampleState* at, int* cache_pos, int* pos, const double* logits,
            const double* bias, SampleParams d, Logits z, int N, int V, int Vp) {
    for (int n = 0; n < N; n++) {
        int* row = token_counts ? token_counts + at[n].text * V : nullptr;
        std::vector<Token> all;
        for (int v = 0; v < V; v++) {
            const double x = logit_of(float(logits[int64_t(n) * Vp + v]), z);
            all.push_back({score_of(x, bias ? bias[v] : 0, row ? row[v] : 0, d), 0, v});
        }
        const int id = ids[n] = drawn(std::move(all), d, at[n]);
        if (row) row[id] = count_token(row[id]);
        at[n].pos++;
        if (cache_pos) cache_pos[n]++;
        if (pos) pos[n]++;
    }
}

}    // namespace reference
