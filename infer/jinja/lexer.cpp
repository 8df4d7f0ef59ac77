// lexer.cpp - splits a template's text into tokens and applies whitespace control.
#include <charconv>
#include <cstring>

#include "base/console.h"
#include "infer/jinja/syntax.h"

namespace jinja {
namespace {
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name(char c) { return is_digit(c) || c == '_' || isalpha(static_cast<unsigned char>(c)) || (c & 0x80); }

// The text with \n for each newline (\n, \r\n or \r) and without one at the very end.
std::string normalized(const std::string& text) {
    std::string s;
    for (size_t i = 0; i < text.size(); i++)
        if (text[i] != '\r') s += text[i];
        else if (i + 1 == text.size() || text[i + 1] != '\n') s += '\n';
    if (!s.empty() && s.back() == '\n') s.pop_back();
    return s;
}

class Lexer {
  public:
    explicit Lexer(const std::string& text) : s(normalized(text)) {}
    std::vector<Token> run() {
        while (at < s.size()) data();
        add(Token::end, "the end");
        return std::move(out);
    }

  private:
    const std::string s;
    size_t at = 0, counted = 0;
    int line = 1;
    std::vector<Token> out;

    [[noreturn]] void fail_here(const std::string& message) { throw Error{message, line_here()}; }
    int line_here() {
        for (; counted < at; counted++) line += s[counted] == '\n';
        return line;
    }
    void add(Token::Type type, std::string text) { out.push_back({type, line_here(), std::move(text)}); }
    bool next_is(std::string_view text) const { return s.compare(at, text.size(), text) == 0; }
    bool take(std::string_view text) {
        if (!next_is(text)) return false;
        at += text.size();
        return true;
    }
    void skip_spaces() { at = after_spaces(s, at); }

    // Reads a tag's end, with the whitespace sign before it: - strips all whitespace after the tag,
    // + keeps it. After a block without a sign, one newline is dropped.
    bool take_end(const std::string& end, bool block) {
        if (take("-" + end)) skip_spaces();
        else if (block && take("+" + end)) return true;
        else if (!take(end)) return false;
        else if (block) take("\n");
        return true;
    }
    // Adds the text between `from` and a tag that begins at `begin`. `sign` is the tag's whitespace
    // sign (+ or -).
    void add_data(size_t from, size_t begin, char sign, bool block) {
        std::string text = s.substr(from, begin - from);
        if (sign == '-') text = strip(text, {}, false, true);
        else if (sign != '+' && block) {    // lstrip_blocks: spaces before a line's first tag
            const size_t start = text.rfind('\n') + 1;
            if ((start > 0 || from == 0 || s[from - 1] == '\n') && after_spaces(text, start) == text.size())
                text.resize(start);
        }
        if (!text.empty()) add(Token::data, text);
    }
    void data() {
        const size_t from = at;
        size_t begin = s.find('{', at);
        while (begin != s.npos && (begin + 1 == s.size() || !strchr("{%#", s[begin + 1])))
            begin = s.find('{', begin + 1);
        if (begin == s.npos) {
            add(Token::data, s.substr(from));
            at = s.size();
            return;
        }
        const char kind = s[begin + 1], sign = begin + 2 < s.size() ? s[begin + 2] : ' ';
        add_data(from, begin, sign, kind != '{');
        at = begin + (sign == '-' || sign == '+' ? 3 : 2);
        if (kind == '#') return comment();
        if (kind == '%' && raw()) return;
        add(kind == '{' ? Token::print_begin : Token::block_begin, s.substr(begin, 2));
        code(kind == '%');
    }
    void comment() {
        const size_t end = s.find("#}", at);
        if (end == s.npos) fail_here("expected #} for this {#, found the end");
        at = end > at && (s[end - 1] == '-' || s[end - 1] == '+') ? end - 1 : end;
        take_end("#}", true);
    }
    bool raw() {
        const size_t before = at;
        skip_spaces();
        if (take("raw")) {
            skip_spaces();
            if (take("-%}")) skip_spaces();
            else if (!take("%}")) return at = before, false;
            const size_t from = at;
            for (size_t begin; (begin = s.find("{%", at)) != s.npos;) {
                at = begin + 2;
                const char sign = at < s.size() ? s[at] : ' ';
                if (sign == '-' || sign == '+') at++;
                skip_spaces();
                if (!take("endraw")) continue;
                skip_spaces();
                if (!take_end("%}", true)) continue;
                add_data(from, begin, sign, true);
                return true;
            }
            fail_here("expected {% endraw %}, found the end");
        }
        return at = before, false;
    }

