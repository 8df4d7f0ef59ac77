// fuzz_labels.cpp - libFuzzer: the bytes as a file of texts with labels: an error, or lines whose
// labels are classes and which encode to tokens.
#include "infer/eval/labels.h"
#include "memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Tokenizer tokenizer = Tokenizer::gpt2();
    const Result<LabelledFile> file = read_labels(memory_file(data, size));
    CHECK(file.ok() || (file.status.code == Exit::input && !file.status.message.empty()));
    if (!file.ok()) return 0;
    Config c = {.head = file.value.kind, .classes = file.value.classes};
    const auto texts = encode_labels(file.value, c, tokenizer, 16);
    CHECK(texts.ok() || !texts.status.message.empty());
    for (const LabelledText& text : texts.value) {
        CHECK(text.ids.size() <= 16 && text.targets.size() == text.ids.size());
        for (int id : text.ids) CHECK(id >= 0 && id < tokenizer.vocab_size());
    }
    return 0;
}
