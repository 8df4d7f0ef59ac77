// tokenizer_json.cpp - Hugging Face's tokenizer.json, read and written.
//
// What we read: model BPE over bytes, spelled in GPT-2's byte alphabet; merges as "a b" or ["a", "b"]; pre-tokenizer
// ByteLevel, or Sequence[Split, ByteLevel], with the gpt2 or the cl100k pattern; added tokens. Whatever else would
// change the ids is an error that names it. Post-processors (they add tokens around a text) are not used.
#include <algorithm>
#include <unordered_map>

#include "bpe.h"
#include "base/console.h"
#include "base/file.h"
#include "files/json.h"

using nlohmann::json;

namespace {
constexpr int MAX_IDS = 1 << 20;
constexpr int64_t MAX_FILE = 256 << 20;

// ---- the byte alphabet ----------------------------------------------------------------------------------------------

// Visible bytes stand for themselves, the other 68 for U+0100 and up, in GPT-2's byte order.
struct Alphabet {
    std::string spelling[256];    // by byte: UTF-8
    int byte_of[512];             // by code point; -1: stands for no byte
    Alphabet() {
        std::fill(std::begin(byte_of), std::end(byte_of), -1);
        auto order = gpt2_byte_order();
        for (int i = 0; i < 256; i++) {
            int c = i < 188 ? order[size_t(i)] : 256 + i - 188;
            byte_of[c] = order[size_t(i)];
            append_utf8(spelling[order[size_t(i)]], uint32_t(c));
        }
    }
    std::string spell(std::string_view bytes) const {
        std::string s;
        for (char c : bytes) s += spelling[static_cast<unsigned char>(c)];
        return s;
    }
    bool bytes(const std::string& spelled, std::string& out) const {
        out.clear();
        for (size_t i = 0; i < spelled.size(); i++) {
            auto at = [&](size_t k) { return k < spelled.size() ? static_cast<unsigned char>(spelled[k]) : 0; };
            int c = at(i);
            if (c >= 0x80) {    // two bytes, U+0080 to U+01FF
                if (c < 0xC2 || c > 0xC7 || (at(++i) & 0xC0) != 0x80) return false;
                c = (c & 0x1F) << 6 | (at(i) & 0x3F);
            }
            if (byte_of[c] < 0) return false;
            out += char(byte_of[c]);
        }
        return true;
    }
};
const Alphabet& alphabet() {
    static const Alphabet a;
    return a;
}

std::string shown(const json& value) {    // for messages
    std::string s = value.dump(-1, ' ', true, json::error_handler_t::replace);
    return s.size() > 60 ? s.substr(0, 57) + "..." : s;
}

// A reader of one tokenizer.json. Its steps return the first thing that is wrong.
struct Reader {
    const std::string& name;
    const json& root;
    Vocabulary v;
    std::unordered_map<std::string, int> id_of;    // by the spelling in the file
    static inline const json none = nullptr;

    Status wrong(const std::string& where, const char* expected, const json& found) const {
        return fail(Exit::input, "%s: %s: expected %s, found %s", name.c_str(), where.c_str(), expected,
                    shown(found).c_str());
    }
    static const json& at(const json& object, const char* key) {    // null where absent
        auto it = object.is_object() ? object.find(key) : object.end();
        return object.is_object() && it != object.end() ? *it : none;
    }
    static bool flag(const json& object, const char* key, bool otherwise) {
        const json& value = at(object, key);
        return value.is_boolean() ? value.get<bool>() : otherwise;
    }
    static std::string text(const json& object, const char* key) {
        const json& value = at(object, key);
        return value.is_string() ? value.get<std::string>() : std::string();
    }

    Status model() const {
        const json& m = at(root, "model");
        if (text(m, "type") != "BPE") return wrong("model.type", "\"BPE\"", at(m, "type"));
        if (!at(root, "normalizer").is_null()) return wrong("normalizer", "null", at(root, "normalizer"));
        for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
            if (const json& affix = at(m, key); !affix.is_null() && affix != "")
                return wrong(std::string("model.") + key, "null", affix);
        if (const json& d = at(m, "dropout"); !d.is_null() && d != 0) return wrong("model.dropout", "null", d);
        return {};
    }

