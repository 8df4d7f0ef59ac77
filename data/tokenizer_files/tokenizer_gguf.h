// tokenizer_gguf.h - the tokenizer in GGUF's metadata: arrays under tokenizer.ggml.
#pragma once
#include <string>
#include <vector>

#include "data/bpe.h"
#include "files/gguf.h"

// Each field holds the value of the key "tokenizer.ggml." + its name; chat_template holds
// tokenizer.chat_template. -1: the file has no such key.
struct GgufTokenizer {
    // model: "gpt2" with a pre-tokenizer's name in pre, "llama" (SentencePiece), "gemma4", "t5"
    // (Unigram) or "bert" (WordPiece).
    std::string model = {}, pre = {};
    std::vector<std::string> tokens = {}, merges = {};
    std::vector<float> scores = {};      // for models llama and t5 only
    std::vector<int> token_type = {};    // ScoredPiece::Type
    int bos_token_id = -1, eos_token_id = -1, unknown_token_id = -1, padding_token_id = -1;
    int eot_token_id = -1;    // end of turn
    int eom_token_id = -1;    // end of message
    int cls_token_id = -1, seperator_token_id = -1, mask_token_id = -1;
    int add_bos_token = -1, add_eos_token = -1, add_space_prefix = -1;    // 0: false, 1: true
    int add_sep_token = -1;                                               // between a pair's texts, behind eos
    int remove_extra_whitespaces = -1;                                    // t5: as the three above
    int lowercase = -1, strip_accents = -1;                               // bert: normalizer.lowercase, ...
    std::string charsmap = {};                                            // t5: precompiled_charsmap
    std::string huggingface = {};                                         // tokenizer.huggingface.json
    std::string chat_template = {};
    // tokenizer.flatgpt.space_prefix, which llama.cpp ignores. "always" and "first" are values of
    // Metaspace's prepend_scheme; "user_defined": no space comes after user-defined tokens.
    std::string space_prefix = {};
};
// Makes a tokenizer from the keys. Exit 3: the arrays do not fit together, or `model` or `pre` is
// unknown. `name`: the file's name, for messages.
Result<Tokenizer> tokenizer_from_gguf(const GgufTokenizer& g, const std::string& name);
// Returns the tokenizer's keys. Exit 2: tokenizer_from_gguf would encode ordinary text differently;
// the message names the property that GGUF lacks.
Result<GgufTokenizer> tokenizer_to_gguf(const Tokenizer& t);
// Describes behaviour next to added tokens that GGUF cannot express; "": none.
std::string beyond_gguf(const Tokenizer& t);

// Models t5 and bert (gguf_pieces.cpp): the vocabulary without v.ends and v.chat_template; the
// arrays of a Unigram or WordPiece vocabulary, without ids.
Result<Vocabulary> pieces_of_gguf(const GgufTokenizer& g, const std::string& name);
GgufTokenizer pieces_to_gguf(const Vocabulary& v);

// The tokenizer in a file's keys tokenizer.*; empty if there is none. Exit 3.
Result<Tokenizer> gguf_tokenizer(const GgufFile& file);
// The keys tokenizer.* for a model of V tokens; the tokenizer may have fewer. Exit 2: GGUF cannot
// express the tokenizer.
Result<GgufKeys> gguf_vocabulary(const Tokenizer& tokenizer, int V);
