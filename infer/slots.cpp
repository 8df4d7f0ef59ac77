// slots.cpp - see slots.h.
#include "slots.h"

int piece_length(const Model& g, const KvCache& cache, size_t running) {
    const int all = int(std::min<int64_t>(g.plan.max_tokens(), INT32_MAX));
    const int room = std::max(1, all / int(running)), same = std::min({all, g.c.T, LONGEST_PIECE / 2});
    const bool states = g.c.linear != Linear::none;
    if (!cache.kind.rolls) return states ? same : room;
    if (cache.kind.exact) return same;
    return std::min(same, (cache.positions - (cache.sink_pages + 1) * Pages::SIZE) / 2);
}

Status Slots::open(int count, int positions, const CacheKind& kind) {
    held.resize(size_t(count));
    return allocate_cache(g, cache, count, positions, kind);
}

// ---- who holds what -------------------------------------------------------------------------------------------------

Slots::Beginning Slots::longest(const Ids& tokens) const {
    Beginning best;
    for (size_t b = 0; b < held.size() && shares(); b++) {
        const size_t n = std::min(common_length(held[b], tokens), tokens.size() - 1);
        if (n > best.length) best = {int(b), n};
    }
    return best;
}
void Slots::begin(int slot, const Beginning& from) {
    Ids& own = held[size_t(slot)];
    if (from.slot >= 0 && from.slot != slot) copy(from.slot, slot);
    cache.table.rewind(slot, int(from.length));
    own.resize(from.length);
}
void Slots::copy(int from, int to) {
    cache.table.fork(from, to);
    held[size_t(to)] = held[size_t(from)];
}
void Slots::forget(int slot, int n) {
    if (n > 0) cache.table.rewind(slot, cache.table[slot].pos - n);
}

// ---- more tokens ----------------------------------------------------------------------------------------------------

// Tokens at once, the shorter ones padded.
PendingHead Slots::extend(const std::vector<int>& which, const std::vector<Ids>& tokens, Pages::Sums sums) {
    std::vector<int> lengths;
    for (const Ids& t : tokens) lengths.push_back(int(t.size()));
    const int S = *std::max_element(lengths.begin(), lengths.end());
    Ids all;
    for (size_t i = 0; i < which.size(); i++) {
        all.insert(all.end(), tokens[i].begin(), tokens[i].end());
        all.resize((i + 1) * size_t(S));
        Ids& own = held[size_t(which[i])];    // a prompt comes before all steps
        if (shares() && (steps_too || sums == Pages::Sums::prompt))
            own.insert(own.end(), tokens[i].begin(), tokens[i].end());
    }
    return ::extend(g, cache, all.data(), S, which, lengths, sums);
}

// Whether a piece of each fits the activations.
bool Slots::fits(const std::vector<Ids>& tokens) const {
    size_t longest = 0;
    for (const Ids& t : tokens) longest = std::max(longest, t.size());
    const int64_t each = std::min<int64_t>(piece_length(g, cache, tokens.size()), int64_t(longest));
    return each * int64_t(tokens.size()) <= g.plan.max_tokens();
}

void Slots::feed(const std::vector<int>& which, const std::vector<Ids>& tokens, float* logits, bool prompt) {
    const size_t V = size_t(g.c.V);
    if (const size_t half = which.size() / 2; half > 0 && !fits(tokens)) {
        const auto which_half = which.begin() + ptrdiff_t(half);
        const auto tokens_half = tokens.begin() + ptrdiff_t(half);
        feed({which.begin(), which_half}, {tokens.begin(), tokens_half}, logits, prompt);
        return feed({which_half, which.end()}, {tokens_half, tokens.end()}, logits + half * V, prompt);
    }
    std::vector<size_t> left(which.size());    // into which
    for (size_t i = 0; i < which.size(); i++) left[i] = i;
    std::vector<float> some;
    for (size_t from = 0; !left.empty();) {
        const size_t most = size_t(piece_length(g, cache, left.size()));
        std::vector<int> now;
        std::vector<Ids> pieces;
        for (size_t i : left) {
            const auto at = tokens[i].begin() + ptrdiff_t(from);
            now.push_back(which[i]);
            pieces.emplace_back(at, at + ptrdiff_t(std::min(most, tokens[i].size() - from)));
        }
        const PendingHead head = extend(now, pieces, prompt ? Pages::Sums::prompt : Pages::Sums::steps);
        from += most;
        auto ends = [&](size_t i) { return tokens[i].size() <= from; };
        std::vector<int> rows;    // the last tokens of those that end
        for (size_t i = 0; i < left.size(); i++)
            if (ends(left[i])) rows.push_back(int(i) * head.pass.S + int(pieces[i].size()) - 1);
        some.resize(rows.size() * V);
        if (!rows.empty()) compute_logits(g, head, some.data(), rows);
        const float* row = some.data();
        for (size_t i : left)
            if (ends(i)) std::copy_n(row, V, logits + i * V), row += V;
        std::erase_if(left, ends);
    }
}

void Slots::step(const std::vector<int>& which, const std::vector<Ids>& tokens, float* logits) {
    const PendingHead head = extend(which, tokens, Pages::Sums::steps);
    std::vector<int> rows;
    for (size_t i = 0; i < which.size(); i++)
        for (size_t k = 0; k < tokens[i].size(); k++) rows.push_back(int(i) * head.pass.S + int(k));
    compute_logits(g, head, logits, rows);
}
