// speculate.h - drafts: tokens that may come next, so that the model computes several at once (Leviathan et al. 2023).
//
// A draft changes no text. The model is run over the drafted tokens, and at each place the sequence's own sampler
// chooses; while it chooses the drafted token, the next place's logits are those that it would have got anyway. A
// choice is a function of logits, the tokens so far, seed and place alone: no draws are rejected and drawn again.
#pragma once
#include "sampler.h"
#include "slots.h"

struct Speculation {
    Model* draft = nullptr;    // a smaller model with the same tokenizer, whose choices are drafts
    int lookup = 0;            // or what followed when the last tokens came before (Saxena 2023)
    int tokens = 5;            // most drafted at a time
    bool any() const { return draft || lookup > 0; }
};

// At most so many tokens that followed where the longest run of last tokens, 2 or more, was seen before; the latest
// such place counts. Where they reach the end, they repeat.
Ids lookup_draft(const Ids& tokens, int most);

// A draft model beside the model's slots. It draws with the sequence's own sampler, by the same random numbers: where
// both models' probabilities are alike, so are their choices.
class DraftModel {
  public:
    explicit DraftModel(Model& g) : slots(g, true), V(g.c.V) {}
    Status open(int count, int positions) { return slots.open(count, positions, {}); }
    struct Asked {
        int slot;
        const Ids* tokens;    // the sequence's, so far
        Sampler sampler;
        int place, most;      // the next token's; so many, or fewer where the context ends
        Ids* draft;
    };
    void propose(std::vector<Asked> asked);

  private:
    void catch_up(const std::vector<Asked>& asked);
    Slots slots;
    const int V;
    std::vector<float> logits;
};
