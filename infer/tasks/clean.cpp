// clean.cpp - see clean.h.
#include "clean.h"

#include <string_view>

#include "infer/jinja/value.h"

namespace {
void replace(std::string& text, std::string_view from, std::string_view to) {
    for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size()) text.replace(at, from.size(), to);
}
// Removes white space behind each `open` and before the `close` that ends it.
void trim_inside(std::string& text, char open, char close) {
    std::string all;
    size_t at = 0;
    for (size_t from; (from = text.find(open, at)) != text.npos;) {
        const size_t to = text.find(close, from + 1);
        if (to == text.npos) break;
        all += text.substr(at, from + 1 - at) + jinja::strip(text.substr(from + 1, to - from - 1));
        all += close;
        at = to + 1;
    }
    text = all + text.substr(at);
}
}    // namespace

std::string without_brackets(const std::string& marked) {
    std::string text = marked;
    replace(text, " [title]", ". ");
    for (size_t at = 0; (at = text.find('[', at)) != text.npos;) {
        const size_t end = text.find(']', at), line = text.find('\n', at);
        if (end == text.npos) break;
        if (line < end) at++;    // a mark lies in one line
        else text.erase(at, end + 1 - at);
    }
    replace(text, "  ", " ");
    return text;
}

std::string detokenized(const std::string& page) {
    std::string text = page;
    auto all = [&](std::initializer_list<std::pair<const char*, const char*>> pairs) {
        for (auto& [from, to] : pairs) replace(text, from, to);
    };
    replace(text, "s '", "s'");
    // lm-evaluation-harness replaces the regular expression /' [0-9]/ by these letters, no digit.
    for (char digit = '0'; digit <= '9'; digit++) replace(text, std::string("/' ") + digit + "/", "/'[0-9]/");
    all({{" @-@ ", "-"}, {" @,@ ", ","}, {" @.@ ", "."}});
    all({{" : ", ": "}, {" ; ", "; "}, {" . ", ". "}, {" ! ", "! "}, {" ? ", "? "}, {" , ", ", "}});
    trim_inside(text, '(', ')');
    trim_inside(text, '[', ']');
    trim_inside(text, '{', '}');
    trim_inside(text, '"', '"');
    trim_inside(text, '\'', '\'');
    all({{"= = = =", "===="}, {"= = =", "==="}, {"= =", "=="}, {" \u00B0 ", "\u00B0"}});
    all({{" \n", "\n"}, {"\n ", "\n"}, {" N ", " 1 "}, {" 's", "'s"}});
    return text;
}
