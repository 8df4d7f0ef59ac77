// bpe.h - tokenizers: byte-pair encoding over bytes (GPT-2, Llama 3) or characters (Gemma),
// WordPiece (BERT), Unigram (T5). A pre-tokenizer splits the text into pieces. BPE merges adjacent
// symbols of each piece, in the order of the merge table (Sennrich et al. 2016; Radford et al. 2019
// for bytes; Kudo & Richardson 2018 for characters). tokenizer_models/ has the other kinds. If
// every byte has a token, any bytes decode to themselves.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/common.h"
#include "byte_alphabet.h"
#include "vocabulary.h"

// An offset in a text, and the numbers of the text's tokens that end at or before it, and that
// begin before it. A token that crosses the offset counts in `begun` alone.
struct TextCut {
    size_t at = 0;
    int ended = 0, begun = 0;
};

// A text, or a pair of texts, between the special tokens of the tokenizer's template. segments: by
// token, 0 for the first text and 1 for the second one (token type ids), or as the template says.
// whole: number of ids before cutting.
struct EncodedText {
    std::vector<int> ids, segments;
    size_t whole = 0;
};

class Tokenizer {
  public:
    Tokenizer();    // empty: vocab_size() == 0
    explicit Tokenizer(Vocabulary vocabulary);
    static Tokenizer gpt2();    // built in: 50,257 tokens
    // path: "gpt2"; a tokenizer.json, tokenizer.model or spiece.model, vocab.json with merges.txt,
    // BERT's vocab.txt, ByT5's tokenizer_config.json; a directory with one of these; a GGUF file.
    // Beside any but a GGUF file, tokenizer_config.json, chat_template.jinja and EOS ids in
    // config.json and generation_config.json are read, too. Exit 3, 4.
    static Result<Tokenizer> load(const std::string& path);
    static Result<Tokenizer> parse(std::string_view json, const std::string& name);    // name: for messages
    // merges[i] is the pair of ids whose concatenation is token 256 + i. Tokens below 256 are
    // single bytes in GPT-2's order; special tokens follow the merges.
    static Tokenizer from_merges(const std::vector<std::pair<int, int>>& merges, Pattern pattern,
                                 const std::vector<std::string>& special);
    std::string to_json() const;        // tokenizer.json
    std::string config_json() const;    // tokenizer_config.json

    // Returns a tokenizer for a model with V embedding rows. Added tokens with ids >= V, on which
    // the model cannot have been trained (Gemma 3's <image_soft_token>), are removed; the
    // fingerprint stays equal. If ordinary tokens have ids >= V, too, returns a plain copy.
    Tokenizer of_model(int V) const;
    // Returns a tokenizer with equal ids and another template; `ends`: more ids that end an answer.
    Tokenizer with_chat_template(const std::string& source, const std::vector<int>& ends) const;
    Status fits(int V, Exit code, const std::string& advice) const;    // fails with `code` if an id is V or more

    const Vocabulary& vocabulary() const;
    int vocab_size() const;                  // the largest id + 1
    int end_of_text() const;                 // separates documents: <|endoftext|>, else EOS; -1: none
    std::string_view token(int id) const;    // decoded bytes
    bool is_special(int id) const;
    // Hash of everything that determines a text's ids, whatever the file format; 0: no vocabulary.
    uint64_t fingerprint() const;
    // If `special`, names of special tokens in the text become these tokens, else ordinary text.
    // `follows`: the text continues another one that was cut by safe_cut. Large texts use all cores
    // (unless called in a chunk of a loop); the ids do not depend on the number of cores. BOS and
    // EOS are not added.
    std::vector<int> encode(std::string_view text, bool special = false, bool follows = false) const;
    // Encodes a text in which names of special tokens become these tokens, except a name with an
    // offset of `plain` at its beginning or inside it. Fills in `ended` and `begun` of each of
    // `cuts`. `plain` and `cuts` are sorted by byte offset.
    std::vector<int> encode_cut(std::string_view text, const std::vector<size_t>& plain,
                                std::vector<TextCut>* cuts = nullptr) const;
    // Encodes a prompt as transformers does: names of special tokens become these tokens, and BOS
    // is added if the tokenizer's files require it.
    std::vector<int> encode_prompt(std::string_view text) const;
    // Encodes one text or two for an encoder: [CLS] A [SEP] or [CLS] A [SEP] B [SEP] with BERT's
    // template. most > 0: the texts' last tokens are dropped, the longer text's first, until `most`
    // ids are left ("longest_first"); at least the template's own tokens are. `special`: as above.
    EncodedText encode_text(std::string_view text, int most = 0, bool special = false) const;
    EncodedText encode_pair(std::string_view first, std::string_view second, int most = 0, bool special = false) const;
    std::string decode(const std::vector<int>& ids) const;
    // Largest offset in (0, limit] such that encode(text, special) equals encode(first part,
    // special) + encode(rest, special, true), whatever follows text; 0: none.
    size_t safe_cut(std::string_view text, size_t limit, bool special = false) const;
    int first_special(std::string_view text) const;    // id of the first special token in text; -1: none

  private:
    struct Tables;
    struct Cutter;
    std::vector<int> encode_with(std::string_view text, bool special, bool follows, Cutter* cutter) const;
    std::shared_ptr<const Tables> t;    // immutable: copies share it, threads may encode
};

// Turns the bytes of successive tokens into whole UTF-8 characters. An incomplete character waits
// for the next token. Invalid bytes become U+FFFD, one for each maximal subpart (Unicode 3.9).
class StreamDecoder {
  public:
    std::string push(std::string_view bytes);
    std::string finish();    // U+FFFD for incomplete bytes

  private:
    std::string waiting;
};
