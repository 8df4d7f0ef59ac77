// fuzz_template.cpp - libFuzzer: any chat template renders to a text or an error, twice the same.
#include <nlohmann/json.hpp>

#include "infer/jinja/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const auto context = nlohmann::ordered_json::parse(
        R"({"messages": [{"role": "system", "content": "é b"}, {"role": "user", "content": [{"type": "text"}]}],
            "tools": [{"f": {"x": 1.5, "y": null}}], "add_generation_prompt": true, "bos_token": "<s>"})");
    Result<ChatTemplate> t = ChatTemplate::parse({reinterpret_cast<const char*>(data), size});
    CHECK(t.ok() || (t.status.code == Exit::input && !t.status.message.empty()));
    if (!t.ok()) return 0;
    const Result<std::string> once = t.value.render(context, 0), again = t.value.render(context, 0);
    CHECK(once.ok() == again.ok() && once.value == again.value && once.status.message == again.status.message);
    CHECK(once.ok() || once.status.code == Exit::input);
    return 0;
}
