// piece_model.h - the kinds of models: how a piece of a text becomes ids (ModelKind).
//
// Merges (BPE) are merge.h's. The other kinds are here, one file each, and take time in proportion
// to the piece's length times LONGEST_TOKEN at most.
#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "data/vocabulary.h"

constexpr size_t LONGEST_TOKEN = 512;    // bytes of a token that a WordPiece or Unigram model may have

class PieceModel {
  public:
    virtual ~PieceModel() = default;
    virtual void encode(std::string_view piece, std::vector<int>& ids) const = 0;    // appends at most a byte's each
};
std::unique_ptr<PieceModel> wordpiece_model(const Vocabulary& v);    // v must outlive the model
std::unique_ptr<PieceModel> unigram_model(const Vocabulary& v);

// A kind of model: its name in `train-tokenizer --kind` and in tokenizer.json, and what makes it.
struct ModelRow {
    ModelKind kind;
    const char *name, *type;
    std::unique_ptr<PieceModel> (*make)(const Vocabulary& v);    // null: merges
};
constexpr ModelRow MODEL_ROWS[] = {{ModelKind::bpe, "bpe", "BPE", nullptr},
                                   {ModelKind::wordpiece, "wordpiece", "WordPiece", wordpiece_model},
                                   {ModelKind::unigram, "unigram", "Unigram", unigram_model}};
inline const ModelRow& model_row(ModelKind kind) { return MODEL_ROWS[size_t(kind)]; }
// The texts that a model's trie has, by id: not the unused ones, nor the special tokens, which
// never come from ordinary text.
std::vector<std::string_view> ordinary_texts(const Vocabulary& v);
// A token as the WordPiece decoder decodes it, with a space before it unless it is the first or
// continues a word. v.cleanup: punctuation and contractions have no space before them (and "do not"
// becomes "don't", as in Hugging Face).
std::string word_piece(const Vocabulary& v, std::string token, bool first);
