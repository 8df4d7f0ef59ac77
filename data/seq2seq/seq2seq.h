// seq2seq.h - what an encoder-decoder learns from: pairs of a source and a target, read from lines
// (pairs_file.h) or made from text by corrupting it; rows of the loader come in, batches go out.
//
//   pairs             row: a source as tokens, its target as targets
//   span_corruption   row: text. Spans of it become sentinels <extra_id_0>, <extra_id_1>, ...; the
//                     target is each sentinel and its span (T5: Raffel et al. 2020, section 3.1.4)
//   infilling         row: text. Spans become one mask token each, sentences are permuted; the
//                     target is the text (BART: Lewis et al. 2020, section 2.2)
//
// The decoder reads the target shifted right behind a start token (teacher forcing). What is drawn
// depends on the seed and the sequence's number alone, as in data/objective.h.
#pragma once
#include <vector>

#include "data/bpe.h"
#include "model/spans.h"

enum class Seq2SeqKind { pairs, span_corruption, infilling };

struct SequencePair {
    std::vector<int> source, target;
};
// source (B,source_S), of which sequence b has source_lengths[b] tokens; decoder input `tokens` and
// `targets` (B,S). Padding follows a sequence's end; its target is -1.
struct Seq2SeqBatch {
    int B = 0, S = 0, source_S = 0;
    std::vector<int> source, source_lengths, tokens, targets;
};

// Encodes a source or a target as the tokenizer's template says; a template that puts nothing
// behind a text gets an end token. special: names of special tokens become these tokens. most > 0:
// tokens of the text are dropped from its end until `most` ids are left. *length: number of ids
// before that.
std::vector<int> seq2seq_encode(const Tokenizer& tokenizer, std::string_view text, int most, size_t* length,
                                bool special = true);

struct Seq2SeqOptions {
    Seq2SeqKind kind = Seq2SeqKind::pairs;
    int source_S = 0, S = 0;    // limits of a source and a target; span corruption determines S
    int start = 0, pad = 0;     // start: decoder_start_token_id
    double density = 0;         // share of the tokens that are corrupted; 0: 0.15, infilling 0.3
    double mean_span = 3;       // tokens of a span
    int sentence_end = -1;      // infilling: token that ends a sentence; -1: none are permuted
    uint64_t seed = 0;
};

class Seq2Seq {
  public:
    // Pairs in a group of similar lengths (LoaderConfig::group). It is a constant because the
    // number of pairs in a step depends on options: a run that is resumed with other options must
    // still read the pairs in the same order.
    static constexpr int64_t GROUP = 32;
    Seq2Seq() = default;
    // Exit 2: an option is out of range; the tokenizer lacks sentinels, a mask or an end; a limit
    // is too small.
    static Result<Seq2Seq> make(const Seq2SeqOptions& options, const Tokenizer& tokenizer);

    int width() const;            // LoaderConfig::S: tokens of a loader's row
    int source_length() const;    // tokens of a source: all have them in span corruption, else a limit
    int target_length() const { return o.S; }
    std::string summary() const;    // lengths and numbers of draws, for people; "": pairs
    // Targets of n sequences, of which the loader's source counts `given`.
    int64_t targets(int64_t n, int64_t given) const;
    // The pair in a row of the loader. `number`: of the sequence in the run.
    SequencePair pair(int64_t number, const int* tokens, const int* targets, const std::vector<Text>& texts) const;
    // The pairs of B rows, as Loader::next gives them; `first`: number of the first one. cut: the
    // batch is as long as its longest source and target, rounded up to a multiple of 8 (not for a
    // GPU: see cut_behind_targets in data/samples.h).
    Seq2SeqBatch batch(int64_t first, const int* tokens, const int* targets,
                       const std::vector<std::vector<Text>>& texts, int B, bool cut) const;

  private:
    Seq2SeqOptions o;
    int text = 0, corrupted = 0, spans = 0;    // tokens of a row, corrupted ones; span corruption: spans
    std::vector<int> sentinels, before, after;
    int mask = -1;

    Status size_spans();
    SequencePair corrupt_spans(int64_t number, const int* tokens) const;
    SequencePair infill(int64_t number, const int* tokens) const;
    std::vector<int> permuted_sentences(int64_t number, const int* tokens) const;
};
