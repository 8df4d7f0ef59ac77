// added.cpp - see added.h. Matching follows Hugging Face's tokenizers (AddedVocabulary).
#include "added.h"

#include <algorithm>

#include "normalize.h"

namespace {
unsigned pair_of(std::string_view text) {
    return unsigned(static_cast<unsigned char>(text[0])) << 8 | static_cast<unsigned char>(text[1]);
}
// Whether text begins with a letter, digit or underscore (\w in Rust's regular expressions).
bool word_begins(std::string_view text) {
    static const Pretokenizer words = [] {
        Result<Pretokenizer> p =
            Pretokenizer::compile({{R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}])", Split::Behavior::removed}});
        CHECK(p.ok(), "%s", p.status.message.c_str());
        return p.value;
    }();
    if (text.empty()) return false;
    Splitter s(words);
    s.start(text.substr(0, 4));
    std::string_view first;
    return !s.next(first) || first.data() != text.data();
}
bool word_ends(std::string_view text) {
    size_t n = 1;
    while (n < 4 && n < text.size() && (text[text.size() - n] & 0xC0) == 0x80) n++;
    return !text.empty() && word_begins(text.substr(text.size() - n));
}
}    // namespace

std::string search_text(const Vocabulary& v, const AddedToken& t) {
    const std::string& name = v.name(t);
    return t.normalized || t.user_defined ? normalized(name, v.normalization, t.user_defined) : name;
}

AddedTokens::AddedTokens(const Vocabulary& v, bool in_normalized) {
    for (const AddedToken& t : v.added) {
        if ((t.normalized || t.user_defined) == in_normalized) tokens.push_back({search_text(v, t), t});
    }
    for (const auto& [name, token] : tokens) {
        if (name.empty() || !names.emplace(name, &token).second) continue;
        if (name.size() == 1) single.set(static_cast<unsigned char>(name[0]));
        else pairs.set(pair_of(name));
        lengths.push_back(name.size());
        (token.special ? sometimes : always) = true;
    }
    if (!names.empty()) lead = static_cast<unsigned char>(names.begin()->first[0]);
    for (const auto& [name, token] : names)
        if (static_cast<unsigned char>(name[0]) != lead) lead = -1;
    std::sort(lengths.begin(), lengths.end(), std::greater<>());
    lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
}

const AddedToken* AddedTokens::at(std::string_view text, size_t& length) const {
    const bool pair = text.size() > 1 && pairs[pair_of(text)];
    if (!pair && !single[static_cast<unsigned char>(text[0])]) return nullptr;
    for (size_t n : lengths) {
        if (n > text.size()) continue;
        auto it = names.find(text.substr(0, n));
        if (it == names.end()) continue;
        length = n;
        return it->second;
    }
    return nullptr;
}

bool AddedTokens::find(std::string_view text, size_t from, bool special, Found& found) const {
    if (!any(special)) return false;
    for (size_t i = found.next, n = 0; i < text.size(); i++) {
        if (lead >= 0) i = text.find(char(lead), i);
        if (i == text.npos) return false;
        const AddedToken* t = at(text.substr(i), n);
        if (!t) continue;
        const bool in_word = t->single_word && (word_ends(text.substr(0, i)) || word_begins(text.substr(i + n)));
        if (in_word || (t->special && !special)) {
            i += n - 1;
            continue;
        }
        found = {t->lstrip ? std::max(i, from) : i, i + n, t->id, i + n};
        while (t->lstrip && found.begin > from && space_before(text.substr(0, found.begin), found.begin)) {
            do found.begin--;
            while (found.begin > from && (text[found.begin] & 0xC0) == 0x80);
        }
        for (size_t s = 1; t->rstrip && (s = space_length(text.substr(found.end))) > 0;) found.end += s;
        if (found.begin < found.end) return true;
        i += n - 1;    // the previous token covers this one
    }
    return false;
}

bool AddedTokens::may_cut(std::string_view text, size_t at, bool special, std::string_view optional) const {
    if (!any(special)) return true;
    const std::string_view before = text.substr(0, at), behind = text.substr(at);
    for (const auto& [whole, t] : names) {
        const bool found = special || !t->special;
        if (found && t->lstrip && space_before(before, at)) return false;
        std::string_view name = whole;
        if (name.starts_with(optional) && name != optional) name.remove_prefix(optional.size());
        if (found && before.ends_with(name)) return false;    // the token may strip white space after `at`
        for (const std::string_view sought : {whole, name})
            for (size_t n = 1; n < sought.size() && n <= at; n++) {    // n bytes before `at`, the rest after it
                const size_t known = std::min(sought.size() - n, behind.size());
                if (before.ends_with(sought.substr(0, n)) && behind.substr(0, known) == sought.substr(n, known))
                    return false;
            }
    }
    return true;
}
