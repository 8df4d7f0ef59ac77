// fuzz_chat.cpp - libFuzzer: the bytes as generation_config.json, and as a JSON list of messages.
#include "infer/chat/messages.h"
#include "infer/model_defaults.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    auto plain = [](const Status& s) { CHECK(s.ok() || (s.code == Exit::input && !s.message.empty())); };
    const Result<GenerationConfig> config = generation_config_parse(text, "fuzz");
    plain(config.status);
    Sampling sampling;
    int tokens = 1;
    (void)apply_generation_defaults(config.value, {}, &sampling, &tokens);
    CHECK(tokens > 0 && sampling.top_k >= 0 && sampling.temperature >= 0 && sampling.penalties.repetition > 0);
    const Result<std::vector<ChatMessage>> messages = messages_parse(text, "fuzz");
    plain(messages.status);
    CHECK(messages_parse(messages_text(messages.value), "again").value == messages.value);
    return 0;
}
