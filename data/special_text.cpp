// special_text.cpp - see special_text.h.
#include "special_text.h"

SpecialText::SpecialText(const Tokenizer& t) : tokenizer(t), raw(t.vocabulary(), false), late(t.vocabulary(), true) {}

int SpecialText::spelled(std::string_view text) const {
    for (const AddedTokens* some : {&raw, &late}) {
        AddedTokens::Found found;
        for (size_t from = 0; some->find(text, from, true, found); from = found.end)
            if (tokenizer.is_special(found.id)) return found.id;
    }
    return -1;
}

size_t SpecialText::safe_cut(std::string_view text, size_t limit) const {
    size_t at = tokenizer.safe_cut(text, limit);
    while (at > 0 && !(raw.may_cut(text, at, true) && late.may_cut(text, at, true)))
        at = at > 1 ? tokenizer.safe_cut(text, at - 1) : 0;
    return at;
}
