// penalties.cpp - see penalties.h.
#include "penalties.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace {
// Parses "42=-1.5" or " the=-inf", split at the last =.
Result<std::pair<int, double>> bias_of(const std::string& text, const Tokenizer& tokenizer, int V) {
    const size_t at = text.rfind('=');
    const std::string name = text.substr(0, at), value = at == text.npos ? "" : text.substr(at + 1);
    char* end = nullptr;
    const double bias = strtod(value.c_str(), &end);
    if (name.empty() || value.empty() || *end || std::isnan(bias) || bias == INFINITY)
        return fail(Exit::usage,
                    "--logit-bias '%s': expected TOKEN_ID=VALUE or TEXT=VALUE; the value is a number, or "
                    "-inf",
                    text.c_str());
    const bool number = name.find_first_not_of("0123456789") == name.npos && name.size() < 10;
    const std::vector<int> ids = number ? std::vector<int>{atoi(name.c_str())} : tokenizer.encode(name, true);
    if (ids.size() != 1)
        return fail(Exit::usage,
                    "--logit-bias '%s': the text is %zu tokens of this vocabulary; expected one: give "
                    "their ids",
                    text.c_str(), ids.size());
    if (ids[0] >= V) return fail(Exit::usage, "--logit-bias '%s': the vocabulary has %d tokens", text.c_str(), V);
    return std::pair{ids[0], bias};
}
}    // namespace

Result<History> History::open(const Penalties& p, const Tokenizer& tokenizer, int V) {
    History h;
    h.p = p;
    h.tokenizer = tokenizer;
    h.V = V;
    if (p.dry_breakers.empty()) h.p.dry_breakers = {"\n", ":", "\"", "*"};
    std::map<int, double> biases;
    for (const std::string& text : p.bias) {
        const auto [id, bias] = TRY(bias_of(text, tokenizer, V));
        biases[id] += bias;
    }
    h.biases.assign(biases.begin(), biases.end());
    return h;
}

void History::count(const PastToken& token, int by) {
    auto at = std::lower_bound(token_counts.begin(), token_counts.end(), token.id,
                               [](const TokenCount& s, int id) { return s.id < id; });
    if (at == token_counts.end() || at->id != token.id) at = token_counts.insert(at, {token.id, 0, 0});
    at->all += by;
    if (token.generated) at->generated += by;
    if (at->all == 0) token_counts.erase(at);
}

// Whether this token's text completes one of dry_breakers, the texts that end a repetition. The
// breaker may begin in an earlier token.
bool History::breaks(int id) {
    if (tokenizer.vocab_size() <= id) return false;
    size_t longest = 1;
    for (const std::string& b : p.dry_breakers) longest = std::max(longest, b.size());
    const size_t before = tail.size();
    tail += tokenizer.token(id);
    bool found = false;
    for (const std::string& b : p.dry_breakers)
        found |= !b.empty() && tail.find(b, before < b.size() ? 0 : before - b.size() + 1) != tail.npos;
    tail.erase(0, tail.size() - std::min(tail.size(), longest - 1));
    return found;
}

void History::accept(int id, bool generated) {
    if (id < 0 || id >= V) return;
    PastToken now = {id, generated, false};
    if (p.repetition != 1 || p.presence != 0 || p.frequency != 0) {
        count(now, 1);
        if (p.last > 0 && past.size() >= size_t(p.last)) count(past[past.size() - size_t(p.last)], -1);
    }
    if (p.dry > 0) {
        now.breaks = breaks(id);
        const auto [last, fresh] = latest.try_emplace(id, -1);
        std::vector<Match> longer;
        for (const Match& m : matches)
            if (!now.breaks && past[size_t(m.at) + 1].id == id) longer.push_back({m.at + 1, m.length + 1});
        const size_t continued = longer.size();
        size_t k = 0;
        for (int at = last->second; at >= 0 && !now.breaks && longer.size() < MOST; at = earlier[size_t(at)]) {
            while (k < continued && longer[k].at > at) k++;
            if (k == continued || longer[k].at != at) longer.push_back({at, 1});
        }
        std::inplace_merge(longer.begin(), longer.begin() + ptrdiff_t(continued), longer.end(),
                           [](const Match& a, const Match& b) { return a.at > b.at; });
        matches = std::move(longer);
        earlier.push_back(last->second);
        last->second = int(past.size());
    }
    if (p.dry > 0 || p.last > 0) past.push_back(now);
}

// For each token that followed an earlier occurrence of the text's last tokens: (id, -length of the
// longest match), by ascending id.
std::vector<std::pair<int, int>> History::repeats() const {
    std::vector<std::pair<int, int>> all;
    for (const Match& m : matches)
        if (const PastToken& next = past[size_t(m.at) + 1]; m.length >= p.dry_length && !next.breaks)
            all.push_back({next.id, -m.length});
    std::sort(all.begin(), all.end());    // longest match of each id first
    all.erase(std::unique(all.begin(), all.end(), [](auto& a, auto& b) { return a.first == b.first; }), all.end());
    return all;
}

std::vector<Candidate> History::changes(const float* logits) const {
    const std::vector<std::pair<int, int>> repeated = repeats();
    std::vector<Candidate> changed;
    auto b = biases.begin();
    auto s = token_counts.begin();
    auto r = repeated.begin();
    for (;;) {
        const int id = std::min({b == biases.end() ? V : b->first, s == token_counts.end() ? V : s->id,
                                 r == repeated.end() ? V : r->first});
        if (id == V) return changed;
        double x = std::isnan(logits[id]) ? -INFINITY : double(logits[id]);
        if (b != biases.end() && b->first == id) x += b++->second;
        if (s != token_counts.end() && s->id == id) {
            x = x > 0 ? x / p.repetition : x * p.repetition;
            x -= s->generated * p.frequency + (s->generated > 0) * p.presence;
            s++;
        }
        if (r != repeated.end() && r->first == id) x -= p.dry * std::pow(p.dry_base, -r++->second - p.dry_length);
        changed.push_back({x, id});
    }
}

std::vector<int> History::counts() const {
    std::vector<int> all(size_t(V), 0);
    for (const TokenCount& s : token_counts) all[size_t(s.id)] = 2 * s.generated + 1;
    return all;
}
std::vector<double> History::bias() const {
    std::vector<double> all(biases.empty() ? 0 : size_t(V), 0);
    for (auto [id, bias] : biases) all[size_t(id)] = bias;
    return all;
}
