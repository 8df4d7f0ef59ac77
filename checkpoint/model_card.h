// model_card.h - what people say of a model: its name, licence and languages, and who made it. A Hugging Face directory
// has it at the top of its README.md, a GGUF in keys general.*, a run in its own README.md.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "checkpoint.h"
#include "files/gguf.h"

// By the names in a README.md, those that GGUF has a key for.
typedef std::map<std::string, std::vector<std::string>> ModelCard;

// m: a directory, a run's checkpoint or a GGUF. A card that cannot be read counts as empty:
// no output depends on it.
ModelCard checkpoint_card(const ModelSource& m);
GgufKeys card_keys(const ModelCard& card);         // general.*
std::string card_readme(const ModelCard& card);    // "" where there is nothing to say

// The plain part of YAML that such a head is made of: names with texts or lists of texts. For the tests.
ModelCard card_parse(const std::string& readme);
