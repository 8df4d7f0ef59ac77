// pairs.h - pairs of a preferred and a rejected answer as training samples: files of JSON lines
// come in, tokens and targets go out.
//
// A line is an object {"prompt", "chosen", "rejected"}, of texts or of messages (TRL's forms):
//   {"prompt": "Once", "chosen": " upon a time", "rejected": " more"}
//   {"prompt": [{"role": "user", "content": "..."}], "chosen": [{"role": "assistant", ...}], ...}
//   {"chosen": [the prompt's messages, then an answer], "rejected": [...]}
// In the last form the prompt is the messages that both begin with; a text "prompt" beside it must
// be the content of the last of them. Texts are encoded as `sample --prompt` encodes them, and an
// end token follows an answer; messages are written by the model's chat template.
#pragma once
#include <memory>

#include "train/conversations.h"

// A parsed line: two texts, or two conversations.
struct PairLine {
    std::string prompt, chosen, rejected;
    Conversation chosen_chat, rejected_chat;    // no messages: the line has texts
};
// Reads one line. Exit 3: names `where` and the field, with what was expected and what was found.
Result<PairLine> pair_parse(std::string_view line, const std::string& where);

struct PairOptions {
    std::string pattern = {};    // shard_glob expands it; each file may be compressed
    std::string flag = {};       // option that gave the pattern, for error texts
    bool drop = false;           // leave out pairs with an answer beyond S, instead of cutting it
    int S = 0, vocab = 0, pad = 0;
};

// A sample is two sequences of S positions: the prompt with the chosen answer, then with the
// rejected one. Targets are the answer's tokens.
class Pairs : public LineSource {
  public:
    // Reads and encodes all lines, on all cores. `encoder` may be null: texts only. Exit 3: the
    // first line that is wrong, or no pair is left.
    static Result<std::shared_ptr<Pairs>> read(const PairOptions& options, const Tokenizer& tokenizer,
                                               const ChatEncoder* encoder);
    int longest() const override;
    void shorten(int length) override;
    std::string items() const override;
    int64_t samples() const override { return int64_t(begins.size()) / 2; }
    int64_t tokens() const override { return int64_t(ids.size()); }
    int64_t targets(int64_t sample) const override;
    uint64_t fingerprint() const override;
    std::string text() const override;
    Status read(int64_t sample, int* tokens, int* targets, std::vector<Text>* texts) const override;

    // Counts of lines, pairs and tokens. Pairs that were left out are not in ids.
    struct Counts {
        int64_t lines = 0, trained = 0;             // trained: tokens of answers
        int64_t cut = 0, cut_tokens = 0;            // sequences longer than S + 1 tokens
        int64_t dropped = 0, dropped_tokens = 0;    // pairs left out as too long
        int64_t untrained = 0;                      // pairs left out: an answer was cut off whole
        int64_t equal = 0;                          // pairs left out: both answers are the same
    } counts;
    EncodedChat sequence(int64_t i) const;    // pair i / 2: chosen if i is even
    std::string note() const override;

  private:
    struct Encoded {
        EncodedChat answers[2];    // with their prompt: chosen, rejected
    };
    void add(Encoded e);
    static Result<Encoded> encode(const Tokenizer& tokenizer, const ChatEncoder* encoder, std::string_view line,
                                  const std::string& where);
    PairOptions o;
    std::vector<int> ids;           // all sequences, one behind the other
    std::vector<bool> trained;      // by token
    std::vector<int64_t> begins;    // index in ids of each sequence
};
