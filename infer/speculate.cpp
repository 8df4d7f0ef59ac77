// speculate.cpp - see speculate.h.
#include "speculate.h"

#include "base/console.h"

std::vector<Flag> speculation_flags(Speculation& s) {
    return {{"--lookup", &s.lookup,
             "draft up to so many tokens that followed when the last ones came before: for "
             "texts that repeat themselves or their prompt; 0: none. On a CPU drafts change no text",
             0, 256},
            {"--draft", &s.path, "draft by a second, smaller model with the same tokenizer"},
            {"--draft-tokens", &s.tokens, "tokens that --draft drafts at a time", 1, 256}};
}
Status check_speculation(const std::vector<std::string>& given, const Speculation& s) {
    if (was_given(given, "--draft-tokens") && !s.by_model()) return fail(Exit::usage, "--draft-tokens needs --draft");
    if (s.lookup && s.by_model()) return fail(Exit::usage, "--lookup, --draft: only one of them");
    return {};
}
Status can_speculate(const Model& g, const Speculation& s) {
    for (const Model* m : {&g, static_cast<const Model*>(s.draft)})
        if (m && s.any() && (m->c.linear != Linear::none || m->c.sees != Sees::causal))
            return fail(Exit::usage, "%s: drafted tokens could not be taken back from %s, %s; leave it out",
                        s.by_model() ? "--draft" : "--lookup", m == s.draft ? "the draft model" : "the model",
                        m->c.linear != Linear::none ? "whose --linear-attention keeps a state of all tokens so far"
                                                    : "whose prompts see all of themselves");
    return {};
}
std::string drafts_text(const Speculation& s, int64_t drafted, int64_t accepted) {
    if (!s.any()) return "";
    return formatted("; drafted %s, %lld accepted (%.0f %%)", counted(drafted, "token").c_str(), (long long)accepted,
                     100.0 * double(accepted) / double(std::max<int64_t>(1, drafted)));
}

Ids lookup_draft(const Ids& tokens, int most) {
    constexpr size_t ENOUGH = 16;    // a longer run says no more
    const size_t n = tokens.size();
    size_t best = 1, follows = 0;
    for (size_t end = n; --end > 1 && best < ENOUGH;) {    // a run that ends before `end`
        size_t k = 0;
        while (k < end && k < ENOUGH && tokens[end - 1 - k] == tokens[n - 1 - k]) k++;
        if (k > best) best = k, follows = end;
    }
    Ids draft;
    for (size_t i = follows; follows && int(draft.size()) < most; i++)
        draft.push_back(i < n ? tokens[i] : draft[i - n]);
    return draft;
}

Checked check_draft(Sampler& sampler, const float* logits, int V, int place, const Ids& draft) {
    Checked all = {{}, 0};
    for (size_t k = 0;; k++) {
        all.chosen.push_back(sampler.choose(logits + k * size_t(V), uint64_t(place) + k));
        sampler.take(all.chosen[k]);
        if (k == draft.size() || all.chosen[k].id != draft[k]) return all;
        all.accepted++;
        if (sampler.done()) return all;
    }
}

// The slots get what they lack of their sequences, and what rejected drafts left goes.
void DraftModel::catch_up(const std::vector<Asked>& asked) {
    std::vector<int> which;
    std::vector<Ids> missing;
    size_t most = 0;
    for (const Asked& a : asked) {
        const Slots::Beginning from = slots.longest(*a.tokens);
        slots.begin(a.slot, from);
        which.push_back(a.slot);
        missing.emplace_back(a.tokens->begin() + ptrdiff_t(from.length), a.tokens->end());
        most = std::max(most, missing.back().size());
    }
    slots.feed(which, missing, logits.data(), most > 8);
}

void DraftModel::propose(std::vector<Asked> asked) {
    for (Asked& a : asked) a.most = std::min(a.most, slots.cache.positions - int(a.tokens->size()) + 1);
    std::erase_if(asked, [](const Asked& a) { return a.most <= 0; });
    if (asked.empty()) return;
    logits.resize(asked.size() * size_t(V));
    catch_up(asked);
    for (;;) {
#pragma omp parallel for schedule(static) if (asked.size() > 1)
        for (size_t i = 0; i < asked.size(); i++) {
            Asked& a = asked[i];
            const Sampler::Choice next = a.sampler.choose(&logits[i * size_t(V)], uint64_t(a.place++));
            a.sampler.take(next);
            if (next.id >= 0) a.draft->push_back(next.id);
        }
        std::erase_if(asked, [](const Asked& a) { return int(a.draft->size()) == a.most || a.sampler.done(); });
        if (asked.empty()) return;
        std::vector<int> which;
        std::vector<Ids> next;
        for (const Asked& a : asked) which.push_back(a.slot), next.push_back({a.draft->back()});
        slots.step(which, next, logits.data());
    }
}
