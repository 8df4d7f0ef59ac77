// tokenizer_config.cpp - tokenizer_config.json both ways, and tokenizers from files and directories.
#include <algorithm>
#include <filesystem>
#include <mutex>
#include <set>
#include <unistd.h>

#include "base/console.h"
#include "base/file.h"
#include "bpe.h"
#include "json_reader.h"
#include "sentencepiece.h"
#include "tokenizer_gguf.h"
#include "vocab_merges.h"

using nlohmann::json;

namespace {
constexpr int64_t MAX_FILE = 256 << 20, MAX_CONFIG = 16 << 20;
constexpr int MAX_IDS = 1 << 20;

int id_of(const Vocabulary& v, const std::string& name) {
    for (const AddedToken& a : v.added)
        if (v.name(a) == name) return a.id;
    std::string token = name;
    if (v.symbols == Symbols::bytes && !byte_alphabet().bytes(name, token)) return -1;
    auto it = token.empty() ? v.tokens.end() : std::find(v.tokens.begin(), v.tokens.end(), token);
    return it == v.tokens.end() ? -1 : int(it - v.tokens.begin());
}

const std::string LIST = "tokenizer_config.json: added_tokens_decoder";

// tokenizer_config.json, or where it does not list added tokens special_tokens_map.json over it and added_tokens.json,
// which transformers wrote until 2023.
struct ConfigReader : JsonReader {
    json root;
    Vocabulary& v;
    const bool pieces;    // SentencePiece's: added tokens are found in the text as it is, as transformers has it

