// vocab_merges.h - GPT-2's own files of a tokenizer: vocab.json (token -> id) and merges.txt (a pair a line).
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "data/vocabulary.h"

// Tokens whose names spell no bytes: no text becomes one, unless another file says that it is a special token.
typedef std::vector<std::pair<std::string, int>> Unspelled;
// vocab: the path of vocab.json. What else such a tokenizer has follows from tokenizer_class in tokenizer_config.json:
// GPT-2's pattern without one. Added tokens are left to the reader of that file. Exit 3: also a class of another kind,
// and how to make a tokenizer.json of it.
Result<Vocabulary> vocab_merges_read(const std::string& vocab, Unspelled* unspelled);

// What a path is that holds a tokenizer in another form, and how to convert it, to end a message with: tekken.json,
// .tiktoken, also in a directory; "": it is none of them.
std::string foreign_tokenizer(const std::string& path);
