// fuzz_sentencepiece.cpp - libFuzzer: a tokenizer.model that parses encodes any bytes, equally in
// parts and at once, and can be written as tokenizer.json. The last 0xFE separates file and text.
#include "data/bpe.h"
#include "data/tokenizer_files/sentencepiece.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string all(reinterpret_cast<const char*>(data), size);
    const size_t at = all.rfind('\xFE');
    const std::string file = all.substr(0, at), text = at == std::string::npos ? "the quick\xFF" : all.substr(at + 1);
    Result<Vocabulary> v = sentencepiece_parse(file, "fuzz");
    CHECK(v.ok() || (v.status.code == Exit::input && !v.status.message.empty()));
    if (!v.ok()) return 0;
    const Tokenizer t(std::move(v.value));
    const std::vector<int> ids = t.encode(text);
    (void)t.decode(ids);
    const size_t cut = t.safe_cut(text, text.size());
    std::vector<int> parts = t.encode(text.substr(0, cut)), rest = t.encode(text.substr(cut), false, cut > 0);
    parts.insert(parts.end(), rest.begin(), rest.end());
    CHECK(parts == ids);
    (void)Tokenizer::parse(t.to_json(), "again");    // may fail: JSON holds no invalid UTF-8
    return 0;
}
