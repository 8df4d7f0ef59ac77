// bpe.h - tokenizers: byte-pair encoding over bytes (GPT-2, Llama 3, Qwen) or characters (Llama 2, Gemma).
//
// Text is cut into pieces by a pre-tokenizer, then each piece's symbols are merged in the order of the merge table
// (Sennrich et al. 2016; Radford et al. 2019 for bytes; Kudo & Richardson 2018 for characters). Where every byte has a
// token, any bytes round-trip.
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
    // "gpt2", a tokenizer.json, a SentencePiece tokenizer.model, a GGUF file, or a directory with one of the first two.
    // Beside files of these names tokenizer_config.json, chat_template.jinja and the ends in config.json and
    // generation_config.json are read, too. Exit 3, 4.
    static Result<Tokenizer> load(const std::string& path);
    static Result<Tokenizer> parse(std::string_view json, const std::string& name);    // name: for messages
    // merges[i] = the pair of ids whose concatenation is token 256 + i; token i < 256 is the byte that GPT-2's order
    // puts there; then the special tokens.
    static Tokenizer from_merges(const std::vector<std::pair<int, int>>& merges, Pattern pattern,
                                 const std::vector<std::string>& special);
    std::string to_json() const;        // tokenizer.json
    std::string config_json() const;    // tokenizer_config.json

    // For a model with embeddings of V tokens: without the added tokens from V on, which it cannot have seen (Gemma 3's
    // <image_soft_token>). The fingerprint stays the whole tokenizer's. The same where others lie there, too.
    Tokenizer of_model(int V) const;
    Status fits(int V, Exit code, const std::string& advice) const;    // `code` where it has more tokens than a model

    const Vocabulary& vocabulary() const;
    int vocab_size() const;                  // the largest id + 1
    int end_of_text() const;                 // parts documents: <|endoftext|>, else EOS; -1: none
    std::string_view token(int id) const;    // its bytes in a text
    bool is_special(int id) const;
    // Hash of all that decides the ids: equal for equal tokenizers, whatever file they come from; never 0 but if empty.
    uint64_t fingerprint() const;
    // special: text that spells a special token becomes that token; otherwise it is ordinary text. follows: text goes
    // on one that was cut at safe_cut. Large texts use all cores (unless called inside a parallel region); the ids are
    // the same. BOS and EOS are not put around it.
    std::vector<int> encode(std::string_view text, bool special = false, bool follows = false) const;
    // A text to continue, as transformers encodes it: special tokens are recognised, BOS comes before it where the
    // vocabulary has it so.
    std::vector<int> encode_prompt(std::string_view text) const;
    std::string decode(const std::vector<int>& ids) const;
    // The largest place in (0, limit] where text may be cut with encode(text, special) = encode(first part, special) +
    // encode(rest, special, true), whatever follows text; 0: none.
    size_t safe_cut(std::string_view text, size_t limit, bool special = false) const;
    int first_special(std::string_view text) const;    // the first special token that the text spells; -1: none

  private:
    struct Tables;
    std::shared_ptr<const Tables> t;    // immutable: copies share it, threads may encode at once
};

// Bytes of successive tokens to whole UTF-8 characters: what is incomplete waits for the next token. Bytes that can
// never become valid come out as U+FFFD, one for each longest part that could have begun a character (Unicode 3.9).
class StreamDecoder {
  public:
    std::string push(std::string_view bytes);
    std::string finish();    // what still waits, as U+FFFD

  private:
    std::string waiting;
};

// Learns merges until the vocabulary (256 bytes + merges + special) has `vocab` tokens or no pair occurs twice. The
// most frequent pair first; ties go to the lowest pair of ids.
// `read` gives the next stretch of text (cut where safe_cut allows), false at the end; its pieces are counted, the text
// is not kept. progress(phase, done, total) may be empty: "count" in bytes, total 0; then "merge" in merges.
struct BpeTraining {
    int vocab = 4096;
    Pattern pattern = Pattern::gpt2;
    std::vector<std::string> special = {"<|endoftext|>"};
    std::function<Result<bool>(std::string& text)> read;
    int64_t most_bytes = 64 << 20;    // distinct words' lengths, added up
    std::function<void(const char* phase, int64_t done, int64_t total)> progress;
};
Result<Tokenizer> bpe_train(const BpeTraining& training);    // exit 2: vocab out of range; 3: no text; read's
