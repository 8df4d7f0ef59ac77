// sampler.cpp - see sampler.h.
#include "base/philox.h"
#include "sampler.h"

#include <algorithm>

namespace {
bool likelier(const Candidate& a, const Candidate& b) { return a.score != b.score ? a.score > b.score : a.id < b.id; }

double score_of(float logit) { return std::isnan(logit) ? -INFINITY : double(logit); }
// Calls f(score, id) for all tokens by ascending id. Scores in `changed` replace the logits'.
template <class F> void each_score(const float* logits, int V, const std::vector<Candidate>& changed, F f) {
    int v = 0;
    for (const Candidate& c : changed) {
        for (; v < c.id; v++) f(score_of(logits[v]), v);
        f(c.score, v++);
    }
    for (; v < V; v++) f(score_of(logits[v]), v);
}

// Returns the k most probable tokens in order, from a heap with the least probable at its root:
// nearly every token is rejected by one comparison. Takes a fifth of nth_element's time for 50 of
// 50,257 tokens. mask (V): allowed tokens; null: all.
std::vector<Candidate> likeliest(int k, const float* logits, int V, const std::vector<Candidate>& changed,
                                 const std::vector<bool>* mask) {
    std::vector<Candidate> best;
    best.reserve(size_t(k));
    each_score(logits, V, changed, [&](double score, int id) {
        if (best.size() == size_t(k) && score <= best[0].score) return;
        if (mask && !(*mask)[size_t(id)]) return;
        if (best.size() == size_t(k)) {
            std::pop_heap(best.begin(), best.end(), likelier);
            best.pop_back();
        }
        best.push_back({score, id});
        std::push_heap(best.begin(), best.end(), likelier);
    });
    std::sort_heap(best.begin(), best.end(), likelier);
    return best;
}

// Standard deviation of all finite scores.
double standard_deviation(const float* logits, int V, const std::vector<Candidate>& changed) {
    double sum = 0, squares = 0, n = 0;
    auto each = [&](auto f) {
        each_score(logits, V, changed, [&](double score, int) {
            if (std::isfinite(score)) f(score);
        });
    };
    each([&](double x) { sum += x, n++; });
    each([&](double x) { squares += (x - sum / n) * (x - sum / n); });
    return n > 0 ? std::sqrt(squares / n) : 0;
}

double total(const std::vector<Candidate>& all) {
    double sum = 0;
    for (const Candidate& c : all) sum += c.score;
    return sum;
}
// Keeps the first candidates that together have this fraction of the total weight, at least one.
void keep_first(std::vector<Candidate>& all, double part) {
    const double sum = total(all);
    double covered = 0;
    size_t keep = 0;
    while (keep < all.size() && covered < part * sum) covered += all[keep++].score;
    all.resize(std::max<size_t>(keep, 1));
}
// Sorts candidates by the distance of their surprise from the expected surprise.
void order_typical(std::vector<Candidate>& all) {
    const double sum = total(all);
    double expected = 0;
    auto surprise = [&](const Candidate& c) { return -std::log(c.score / sum); };
    for (const Candidate& c : all)
        if (c.score > 0) expected += c.score / sum * surprise(c);
    std::vector<std::pair<double, Candidate>> far;
    for (const Candidate& c : all) far.push_back({std::fabs(surprise(c) - expected), c});
    std::sort(far.begin(), far.end(),
              [](auto& a, auto& b) { return a.first != b.first ? a.first < b.first : likelier(a.second, b.second); });
    for (size_t i = 0; i < far.size(); i++) all[i] = far[i].second;
}
}    // namespace

Result<Sampler> Sampler::open(const Sampling& sampling, const Tokenizer& tokenizer, int V,
                              const std::vector<int>& ends) {
    Sampler sampler;
    sampler.sampling = sampling;
    sampler.V = V;
    sampler.mu = 2 * sampling.mirostat;
    sampler.history = TRY(History::open(sampling.penalties, tokenizer, V));
    if (sampling.grammar) sampler.matcher = GrammarMatcher(sampling.grammar, tokenizer, V, ends);
    return sampler;
}
Sampler Sampler::for_sequence(uint64_t number) const {
    Sampler other = *this;
    other.sequence = number;
    return other;
}
void Sampler::accept_prompt(const std::vector<int>& prompt) {
    for (int id : prompt) history.accept(id, false);
}
void Sampler::accept(const Choice& choice) {
    history.accept(choice.id, true);
    if (sampling.grammar) matcher.accept(choice.id);
    mu -= sampling.mirostat_rate * (choice.surprise - sampling.mirostat);
}

