// messages.cpp - a conversation as JSON.
#include "messages.h"

#include "files/json.h"

using nlohmann::ordered_json;

Result<std::vector<ChatMessage>> messages_parse(std::string_view text, const std::string& name) {
    const nlohmann::json j = TRY(json_parse(text, name, 32));
    const nlohmann::json& list = j.is_object() && j.contains("messages") ? j["messages"] : j;
    if (!list.is_array())
        return fail(Exit::input, "%s: expected a list of messages, each {\"role\": ..., \"content\": ...}",
                    name.c_str());
    std::vector<ChatMessage> messages;
    for (const nlohmann::json& m : list) {
        const std::string at = formatted("%s: message %zu", name.c_str(), messages.size() + 1);
        if (!m.is_object()) return fail(Exit::input, "%s: expected an object", at.c_str());
        const JsonFields f{m, at};
        ChatMessage& message = messages.emplace_back();
        TRY(f.get("role", &message.role));
        TRY(f.get("content", &message.content));
        if (message.role != "system" && message.role != "user" && message.role != "assistant")
            return fail(Exit::input, "%s: role: expected system, user or assistant, found \"%s\"", at.c_str(),
                        message.role.substr(0, 60).c_str());
    }
    return messages;
}
ordered_json messages_json(const std::vector<ChatMessage>& messages) {
    ordered_json list = ordered_json::array();
    for (const ChatMessage& m : messages) list.push_back({{"role", m.role}, {"content", m.content}});
    return list;
}
std::string messages_text(const std::vector<ChatMessage>& messages) {
    return messages_json(messages).dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}
