// chat_template.h - chat templates: a conversation as the text format of a model's training.
//
// Templates are Jinja2 (https://jinja.palletsprojects.com/en/stable/templates/) in transformers'
// environment: trim_blocks, lstrip_blocks, break and continue, tojson, raise_exception,
// strftime_now, generation. Values behave like Python's. Templates are untrusted input: they can
// read only their context, and their steps, output and depth are bounded.
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/common.h"

namespace jinja {
struct Node;
struct Value;
}    // namespace jinja

struct TextRange {
    size_t from = 0, to = 0;    // bytes
};

class ChatTemplate {
  public:
    // Parses a template. Exit 3, with the line: a syntax error, or a feature that this interpreter
    // lacks.
    static Result<ChatTemplate> parse(const std::string& text);
    // Renders a conversation. `context` is an object with messages, add_generation_prompt,
    // bos_token, eos_token, tools and others. Objects keep the order of their members, because
    // templates can print them. `now`: seconds since 1970, for strftime_now. Exit 3, with the line:
    // the template fails or rejects the conversation (raise_exception).
    // `generated` gets the bytes of {% generation %} blocks; exit 3 then also if one is inside a
    // macro or a captured block.
    Result<std::string> render(const nlohmann::ordered_json& context, int64_t now,
                               std::vector<TextRange>* generated = nullptr) const;
    // Renders a context that consists of the interpreter's values. convert makes such values of
    // JSON; several contexts may share them.
    Result<std::string> render(const jinja::Value& context, int64_t now, std::vector<TextRange>* generated) const;
    static Status convert(const nlohmann::ordered_json& json, jinja::Value* to);
    bool marks_generation() const;    // whether the template has {% generation %} blocks

  private:
    std::shared_ptr<const jinja::Node> root;
};
