// fuzz_shard.cpp - libFuzzer: a shard of tokens; the first 8 bytes are the file's size.
#include "data/loader.h"

#include <cstring>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < 8) return 0;
    int64_t file_bytes;
    memcpy(&file_bytes, data, 8);
    if (file_bytes < 0) return 0;
    std::string_view head(reinterpret_cast<const char*>(data) + 8, size - 8);
    for (bool raw : {false, true}) {
        Result<Shard> s = shard_parse(head, file_bytes, "fuzz", raw);
        CHECK(s.ok() || (s.status.code == Exit::input && !s.status.message.empty()));
        if (!s.ok()) continue;
        CHECK(s.value.tokens >= 0 && s.value.file_bytes == file_bytes);
        CHECK(s.value.vocab >= 0 && (s.value.vocab == 0) == (s.value.tokenizer == 0));
        CHECK(s.value.documents >= 0 && s.value.documents <= s.value.tokens);
        CHECK(s.value.data_offset + s.value.tokens * s.value.token_bytes == file_bytes);
    }
    return 0;
}
