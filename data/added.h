// added.h - finds added tokens in a text: the leftmost first, the longest of those that begin there.
#pragma once
#include <bitset>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "vocabulary.h"

class AddedTokens {
  public:
    // Not copied: the map holds views.
    AddedTokens(const AddedTokens&) = delete;
    // Those that are looked for in the normalized text, or the others.
    AddedTokens(const Vocabulary& v, bool normalized);

    struct Found {
        size_t begin, end;    // with the white space that the token takes
        int id;
    };
    // The first one in text from `from` on, where the token before ends. special: special tokens, too.
    bool find(std::string_view text, size_t from, bool special, Found& found) const;
    bool any(bool special) const { return special ? !names.empty() : always; }
    // Whether no token that is found without `special` could reach over `at`, whatever follows text.
    bool may_cut(std::string_view text, size_t at) const;

  private:
    struct Named {
        std::string name;
        AddedToken token;
    };
    std::vector<Named> tokens;
    std::unordered_map<std::string_view, const AddedToken*> names;
    std::vector<size_t> lengths;                       // names' lengths, descending
    std::bitset<1 << 16> pairs;                        // each name's first two bytes
    std::bitset<256> single;                           // names of one byte
    bool always = false;                               // some token is found in every text

    const AddedToken* at(std::string_view text, bool special, size_t& length) const;
};