    Status add(const std::string& where, int id, std::string content, AddedToken made) {
        if (id >= MAX_IDS || content.empty()) return wrong(where, "ids from 0 to 1048575 with a content", content);
        if (size_t(id) >= v.tokens.size()) v.tokens.resize(size_t(id) + 1);
        std::string& token = v.tokens[size_t(id)];
        auto known = std::find_if(v.added.begin(), v.added.end(), [&](const AddedToken& a) { return a.id == id; });
        if (known != v.added.end()) made.user_defined = known->user_defined && !made.special;
        if (made.user_defined) content = with_marks(content);
        const int same = id_of(v, content);
        if (!token.empty() && same != id && (known == v.added.end() || v.name(*known) != content))
            return wrong(where, "the token's own content", content);
        if (token.empty() && same >= 0) return wrong(where, "a token of its own", content);
        if (pieces) made.normalized = false;
        made.in_model = !token.empty() && (known == v.added.end() || known->in_model);
        const bool spells = v.symbols == Symbols::bytes && byte_alphabet().bytes(content, token);
        if (!spells) token = content;
        if (token != content) made.name = content;
        known != v.added.end() ? void(*known = std::move(made)) : v.added.push_back(std::move(made));
        return {};
    }
    // added_tokens_decoder: {"32000": {"content": "<|endoftext|>", "special": true, ...}}
    Status added() {
        const json& all = at(root, "added_tokens_decoder");
        if (!all.is_object() && !all.is_null()) return wrong(LIST, "an object", all);
        for (const auto& [key, j] : all.items()) {
            const bool digits = !key.empty() && key.size() < 8 && key.find_first_not_of("0123456789") == key.npos;
            const int id = digits ? std::stoi(key) : MAX_IDS;
            auto known = std::find_if(v.added.begin(), v.added.end(), [&](const AddedToken& a) { return a.id == id; });
            AddedToken made = added_token(id, j, known != v.added.end() && known->normalized);
            TRY(add(LIST + "." + key, id, text(j, "content"), std::move(made)));
        }
        return {};
    }
    static std::string content(const json& token) {
        return token.is_string() ? token.get<std::string>() : text(token, "content");
    }
    // {"<|im_end|>": 32000}: special are those that the names below or a list of others name.
    Status added_tokens(const json& ids) {
        std::set<std::string> special;
        for (const auto& [key, value] : root.items()) {
            if (key.ends_with("_token")) special.insert(content(value));
            if (key.ends_with("special_tokens") && value.is_array())
                for (const json& token : value) special.insert(content(token));
        }
        for (const auto& [name, id] : ids.items()) {
            if (!id.is_number_integer() || id < 0 || id >= MAX_IDS)
                return wrong("added_tokens.json: " + name, "an id from 0 to 1048575", id);
            const int same = id_of(v, name);
            const bool known = std::any_of(v.added.begin(), v.added.end(), [&](auto& a) { return a.id == same; });
            if (known && same == id) continue;    // the vocabulary's own file says how it is found
            const bool is_special = special.contains(name);
            TRY(add("added_tokens.json: " + name, id.get<int>(), name,
                    {.id = id.get<int>(), .special = is_special, .normalized = !is_special}));
        }
        return {};
    }
    void special(const char* key, int& id) {
        const std::string token = content(at(root, key));
        if (token.empty()) return;
        const int found = id_of(v, token);
        if (found < 0 && &id != &v.pad)
            return note_once("warning: " + name + ": " + key + " is " + shown(token) + ", which is no token of this "
                             "tokenizer: it is passed over");
        if (found < 0) return;
        id = found;
        const bool known = std::any_of(v.added.begin(), v.added.end(), [&](auto& a) { return a.id == found; });
        if (known) return;
        v.added.push_back({.id = found, .special = true});
        if (v.tokens[size_t(found)] != token) v.added.back().name = token;
    }
    void chat_template() {
        const json& value = at(root, "chat_template");
        if (value.is_string()) v.chat_template = value.get<std::string>();
        for (size_t i = 0; value.is_array() && i < value.size(); i++)
            if (i == 0 || text(value[i], "name") == "default") v.chat_template = text(value[i], "template");
    }
    // What added_tokens.json and special_tokens_map.json hold, or null.
    Status read(const json& ids, const json& names) {
        if (at(root, "added_tokens_decoder").is_null()) {
            if (root.is_null()) root = json::object();
            if (root.is_object() && names.is_object()) root.update(names);
            if (!ids.is_object() && !ids.is_null()) return wrong("added_tokens.json", "an object of ids", ids);
            TRY(added_tokens(ids));
        }
        TRY(added());
        const bool before = pieces && v.bos >= 0;
        special("bos_token", v.bos);
        if (before) v.before = {v.bos};
        special("eos_token", v.eos);
        special("pad_token", v.pad);
        // As transformers does: either flag, where it is written, decides about both ends of a text.
        const json &bos = at(root, "add_bos_token"), &eos = at(root, "add_eos_token");
        if (bos.is_boolean() || eos.is_boolean()) {
            v.before.clear(), v.after.clear();
            if (bos == true && v.bos >= 0) v.before = {v.bos};
            if (eos == true && v.eos >= 0) v.after = {v.eos};
        }
        chat_template();
        return {};
    }
};

Result<Vocabulary> read_vocabulary(const std::string& path) {
    if (std::filesystem::path(path).filename() == "vocab.json") return vocab_merges_read(path);
    const std::string text = TRY(read_file(path, MAX_FILE));
    const bool model = path.ends_with(".model") || (!text.starts_with('{') && sentencepiece_begins(text));
    return model ? sentencepiece_parse(text, path) : tokenizer_json_parse(text, path);
}
// eos_token_id of config.json and of generation_config.json: null, an id or a list of them; both files' together.
Status read_ends(const std::string& path, Vocabulary& v) {
    if (access(path.c_str(), F_OK) != 0) return {};
    const json document = TRY(json_parse(TRY(read_file(path, MAX_CONFIG)), path, 64));
    const json& value = JsonReader::at(document, "eos_token_id");
    std::set<int> known(v.ends.begin(), v.ends.end());
    known.insert(v.eos);
    for (const json& id : value.is_array() ? value : value.is_null() ? json::array() : json::array({value})) {
        if (!id.is_number_integer() || (id.is_number_unsigned() && id.get<uint64_t>() > INT32_MAX) || id < -1)
            return fail(Exit::input, "%s: eos_token_id: expected the id of a token or a list of them", path.c_str());
        if (id >= 0 && known.insert(id.get<int>()).second) v.ends.push_back(id.get<int>());
    }
    return {};
}
}   // namespace

