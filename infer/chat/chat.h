// chat.h - a conversation with a model: a line goes in, an answer or a command's effect comes out.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "infer/decode/device_sampler.h"
#include "infer/decode/generate.h"
#include "messages.h"
#include "infer/model_defaults.h"
#include "infer/jinja/chat_template.h"

struct ChatOptions {
    Sampling sampling;
    int64_t seed = 1;                   // first answer's seed; later answers add 1
    int tokens = 0;                     // tokens per answer; 0: until the context is full
    int context = 0;                    // cache positions; 0: the model's context, at most 8192
    std::string cache_type = "auto";    // values of --cache-dtype
    std::string system;                 // system prompt; "": none
    std::vector<int> ends;              // tokens that end an answer
    std::vector<std::string> stop;      // texts that end an answer and are cut off
    std::string bos, eos;               // text of the tokens, for the template
    Speculation speculation;
    bool stats = false;                              // a note on tokens and times after each answer
    TextOut text;                                    // receives an answer's text while it is generated
    std::function<void(const std::string&)> note;    // receives notes for the user
    std::function<bool()> interrupted;               // polled between tokens; true ends the answer
};

class Chat {
  public:
    Chat(Model& model, const Tokenizer& tokenizer, ChatTemplate chat_template, ChatOptions options);
    Status open();    // exit 2: bad number of positions; 5: no memory
    // Answers a message or runs a command (see /help). False after /exit. On an error the
    // conversation is unchanged. Exit 2: invalid arguments of a command; 3: an invalid file, or the
    // template rejects the conversation; 4: the disk fails.
    Result<bool> line(const std::string& text);

    ChatOptions options;
    const std::vector<ChatMessage>& history() const { return messages; }    // without the system prompt
    const std::string& answer() const { return streamed.text; }             // last answer
    int64_t answers = 0;                                                    // number of answers since the start
    int64_t computed = 0;    // positions computed since the start, cache hits excluded
    int64_t drafted = 0;     // drafted tokens since the start
    int64_t accepted = 0;    // accepted drafted tokens since the start
    int cached_positions() const { return int(ids.size()); }

  private:
    struct SlashCommand {
        const char *name, *argument, *help;
        Result<bool> (Chat::*run)(const std::string& argument);
    };
    static const std::vector<SlashCommand>& slash_commands();
    Result<bool> help(const std::string&), leave(const std::string&), reset(const std::string&);
    Result<bool> save(const std::string&path), load(const std::string&path), set_system(const std::string&text);
    Result<bool> params(const std::string& setting);
    std::vector<Flag> rows(ChatOptions& o) const;    // settings listed by /params

    Status respond(const std::string& user);
    Result<std::vector<int>> render(size_t from);    // tokens of messages[from] and later
    Result<std::vector<int>> trim_to_context();      // tokens, without the oldest messages if too long
    size_t rewind(size_t common);
    bool prefill(const std::vector<int>& prompt);       // false: interrupted
    Result<int> generate(std::vector<int> sequence);    // returns the answer's length in tokens
    Ids decode_step(const Ids& sequence, const Sampler& sampler, int step_index, int left);
    Sampler::Choice next_token(DeviceSampler& device_sampler, const Ids& sequence, int left);
    Result<bool> emit(int id);
    void notify(const std::string& text) const {
        if (options.note) options.note(text);
    }
    bool interrupted() const { return options.interrupted && options.interrupted(); }
    std::vector<ChatMessage> with_system_prompt() const;

    Model& model;
    const Tokenizer& tokenizer;
    ChatTemplate chat_template;
    KvCache cache;
    bool no_memory_noted = false;      // DeviceSampler::NO_MEMORY was noted
    bool states = false;               // recurrent model; sequence 1: last prompt's snapshot
    std::vector<int> ids;              // tokens at the cache's positions
    bool uncommitted_token = false;    // last id ended an answer, yet was computed
    std::vector<ChatMessage> messages;
    size_t first = 0;    // index of the oldest message inside the context
    StreamedText streamed;
    std::vector<float> logits;    // after the last token, then after each drafted one
    std::optional<DraftModel> draft_model;
};
