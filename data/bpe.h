// bpe.h - byte-pair encoding over bytes (GPT-2, Llama 3, Qwen) or characters (Llama 2, Gemma).
//
// A pre-tokenizer splits the text into pieces, then each piece's symbols are merged in the order of
// the merge table (Sennrich et al. 2016; Radford et al. 2019 for bytes; Kudo & Richardson 2018 for
// characters). Where every byte has a token, any bytes round-trip.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/common.h"
#include "byte_alphabet.h"
#include "vocabulary.h"

class Tokenizer {
  public:
    Tokenizer();    // empty: vocab_size() == 0
    explicit Tokenizer(Vocabulary vocabulary);
    static Tokenizer gpt2();    // built in: 50,257 tokens
    // path: "gpt2", a tokenizer.json, a SentencePiece tokenizer.model, a GGUF file, or a directory
    // with one of the first two files. tokenizer_config.json, chat_template.jinja and the EOS ids
    // in config.json and generation_config.json beside such files are read, too. Exit 3, 4.
    static Result<Tokenizer> load(const std::string& path);
    static Result<Tokenizer> parse(std::string_view json, const std::string& name);    // name: for messages
    // merges[i] = the pair of ids whose concatenation is token 256 + i; tokens below 256 are single
    // bytes in GPT-2's order; the special tokens follow the merges.
    static Tokenizer from_merges(const std::vector<std::pair<int, int>>& merges, Pattern pattern,
                                 const std::vector<std::string>& special);
    std::string to_json() const;        // tokenizer.json
    std::string config_json() const;    // tokenizer_config.json

    // For a model with V embedding rows: drops added tokens with ids >= V, which the model cannot
    // have seen (Gemma 3's <image_soft_token>), but keeps the fingerprint. Unchanged if ordinary
    // tokens, too, have ids >= V.
    Tokenizer of_model(int V) const;
    Status fits(int V, Exit code, const std::string& advice) const;    // fails with `code` if the model is too small

    const Vocabulary& vocabulary() const;
    int vocab_size() const;                  // the largest id + 1
    int end_of_text() const;                 // document separator: <|endoftext|>, else EOS; -1: none
    std::string_view token(int id) const;    // decoded bytes
    bool is_special(int id) const;
    // Hash of everything that determines the ids, independent of the file format; 0 only if empty.
    uint64_t fingerprint() const;
    // special: names of special tokens become these tokens; otherwise they are ordinary text.
    // follows: text continues one that was cut at safe_cut. Large texts use all cores (unless
    // called inside a parallel region), with equal ids. BOS and EOS are not added.
    std::vector<int> encode(std::string_view text, bool special = false, bool follows = false) const;
    // Encodes a prompt as transformers does: special tokens are recognised, and BOS is added if the
    // vocabulary asks for it.
    std::vector<int> encode_prompt(std::string_view text) const;
    std::string decode(const std::vector<int>& ids) const;
    // The largest offset in (0, limit] where text may be cut such that encode(text, special) ==
    // encode(first part, special) + encode(rest, special, true), whatever follows text; 0: none.
    size_t safe_cut(std::string_view text, size_t limit, bool special = false) const;
    int first_special(std::string_view text) const;    // id of the first special token in text; -1: none

  private:
    struct Tables;
    std::shared_ptr<const Tables> t;    // immutable: shared by copies, safe for concurrent encodes
};

// Joins the bytes of successive tokens to whole UTF-8 characters; an incomplete one waits for the
// next token. Invalid bytes become U+FFFD, one for each maximal subpart (Unicode 3.9).
class StreamDecoder {
  public:
    std::string push(std::string_view bytes);
    std::string finish();    // incomplete bytes, as U+FFFD

  private:
    std::string waiting;
};

// Learns merges until the vocabulary (256 bytes + merges + special) has `vocab` tokens or no pair
// occurs twice; the most frequent pair first, ties go to the lowest pair of ids. `read` returns the
// next part of the text (cut where safe_cut allows), false at the end; the pieces are counted, the
// text is not kept. progress(phase, done, total) may be empty: phase "count" in bytes with total 0,
// then "merge" in merges.
struct BpeTraining {
    int vocab = 4096;
    Pattern pattern = Pattern::gpt2;
    std::vector<std::string> special = {"<|endoftext|>"};
    std::function<Result<bool>(std::string& text)> read;
    int64_t most_bytes = 64 << 20;    // limit on the total length of distinct pieces
    std::function<void(const char* phase, int64_t done, int64_t total)> progress;
};
Result<Tokenizer> bpe_train(const BpeTraining& training);    // exit 2: vocab out of range; 3: no text; errors of read
