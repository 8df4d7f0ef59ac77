// tokenizers.h - tokenizers of files and of texts, which must be valid. Include it after doctest.
#pragma once
#include "data/bpe.h"

inline Tokenizer load_tokenizer(const std::string& path) {
    Result<Tokenizer> t = Tokenizer::load(path);
    REQUIRE_MESSAGE(t.ok(), t.status.message);
    return t.value;
}
inline Tokenizer parse_tokenizer(const std::string& json) {
    Result<Tokenizer> t = Tokenizer::parse(json, "test.json");
    REQUIRE_MESSAGE(t.ok(), t.status.message);
    return t.value;
}
