// bpe.h - byte-level byte-pair encoding: train, encode, decode, and Hugging Face's tokenizer.json both ways.
//
// Any bytes round-trip. Text is cut into pieces by a pre-tokenizer pattern, then each piece's bytes are merged in the
// order of the merge table (Sennrich et al. 2016; Radford et al. 2019 for the byte alphabet and the pattern).
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "../common.h"

enum class Pattern { gpt2, cl100k };

class Tokenizer {
  public:
    Tokenizer();     // empty: vocab_size() == 0
    static Tokenizer gpt2();                                                  // built in: 50,257 tokens
    static Result<Tokenizer> load(const std::string& path);                   // "gpt2", or a tokenizer.json; exit 3, 4
    static Result<Tokenizer> parse(std::string_view json, const std::string& name);    // name: for messages
    // merges[i] = the pair of ids whose concatenation is token 256 + i; token i < 256 is the byte that GPT-2's order
    // puts there; then the special tokens.
    static Tokenizer from_merges(std::vector<std::pair<int, int>> merges, Pattern pattern,
                                 std::vector<std::string> special);
    std::string to_json() const;

    int vocab_size() const;
    int end_of_text() const;                      // id of <|endoftext|>, or -1
    std::string_view token(int id) const;         // its bytes; a special token's name
    bool is_special(int id) const;
    // special: text that spells a special token becomes that token; otherwise it is ordinary text.
    std::vector<int> encode(std::string_view text, bool special = false) const;
    std::string decode(const std::vector<int>& ids) const;

  private:
    struct Tables;
    std::shared_ptr<const Tables> t;    // immutable: copies share it, threads may encode at once
};

// Bytes of successive tokens to whole UTF-8 characters: what is incomplete waits for the next token. Bytes that can
// never become valid come out as U+FFFD.
class StreamDecoder {
  public:
    std::string push(std::string_view bytes);
    std::string finish();    // what still waits, as U+FFFD

  private:
    std::string waiting;
};

// Learns merges until the vocabulary (256 bytes + merges + special) has `vocab` tokens or no pair occurs twice. The
// most frequent pair first; ties go to the lowest pair of ids. `read` gives the next piece of text, false at the end.
// progress(phase, done, total) may be empty.
struct BpeTraining {
    int vocab = 4096;
    Pattern pattern = Pattern::gpt2;
    std::vector<std::string> special = {"<|endoftext|>"};
    std::function<bool(std::string& text)> read;
    std::function<void(const char* phase, int64_t done, int64_t total)> progress;
};
Result<Tokenizer> bpe_train(const BpeTraining& training);
