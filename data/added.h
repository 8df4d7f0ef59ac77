// added.h - finds added tokens in a text: the leftmost first, the longest of those that begin there.
#pragma once
#include <bitset>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "vocabulary.h"

// The bytes by which the token is found, in the text or in the normalized text.
std::string search_text(const Vocabulary& v, const AddedToken& token);

class AddedTokens {
  public:
    // Not copied: the map holds views.
    AddedTokens(const AddedTokens&) = delete;
    // Those that are looked for in the normalized text, or the others.
    AddedTokens(const Vocabulary& v, bool normalized);

    struct Found {
        size_t begin = 0, end = 0;    // with the white space that the token takes
        int id = -1;
        size_t next = 0;    // where the search goes on: the white space may hold another token
    };
    // The first one behind `found`, the one before, or {}; what comes before `from` is taken. special: special tokens,
    // too; otherwise they are ordinary text, in which no token is found.
    bool find(std::string_view text, size_t from, bool special, Found& found) const;
    size_t longest() const { return lengths.empty() ? 0 : lengths[0]; }    // bytes of a name
    bool any(bool special) const { return special ? !names.empty() : always; }
    bool any_special() const { return sometimes; }
    // Whether no token that is found (special: special tokens, too) could reach over `at`, whatever follows text.
    // A name that begins with `optional` may lack it.
    bool may_cut(std::string_view text, size_t at, bool special, std::string_view optional = {}) const;

  private:
    struct Named {
        std::string name;
        AddedToken token;
    };
    std::vector<Named> tokens;
    std::unordered_map<std::string_view, const AddedToken*> names;
    std::vector<size_t> lengths;               // names' lengths, descending
    std::bitset<1 << 16> pairs;                // each name's first two bytes
    std::bitset<256> single;                   // names of one byte
    bool always = false, sometimes = false;    // some token is found in every text, some is special

    const AddedToken* at(std::string_view text, size_t& length) const;
};
