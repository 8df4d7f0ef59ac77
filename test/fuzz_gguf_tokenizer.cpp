// fuzz_gguf_tokenizer.cpp - libFuzzer: an accepted GGUF tokenizer encodes and decodes.
#include "data/tokenizer_files/tokenizer_gguf.h"
#include "test/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const Result<GgufFile> file = GgufFile::open(memory_file(data, size));
    if (!file.ok()) return 0;
    const Result<Tokenizer> t = gguf_tokenizer(file.value);
    CHECK(t.ok() || (t.status.code == Exit::input && !t.status.message.empty()));
    if (!t.ok() || !t.value.vocab_size()) return 0;
    const std::string text = " the  ab\n12 \xC3\xA9 \xFF<s>ab";
    for (bool special : {false, true})
        for (int id : t.value.encode(text, special)) CHECK(id >= 0 && id < t.value.vocab_size());
    (void)t.value.decode(t.value.encode_prompt(text));
    for (int id : t.value.vocabulary().ends) CHECK(id >= 0 && id < t.value.vocab_size());
    const Status s = tokenizer_to_gguf(t.value).status;
    CHECK(s.ok() || s.code == Exit::usage);
    return 0;
}