// Returns the `most` most probable tokens that the grammar allows, in order; most 0: all of them,
// by ascending id. Never empty: if no token is allowed, returns an end token or -1.
std::vector<Candidate> Sampler::candidates(const float* logits, int most) const {
    const std::vector<Candidate> changed = history.changes(logits);
    std::vector<Candidate> all;
    const std::vector<bool>* mask = nullptr;
    if (sampling.grammar && most > 0) {    // fast path: most probable tokens are usually allowed
        all = likeliest(std::min(V, 2 * most + 16), logits, V, changed, nullptr);
        std::erase_if(all, [&](const Candidate& c) { return !matcher.allows(c.id); });
        all.resize(std::min(all.size(), size_t(most)));
        if (all.size() == size_t(most)) return all;
    }
    if (sampling.grammar) mask = &matcher.allowed();
    if (most > 0) {
        all = likeliest(most, logits, V, changed, mask);
    } else {
        all.reserve(size_t(V));
        each_score(logits, V, changed, [&](double score, int id) {
            if (!mask || (*mask)[size_t(id)]) all.push_back({score, id});
        });
    }
    if (all.empty()) all.push_back({0, matcher.end()});
    if (sampling.top_n_sigma > 0) {
        const double top = std::min_element(all.begin(), all.end(), likelier)->score;
        const double least = top - sampling.top_n_sigma * standard_deviation(logits, V, changed);
        std::erase_if(all, [&](const Candidate& c) { return c.score < least; });
    }
    return all;
}

// Removes candidates by the filters. Scores are weights with maximum 1, sorted if top_p < 1.
void Sampler::truncate(std::vector<Candidate>& all) const {
    if (sampling.mirostat > 0) {
        std::sort(all.begin(), all.end(), likelier);
        const double least = std::exp2(-mu) * total(all);
        size_t keep = 1;
        while (keep < all.size() && all[keep].score >= least) keep++;
        all.resize(keep);
        return;
    }
    if (sampling.typical_p < 1) {
        order_typical(all);
        keep_first(all, sampling.typical_p);
    }
    if (sampling.top_p < 1) {
        if (sampling.typical_p < 1) std::sort(all.begin(), all.end(), likelier);
        keep_first(all, sampling.top_p);
    }
    if (sampling.min_p > 0) {
        const double least = sampling.min_p * std::min_element(all.begin(), all.end(), likelier)->score;
        std::erase_if(all, [&](const Candidate& c) { return c.score < least; });
    }
}

Sampler::Choice Sampler::choose(const float* logits, uint64_t step_index) const {
    if (sampling.temperature == 0) return {candidates(logits, 1)[0].id};
    std::vector<Candidate> all = candidates(logits, sampling.mirostat == 0 && sampling.top_k < V ? sampling.top_k : 0);
    const Candidate likeliest = *std::min_element(all.begin(), all.end(), likelier);
    if (!std::isfinite(likeliest.score)) return {likeliest.id};
    if (sampling.top_p < 1) std::sort(all.begin(), all.end(), likelier);
    for (Candidate& c : all) c.score = std::exp((c.score - likeliest.score) / sampling.temperature);
    const double everything = total(all);
    truncate(all);
    const double sum = total(all);
    const Philox4 r = philox(sampling.seed, sequence, step_index);
    double u = (double(r.v[0]) * 0x1p32 + double(r.v[1])) * 0x1p-64 * sum;
    Candidate drawn = *std::min_element(all.begin(), all.end(), [](auto& a, auto& b) { return a.score > b.score; });
    for (const Candidate& c : all)
        if ((u -= c.score) < 0) {
            drawn = c;
            break;
        }
    return {drawn.id, std::log2(everything / drawn.score)};
}

std::optional<SampleParams> Sampler::on_device() const {
    const Penalties& p = sampling.penalties;
    const SampleParams draw = {sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p,
                               p.repetition,         p.presence,     p.frequency,    sampling.seed};
    const bool more = sampling.grammar || p.dry > 0 || (p.last > 0 && draw.penalises()) || sampling.mirostat > 0 ||
                      sampling.typical_p < 1 || sampling.top_n_sigma > 0;
    return more || V > SampleParams::MAX_VOCAB ? std::nullopt : std::optional(draw);
}

std::vector<TokenLogprob> logprobs(const float* logits, int V, int id, int n) {
    const std::vector<Candidate> best = likeliest(std::max(1, std::min(n, V)), logits, V, {}, nullptr);
    double sum = 0;
    each_score(logits, V, {}, [&](double score, int) { sum += std::exp(score - best[0].score); });
    const double log_sum = best[0].score + std::log(sum);
    std::vector<TokenLogprob> all = {{id, score_of(logits[id]) - log_sum}};
    for (int i = 0; i < std::min(n, V); i++) all.push_back({best[size_t(i)].id, best[size_t(i)].score - log_sum});
    return all;
}
