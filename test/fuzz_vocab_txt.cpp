// fuzz_vocab_txt.cpp - libFuzzer: the bytes as BERT's vocab.txt: an error, or a tokenizer that
// encodes them and survives a write and a read.
#include "data/tokenizer_files/vocab_merges.h"

#include "data/bpe.h"
#include "memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Result<Vocabulary> v = vocab_txt_read(memory_file(data, size));
    CHECK(v.ok() || (v.status.code == Exit::input && !v.status.message.empty()));
    if (!v.ok()) return 0;
    const Tokenizer t(v.take());
    const std::string text(reinterpret_cast<const char*>(data), size);
    const std::vector<int> ids = t.encode(text);
    for (int id : ids) CHECK(id >= 0 && id < t.vocab_size());
    const Result<Tokenizer> again = Tokenizer::parse(t.to_json(), "again");
    CHECK(again.ok() && again.value.encode(text) == ids);
    return 0;
}
