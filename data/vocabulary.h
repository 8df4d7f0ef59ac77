// vocabulary.h - a tokenizer's data, whichever file it is from: tokenizer.json, tokenizer.model or
// GGUF.
//
// Steps from text to ids: added tokens are found; the text between them is normalized, its spaces
// are marked, it is split into pieces; each piece's symbols are merged in merge order.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pretokenize.h"

struct Merge {
    int left, right, id;
};    // adjacent ids left, right become id
struct AddedToken {
    int id;
    bool special;                // false: found in every text, as in Hugging Face
    bool lstrip = false;         // strips white space before it
    bool rstrip = false;         // strips white space after it
    bool single_word = false;    // found only without a letter or digit beside it
    bool normalized = false;     // found in the normalized text
    // SentencePiece finds user-defined symbols after the text got its prefix, so these symbols get
    // no prefix of their own.
    bool user_defined = false;
    bool in_model = true;     // the model has it, so merging may produce it
    std::string name = {};    // text to find; empty: the token's text
};

// A step of normalization: a Unicode form, a prefix for each segment, a replacement, or a step of
// tokenizers for WordPiece and Unigram.
struct Normalization {
    enum class Kind {
        nfc,
        nfd,
        nfkc,
        nfkd,
        prepend,
        replace,
        bert,             // BertNormalizer: the steps of Bert that `to` has, a byte each
        strip_accents,    // removes marks
        lowercase,
        runs,           // `to` replaces each run of two spaces or more
        strip_left,     // removes white space at a segment's beginning
        strip_right,    // and at its end
        charsmap,       // SentencePiece's map of characters, in `from`, as Hugging Face applies it
        charsmap_sp,    // and as SentencePiece applies it: the longest match
        squeeze         // SentencePiece: one space for several, and none around a text
    } kind;
    std::string from, to;    // from: replace and charsmap only
    bool operator==(const Normalization&) const = default;
};
enum Bert : char { BERT_CLEAN = 'c', BERT_CHINESE = 'h', BERT_ACCENTS = 'a', BERT_LOWERCASE = 'l' };

// Treatment of spaces before splitting. marked: SentencePiece's mark U+2581 replaces spaces.
// marked_first also puts a mark at the beginning of the text, marked_always at the beginning of
// each segment between added tokens. marked_words: white space is removed and each word begins with
// a mark. prefixed: a space is put at the beginning of each segment (ByteLevel's add_prefix_space).
enum class Spaces { kept, prefixed, marked, marked_first, marked_always, marked_words };
constexpr const char* SPACE_MARK = "\xE2\x96\x81";
inline std::string with_spaces(std::string marked) {
    for (size_t at = 0; (at = marked.find(SPACE_MARK, at)) != marked.npos;) marked.replace(at, 3, " ");
    return marked;
}
inline std::string with_marks(std::string spaces) {
    for (size_t at = 0; (at = spaces.find(' ', at)) != spaces.npos;) spaces.replace(at, 1, SPACE_MARK);
    return spaces;
}

// Symbols from which merging starts: bytes (GPT-2), or characters (SentencePiece); a character that
// the vocabulary lacks is replaced by the tokens of its bytes.
enum class Symbols { bytes, characters };

// Decoding drops nothing, one space at the beginning of the text, or each mark in the first token.
// words: a space comes before each token but the first and those that continue a word.
enum class Strip { none, space, first_marks, words };

// How a piece becomes ids: merges; the longest match from the left (Schuster & Nakajima 2012); or
// the segmentation with the largest sum of scores (Kudo 2018).
enum class ModelKind { bpe, wordpiece, unigram };

// A part of the template for a pair of texts: an id or a text, and its segment (token type id).
struct TemplatePart {
    static constexpr int FIRST = -1, SECOND = -2;
    int id, segment;
};

// Tokens with these names end an answer, in the families that flatgpt runs.
constexpr std::string_view ANSWER_ENDS[] = {
    "<|im_end|>",      "<|eot_id|>",    "<|eot|>",         "<|eom_id|>",
    "<|end|>",         "<end_of_turn>", "<|end_of_turn|>", "<|endoftext|>",
    "<|end_of_text|>", "</s>",          "<eos>",           "[EOS]",
    "<EOT>",           "_<EOT>",        "[EOT]",           "<\uFF5Cend\u2581of\u2581sentence\uFF5C>",
    "<|fim_pad|>",     "<fim-pad>",     "<fim_pad>",       "<|fim_repo|>",
    "<|repo_name|>",   "<fim-repo>",    "<reponame>",      "<|file_sep|>"};

struct Vocabulary {
    ModelKind model = ModelKind::bpe;
    Symbols symbols = Symbols::bytes;    // bytes: BPE only
    Pattern pattern = Pattern::gpt2;
    std::vector<Split> splits;    // if pattern is Pattern::other
    std::vector<Normalization> normalization;
    Spaces spaces = Spaces::kept;
    // tokens[id]. Symbols::bytes: the token's bytes; characters: UTF-8 with marks for spaces, or
    // <0xAB> for a byte. Empty: unused id.
    std::vector<std::string> tokens;
    std::vector<Merge> merges;        // in merge order; id's text is left's + right's
    std::vector<double> scores;       // Unigram: logarithms of probabilities, by id
    std::string continuing = "##";    // WordPiece: tokens that begin so continue a word
    int longest_word = 100;           // WordPiece: longer words are unknown; in characters
    std::vector<AddedToken> added;
    bool ignore_merges = false;    // a piece that is a token becomes it (Llama 3)
    bool byte_fallback = false;    // characters without a token become <0xAB> tokens
    bool fuse_unknown = false;     // adjacent unknown symbols become one token
    Strip strip = Strip::none;
    bool cleanup = false;    // Strip::words: no space before punctuation
    int unknown = -1;        // id for symbols without a token; -1: they are dropped

    // The fields below do not change the ids of a text.
    std::vector<int> before, after;    // ids put around a text: BOS, EOS
    std::vector<TemplatePart> pair;    // two texts; empty: one after the other, each as a single one
    int bos = -1, eos = -1, pad = -1, cls = -1, sep = -1, mask = -1;
    std::vector<int> ends;        // ids besides eos that end an answer
    std::string chat_template;    // Jinja2 source; empty: none

    const std::string& name(int id) const {
        for (const AddedToken& a : added)
            if (a.id == id) return name(a);
        return tokens[size_t(id)];
    }
    const std::string& name(const AddedToken& a) const { return a.name.empty() ? tokens[size_t(a.id)] : a.name; }
};
// Prints a note about a tokenizer's files on stderr, each text once per process.
void note_once(const std::string& text);