    Status byte_level(const json& p, const std::string& where, bool use_regex) const {
        if (text(p, "type") != "ByteLevel") return wrong(where + ".type", "\"ByteLevel\"", at(p, "type"));
        if (flag(p, "add_prefix_space", true))
            return wrong(where + ".add_prefix_space", "false", at(p, "add_prefix_space"));
        if (flag(p, "use_regex", true) != use_regex)
            return wrong(where + ".use_regex", use_regex ? "true" : "false", at(p, "use_regex"));
        return {};
    }
    Status split(const json& p, const std::string& where) {
        if (text(p, "type") != "Split") return wrong(where + ".type", "\"Split\"", at(p, "type"));
        std::string regex = text(at(p, "pattern"), "Regex");
        // the second cl100k is the same language with possessive repetitions, as newer files have it
        if (regex == pattern_text(Pattern::gpt2)) v.pattern = Pattern::gpt2;
        else if (regex == pattern_text(Pattern::cl100k) ||
                 regex == R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|)"
                          R"(\s*[\r\n]|\s+(?!\S)|\s+)")
            v.pattern = Pattern::cl100k;
        else return wrong(where + ".pattern", "the gpt2 or the cl100k pattern", at(p, "pattern"));
        if (text(p, "behavior") != "Isolated") return wrong(where + ".behavior", "\"Isolated\"", at(p, "behavior"));
        if (flag(p, "invert", false)) return wrong(where + ".invert", "false", at(p, "invert"));
        return {};
    }
    Status pre_tokenizer() {
        const json& p = at(root, "pre_tokenizer");
        if (text(p, "type") != "Sequence") return byte_level(p, "pre_tokenizer", true);
        const json& steps = at(p, "pretokenizers");
        if (!steps.is_array() || steps.size() != 2)
            return wrong("pre_tokenizer.pretokenizers", "[Split, ByteLevel]", steps);
        TRY(split(steps[0], "pre_tokenizer.pretokenizers[0]"));
        return byte_level(steps[1], "pre_tokenizer.pretokenizers[1]", false);
    }

    // where(): for messages, which 100,000 of these calls do without
    template <class Where> Status new_id(const json& value, Where where, int& id) {
        if (!value.is_number_integer() || value < 0 || value >= MAX_IDS)
            return wrong(where(), "an id from 0 to 1048575", value);
        id = value.get<int>();
        if (size_t(id) >= v.tokens.size()) v.tokens.resize(size_t(id) + 1);
        return {};
    }
    // Before added_tokens, so that a name which is in both is known by its id.
    Status vocabulary() {
        const json& vocab = at(at(root, "model"), "vocab");
        if (!vocab.is_object() || vocab.empty()) return wrong("model.vocab", "an object of ids", vocab);
        std::vector<char> taken;
        for (const auto& [key, value] : vocab.items()) {
            auto where = [&key = key] { return "model.vocab[" + shown(key) + "]"; };
            int id = 0;
            TRY(new_id(value, where, id));
            taken.resize(v.tokens.size());
            if (taken[size_t(id)]++) return wrong(where(), "an id of its own", value);
            id_of[key] = id;
        }
        return {};
    }
    Status added_tokens() {
        const json& list = at(root, "added_tokens");
        if (!list.is_array() && !list.is_null()) return wrong("added_tokens", "an array", list);
        std::vector<char> taken(v.tokens.size());
        for (auto& [key, id] : id_of) taken[size_t(id)] = 1;
        std::vector<char> seen;
        for (size_t i = 0; i < list.size(); i++) {
            std::string where = "added_tokens[" + std::to_string(i) + "]", content = text(list[i], "content");
            if (content.empty()) return wrong(where + ".content", "a string that is not empty", at(list[i], "content"));
            for (const char* key : {"single_word", "lstrip", "rstrip"})
                if (flag(list[i], key, false)) return wrong(where + "." + key, "false", at(list[i], key));
            int id = 0;
            TRY(new_id(at(list[i], "id"), [&] { return where + ".id"; }, id));
            taken.resize(v.tokens.size());
            seen.resize(v.tokens.size());
            auto known = id_of.find(content);
            if (known != id_of.end() ? known->second != id : taken[size_t(id)])
                return wrong(where + ".id", "its id in model.vocab, or one of its own", at(list[i], "id"));
            if (seen[size_t(id)]++) return wrong(where, "a token that is not in the list yet", content);
            taken[size_t(id)] = 1;
            id_of[content] = id;
            v.added.push_back({id, flag(list[i], "special", false)});
            v.tokens[size_t(id)] = content;
        }
        return {};
    }
    Status token_bytes() {
        bool byte[256] = {};
        for (auto& [key, id] : id_of) {
            std::string& token = v.tokens[size_t(id)];
            if (token.empty() && !alphabet().bytes(key, token))
                return wrong("model.vocab", "tokens in GPT-2's byte alphabet", key);
            if (token.size() == 1) byte[static_cast<unsigned char>(token[0])] = true;
        }
        for (const AddedToken& a : v.added) {
            const std::string& token = v.tokens[size_t(a.id)];
            if (token.size() == 1) byte[static_cast<unsigned char>(token[0])] = false;
        }
        for (int b = 0; b < 256; b++)
            if (!byte[b])
                return fail(Exit::input, "%s: model.vocab: expected a token for each byte, found none for byte 0x%02X",
                            name.c_str(), unsigned(b));
        return {};
    }
    Status merges() {
        const json& list = at(at(root, "model"), "merges");
        if (!list.is_array()) return wrong("model.merges", "an array", list);
        for (size_t i = 0; i < list.size(); i++) {
            const json& m = list[i];
            auto where = [i] { return "model.merges[" + std::to_string(i) + "]"; };
            std::string left, right;
            if (m.is_string()) {
                auto both = m.get<std::string>();
                size_t space = both.find(' ');
                left = both.substr(0, space);
                right = space == std::string::npos ? "" : both.substr(space + 1);
            } else if (m.is_array() && m.size() == 2 && m[0].is_string() && m[1].is_string()) {
                left = m[0], right = m[1];
            }
            if (left.empty() || right.empty()) return wrong(where(), "\"a b\" or [\"a\", \"b\"]", m);
            auto l = id_of.find(left), r = id_of.find(right), both = id_of.find(left + right);
            if (l == id_of.end() || r == id_of.end() || both == id_of.end())
                return wrong(where(), "two tokens whose concatenation is a token", m);
            auto bytes = [&](auto it) -> const std::string& { return v.tokens[size_t(it->second)]; };
            if (bytes(both) != bytes(l) + bytes(r))
                return wrong(where(), "a token that is spelled as its parts are", m);
            v.merges.push_back({l->second, r->second, both->second});
        }
        return {};
    }
    Status read() {
        TRY(model());
        TRY(pre_tokenizer());
        TRY(vocabulary());
        TRY(added_tokens());
        TRY(token_bytes());
        TRY(merges());
        v.ignore_merges = flag(at(root, "model"), "ignore_merges", false);
        return {};
    }
};
}   // namespace

