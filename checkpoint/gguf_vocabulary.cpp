// gguf_vocabulary.cpp - the tokenizer between a GGUF file's metadata and data/.
#include "checkpoint/gguf.h"

Result<std::vector<std::pair<std::string, GgufValue>>> gguf_vocabulary(const Tokenizer&, int) {
    return std::vector<std::pair<std::string, GgufValue>>{{"tokenizer.ggml.model", GgufValue::text("no_vocab")}};
}
