// chat_template.h - chat templates: a conversation as the text that a model was trained on.
//
// Templates are Jinja2 (https://jinja.palletsprojects.com/en/stable/templates/) in the environment that transformers
// gives them: trim_blocks, lstrip_blocks, break and continue, tojson, raise_exception, strftime_now, generation. Values
// behave as Python's do. A template comes with a model's files and is hostile: it can read nothing but its context, and
// its steps, output and depth are bounded.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/common.h"

namespace jinja {
struct Node;
}

class ChatTemplate {
  public:
    // Exit 3 with the line where the text is no template, or uses what this interpreter does not have.
    static Result<ChatTemplate> parse(const std::string& text);
    // context: an object with messages, add_generation_prompt, bos_token, eos_token, tools, ... in their order.
    // now: seconds since 1970, for strftime_now. Exit 3 with the line where the template fails, which is also how it
    // refuses a conversation (raise_exception).
    Result<std::string> render(const nlohmann::ordered_json& context, int64_t now) const;

  private:
    std::shared_ptr<const jinja::Node> root;
};
