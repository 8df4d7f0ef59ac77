// sentence_pairs.h - samples for next-sentence prediction (Devlin et al. 2019, section 3.1): shards
// with documents come in, pairs of texts go out.
//
// A document is cut into pieces that fill a sample (its last one may be shorter), and a piece at a
// random token into A and B. With probability 1/2, a text of another document, as long as B or
// shorter, replaces B. As in BERT's data, a pair depends on the seed and the sample's number alone,
// so all epochs have equal pairs.
#pragma once
#include "data/samples.h"

// The tokenizer's own tokens around two texts: [CLS] A [SEP] B [SEP].
struct PairTemplate {
    std::vector<int> before, between, after;
    int second = 0;    // the first `second` tokens of `between` belong to A's segment
    int begin = -1;    // first token of a document in shards; skip: tokens before its text
    int skip = 1, pad = 0;
    double fraction = 0;    // Objective::fraction
    uint64_t seed = 0;
    int size() const { return int(before.size() + between.size() + after.size()); }
};
// Exit 2: the tokenizer writes no tokens before or between two texts, or none before a document.
Result<PairTemplate> pair_template(const Tokenizer& tokenizer, double fraction, uint64_t seed);

// Targets are the tokens of A and B, and -1 at the template's tokens and at padding. A sample's
// text has Text::label 0 if B follows A, else 1 (transformers: next_sentence_label). Exit 3: the
// shards have fewer than two documents of two tokens; 2: S leaves no room for a pair; also as
// shard_find.
Result<std::shared_ptr<const SampleSource>> sentence_pairs(std::vector<Shard> shards, const PairTemplate& around, int S,
                                                           int vocab);
