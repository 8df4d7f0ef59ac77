// added.h - finds added tokens in a text: the leftmost token first, and of several tokens that
// begin there the longest.
#pragma once
#include <bitset>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "vocabulary.h"

// Returns the text to search for: the token's text or, if token.normalized or token.user_defined,
// its normalized form.
std::string search_text(const Vocabulary& v, const AddedToken& token);

class AddedTokens {
  public:
    // A copy's map would hold views of the original's strings.
    AddedTokens(const AddedTokens&) = delete;
    // normalized: holds the tokens to find in normalized text, else those to find in the text
    // itself.
    AddedTokens(const Vocabulary& v, bool normalized);

    struct Found {
        size_t begin = 0, end = 0;    // stripped white space included
        int id = -1;
        size_t next = 0;    // next search begins here: stripped space may contain tokens
    };
    // Finds the first token after `found` (the previous result, or {}). White space that the token
    // strips begins at `from` at the earliest. Without `special`, the name of a special token is
    // ordinary text, in which no other token is found.
    bool find(std::string_view text, size_t from, bool special, Found& found) const;
    size_t longest() const { return lengths.empty() ? 0 : lengths[0]; }    // length of the longest name in bytes
    bool any(bool special) const { return special ? !names.empty() : always; }
    bool any_special() const { return sometimes; }
    // Whether no token can cross offset `at`, whatever follows the text. If `special`, special
    // tokens count, too. A name that begins with `optional` may also occur without that beginning.
    bool may_cut(std::string_view text, size_t at, bool special, std::string_view optional = {}) const;

  private:
    struct Named {
        std::string name;
        AddedToken token;
    };
    std::vector<Named> tokens;
    std::unordered_map<std::string_view, const AddedToken*> names;
    std::vector<size_t> lengths;               // lengths of the names, descending
    std::bitset<1 << 16> pairs;                // first two bytes of longer names
    std::bitset<256> single;                   // one-byte names
    bool always = false, sometimes = false;    // has ordinary tokens; has special tokens
    int lead = -1;                             // first byte of all names; -1: they differ

    const AddedToken* at(std::string_view text, size_t& length) const;
};
