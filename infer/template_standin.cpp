// template_standin.cpp - ChatML whatever the template says, until the interpreter is here.
#include "template.h"

Result<ChatTemplate> ChatTemplate::parse(const std::string&) { return ChatTemplate(); }
Result<std::string> ChatTemplate::render(const nlohmann::ordered_json& context, int64_t) const {
    std::string out;
    for (auto& m : context["messages"])
        out += "<|im_start|>" + m["role"].get<std::string>() + "\n" + m["content"].get<std::string>() + "<|im_end|>\n";
    return out + "<|im_start|>assistant\n";
}
