// messages.h - conversations as JSON, in OpenAI's form: [{"role": "user", "content": "..."}, ...].
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/common.h"

struct ChatMessage {
    std::string role, content;    // role: system, user or assistant
    bool operator==(const ChatMessage&) const = default;
};
// Parses the list, or an object with a member "messages". On exit 3 the message gives what was
// expected and what was found.
Result<std::vector<ChatMessage>> messages_parse(std::string_view json, const std::string& name);
std::string messages_text(const std::vector<ChatMessage>& messages);    // messages_parse reads it back
nlohmann::ordered_json messages_json(const std::vector<ChatMessage>& messages);
