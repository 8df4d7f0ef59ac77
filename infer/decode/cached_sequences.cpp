// cached_sequences.cpp - see cached_sequences.h.
#include "cached_sequences.h"

int chunk_length(const Model& model, const KvCache& cache, size_t running) {
    const int all = int(std::min<int64_t>(model.plan.max_tokens(), INT32_MAX));
    const int per_sequence = std::max(1, all / int(running)), fixed = std::min({all, model.c.T, MAX_CHUNK / 2});
    const bool states = model.c.linear != LinearAttention::none;
    if (!cache.kind.evicts) return states ? fixed : per_sequence;
    if (cache.kind.lossless) return fixed;
    return std::min(fixed, (cache.positions - (cache.sink_pages + 1) * Pages::SIZE) / 2);
}

Status CachedSequences::open(int count, int positions, CacheOptions kind) {
    prefixes.resize(size_t(count));
    return allocate_cache(model, cache, count, positions, kind);
}
void CachedSequences::read_source(int seq, const Ids& source) {
    encode_source(model, cache, seq, source.data(), int(source.size()));
}

// ---- prefixes -----------------------------------------------------------------------------------

CachedSequences::Prefix CachedSequences::longest_prefix(const Ids& tokens) const {
    Prefix best;
    for (size_t b = 0; b < prefixes.size() && can_share_prefix(); b++) {
        const size_t n = std::min(common_length(prefixes[b], tokens), tokens.size() - 1);
        if (n > best.length) best = {int(b), n};
    }
    return best;
}
void CachedSequences::begin(int seq, const Prefix& from) {
    Ids& own = prefixes[size_t(seq)];
    if (from.seq >= 0 && from.seq != seq) copy(from.seq, seq);
    cache.table.rewind(seq, int(from.length));
    own.resize(from.length);
}
void CachedSequences::copy(int from, int to) {
    cache.table.fork(from, to);
    cache.share_source(to, from);
    prefixes[size_t(to)] = prefixes[size_t(from)];
}
void CachedSequences::drop_last(int seq, int n) {
    if (n > 0) cache.table.rewind(seq, cache.table[seq].pos - n);
}

// ---- forward passes -----------------------------------------------------------------------------

// Runs the tokens of all sequences in one pass; shorter rows are padded.
PendingHead CachedSequences::extend(const std::vector<int>& seqs, const std::vector<Ids>& tokens,
                                    Pages::SumOrder sum_order) {
    std::vector<int> lengths;
    for (const Ids& t : tokens) lengths.push_back(int(t.size()));
    const int S = *std::max_element(lengths.begin(), lengths.end());
    Ids all;
    for (size_t i = 0; i < seqs.size(); i++) {
        all.insert(all.end(), tokens[i].begin(), tokens[i].end());
        all.resize((i + 1) * size_t(S));
        Ids& own = prefixes[size_t(seqs[i])];    // prefilled tokens; with share_decoded, decoded ones too
        if (can_share_prefix() && (share_decoded || sum_order == Pages::SumOrder::prefill))
            own.insert(own.end(), tokens[i].begin(), tokens[i].end());
    }
    return ::extend(model, cache, all.data(), S, seqs, lengths, sum_order);
}

// Whether one pass over these tokens, padded to the longest, fits the activations.
bool CachedSequences::fits(const std::vector<Ids>& tokens) const {
    size_t longest = 0;
    for (const Ids& t : tokens) longest = std::max(longest, t.size());
    const int64_t each = std::min<int64_t>(chunk_length(model, cache, tokens.size()), int64_t(longest));
    return each * int64_t(tokens.size()) <= model.plan.max_tokens();
}

void CachedSequences::prefill(const std::vector<int>& seqs, const std::vector<Ids>& tokens, float* logits,
                              bool is_prompt) {
    const size_t V = size_t(model.c.V);
    if (const size_t half = seqs.size() / 2; half > 0 && !fits(tokens)) {
        const auto which_half = seqs.begin() + ptrdiff_t(half);
        const auto tokens_half = tokens.begin() + ptrdiff_t(half);
        prefill({seqs.begin(), which_half}, {tokens.begin(), tokens_half}, logits, is_prompt);
        return prefill({which_half, seqs.end()}, {tokens_half, tokens.end()}, logits + half * V, is_prompt);
    }
    std::vector<size_t> remaining(seqs.size());    // indices into seqs; tokens are left to run
    for (size_t i = 0; i < seqs.size(); i++) remaining[i] = i;
    std::vector<float> last_logits;
    for (size_t from = 0; !remaining.empty();) {
        const size_t most = size_t(chunk_length(model, cache, remaining.size()));
        std::vector<int> now;
        std::vector<Ids> chunks;
        for (size_t i : remaining) {
            const auto at = tokens[i].begin() + ptrdiff_t(from);
            now.push_back(seqs[i]);
            chunks.emplace_back(at, at + ptrdiff_t(std::min(most, tokens[i].size() - from)));
        }
        const PendingHead head = extend(now, chunks, is_prompt ? Pages::SumOrder::prefill : Pages::SumOrder::decode);
        from += most;
        auto ends = [&](size_t i) { return tokens[i].size() <= from; };
        std::vector<int> rows;    // rows of the last tokens of ending sequences
        for (size_t i = 0; i < remaining.size(); i++)
            if (ends(remaining[i])) rows.push_back(int(i) * head.pass.S + int(chunks[i].size()) - 1);
        last_logits.resize(rows.size() * V);
        if (!rows.empty()) compute_logits(model, head, last_logits.data(), rows);
        const float* row = last_logits.data();
        for (size_t i : remaining)
            if (ends(i)) std::copy_n(row, V, logits + i * V), row += V;
        std::erase_if(remaining, ends);
    }
}

void CachedSequences::step(const std::vector<int>& seqs, const std::vector<Ids>& tokens, float* logits) {
    const PendingHead head = extend(seqs, tokens, Pages::SumOrder::decode);
    std::vector<int> rows;
    for (size_t i = 0; i < seqs.size(); i++)
        for (size_t k = 0; k < tokens[i].size(); k++) rows.push_back(int(i) * head.pass.S + int(k));
    compute_logits(model, head, logits, rows);
}
