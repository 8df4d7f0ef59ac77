// messages.h - a conversation as JSON: [{"role": "user", "content": "..."}, ...], as everybody has it.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/common.h"

struct ChatMessage {
    std::string role, content;    // role: system, user or assistant
    bool operator==(const ChatMessage&) const = default;
};
// The list, or an object with it as "messages". exit 3: what was expected and found.
Result<std::vector<ChatMessage>> messages_parse(std::string_view json, const std::string& name);
std::string messages_text(const std::vector<ChatMessage>& messages);    // reads back
nlohmann::ordered_json messages_json(const std::vector<ChatMessage>& messages);
