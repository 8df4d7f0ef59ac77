// speculate.h - speculative decoding: drafts are verified in one pass (Leviathan et al. 2023).
//
// A draft changes no text. The model runs over the drafted tokens, and at each step the sequence's
// own sampler chooses. While it chooses the drafted token, the next step's logits are valid. A
// choice is a function of logits, previous tokens, seed and step alone, so no rejection sampling is
// needed.
#pragma once
#include "base/command.h"
#include "infer/sampling/sampler.h"
#include "cached_sequences.h"

struct Speculation {
    std::string path = {};     // --draft: a smaller model with an equal tokenizer
    Model* draft = nullptr;    // loaded from `path`
    int lookup = 0;            // tokens copied from earlier text (Saxena 2023); 0: off
    int tokens = 5;            // tokens per draft of the model
    bool by_model() const { return draft || !path.empty(); }
    bool any() const { return by_model() || lookup > 0; }
    int most() const { return by_model() ? tokens : lookup; }
};
std::vector<Flag> speculation_flags(Speculation& speculation);
Status can_speculate(const Model& model,
                     const Speculation& speculation);    // exit 2: drafts cannot be rolled back
// "; drafted 40 tokens, 31 accepted (78 %)"; "" without drafts
std::string drafts_text(const Speculation& speculation, int64_t drafted, int64_t accepted);

// At most `most` tokens that followed the latest earlier occurrence of the longest repeated suffix
// (2 tokens or more). If they reach the end, they repeat.
Ids lookup_draft(const Ids& tokens, int most);

// Chooses a sequence's next tokens, from `step_index` on. logits (1 + draft,V): after its last
// token and each drafted one. Stops after the first token that differs from the draft. The sampler
// accepts the chosen tokens.
struct VerifiedDraft {
    std::vector<Sampler::Choice> chosen;
    size_t accepted;    // leading tokens equal to the draft
};
VerifiedDraft verify_draft(Sampler& sampler, const float* logits, int V, int step_index, const Ids& draft);

// A draft model with its own cache. It uses the sequence's sampler and random numbers, so where
// both models' probabilities agree, their choices do.
class DraftModel {
  public:
    explicit DraftModel(Model& model) : sequences(model, true), V(model.c.V) {}
    Status open(int count, int positions) { return sequences.open(count, positions, {}); }
    struct Request {
        int seq;
        const Ids* tokens;    // the sequence so far
        Sampler sampler;
        int step_index, most;    // the next token's; maximum draft length
        Ids* draft;
    };
    void propose(std::vector<Request> requests);

  private:
    void catch_up(const std::vector<Request>& requests);
    CachedSequences sequences;
    const int V;
    std::vector<float> logits;
};
