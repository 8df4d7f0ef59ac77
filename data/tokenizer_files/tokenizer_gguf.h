// tokenizer_gguf.h - the tokenizer as GGUF's metadata has it: arrays under tokenizer.ggml.
#pragma once
#include <string>
#include <vector>

#include "data/bpe.h"
#include "files/gguf.h"

// Each field is a key of that name after "tokenizer.ggml."; chat_template is tokenizer.chat_template. -1: no such key.
struct GgufTokenizer {
    // "gpt2" with the name of a pre-tokenizer, "llama" (SentencePiece), "gemma4"
    std::string model = {}, pre = {};
    std::vector<std::string> tokens = {}, merges = {};
    std::vector<float> scores = {};      // llama
    std::vector<int> token_type = {};    // ScoredPiece::Type
    int bos_token_id = -1, eos_token_id = -1, unknown_token_id = -1, padding_token_id = -1;
    int eot_token_id = -1, eom_token_id = -1;                             // ends of a turn and of a message
    int add_bos_token = -1, add_eos_token = -1, add_space_prefix = -1;    // 0, 1
    std::string chat_template = {};
    // A key of flatgpt's, tokenizer.flatgpt.space_prefix, which llama.cpp passes over: Metaspace's
    // prepend_scheme "always" or "first"; "user_defined": no space comes after such tokens.
    std::string space_prefix = {};
};
// Exit 3 where the arrays do not fit together, or the model or pre is not one of ours; name: the file.
Result<Tokenizer> tokenizer_from_gguf(const GgufTokenizer& g, const std::string& name);
// Exit 2 where what tokenizer_from_gguf makes of it gives ordinary text other ids: the property that GGUF cannot say.
Result<GgufTokenizer> tokenizer_to_gguf(const Tokenizer& t);
// What a GGUF does not say of how text next to added tokens is read, in words; "": nothing.
std::string beyond_gguf(const Tokenizer& t);

// The tokenizer in a file's keys tokenizer.*; empty where there is none. Exit 3.
Result<Tokenizer> gguf_tokenizer(const GgufFile& file);
// The keys tokenizer.* for a model of V tokens, of which the tokenizer may lack the last ones. Exit 2: GGUF has no name
// for what it does.
Result<GgufKeys> gguf_vocabulary(const Tokenizer& tokenizer, int V);
