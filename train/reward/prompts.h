// prompts.h - prompts to sample answers for: files of JSON lines come in, tokens go out.
//
// A line is an object {"prompt": text or messages, "answer": what is expected, ...}. A text is
// encoded as `sample --prompt` encodes it, messages are written by the model's chat template. Other
// fields are for reward commands.
#pragma once
#include <memory>

#include "infer/chat/chat_encoder.h"
#include "data/documents/json_lines.h"

struct PromptLine {
    std::string prompt;      // JSON text
    std::string expected;    // field "answer"; empty: none
    std::string fields;      // JSON text of the other fields, and of "answer" as "expected", without braces
    std::string text;        // the prompt, if it is a text
    std::vector<ChatMessage> messages;
    std::vector<int> ids;
};
// Reads one line, without ids. needs_answer: the reward reads "answer". Exit 3: names `where` and
// the field, with what was expected and what was found.
Result<PromptLine> prompt_parse(std::string_view line, const std::string& where, bool needs_answer);

struct PromptOptions {
    std::string pattern = {};    // shard_glob expands it; each file may be compressed
    std::string flag = {};       // option that gave the pattern, for error texts
    bool needs_answer = false;
    int answer_tokens = 0, S = 0, vocab = 0, pad = 0;
};

// A sample is a prompt. An answer of answer_tokens tokens fits behind it, else the prompt is left
// out.
class Prompts : public LineSource {
  public:
    // Reads and encodes all lines, on all cores; without `encoder` texts alone. Exit 3: a line is
    // wrong (the first such line is named), or no prompt is short enough.
    static Result<std::shared_ptr<Prompts>> read(const PromptOptions& options, const Tokenizer& tokenizer,
                                                 const ChatEncoder* encoder);
    int longest() const override;
    void shorten(int length) override;
    std::string items() const override;
    std::string note() const override;
    int64_t samples() const override { return int64_t(lines.size()); }
    int64_t tokens() const override;
    int64_t targets(int64_t) const override { return 0; }    // answers are not known
    uint64_t fingerprint() const override;
    std::string text() const override;
    Status read(int64_t sample, int* tokens, int* targets, std::vector<Text>* texts) const override;
    const PromptLine& line(int64_t sample) const { return lines[size_t(sample)]; }

  private:
    PromptOptions o;
    std::vector<PromptLine> lines;
    int64_t dropped = 0;
};
