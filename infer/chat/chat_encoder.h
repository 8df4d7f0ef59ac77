// chat_encoder.h - a conversation as tokens, by a chat template, for `chat` and for training.
//
// Names of special tokens become these tokens in the template's own text, never in the messages'
// text. Before rendering, a noncharacter of Unicode is put into each such name in a message. After
// rendering, these marks are taken out, and their offsets tell the tokenizer which names are
// ordinary text.
//
// The template's {% generation %} blocks say which tokens a model has to learn, as in transformers.
// A template without them is rendered for each answer with the messages before the answer and the
// generation prompt, and with the answer: the answer is what the second text has behind the first
// one. Some templates write a conversation's beginning otherwise once there are more messages (Qwen
// 3 drops old reasoning). There an answer begins behind the generation prompt, or where its content
// is. It ends with the first token that ends an answer, and the white space behind that token.
#pragma once
#include <string>
#include <vector>

#include "data/bpe.h"
#include "infer/chat/messages.h"
#include "infer/jinja/chat_template.h"
#include "infer/model_defaults.h"

struct Conversation {
    std::vector<ChatMessage> messages;
    std::string tools;    // JSON text of the tools; empty: none
    size_t first = 0;     // answers before this message are not learnt
    std::string where;    // file and line, for messages
};
enum class TrainOn { assistant, all, last };
struct EncodedChat {
    std::vector<int> ids;
    std::vector<bool> trained;    // by token
};

class ChatEncoder {
  public:
    // The date of all training: 2024-07-26, as in Llama 3's template. So a run resumed on another
    // day reads the same tokens.
    static constexpr int64_t TRAINING_DATE = 1721995200;
    // `now`: seconds since 1970, for templates that write the date.
    ChatEncoder(const Tokenizer& tokenizer, const ChatTemplate& chat_template, const ChatFormat& format, int64_t now);
    // Returns the tokens of a conversation and of the prompt for an answer. Exit 3: the template
    // rejects the conversation.
    Result<std::vector<int>> prompt(const std::vector<ChatMessage>& messages) const;
    // Returns a conversation's tokens, and those that are learnt. Exit 3, with `where`: the
    // template rejects it, or its answers cannot be found in the text.
    Result<EncodedChat> encode(const Conversation& conversation, TrainOn train_on) const;
    bool writes(const char* field) const { return source.find(field) != std::string::npos; }

  private:
    struct Rendered {
        std::string text;                    // with marks
        std::vector<TextRange> generated;    // {% generation %} blocks; none in a prompt
    };
    // Returns the messages with contents that the template reads: texts, or lists where it does.
    std::vector<ChatMessage> readable(const std::vector<ChatMessage>& messages, const std::string& tools,
                                      bool prompts) const;
    // Messages and tools as the template's values. They are made once, and each render has the
    // first `count` messages of them.
    struct Values;
    Result<Values> values(const std::vector<ChatMessage>& messages, const std::string& tools) const;
    Result<Rendered> render(const Values& v, size_t count, bool prompts) const;
    Result<Rendered> render(const std::vector<ChatMessage>& messages, const std::string& tools, bool prompts) const;
    std::string marked(const std::string& text) const;
    Result<std::vector<TextRange>> answers(const Conversation& c, const Values& v, const Rendered& whole,
                                           TrainOn train_on) const;
    Result<TextRange> answer(const Conversation& c, const Values& v, const std::string& whole, size_t k,
                             size_t from) const;
    Result<size_t> answer_begin(const Conversation& c, const Values& v, const std::string& whole, size_t k,
                                size_t from) const;
    size_t behind_end(const std::string& text, size_t from) const;

    Tokenizer tokenizer;
    ChatTemplate chat_template;
    std::string source, bos, eos;
    int64_t now;
    std::vector<std::string> special;    // names of special tokens
    std::vector<std::string> ends;       // texts that end an answer
};
