// messages.h - conversations as JSON, in OpenAI's form: [{"role": "user", "content": "..."}, ...].
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/common.h"

struct ChatMessage {
    std::string role, content;    // role: one of MESSAGE_ROLES; content: empty if null beside calls
    // The other fields, if not null, that templates may read (tool_calls, reasoning_content, name,
    // ...): an object's JSON text, in the file's order; empty: none.
    std::string more = {};
    bool calls = false;    // tool_calls has some; a function_call is made one
    // A content that is a list of parts: the list's JSON text, and `content` has the parts' texts,
    // joined; empty: the content is a text.
    std::string parts = {};
    // A content in parts equals the text that they are.
    bool operator==(const ChatMessage& m) const { return role == m.role && content == m.content && more == m.more; }
};
inline const std::vector<std::string> MESSAGE_ROLES = {"system", "developer", "user", "assistant", "tool"};

// Parses the list, or an object with a member "messages". On exit 3 the message gives what was
// expected and what was found.
Result<std::vector<ChatMessage>> messages_parse(std::string_view json, const std::string& name);
// Reads a list of chat messages from parsed JSON. Error texts begin with `name`: the file and the
// place in it.
Result<std::vector<ChatMessage>> messages_of(const nlohmann::ordered_json& list, const std::string& name);
std::string messages_text(const std::vector<ChatMessage>& messages);    // messages_parse reads it back
nlohmann::ordered_json messages_json(const std::vector<ChatMessage>& messages);
