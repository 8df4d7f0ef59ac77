// training.h - learns a vocabulary from text: merges (BPE, WordPiece) or scored pieces (Unigram).
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/bpe.h"

// `read` gets the next part of the text (cut by training_cut) and returns false at the end; only
// counts of words are kept. `progress` may be empty. It is called with (phase, done, total): in
// phase "count" with bytes and total 0, then in phase "merge" with numbers of merges, or in phase
// "prune" with the number of pieces that are left, and the number wanted.
struct TokenizerTraining {
    ModelKind kind = ModelKind::bpe;
    int vocab = 4096;
    Pattern pattern = Pattern::gpt2;    // BPE
    bool cased = false;                 // WordPiece: keeps capitals and accents
    // Special tokens besides the kind's, with the vocabulary's last ids: T5's sentinels, BART's
    // <mask>.
    std::vector<std::string> special = {};
    std::function<Result<bool>(std::string& text)> read;
    int64_t most_bytes = 64 << 20;    // limit for the bytes of all distinct words
    std::function<void(const char* phase, int64_t done, int64_t total)> progress;
};
size_t training_cut(const TokenizerTraining& training, std::string_view text, size_t limit);

// Learns a vocabulary of the kind. The result is equal for any number of threads. Exit 2: vocab
// out of range, or a name of `special` is a token already; 3: no text; else what read() returns.
//   bpe        256 bytes, merges and <|endoftext|>; ends early if no pair occurs twice. Each merge
//              takes the most frequent pair, of equally frequent ones the lowest pair of ids.
//   wordpiece  [PAD], [UNK], [CLS], [SEP], [MASK], the 1000 most frequent characters, each also
//              with "##" where it occurs within a word, and merges of these by the rule of bpe.
//              The text is normalized and split as BERT's.
//   unigram    <pad>, </s>, <unk> and pieces of words with scores: of all frequent ones those are
//              kept without which the text's likelihood would fall most (Kudo 2018).
Result<Tokenizer> train_tokenizer(const TokenizerTraining& training);

struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
};
using WordCounts = std::unordered_map<std::string, int64_t, TextHash, std::equal_to<>>;
// Counts the words of the training's text, prepared and split as `v` requires. Exit 3: none, or
// more than most_bytes; read's.
Result<WordCounts> count_words(const TokenizerTraining& training, const Vocabulary& v);
// The characters of a word, which are UTF-8 or single bytes of something else.
std::vector<std::string_view> characters_of(std::string_view word);

Result<Tokenizer> bpe_train(const TokenizerTraining& training);
Result<Tokenizer> wordpiece_train(const TokenizerTraining& training);
Result<Tokenizer> unigram_train(const TokenizerTraining& training);