    void code(bool block) {
        std::string open;    // open brackets; }} inside them ends no tag
        for (;;) {
            skip_spaces();
            if (at >= s.size()) fail_here(block ? "expected %}, found the end" : "expected }}, found the end");
            if (open.empty() && take_end(block ? "%}" : "}}", block))
                return add(block ? Token::block_end : Token::print_end, block ? "%}" : "}}");
            const char c = s[at];
            if (c == '"' || c == '\'') string(c);
            else if (is_digit(c)) number();
            else if (is_name(c)) {
                const size_t from = at;
                while (at < s.size() && is_name(s[at])) at++;
                add(Token::name, s.substr(from, at - from));
            } else op(open);
        }
    }
    void op(std::string& open) {
        for (const char* two : {"**", "//", "==", "!=", "<=", ">="})
            if (take(two)) return add(Token::op, two);
        const char c = s[at];
        const size_t closes = std::string_view(")]}").find(c);
        if (std::string_view("+-*/%~()[]{}<>=.:|,").find(c) == std::string_view::npos)
            fail_here("unexpected character '" + escape_control(s.substr(at, 1)) + "'");
        if (closes != std::string_view::npos) {
            if (open.empty() || open.back() != "([{"[closes]) fail_here(std::string("'") + c + "' closes nothing");
            open.pop_back();
        }
        if (std::string_view("([{").find(c) != std::string_view::npos) open += c;
        at++;
        add(Token::op, std::string(1, c));
    }
    void number() {
        const size_t from = at;
        auto digits = [&] {
            while (at < s.size() && is_digit(s[at])) at++;
        };
        bool real = false;
        digits();
        if (from == 0 || s[from - 1] != '.') {    // in a.0.1 the digits are indices
            if (at + 1 < s.size() && s[at] == '.' && is_digit(s[at + 1])) real = true, at++, digits();
            size_t e = at + 1;
            if (e < s.size() && (s[e] == '+' || s[e] == '-')) e++;
            if (at < s.size() && (s[at] | 32) == 'e' && e < s.size() && is_digit(s[e])) real = true, at = e, digits();
        }
        add(real ? Token::real : Token::integer, s.substr(from, at - from));
    }
    void string(char quote) {
        const size_t from = at++;
        std::string text;
        while (at < s.size() && s[at] != quote) {
            if (s[at] == '\\' && at + 1 < s.size()) at++, escape(text);
            else text += s[at++];
        }
        if (at++ >= s.size()) at = from, fail_here("a string that does not end");
        add(Token::string, text);
    }
    void escape(std::string& text) {    // reads an escape after its backslash
        static const std::string names = "abfnrtv\\'\"", values = "\a\b\f\n\r\t\v\\'\"";
        const char c = s[at++];
        if (const size_t i = names.find(c); i != names.npos) return void(text += values[i]);
        if (c == '\n') return;
        if (c == 'N')
            fail_here("\\N{...}: names of characters are not known; write the character, or \\u and its number");
        const bool octal = c >= '0' && c <= '7';    // at most three digits; the others have a fixed number
        const size_t digits = octal ? 3 : c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
        if (digits == 0) return text += '\\', void(text += c);
        if (octal) at--;
        uint32_t value = 0;
        const char *first = s.data() + at, *last = s.data() + std::min(at + digits, s.size());
        const auto read = std::from_chars(first, last, value, octal ? 8 : 16);
        const bool whole = octal || read.ptr == first + digits;
        if (!whole || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000))
            fail_here("an escape that is no character");
        append_utf8(text, value);
        at += size_t(read.ptr - first);
    }
};
}    // namespace

std::vector<Token> tokens(const std::string& text) { return Lexer(text).run(); }
}    // namespace jinja
