// speculate.h - speculative decoding: one pass verifies drafted tokens (Leviathan et al. 2023).
//
// Drafts never change the text. The model runs over all drafted tokens in one pass, and the
// sequence's sampler chooses a token at each position. As long as its choice is the drafted token,
// the logits at the next position are valid. A choice is a function of logits, previous tokens,
// seed and step alone, so no rejection sampling is needed.
#pragma once
#include "base/command.h"
#include "infer/sampling/sampler.h"
#include "cached_sequences.h"

struct Speculation {
    std::string path = {};     // --draft: smaller model with an equal tokenizer
    Model* draft = nullptr;    // loaded from `path`
    int lookup = 0;            // tokens copied from earlier text (Saxena 2023); 0: off
    int tokens = 5;            // tokens per draft of the draft model
    bool by_model() const { return draft || !path.empty(); }
    bool any() const { return by_model() || lookup > 0; }
    int most() const { return by_model() ? tokens : lookup; }
};
std::vector<Flag> speculation_flags(Speculation& speculation);
Status can_speculate(const Model& model,
                     const Speculation& speculation);    // exit 2: drafts cannot be rolled back
// Returns text such as "; drafted 40 tokens, 31 accepted (78 %)"; "" without speculation.
std::string drafts_text(const Speculation& speculation, int64_t drafted, int64_t accepted);

// Finds the longest suffix of 2 to 16 tokens that also occurs earlier, and returns at most `most`
// tokens that followed its latest earlier occurrence. A draft that reaches the text's end continues
// with its own first tokens.
Ids lookup_draft(const Ids& tokens, int most);

struct VerifiedDraft {
    std::vector<Sampler::Choice> chosen;
    size_t accepted;    // number of leading tokens equal to the draft
};
// Chooses a sequence's next tokens, the first of them for `step_index`, until a token differs from
// the draft or the grammar is complete. logits (1 + draft,V) are those after the last token and
// after each drafted one. The sampler accepts the chosen tokens.
VerifiedDraft verify_draft(Sampler& sampler, const float* logits, int V, int step_index, const Ids& draft);

// A draft model with its own cache. It samples with the sequence's sampler and random numbers, so
// both models choose alike where their probabilities agree.
class DraftModel {
  public:
    explicit DraftModel(Model& model) : sequences(model, true), V(model.c.V) {}
    Status open(int count, int positions) { return sequences.open(count, positions, {}); }
    struct Request {
        int seq;
        const Ids* tokens;    // tokens of the sequence so far
        Sampler sampler;
        int step_index, most;    // step_index of the next token; longest draft
        Ids* draft;
    };
    void propose(std::vector<Request> requests);

  private:
    void catch_up(const std::vector<Request>& requests);
    CachedSequences sequences;
    const int V;
    std::vector<float> logits;
};
