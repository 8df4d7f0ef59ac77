// fuzz_conversation.cpp - libFuzzer: the bytes as a line of conversations, of pairs of answers, of
// sources and targets and of prompts, and as a conversation that templates write: tokens or an
// error.
#include "data/seq2seq/pairs_file.h"
#include "train/pairs.h"
#include "train/reward/prompts.h"

namespace {
void plain(const Status& s) { CHECK(s.ok() || (s.code == Exit::input && s.message.starts_with("fuzz:1"))); }
const Tokenizer tokenizer = Tokenizer::from_merges({}, Pattern::gpt2, {"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
// ChatML, and a template that reads parts, and writes old messages and the prompt otherwise.
const std::string SOURCES[] = {
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{{ m.tool_calls }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{{ tools }}",
    "{{ messages|length }}{% for m in messages %}<|im_start|>{% for p in m.content %}{{ p.text or p }}{% endfor %}"
    "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}"};
ChatEncoder encoder_of(const std::string& source) {
    ChatFormat format = {.chat_template = source};
    format.ends = tokenizer.encode("<|im_end|>", true);
    return {tokenizer, ChatTemplate::parse(source).take(), format, ChatEncoder::TRAINING_DATE};
}
}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const ChatEncoder encoders[] = {encoder_of(SOURCES[0]), encoder_of(SOURCES[1])};
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    plain(pair_parse(text, "fuzz:1").status);
    plain(source_target_parse(text, "fuzz:1").status);
    plain(prompt_parse(text, "fuzz:1", true).status);
    const Result<Conversation> c = conversation_parse(text, "fuzz:1");
    plain(c.status);
    if (!c.ok()) return 0;
    CHECK(c.value.first < c.value.messages.size());
    for (const ChatEncoder& encoder : encoders)
        for (TrainOn on : {TrainOn::assistant, TrainOn::last, TrainOn::all}) {
            const Result<EncodedChat> e = conversation_encode(encoder, c.value, on);
            plain(e.status);
            CHECK(e.value.ids.size() == e.value.trained.size());
            for (int id : e.value.ids) CHECK(id >= 0 && id < tokenizer.vocab_size());
        }
    return 0;
}