Result<Tokenizer> Tokenizer::parse(std::string_view text, const std::string& name) {
    Vocabulary v;
    {    // The document takes more memory than the tokenizer: it is gone before the tables are made.
        const json document = TRY(json_parse(text, name, 64));
        Reader reader{name, document, {}, {}};
        TRY(reader.read());
        v = std::move(reader.v);
    }
    return Tokenizer(std::move(v));
}

Result<Tokenizer> Tokenizer::load(const std::string& path) {
    if (path == "gpt2") return gpt2();
    const std::string text = TRY(read_file(path, MAX_FILE));
    return parse(text, path);
}

std::string Tokenizer::to_json() const {
    const Vocabulary& v = vocabulary();
    std::vector<std::string> spelled(v.tokens.size());
    for (size_t id = 0; id < v.tokens.size(); id++) spelled[id] = alphabet().spell(v.tokens[id]);
    for (const AddedToken& a : v.added) spelled[size_t(a.id)] = v.tokens[size_t(a.id)];

    std::string s = R"({
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": [)";
    auto item = [&s](const std::string& text) {
        s += s.back() == '[' || s.back() == '{' ? "\n      " : ",\n      ";
        s += text;
    };
    for (const AddedToken& a : v.added)
        item("{\"id\": " + std::to_string(a.id) + ", \"content\": " + json_string(spelled[size_t(a.id)]) +
             R"(, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": )" +
             (a.special ? "true}" : "false}"));
    std::string bytes = R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": )";
    s += "\n  ],\n  \"normalizer\": null,\n  \"pre_tokenizer\": ";
    if (v.pattern == Pattern::gpt2) s += bytes + "true}";
    else s += R"({"type": "Sequence", "pretokenizers": [
    {"type": "Split", "pattern": {"Regex": )" + json_string(pattern_text(v.pattern)) +
              R"(}, "behavior": "Isolated", "invert": false},
    )" + bytes + "false}\n  ]}";
    s += ",\n  \"post_processor\": null,\n  \"decoder\": " + bytes + R"(true},
  "model": {
    "type": "BPE",
    "dropout": null,
    "unk_token": null,
    "continuing_subword_prefix": null,
    "end_of_word_suffix": null,
    "fuse_unk": false,
    "byte_fallback": false,
    "ignore_merges": )" + (v.ignore_merges ? "true" : "false") + ",\n    \"vocab\": {";
    for (size_t id = 0; id < spelled.size(); id++)
        if (!spelled[id].empty()) item(json_string(spelled[id]) + ": " + std::to_string(id));
    s += "\n    },\n    \"merges\": [";
    for (const Merge& m : v.merges) item(json_string(spelled[size_t(m.left)] + " " + spelled[size_t(m.right)]));
    return s + "\n    ]\n  }\n}\n";
}
