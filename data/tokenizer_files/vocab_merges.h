// vocab_merges.h - GPT-2's vocab.json (token -> id) and merges.txt (a pair a line), BERT's
// vocab.txt, and ByT5, whose class alone says its ids.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "data/vocabulary.h"

// Tokens whose names do not spell bytes in GPT-2's byte alphabet. The encoder never yields such a
// token unless another file marks it special.
typedef std::vector<std::pair<std::string, int>> Unspelled;
// Reads vocab.json at path `vocab`, and merges.txt beside it. Other properties follow from
// tokenizer_class in tokenizer_config.json; without a class the pattern is GPT-2's. The reader of
// tokenizer_config.json adds the added tokens. Exit 3: also an unsupported class, with a way to
// make a tokenizer.json.
Result<Vocabulary> vocab_merges_read(const std::string& vocab, Unspelled* unspelled);

// Reads BERT's vocab.txt, a token a line. tokenizer_config.json beside it may have do_lower_case,
// strip_accents, tokenize_chinese_chars and names of special tokens. Exit 3: also a tokenizer_class
// that is not BERT's.
Result<Vocabulary> vocab_txt_read(const std::string& vocab);

// Whether this tokenizer_config.json has ByT5's class.
bool is_byt5(const std::string& config);
// Reads ByT5's vocabulary by its tokenizer_config.json: <pad>, </s> and <unk>, a token for each
// byte, and extra_ids sentinels, if the file has no list of added tokens. Exit 3.
Result<Vocabulary> byt5_read(const std::string& config);

// Names the unsupported tokenizer at path (tekken.json or .tiktoken, also in a directory) and how
// to convert it, as the end of a message; "": none.
std::string foreign_tokenizer(const std::string& path);