void note_once(const std::string& text) {
    static std::mutex one_at_a_time;
    static std::set<std::string> printed;
    const std::lock_guard<std::mutex> lock(one_at_a_time);
    if (printed.insert(text).second) Progress().note(escape_control(text));
}

Result<Tokenizer> Tokenizer::load(const std::string& path) {
    namespace fs = std::filesystem;
    if (path == "gpt2") return gpt2();
    std::error_code error;
    fs::path file = path;
    if (fs::is_directory(file, error)) {
        file /= "tokenizer.json";
        for (const char* other : {"tokenizer.model", "vocab.json"})
            if (!fs::exists(file, error)) file.replace_filename(other);
        if (!fs::exists(file, error))
            return fail(Exit::input, "%s: expected a tokenizer.json or a tokenizer.model, or vocab.json with "
                        "merges.txt, found none%s", path.c_str(), foreign_tokenizer(path).c_str());
    }
    if (const std::string other = foreign_tokenizer(file); !other.empty())
        return fail(Exit::input, "%s: expected a tokenizer.json%s", path.c_str(), other.c_str());
    if (gguf_begins(file)) {
        Tokenizer t = TRY(gguf_tokenizer(TRY(GgufFile::open(file))));
        if (!t.vocab_size()) return fail(Exit::input, "%s: this file holds no tokenizer", path.c_str());
        return t;
    }
    Vocabulary v = TRY(read_vocabulary(file));
    // Files of any other name stand for themselves.
    if (file.stem() != "tokenizer" && file.filename() != "vocab.json") return Tokenizer(std::move(v));
    const fs::path jinja = file.parent_path() / "chat_template.jinja";
    json beside[3];
    const char* const names[] = {"tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"};
    for (size_t i = 0; i < std::size(names); i++)
        if (const fs::path other = file.parent_path() / names[i]; fs::exists(other, error))
            beside[i] = TRY(json_parse(TRY(read_file(other, MAX_CONFIG)), other, 64));
    const std::string folder = file.parent_path();
    ConfigReader reader{{folder}, std::move(beside[0]), v, file.extension() == ".model"};
    TRY(reader.read(beside[1], beside[2]));
    for (const char* beside : {"config.json", "generation_config.json"})
        TRY(read_ends(file.parent_path() / beside, v));
    if (fs::exists(jinja, error)) v.chat_template = TRY(read_file(jinja, MAX_CONFIG));
    return Tokenizer(std::move(v));
}

std::string Tokenizer::config_json() const {
    const Vocabulary& v = vocabulary();
    std::string s = "{\n";
    auto add = [&](const char* key, const std::string& value) {
        s += (s.size() > 2 ? ",\n  \"" : "  \"") + std::string(key) + "\": " + value;
    };
    auto token = [&](const char* key, int id) {
        if (id >= 0) add(key, json_string(v.name(id)));
    };
    token("bos_token", v.bos);
    // Where only config.json names ends it is left to that: to the next reader the tokenizer stays what it is.
    token("eos_token", v.eos >= 0 ? v.eos : v.ends.empty() ? end_of_text() : -1);
    token("pad_token", v.pad);
    token("unk_token", v.unknown);
    if (!v.chat_template.empty()) add("chat_template", json_string(v.chat_template));
    add("clean_up_tokenization_spaces", "false");
    add("tokenizer_class", "\"PreTrainedTokenizerFast\"");
    return s + "\n}\n";
}
