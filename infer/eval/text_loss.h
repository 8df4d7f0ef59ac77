// text_loss.h - the loss of texts, each by itself, several in a forward pass.
#pragma once
#include "data/corpus.h"
#include "data/bpe.h"
#include "evaluate.h"

struct Line {
    std::string text;
    int64_t number;    // in the file, from 1
};
// A file's lines that are not blank, or the field of its JSON lines. -: standard input.
class TextLines {
  public:
    // config: one file; its field, format and longest. Exit 3 where it is neither text nor JSON lines.
    static Result<TextLines> open(CorpusConfig config);
    // The next lines, of about `bytes` together; empty at the end. Exit 3 naming the line, or where the file has none.
    Result<std::vector<Line>> next(int64_t bytes);

  private:
    std::string path;
    Corpus corpus;
    bool found_line = false;
};
constexpr int64_t TEXT_GROUP = 32 << 20;    // bytes of lines that are held at a time
// All of them; exit 3 where they have more than 64 MiB.
Result<std::vector<Line>> read_lines(const CorpusConfig& config);

// How --text's lines become tokens: `begin` before each, and BOS where the tokenizer puts it there instead.
class TextEncoder {
  public:
    // tokens: a special token that a line spells is that token, else it is ordinary text.
    TextEncoder(const Tokenizer& tokenizer, std::vector<int> begin, bool tokens);
    std::vector<std::vector<int>> encode(const std::vector<Line>& lines);
    void note_special_tokens()
        const;    // notes on stderr how many lines spelled special tokens that were ordinary text
    int64_t spelled() const { return count; }

  private:
    const Tokenizer& tokenizer;
    std::vector<int> begin;
    bool tokens;
    int64_t count = 0;
    std::string first;
};

// The ids below V that stand for text: all where the tokenizer is unknown. Tokens are drawn from these.
std::vector<int> ordinary_tokens(const Tokenizer& tokenizer, int V);

// Each text's loss over all tokens but its first one, or over the masked ones, or those after a prefix: which these are
// is drawn by its number in the file. Longer texts than the model's plan come in pieces that do not see each other.
// Pieces of about the same length are computed together, the shorter ones padded: to rounding, each has the loss that
// it would have alone. *pieces: how many came before these in the file; counted on.
std::vector<Evaluation> evaluate_texts(Model& model, const Tokenizer& tokenizer,
                                       const std::vector<std::vector<int>>& texts, const Objective& objective,
                                       int64_t* chunks);
Evaluation combined(const std::vector<Evaluation>& each);
