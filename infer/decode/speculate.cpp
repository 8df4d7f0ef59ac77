// speculate.cpp - see speculate.h.
#include "speculate.h"

#include "base/console.h"
#include "base/pool.h"

std::vector<Flag> speculation_flags(Speculation& speculation) {
    return {{.name = "--lookup",
             .to = &speculation.lookup,
             .help = "draft up to N tokens that followed an earlier occurrence of the last ones: "
                     "for texts that repeat themselves or their prompt; 0: none. On a CPU drafts change no text",
             .min = 0,
             .max = 256,
             .excludes = {"--draft"}},
            {"--draft", &speculation.path, "draft by a second, smaller model with the same tokenizer"},
            {.name = "--draft-tokens",
             .to = &speculation.tokens,
             .help = "tokens that --draft drafts at a time",
             .min = 1,
             .max = 256,
             .needs = {"--draft"}}};
}
Status can_speculate(const Model& model, const Speculation& speculation) {
    for (const Model* m : {&model, static_cast<const Model*>(speculation.draft)})
        if (m && speculation.any() && (m->c.linear != LinearAttention::none || m->c.mask_kind != MaskKind::causal))
            return fail(Exit::usage, "%s: drafted tokens could not be rolled back in %s, %s; leave it out",
                        speculation.by_model() ? "--draft" : "--lookup",
                        m == speculation.draft ? "the draft model" : "the model",
                        m->c.linear != LinearAttention::none
                            ? "whose --linear-attention keeps a state of all tokens so far"
                            : "whose prompts attend in both directions");
    return {};
}
std::string drafts_text(const Speculation& speculation, int64_t drafted, int64_t accepted) {
    if (!speculation.any()) return "";
    return formatted("; drafted %s, %lld accepted (%.0f %%)", counted(drafted, "token").c_str(), (long long)accepted,
                     100.0 * double(accepted) / double(std::max<int64_t>(1, drafted)));
}

Ids lookup_draft(const Ids& tokens, int most) {
    constexpr size_t ENOUGH = 16;    // longer matches make no better draft
    const size_t n = tokens.size();
    size_t best = 1, follows = 0;
    for (size_t end = n; --end > 1 && best < ENOUGH;) {    // tries the match that ends before `end`
        size_t k = 0;
        while (k < end && k < ENOUGH && tokens[end - 1 - k] == tokens[n - 1 - k]) k++;
        if (k > best) best = k, follows = end;
    }
    Ids draft;
    for (size_t i = follows; follows && int(draft.size()) < most; i++)
        draft.push_back(i < n ? tokens[i] : draft[i - n]);
    return draft;
}

VerifiedDraft verify_draft(Sampler& sampler, const float* logits, int V, int step_index, const Ids& draft) {
    VerifiedDraft all = {{}, 0};
    for (size_t k = 0;; k++) {
        all.chosen.push_back(sampler.choose(logits + k * size_t(V), uint64_t(step_index) + k));
        sampler.accept(all.chosen[k]);
        if (k == draft.size() || all.chosen[k].id != draft[k]) return all;
        all.accepted++;
        if (sampler.done()) return all;
    }
}

// Runs the tokens that each sequence's cache lacks, after dropping tokens of rejected drafts.
void DraftModel::catch_up(const std::vector<Request>& requests) {
    std::vector<int> seqs;
    std::vector<Ids> missing;
    size_t most = 0;
    for (const Request& a : requests) {
        const CachedSequences::Prefix from = sequences.longest_prefix(*a.tokens);
        sequences.begin(a.seq, from);
        seqs.push_back(a.seq);
        missing.emplace_back(a.tokens->begin() + ptrdiff_t(from.length), a.tokens->end());
        most = std::max(most, missing.back().size());
    }
    sequences.prefill(seqs, missing, logits.data(), most > 8);
}

void DraftModel::propose(std::vector<Request> requests) {
    for (Request& a : requests) a.most = std::min(a.most, sequences.cache.positions - int(a.tokens->size()) + 1);
    std::erase_if(requests, [](const Request& a) { return a.most <= 0; });
    if (requests.empty()) return;
    logits.resize(requests.size() * size_t(V));
    catch_up(requests);
    for (;;) {
        each_chunk(int64_t(requests.size()), [&](int64_t i, int) {
            Request& a = requests[size_t(i)];
            const Sampler::Choice next = a.sampler.choose(&logits[size_t(i) * size_t(V)], uint64_t(a.step_index++));
            a.sampler.accept(next);
            if (next.id >= 0) a.draft->push_back(next.id);
        });
        std::erase_if(requests, [](const Request& a) { return int(a.draft->size()) == a.most || a.sampler.done(); });
        if (requests.empty()) return;
        std::vector<int> seqs;
        std::vector<Ids> next;
        for (const Request& a : requests) seqs.push_back(a.seq), next.push_back({a.draft->back()});
        sequences.step(seqs, next, logits.data());
    }
}
