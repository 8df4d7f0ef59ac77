// vocab_merges.h - GPT-2's own files of a tokenizer: vocab.json (token -> id) and merges.txt (a pair a line).
#pragma once
#include <string>

#include "vocabulary.h"

// vocab: the path of vocab.json. What else such a tokenizer has follows from tokenizer_class in tokenizer_config.json:
// GPT-2's pattern without one. Special tokens: those that special_tokens_map.json and tokenizer_config.json name, and
// added_tokens.json's. Exit 3: also a class of another kind, and how to make a tokenizer.json of it.
Result<Vocabulary> vocab_merges_read(const std::string& vocab);

// What a path is that holds a tokenizer in another form, and how to convert it, to end a message with: tekken.json,
// .tiktoken, also in a directory; "": it is none of them.
std::string foreign_tokenizer(const std::string& path);
