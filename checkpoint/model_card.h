// model_card.h - a model's name, licence, languages and authors: from the head of README.md in a
// Hugging Face directory or a run, or from the general.* keys of a GGUF.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "checkpoint.h"
#include "files/gguf.h"

// Values of README.md's head by name. Names that have no GGUF key are left out.
typedef std::map<std::string, std::vector<std::string>> ModelCard;

// Reads the card of a directory, a run's checkpoint or a GGUF. An unreadable card counts as empty,
// because no computation depends on it.
ModelCard checkpoint_card(const ModelSource& m);
GgufKeys card_keys(const ModelCard& card);         // general.*
std::string card_readme(const ModelCard& card);    // "" for an empty card

// Parses the YAML at the head of README.md, a subset in which names have a text or a list of texts.
// For tests.
ModelCard card_parse(const std::string& readme);
