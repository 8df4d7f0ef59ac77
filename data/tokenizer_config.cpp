// tokenizer_config.cpp - tokenizer_config.json both ways, and tokenizers from files and directories.
#include <algorithm>
#include <filesystem>
#include <set>
#include <unistd.h>

#include "base/file.h"
#include "bpe.h"
#include "json_reader.h"
#include "sentencepiece.h"
#include "tokenizer_gguf.h"

using nlohmann::json;

namespace {
constexpr int64_t MAX_FILE = 256 << 20, MAX_CONFIG = 16 << 20;
constexpr int MAX_IDS = 1 << 20;

int id_of(const Vocabulary& v, const std::string& name) {
    for (const AddedToken& a : v.added)
        if (v.tokens[size_t(a.id)] == name) return a.id;
    const std::string spelled = v.symbols == Symbols::bytes ? "" : name;
    auto it = spelled.empty() ? v.tokens.end() : std::find(v.tokens.begin(), v.tokens.end(), spelled);
    return it == v.tokens.end() ? -1 : int(it - v.tokens.begin());
}

struct ConfigReader : JsonReader {
    const json& root;
    Vocabulary& v;

    // added_tokens_decoder: {"32000": {"content": "<|endoftext|>", "special": true, ...}}
    Status added() {
        const json& all = at(root, "added_tokens_decoder");
        if (!all.is_object() && !all.is_null()) return wrong("added_tokens_decoder", "an object", all);
        for (const auto& [key, j] : all.items()) {
            const std::string content = text(j, "content");
            const bool digits = !key.empty() && key.size() < 8 && key.find_first_not_of("0123456789") == key.npos;
            const int id = digits ? std::stoi(key) : MAX_IDS;
            if (id >= MAX_IDS || content.empty())
                return wrong("added_tokens_decoder", "ids from 0 to 1048575 with a content", key);
            if (size_t(id) >= v.tokens.size()) v.tokens.resize(size_t(id) + 1);
            std::string& token = v.tokens[size_t(id)];
            auto known = std::find_if(v.added.begin(), v.added.end(), [&](const AddedToken& a) { return a.id == id; });
            if (!token.empty() && token != content)
                return wrong(("added_tokens_decoder." + key).c_str(), "the token's own content", content);
            if (token.empty() && id_of(v, content) >= 0)
                return wrong(("added_tokens_decoder." + key).c_str(), "a token of its own", content);
            const AddedToken made = added_token(id, j, known != v.added.end() && known->normalized);
            token = content;
            known != v.added.end() ? void(*known = made) : v.added.push_back(made);
        }
        return {};
    }
    void special(const char* key, int& id) const {
        const json& value = at(root, key);
        const std::string token = value.is_string() ? value.get<std::string>() : text(value, "content");
        if (!token.empty() && id_of(v, token) >= 0) id = id_of(v, token);
    }
    void chat_template() {
        const json& value = at(root, "chat_template");
        if (value.is_string()) v.chat_template = value.get<std::string>();
        for (size_t i = 0; value.is_array() && i < value.size(); i++)
            if (i == 0 || text(value[i], "name") == "default") v.chat_template = text(value[i], "template");
    }
    Status read() {
        TRY(added());
        special("bos_token", v.bos);
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

Result<Tokenizer> Tokenizer::load(const std::string& path) {
    namespace fs = std::filesystem;
    if (path == "gpt2") return gpt2();
    std::error_code error;
    fs::path file = path;
    if (fs::is_directory(file, error)) {
        file /= "tokenizer.json";
        if (!fs::exists(file, error)) file.replace_filename("tokenizer.model");
        if (!fs::exists(file, error))
            return fail(Exit::input, "%s: expected a tokenizer.json or a tokenizer.model, found neither", path.c_str());
    }
    if (gguf_begins(file)) {
        Tokenizer t = TRY(gguf_tokenizer(TRY(GgufFile::open(file))));
        if (!t.vocab_size()) return fail(Exit::input, "%s: this file holds no tokenizer", path.c_str());
        return t;
    }
    Vocabulary v = TRY(read_vocabulary(file));
    // Files of any other name stand for themselves.
    if (file.filename() != "tokenizer.json" && file.filename() != "tokenizer.model") return Tokenizer(std::move(v));
    const fs::path config = file.parent_path() / "tokenizer_config.json";
    const fs::path jinja = file.parent_path() / "chat_template.jinja";
    if (fs::exists(config, error)) {
        const std::string text = TRY(read_file(config, MAX_CONFIG)), name = config;
        const json document = TRY(json_parse(text, name, 64));
        ConfigReader reader{{name}, document, v};
        TRY(reader.read());
    }
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
        if (id >= 0) add(key, json_string(v.tokens[size_t(id)]));
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
