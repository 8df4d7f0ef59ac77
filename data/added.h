// added.h - finds added tokens in a text: the leftmost first, at one position the longest.
#pragma once
#include <bitset>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "vocabulary.h"

// Bytes to search for, in the text or in the normalized text.
std::string search_text(const Vocabulary& v, const AddedToken& token);

class AddedTokens {
  public:
    // Copies would leave the map with dangling views.
    AddedTokens(const AddedTokens&) = delete;
    // Holds either the tokens that are searched for in the normalized text or the others.
    AddedTokens(const Vocabulary& v, bool normalized);

    struct Found {
        size_t begin = 0, end = 0;    // including stripped white space
        int id = -1;
        size_t next = 0;    // search resumes here: stripped space may contain a token
    };
    // Finds the first token after `found` (the previous result, or {}); text before `from` is
    // already used. special: special tokens are found, too; otherwise they are ordinary text, and
    // no token is found inside their names.
    bool find(std::string_view text, size_t from, bool special, Found& found) const;
    size_t longest() const { return lengths.empty() ? 0 : lengths[0]; }    // longest name in bytes
    bool any(bool special) const { return special ? !names.empty() : always; }
    bool any_special() const { return sometimes; }
    // Whether no token (special: nor special token) can cross `at`, whatever follows text. A name
    // that begins with `optional` may also occur without it.
    bool may_cut(std::string_view text, size_t at, bool special, std::string_view optional = {}) const;

  private:
    struct Named {
        std::string name;
        AddedToken token;
    };
    std::vector<Named> tokens;
    std::unordered_map<std::string_view, const AddedToken*> names;
    std::vector<size_t> lengths;               // names' lengths, descending
    std::bitset<1 << 16> pairs;                // first two bytes of the names
    std::bitset<256> single;                   // one-byte names
    bool always = false, sometimes = false;    // has ordinary tokens; has special tokens

    const AddedToken* at(std::string_view text, size_t& length) const;
};
