// charsmap.h - SentencePiece's precompiled_charsmap: texts of some characters, each with the text
// that replaces it (nmt_nfkc and others).
//
// Format (sentencepiece, src/normalizer.cc): the size of a trie in bytes, 4 bytes, little-endian;
// the trie, a double array as Darts-clone writes it; the replacements, each ended by a zero byte.
#pragma once
#include <string>
#include <string_view>

class Charsmap {
  public:
    static bool valid(std::string_view blob) { return blob.empty() || fits(blob); }
    explicit Charsmap(std::string_view blob);    // blob: valid, and must outlive the map; empty: maps nothing
    // Finds the shortest or the longest entry that text begins with. Returns its length, 0: none.
    size_t find(std::string_view text, bool longest, std::string_view& replacement) const;

  private:
    static bool fits(std::string_view blob);
    uint32_t unit(size_t i) const;
    std::string_view trie, replacements;
};
// Applies a map as Hugging Face's Precompiled does: for a grapheme of less than 6 bytes the
// shortest entry replaces the whole grapheme; otherwise each character is mapped alone.
std::string mapped_graphemes(std::string_view text, std::string_view blob);
// Applies a map as SentencePiece does: the longest entry at each character.
std::string mapped_longest(std::string_view text, std::string_view blob);
