// clean.h - rules of published texts that no template expresses.
#pragma once
#include <string>

// HellaSwag's texts from WikiHow have marks in brackets; " [title]" becomes a full stop.
std::string without_brackets(const std::string& text);
// Wikitext's pages are tokenized; spaces around punctuation, brackets and numbers are removed.
std::string detokenized(const std::string& text);
