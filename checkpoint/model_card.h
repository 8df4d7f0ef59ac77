// model_card.h - a model's name, licence, languages and authors: the head of README.md in a Hugging
// Face directory or a run, keys general.* in a GGUF.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "checkpoint.h"
#include "files/gguf.h"

// By README.md's names; only those with a GGUF key.
typedef std::map<std::string, std::vector<std::string>> ModelCard;

// m: a directory, a run's checkpoint or a GGUF. An unreadable card counts as empty, because no
// result depends on it.
ModelCard checkpoint_card(const ModelSource& m);
GgufKeys card_keys(const ModelCard& card);         // general.*
std::string card_readme(const ModelCard& card);    // "": empty card

// Parses the YAML subset of such heads: names with texts or lists of texts. For tests.
ModelCard card_parse(const std::string& readme);
