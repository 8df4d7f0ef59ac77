// speculate.h - drafts: tokens that may come next, so that the model computes several at once (Leviathan et al. 2023).
//
// A draft changes no text. The model is run over the drafted tokens, and at each place the sequence's own sampler
// chooses; while it chooses the drafted token, the next place's logits are those that it would have got anyway. A
// choice is a function of logits, the tokens so far, seed and place alone: no draws are rejected and drawn again.
#pragma once
#include "base/command.h"
#include "infer/sampling/sampler.h"
#include "cached_sequences.h"

struct Speculation {
    std::string path = {};     // --draft's: a smaller model with the same tokenizer, whose choices are drafts
    Model* draft = nullptr;    // this model
    int lookup = 0;            // or what followed when the last tokens came before (Saxena 2023)
    int tokens = 5;            // most that the model drafts at a time
    bool by_model() const { return draft || !path.empty(); }
    bool any() const { return by_model() || lookup > 0; }
    int most() const { return by_model() ? tokens : lookup; }
};
std::vector<Flag> speculation_flags(Speculation& speculation);
// exit 2: options that have no effect together, or without another one. given: as Command has it
Status check_speculation(const std::vector<std::string>& given, const Speculation& speculation);
Status can_speculate(const Model& model,
                     const Speculation& speculation);    // exit 2: drafted tokens could not be taken back
// "; drafted 40 tokens, 31 accepted (78 %)"; "" where nothing drafts
std::string drafts_text(const Speculation& speculation, int64_t drafted, int64_t accepted);

// At most so many tokens that followed where the longest run of last tokens, 2 or more, was seen before; the latest
// such place counts. Where they reach the end, they repeat.
Ids lookup_draft(const Ids& tokens, int most);

// A sequence's next tokens, from `step_index` on, by the logits (1 + draft,V) after its last token and after each
// drafted one: those after a drafted token count while that is what was chosen. The sampler takes them.
struct VerifiedDraft {
    std::vector<Sampler::Choice> chosen;
    size_t accepted;    // so many of the first are the draft's
};
VerifiedDraft verify_draft(Sampler& sampler, const float* logits, int V, int step_index, const Ids& draft);

// A draft model beside the model's slots. It draws with the sequence's own sampler, by the same random numbers: where
// both models' probabilities are alike, so are their choices.
class DraftModel {
  public:
    explicit DraftModel(Model& model) : sequences(model, true), V(model.c.V) {}
    Status open(int count, int positions) { return sequences.open(count, positions, {}); }
    struct Request {
        int seq;
        const Ids* tokens;    // the sequence's, so far
        Sampler sampler;
        int step_index, most;    // the next token's; so many, or fewer where the context ends
        Ids* draft;
    };
    void propose(std::vector<Request> requests);

  private:
    void catch_up(const std::vector<Request>& requests);
    CachedSequences sequences;
    const int V;
    std::vector<float> logits;
};
