// messages.cpp - a conversation as JSON.
#include "messages.h"

#include <algorithm>

#include "base/command.h"
#include "files/json.h"

using nlohmann::ordered_json;

namespace {
// Reads a list of parts, each {"type": "text", "text": "..."}.
Status read_parts(const ordered_json& list, const std::string& at, ChatMessage* message) {
    if (list.empty() && message->calls) return {};
    if (list.empty()) return fail(Exit::input, "%s: content: expected a text or parts, found none", at.c_str());
    for (size_t i = 0; i < list.size(); i++) {
        const std::string part = formatted("%s: content: part %zu", at.c_str(), i + 1);
        if (!list[i].is_object()) return fail(Exit::input, "%s: expected an object", part.c_str());
        const OrderedFields f{list[i], part};
        std::string type, text;
        TRY(f.get("type", &type));
        if (type != "text")
            return fail(Exit::input, "%s: type: expected \"text\", as models read nothing else, found \"%s\"",
                        part.c_str(), type.substr(0, 60).c_str());
        TRY(f.get("text", &text));
        message->content += text;
    }
    message->parts = list.dump();
    return {};
}
// Checks the fields that have a meaning in every template. All others stay as they are, but null
// fields are dropped.
Result<ChatMessage> message_of(const ordered_json& m, const std::string& at) {
    if (!m.is_object()) return fail(Exit::input, "%s: expected an object", at.c_str());
    const OrderedFields f{m, at};
    ChatMessage message;
    TRY(f.get("role", &message.role));
    if (message.role == "function") message.role = "tool";    // OpenAI's older name
    if (std::find(MESSAGE_ROLES.begin(), MESSAGE_ROLES.end(), message.role) == MESSAGE_ROLES.end())
        return fail(Exit::input, "%s: role: expected %s, found \"%s\"", at.c_str(), join(MESSAGE_ROLES, ", ").c_str(),
                    message.role.substr(0, 60).c_str());
    if (f.has("tool_calls") && (message.role != "assistant" || !m["tool_calls"].is_array()))
        return fail(Exit::input, "%s: tool_calls: expected a list, in an assistant's message", at.c_str());
    const bool calls = f.has("tool_calls") && !m["tool_calls"].empty();
    if (f.has("function_call") && (message.role != "assistant" || !m["function_call"].is_object() || calls))
        return fail(Exit::input, "%s: function_call: expected an object, in an assistant's message without tool_calls",
                    at.c_str());
    message.calls = f.has("function_call") || calls;
    if (f.has("reasoning_content")) {
        std::string reasoning;
        TRY(f.get("reasoning_content", &reasoning));
    }
    ordered_json more = ordered_json::object();
    const auto content = m.find("content");
    if (content != m.end() && content->is_array()) TRY(read_parts(*content, at, &message));
    else if (!message.calls || f.has("content")) TRY(f.get("content", &message.content));
    else if (content != m.end() && !f.has("function_call")) more["content"] = nullptr;
    for (auto& [key, value] : m.items())
        if (key == "function_call" && !value.is_null())    // OpenAI's older form of a call
            more["tool_calls"] = ordered_json::array({{{"type", "function"}, {"function", value}}});
        else if (key == "tool_calls" && f.has("function_call")) continue;                     // an empty list
        else if (key != "role" && key != "content" && !value.is_null()) more[key] = value;    // null: no such field
    if (!more.empty()) message.more = more.dump();
    return message;
}
}    // namespace

Result<std::vector<ChatMessage>> messages_of(const ordered_json& list, const std::string& name) {
    if (!list.is_array())
        return fail(Exit::input, "%s: expected a list of messages, each {\"role\": ..., \"content\": ...}",
                    name.c_str());
    std::vector<ChatMessage> messages;
    for (const ordered_json& m : list)
        messages.push_back(TRY(message_of(m, formatted("%s: message %zu", name.c_str(), messages.size() + 1))));
    return messages;
}
Result<std::vector<ChatMessage>> messages_parse(std::string_view text, const std::string& name) {
    const ordered_json j = TRY(json_parse_ordered(text, name, 32));
    return messages_of(j.is_object() && j.contains("messages") ? j["messages"] : j, name);
}
ordered_json messages_json(const std::vector<ChatMessage>& messages) {
    ordered_json list = ordered_json::array();
    for (const ChatMessage& m : messages) {
        ordered_json& object = list.emplace_back(ordered_json{{"role", m.role}, {"content", m.content}});
        if (!m.parts.empty()) object["content"] = ordered_json::parse(m.parts);
        if (m.more.empty()) continue;
        const ordered_json more = ordered_json::parse(m.more);
        for (auto& [key, value] : more.items()) object[key] = value;
    }
    return list;
}
std::string messages_text(const std::vector<ChatMessage>& messages) {
    return messages_json(messages).dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}
