// text_loss.h - loss of texts, each separately, several in a forward pass.
#pragma once
#include "data/corpus.h"
#include "data/bpe.h"
#include "evaluate.h"

struct Line {
    std::string text;
    int64_t number;    // line number in the file, from 1
};
// Reads a file's nonblank lines, or one field of each of its JSON lines. "-" is standard input.
class TextLines {
  public:
    // config: one path in `files`, and the members field, format and longest. Exit 3 if the file is
    // neither text nor JSON lines.
    static Result<TextLines> open(CorpusConfig config);
    // The next lines, about `bytes` in total; empty at the end. Exit 3: an invalid line, which is
    // named, or a file without lines.
    Result<std::vector<Line>> next(int64_t bytes);

  private:
    std::string path;
    Corpus corpus;
    bool found_line = false;
};
constexpr int64_t TEXT_GROUP = 32 << 20;    // bytes of lines held in memory
// All lines; exit 3 if they exceed 64 MiB.
Result<std::vector<Line>> read_lines(const CorpusConfig& config);

// Tokenizes lines. `begin` or, if the tokenizer adds a BOS token, that token precedes each line.
class TextEncoder {
  public:
    // tokens: whether the name of a special token in a line becomes that token, not ordinary text.
    TextEncoder(const Tokenizer& tokenizer, std::vector<int> begin, bool tokens);
    std::vector<std::vector<int>> encode(const std::vector<Line>& lines);
    void note_special_tokens() const;    // on stderr: lines with special tokens' names
    int64_t spelled() const { return count; }

  private:
    const Tokenizer& tokenizer;
    std::vector<int> begin;
    bool tokens;
    int64_t count = 0;
    std::string first;
};

// The ids below V that stand for ordinary text, from which random tokens are drawn; all ids if the
// tokenizer is unknown.
std::vector<int> ordinary_tokens(const Tokenizer& tokenizer, int V);

// Returns each text's loss. Texts of more than model.plan.S tokens are split into independent
// chunks. The objective decides which tokens are targets: all but the first, the masked ones, or
// the suffix after a prefix. Masks and prefixes are drawn by the chunk's number in the file. Chunks
// of similar length are padded into one batch: up to rounding, each has the loss it would have
// alone. `*chunks` is the number of chunks before these in the file and is updated.
std::vector<Evaluation> evaluate_texts(Model& model, const Tokenizer& tokenizer,
                                       const std::vector<std::vector<int>>& texts, const Objective& objective,
                                       int64_t* chunks);
Evaluation combined(const std::vector<Evaluation>& each);
