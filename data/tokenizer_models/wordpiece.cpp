// wordpiece.cpp - WordPiece: a word's first token is the longest that the word begins with, the
// next one the longest with the prefix "##" that the rest begins with (Schuster & Nakajima 2012;
// Devlin et al. 2019). A word with a rest that no token begins is unknown as a whole.
#include <algorithm>
#include <cstring>

#include "base/console.h"
#include "piece_model.h"
#include "trie.h"

std::vector<std::string_view> ordinary_texts(const Vocabulary& v) {
    std::vector<std::string_view> texts(v.tokens.begin(), v.tokens.end());
    for (const AddedToken& a : v.added)
        if (a.special || !a.in_model) texts[size_t(a.id)] = {};
    return texts;
}

namespace {
class WordPiece : public PieceModel {
  public:
    explicit WordPiece(const Vocabulary& vocabulary)
        : v(vocabulary), trie(ordinary_texts(v)), rest(trie.walk(Trie::ROOT, v.continuing).at) {}
    void encode(std::string_view word, std::vector<int>& ids) const override {
        const size_t first = ids.size();
        const auto characters = std::count_if(word.begin(), word.end(), [](char c) { return (c & 0xC0) != 0x80; });
        bool known = characters <= v.longest_word;
        for (size_t at = 0; known && at < word.size();) {
            size_t end = at;
            int id = -1;
            Trie::Node n{at ? rest : Trie::ROOT, -1};
            for (size_t i = at; i < word.size() && n.at != Trie::NONE; i++) {
                n = trie.step(n.at, word[i]);
                if (n.id >= 0) end = i + 1, id = n.id;
            }
            known = id >= 0;
            ids.push_back(id);
            at = end;
        }
        if (known) return;
        ids.resize(first);
        if (v.unknown >= 0) ids.push_back(v.unknown);
    }

  private:
    const Vocabulary& v;
    Trie trie;
    uint32_t rest;    // node of the prefix "##"; NONE: no token has it
};
}    // namespace

std::string word_piece(const Vocabulary& v, std::string token, bool first) {
    if (!first && token.starts_with(v.continuing)) token.erase(0, v.continuing.size());
    else if (!first) token.insert(0, " ");
    constexpr const char* TIDIED[][2] = {{" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
                                         {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
                                         {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (auto& [from, to] : TIDIED)
        for (size_t at = 0; v.cleanup && (at = token.find(from, at)) != token.npos; at += strlen(to))
            token.replace(at, strlen(from), to);
    return token;
}
std::unique_ptr<PieceModel> wordpiece_model(const Vocabulary& v) { return std::make_unique<WordPiece>(v); }
