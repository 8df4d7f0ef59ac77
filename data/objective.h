// objective.h - what a model is to learn of a sequence, and how well it is measured: which tokens it sees, which are
// targets, and which positions see which.
//
// causal: each position's target is the next token. prefix (Raffel et al. 2020, section 3.2.4; Dong et al. 2019): the
// same, but the first positions, 1 to S-1 of them, see each other, and only what follows them is a target. mlm (Devlin
// et al. 2019, section 3.1): of a part of the positions the target is their own token; in its place the model sees the
// mask token (80 %), any token (10 %) or the token itself (10 %).
//
// What is drawn is a function of the seed and the sequence's number alone: the same for every number of ranks, for
// every batch and after a resume. Each rank knows how many targets a step has on all of them.
#pragma once
#include "data/bpe.h"
#include "model/spans.h"

// What a document begins with: BOS where the tokenizer puts it before texts, else end-of-text, which parts documents:
// where shards have it after a document instead (nanoGPT's), it is the document's last target and begins the next one.
// -1: there is none.
int document_begin(const Tokenizer& tokenizer);
int mask_token(const Tokenizer& tokenizer);    // the special token with a usual name for it; -1: there is none

struct Objective {
    MaskKind mask_kind = MaskKind::causal;
    int begin = -1;                // a token that begins a document; -1: a sequence is one text
    int mask = -1, choices = 0;    // mlm: the mask token; random tokens are below choices
    double fraction = 0.15;        // mlm: the part of a sequence's positions that are targets
    uint64_t seed = 0;

    bool is_plain_causal() const {
        return mask_kind == MaskKind::causal && begin < 0;
    }    // then batches are as the loader gives them
    // Targets of the n sequences from number `first` on.
    int64_t targets(int64_t first, int64_t n, int S) const;
    // A sequence's n tokens and the tokens one later become what the model sees and its targets. Its spans, and one of
    // S - n positions that pad it, are added; none where is_plain_causal().
    void apply(int64_t number, int* tokens, int* targets, int n, int S, Spans* spans) const;

    const char* name() const {
        return mask_kind == MaskKind::all ? "mlm" : mask_kind == MaskKind::prefix ? "prefix" : "causal";
    }

  private:
    int masked(int S) const;
    int prefix(int64_t number, int S) const;
    void mask_out(int64_t number, int* tokens, int* targets, int S) const;
};

// A model's. documents: each position sees its own document alone. Exit 2 where that cannot be.
Result<Objective> objective_of(const Config& c, const Tokenizer& tokenizer, bool documents, double fraction,
                               uint64_t seed);
