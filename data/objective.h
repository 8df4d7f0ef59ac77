// objective.h - training objectives: tokens that the model reads, tokens that are targets, and
// positions that attend to each other.
//
// causal: each position's target is the next token. prefix (Raffel et al. 2020, section 3.2.4; Dong
// et al. 2019): the first 1 to S-1 positions attend to each other, and only the tokens after them
// are targets. mlm (Devlin et al. 2019, section 3.1): a fraction of the positions have their own
// token as target; the model sees the mask token there (80 %), a random token (10 %) or the token
// itself (10 %). With a head for next sentences the samples are pairs of texts, and the tokens
// between them are not masked (encoders/sentence_pairs.h). replaced-tokens (Clark et al. 2020): a
// fraction of the positions get a random token, and each position has as target whether its token
// is another one.
//
// Random choices depend on the seed and the sequence's number alone, not on the number of ranks,
// the batch or a resume. So each rank can count the targets of all ranks.
#pragma once
#include <memory>

#include "data/bpe.h"
#include "model/spans.h"

// Token that begins a document: BOS if the tokenizer puts BOS before texts, else end-of-text. In
// shards with end-of-text after each document (nanoGPT's), that token is a document's last target
// and begins the next document. -1: none.
int document_begin(const Tokenizer& tokenizer);
int mask_token(const Tokenizer& tokenizer);    // special token with a usual name for masks; -1: none

int masked_tokens(double fraction, int n);    // how many of n tokens are targets

struct Objective {
    MaskKind mask_kind = MaskKind::causal;
    int begin = -1;                // first token of a document; -1: one text per sequence
    int mask = -1, choices = 0;    // mlm: mask token; random tokens are below `choices`
    double fraction = 0.15;        // mlm: share of positions that are targets
    uint64_t seed = 0;

    bool packed = false;      // the source packs texts that do not attend to each other
    bool labelled = false;    // the source has the targets: nothing is masked
    bool paired = false;      // only positions with a target may be masked
    bool replaces = false;    // replaced-tokens
    // replaced-tokens: replacements are drawn from these; null: any token below `choices`.
    std::shared_ptr<const std::vector<int>> drawn = {};

    bool is_plain_causal() const { return mask_kind == MaskKind::causal && begin < 0 && !packed; }
    // Returns the number of targets in `n` sequences whose indices start at `first`, in which the
    // source has `given` targets.
    int64_t targets(int64_t first, int64_t n, int S, int64_t given) const;
    // `number` is the index of the sequence. On entry, `tokens` (n) has the sequence, `targets`
    // (n) each position's next token (-1: none), and `texts` the texts that the source has packed.
    // On return, they have the model's inputs and targets (-1: none). Appends the spans of the
    // sequence and of S - n padding positions, unless is_plain_causal().
    void apply(int64_t number, int* tokens, int* targets, int n, int S, Spans* spans,
               std::vector<Text> texts = {Text{}}) const;

  private:
    int prefix(int64_t number, int S) const;
    void mask_out(int64_t number, int* tokens, int* targets, int S) const;
    void replace(int64_t number, int* tokens, int* targets, int S) const;
};

// Returns the objective for a model. `documents`: positions attend only within their document. Exit
// 2: flags conflict.
Result<Objective> objective_of(const Config& c, const Tokenizer& tokenizer, bool documents, double fraction,
                               uint64_t seed);
