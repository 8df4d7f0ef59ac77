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
    int64_t seed = 1;                   // the first answer's; each later one has the next
    int tokens = 0;                     // most tokens of an answer; 0: what the context holds
    int context = 0;                    // positions of the cache; 0: the model's context, at most 8192
    std::string cache_type = "auto";    // as CacheChoice's
    std::string system;                 // the system prompt; "": none
    std::vector<int> ends;              // tokens that end an answer
    std::vector<std::string> stop;      // texts that end one; they are not part of it
    std::string bos, eos;               // for the template
    Speculation speculation;
    bool stats = false;                              // a note on tokens and times after each answer
    TextOut text;                                    // takes an answer's text as it comes
    std::function<void(const std::string&)> note;    // takes what is to be said besides
    std::function<bool()> interrupted;               // asked between tokens; true: the answer ends here
};

class Chat {
  public:
    Chat(Model& model, const Tokenizer& tokenizer, ChatTemplate chat_template, ChatOptions options);
    Status open();    // the cache's memory; exit 2: a bad number of positions; 5
    // A message, which is answered, or a command (see /help). False: /exit. An error leaves the conversation as it was
    // before the line: 2, a command's arguments; 3, a file, or the template refuses the conversation; 4.
    Result<bool> line(const std::string& text);

    ChatOptions options;
    const std::vector<ChatMessage>& history() const { return messages; }    // without the system prompt
    const std::string& answer() const { return streamed.text; }             // the last one
    int64_t answers = 0;                                                    // since the start
    int64_t computed = 0;    // positions computed since the start: what was found in the cache is not among them
    int64_t drafted = 0, accepted = 0;                          // tokens, since the start
    int cached_positions() const { return int(ids.size()); }    // positions in the cache

  private:
    struct SlashCommand {
        const char *name, *argument, *help;
        Result<bool> (Chat::*run)(const std::string& argument);
    };
    static const std::vector<SlashCommand>& slash_commands();
    Result<bool> help(const std::string&), leave(const std::string&), reset(const std::string&);
    Result<bool> save(const std::string&path), load(const std::string&path), set_system(const std::string&text);
    Result<bool> params(const std::string& setting);
    std::vector<Flag> rows();

    Status respond(const std::string& user);
    Result<std::vector<int>> render(size_t from);    // the conversation from messages[from] on, as tokens
    Result<std::vector<int>> trim_to_context();      // the same, without the turns for which there is no room
    size_t rewind(size_t common);
    bool prefill(const std::vector<int>& prompt);       // into the cache; false: interrupted
    Result<int> generate(std::vector<int> sequence);    // the answer; how many tokens
    Ids decode_step(const Ids& sequence, const Sampler& sampler, int step_index, int left);
    Sampler::Choice next_token(DeviceSampler& device_sampler, const Ids& sequence, int left);
    Result<bool> emit(int id);
    void notify(const std::string& text) const {
        if (options.note) options.note(text);
    }
    bool interrupted() const { return options.interrupted && options.interrupted(); }
    std::vector<ChatMessage> with_system_prompt() const;    // with the system prompt

    Model& model;
    const Tokenizer& tokenizer;
    ChatTemplate chat_template;
    KvCache cache;
    bool no_memory_noted = false;      // DeviceSampler::NO_MEMORY
    bool states = false;               // layers without softmax: sequence 1 is a copy, at the last prompt's end
    std::vector<int> ids;              // the tokens at the cache's positions
    bool uncommitted_token = false;    // the last of them is an answer's last token, fed before that was known
    std::vector<ChatMessage> messages;
    size_t first = 0;    // the messages before it found no room in the context
    StreamedText streamed;
    std::vector<float> logits;    // after the last token, then after each drafted one
    std::optional<DraftModel> draft_model;
};
