// sentencepiece.h - SentencePiece: tokenizer.model files, and GGUF's scored pieces.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "data/vocabulary.h"

struct ScoredPiece {
    // Values as in SentencePiece and GGUF.
    enum Type { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
    std::string text;
    float score = 0;
    int type = normal;
};
// Makes a BPE vocabulary: each split of a normal piece into two pieces becomes a merge, in order of
// falling scores, as in Hugging Face's converters. space_before: a text gets a space before it.
// Exit 3: two pieces have equal text.
Result<Vocabulary> vocabulary_of_pieces(const std::vector<ScoredPiece>& pieces, bool space_before,
                                        const std::string& name);
// Makes a Unigram vocabulary of the pieces. Exit 3, too.
Result<Vocabulary> unigram_of_pieces(const std::vector<ScoredPiece>& pieces, bool space_before,
                                     const std::string& name);
// Parses a tokenizer.model: a protobuf, written by SentencePiece with model_type BPE or unigram.
// Exit 3.
Result<Vocabulary> sentencepiece_parse(std::string_view file, const std::string& name);
// Whether a file begins like a tokenizer.model.
bool sentencepiece_begins(std::string_view file);
