// fuzz_tokenizer.cpp - libFuzzer: a tokenizer.json that parses encodes and decodes any bytes,
// equally in parts and at once, and survives a write and a read.
//
// The first byte is the number of edits to a small valid file (each: offset, length to remove, text
// to insert), as random bytes would not parse; the text to encode follows. 255: all is the file.
#include "data/bpe.h"

namespace {
struct Input {
    const uint8_t* data;
    size_t size;
    unsigned byte() { return size ? (size--, *data++) : 0; }
    std::string text(size_t n) {
        n = n < size ? n : size;
        std::string s(reinterpret_cast<const char*>(data), n);
        data += n;
        size -= n;
        return s;
    }
};
const std::string& valid_file() {
    static const std::string json =
        Tokenizer::from_merges({{64, 65}, {256, 66}, {64, 64}}, Pattern::cl100k, {"<|endoftext|>"}).to_json();
    return json;
}
}    // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Input in{data, size};
    unsigned edits = in.byte();
    std::string json = edits == 255 ? in.text(in.size) : valid_file();
    for (unsigned i = 0; edits != 255 && i < edits; i++) {
        size_t at = (in.byte() << 8 | in.byte()) % (json.size() + 1), removed = in.byte(), length = in.byte();
        json.replace(at, removed, in.text(length));
    }
    Result<Tokenizer> t = Tokenizer::parse(json, "fuzz");
    CHECK(t.ok() || (t.status.code == Exit::input && !t.status.message.empty()));
    std::string text = in.text(in.size);
    static const Tokenizer gpt2 = Tokenizer::gpt2();
    for (const Tokenizer* one : {t.ok() ? &t.value : &gpt2, &gpt2})
        for (bool special : {false, true}) {
            std::vector<int> ids = one->encode(text, special);
            if (one == &gpt2) CHECK(one->decode(ids) == text);    // other tokenizers may lack bytes, change spaces
            size_t cut = one->safe_cut(text, text.size());
            std::vector<int> parts = one->encode(text.substr(0, cut));
            const std::vector<int> rest = one->encode(text.substr(cut), false, cut > 0);
            parts.insert(parts.end(), rest.begin(), rest.end());
            CHECK(special || parts == ids);
        }
    if (t.ok()) CHECK(Tokenizer::parse(t.value.to_json(), "again").ok());
    return 0;
}
