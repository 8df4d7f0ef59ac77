// scan.h - hand-written scanners that split a text into pieces as known pre-tokenizers do
// (pretokenize.h), because regular expressions are slower. A scanner's pieces equal those of the
// published regular expression; test_scan.cpp compares both on all characters and on random texts.
#pragma once
#include <cstddef>
#include <string_view>

// Fills in the first pieces of a text, at most `most`, and returns their number. They cover the
// text from its beginning on without gaps. A run of bytes that are not UTF-8 is a piece.
using ScanPieces = size_t (*)(std::string_view text, std::string_view* pieces, size_t most);

size_t scan_gpt2(std::string_view text, std::string_view* pieces, size_t most);
size_t scan_smollm(std::string_view text, std::string_view* pieces, size_t most);
size_t scan_cl100k(std::string_view text, std::string_view* pieces, size_t most);
size_t scan_qwen2(std::string_view text, std::string_view* pieces, size_t most);
size_t scan_qwen35(std::string_view text, std::string_view* pieces, size_t most);
size_t scan_o200k(std::string_view text, std::string_view* pieces, size_t most);
size_t scan_tekken(std::string_view text, std::string_view* pieces, size_t most);
// White space is no part of a piece here; 0: nothing else is left.
size_t scan_bert(std::string_view text, std::string_view* pieces, size_t most);
size_t scan_metaspace(std::string_view text, std::string_view* pieces, size_t most);
