// toml.cpp - parses in one pass over the bytes; errors have the expected and the found text.
#include "toml.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "console.h"

namespace {
struct Reader {
    std::string_view text;
    size_t at = 0;
    int line = 1;
    std::string expected = {};    // set by the first error

    char peek() const { return at < text.size() ? text[at] : '\0'; }
    bool done() const { return at >= text.size(); }
    bool error(const char* what) { return expected = what, false; }
    // Skips blanks and comments; with `lines`, also line ends.
    void space(bool lines) {
        for (; !done(); at++) {
            if (peek() == '#')
                while (!done() && peek() != '\n') at++;
            if (peek() == '\n' && lines) line++;
            else if (peek() != ' ' && peek() != '\t' && peek() != '\r') return;
        }
    }
    std::string word(const char* more) {
        size_t from = at;
        while (!done() && (isalnum(static_cast<unsigned char>(peek())) || strchr(more, peek())) && peek()) at++;
        return std::string(text.substr(from, at - from));
    }
    bool escape(std::string& out) {
        static const char codes[] = "btnfr\"\\", values[] = "\b\t\n\f\r\"\\";
        char c = peek();
        if (const char* found = c ? strchr(codes, c) : nullptr) return at++, out += values[found - codes], true;
        size_t digits = c == 'u' ? 4 : c == 'U' ? 8 : 0;
        uint32_t code = 0;
        std::string_view hex = text.substr(std::min(at + 1, text.size()), digits);
        auto [end, e] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
        if (!digits || hex.size() < digits || e != std::errc() || end != hex.data() + digits || code == 0 ||
            code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
            return error("one of \\b \\t \\n \\f \\r \\\" \\\\ \\uXXXX \\UXXXXXXXX");
        append_utf8(out, code);
        return at += 1 + digits, true;
    }
    bool string(std::string& out) {
        char quote = text[at++];
        while (peek() != quote) {
            if (done() || (peek() >= 0 && peek() < 0x20 && peek() != '\t')) return error("a closing quote");
            if (quote == '"' && peek() == '\\') {
                at++;
                if (!escape(out)) return false;
            } else out += text[at++];
        }
        return at++, true;
    }
    bool list(TomlSetting& s) {
        s.list = s.text = true;
        for (at++, space(true); peek() != ']'; space(true)) {
            if (peek() != '"' && peek() != '\'') return error("a string in quotes or ]");
            if (!string(s.values.emplace_back())) return false;
            space(true);
            if (peek() == ',') at++;
            else if (peek() != ']') return error(", or ]");
        }
        return at++, true;
    }
    // Parses the next setting. Returns false at the end and on an error.
    bool next(TomlSetting& s) {
        space(true);
        s = {};
        s.line = line;
        if (done()) return false;
        s.key = word("_-");
        space(false);
        if (s.key.empty() || peek() != '=') return error("key = value");
        at++, space(false);
        if (peek() == '[') {
            if (!list(s)) return false;
        } else if (peek() == '"' || peek() == '\'') {
            s.text = true;
            if (!string(s.values.emplace_back())) return false;
        } else {
            s.values.push_back(word("_+-."));
            if (s.values[0].empty()) return error("a string in quotes, a number, true, false or a list of strings");
        }
        space(false);
        return done() || peek() == '\n' || error("the end of the line");
    }
};
}    // namespace

Result<std::vector<TomlSetting>> toml_parse(std::string_view text, const std::string& name) {
    Reader reader{.text = text};
    std::vector<TomlSetting> settings;
    for (TomlSetting s; reader.next(s);) settings.push_back(s);
    if (reader.expected.empty()) return settings;
    std::string found = "the end of the file";
    std::string_view rest = text.substr(reader.at);
    if (!rest.empty() && rest[0] == '\n') found = "the end of the line";
    else if (!rest.empty()) found = "'" + escape_control(rest.substr(0, std::min<size_t>(rest.find('\n'), 60))) + "'";
    return fail(Exit::usage, "%s:%d: expected %s, found %s", escape_control(name).c_str(), reader.line,
                reader.expected.c_str(), found.c_str());
}

std::string toml_string(const std::string& text) {
    std::string out = "\"";
    for (char c : text) {
        char code[8];
        snprintf(code, sizeof code, "\\u%04X", unsigned(static_cast<unsigned char>(c)));
        if (c == '"' || c == '\\') out += {'\\', c};
        else out += c == '\n' ? "\\n" : c == '\t' ? "\\t" : (c >= 0 && c < 0x20) || c == 0x7F ? code : std::string{c};
    }
    return out + "\"";
}
