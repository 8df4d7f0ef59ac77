// tokenizer_config.cpp - reads and writes tokenizer_config.json; loads tokenizers from paths.
#include <algorithm>
#include <filesystem>
#include <mutex>
#include <set>
#include <unistd.h>
#include <unordered_map>

#include "base/console.h"
#include "base/file.h"
#include "data/bpe.h"
#include "files/json_write.h"
#include "json_reader.h"
#include "sentencepiece.h"
#include "tokenizer_gguf.h"
#include "vocab_merges.h"

using nlohmann::json;

namespace {
constexpr int64_t MAX_FILE = 256 << 20, MAX_CONFIG = 16 << 20;
constexpr int MAX_IDS = 1 << 20;

const std::string LIST = "tokenizer_config.json: added_tokens_decoder";
// transformers gives special tokens missing from the vocabulary the next ids, in this order.
constexpr struct {
    const char* key;
    int Vocabulary::*id;
} SPECIAL[] = {
    {"bos_token", &Vocabulary::bos},   {"eos_token", &Vocabulary::eos},       {"unk_token", nullptr},
    {"sep_token", &Vocabulary::sep},   {"pad_token", &Vocabulary::pad},       {"cls_token", &Vocabulary::cls},
    {"mask_token", &Vocabulary::mask}, {"additional_special_tokens", nullptr}};

// Maps token names in files to ids.
class Names {
  public:
    explicit Names(const Vocabulary& vocabulary) : v(vocabulary) {
        for (size_t id = 0; id < v.tokens.size(); id++) text(int(id));
        for (size_t i = 0; i < v.added.size(); i++) added(i);
    }
    void unspelled(const std::string& name, int id) { names.emplace(name, id); }
    void text(int id) {
        if (!v.tokens[size_t(id)].empty()) texts.emplace(v.tokens[size_t(id)], id);
    }
    void added(size_t index) {
        names[v.name(v.added[index])] = v.added[index].id;
        indices[v.added[index].id] = index;
    }
    void forget(const std::string& name) { names.erase(name); }
    int id_of(const std::string& name) const {    // -1: no token has it
        if (const auto known = names.find(name); known != names.end()) return known->second;
        std::string token = name;
        if (v.symbols == Symbols::bytes && !byte_alphabet().bytes(name, token)) return -1;
        const auto known = texts.find(token);
        return known == texts.end() ? -1 : known->second;
    }
    int64_t index_of(int id) const {    // index in v.added; -1: no added token
        const auto known = indices.find(id);
        return known == indices.end() ? -1 : int64_t(known->second);
    }

  private:
    const Vocabulary& v;
    std::unordered_map<std::string, int> names;    // ids of added tokens
    std::unordered_map<std::string, int> texts;    // ids of all tokens
    std::unordered_map<int, size_t> indices;
};

// Reads tokenizer_config.json. If that file does not list added tokens, special_tokens_map.json is
// read, too, and overrides it. Then added_tokens.json is also read, which transformers wrote until
// 2023.
struct ConfigReader : JsonReader {
    json root;
    Vocabulary& v;
    const bool pieces;    // SentencePiece: added tokens match unnormalized text, as in transformers
    const bool grows;     // vocab.json: missing special tokens get next ids
    Names ids{v};

    Status add(const std::string& where, int id, std::string content, AddedToken made) {
        if (id >= MAX_IDS || content.empty()) return wrong(where, "ids from 0 to 1048575 with a content", content);
        if (size_t(id) >= v.tokens.size()) v.tokens.resize(size_t(id) + 1);
        std::string& token = v.tokens[size_t(id)];
        const int64_t index = ids.index_of(id);
        AddedToken* known = index < 0 ? nullptr : &v.added[size_t(index)];
        if (known) made.user_defined = known->user_defined && !made.special;
        if (made.user_defined) content = with_marks(content);
        const int same = ids.id_of(content);
        if (!token.empty() && same != id && (!known || v.name(*known) != content))
            return wrong(where, "the token's own content", content);
        if (token.empty() && same >= 0 && same != id) return wrong(where, "a token of its own", content);
        if (pieces) made.normalized = false;
        made.in_model = !token.empty() && (!known || known->in_model);
        if (known) ids.forget(v.name(*known));
        const bool spells = v.symbols == Symbols::bytes && byte_alphabet().bytes(content, token);
        if (!spells) token = content;
        if (token != content) made.name = content;
        known ? void(*known = std::move(made)) : v.added.push_back(std::move(made));
        ids.text(id);
        ids.added(known ? size_t(index) : v.added.size() - 1);
        return {};
    }
    // added_tokens_decoder: {"32000": {"content": "<|endoftext|>", "special": true, ...}}
    Status added() {
        const json& all = at(root, "added_tokens_decoder");
        if (!all.is_object() && !all.is_null()) return wrong(LIST, "an object", all);
        for (const auto& [key, j] : all.items()) {
            const bool digits = !key.empty() && key.size() < 8 && key.find_first_not_of("0123456789") == key.npos;
            const int id = digits ? std::stoi(key) : MAX_IDS;
            const int64_t index = ids.index_of(id);
            AddedToken made = added_token(id, j, index >= 0 && v.added[size_t(index)].normalized);
            TRY(add(LIST + "." + key, id, text(j, "content"), std::move(made)));
        }
        return {};
    }
    static std::string content(const json& token) {
        return token.is_string() ? token.get<std::string>() : text(token, "content");
    }
    // Reads added_tokens.json: {"<|im_end|>": 32000}. A token is special if the keys below or a
    // list of additional tokens name it.
    Status added_tokens(const json& list) {
        std::set<std::string> special;
        for (const auto& [key, value] : root.items()) {
            if (key.ends_with("_token")) special.insert(content(value));
            if (key.ends_with("special_tokens") && value.is_array())
                for (const json& token : value) special.insert(content(token));
        }
        for (const auto& [token, id] : list.items()) {
            if (!id.is_number_integer() || id < 0 || id >= MAX_IDS)
                return wrong("added_tokens.json: " + token, "an id from 0 to 1048575", id);
            // The vocabulary's own file, if it has the token, defines how the token is found.
            if (const int same = ids.id_of(token); same == id && ids.index_of(same) >= 0) continue;
            const bool is_special = special.contains(token);
            TRY(add("added_tokens.json: " + token, id.get<int>(), token,
                    {.id = id.get<int>(), .special = is_special, .normalized = !is_special}));
        }
        return {};
    }
    // Marks the tokens under `key` as special. *id: set to the id of the last one, if there is any.
    Status special(const char* key, int* id) {
        const json& named = at(root, key);
        for (const json& token : named.is_array() ? named : json::array({named})) {
            const std::string text = content(token);
            if (text.empty()) continue;
            int found = ids.id_of(text);
            if (found < 0 && !grows) {
                note_once("warning: " + name + ": " + key + " is " + shown(text) +
                          ", which is no token of this "
                          "tokenizer: it is passed over");
                continue;
            }
            if (found < 0) found = int(v.tokens.size());
            AddedToken made = added_token(found, token, false);
            made.special = true;
            made.normalized = false;
            if (ids.index_of(found) < 0) TRY(add(key, found, text, std::move(made)));
            if (id) *id = found;
        }
        return {};
    }
    void chat_template() {
        const json& value = at(root, "chat_template");
        if (value.is_string()) v.chat_template = value.get<std::string>();
        for (size_t i = 0; value.is_array() && i < value.size(); i++)
            if (i == 0 || text(value[i], "name") == "default") v.chat_template = text(value[i], "template");
    }
    // list, names: contents of added_tokens.json and special_tokens_map.json, or null.
    Status read(const json& list, const json& names) {
        if (root.is_null()) root = json::object();
        if (at(root, "added_tokens_decoder").is_null()) {
            if (root.is_object() && names.is_object()) root.update(names);
            if (!list.is_object() && !list.is_null()) return wrong("added_tokens.json", "an object of ids", list);
            TRY(added_tokens(list));
        }
        TRY(added());
        for (const char* key : {"eos_token", "unk_token"})
            if (grows && root.is_object() && !root.contains(key)) root[key] = "<|endoftext|>";
        const bool before = pieces && v.bos >= 0;
        for (const auto& [key, id] : SPECIAL)
            if (id || grows) TRY(special(key, id ? &(v.*id) : nullptr));
        if (before) v.before = {v.bos};
        // As in transformers: if either flag is present, the flags decide about BOS and EOS.
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
// Adds the tokens that end a text: eos_token_id of config.json or generation_config.json, which is
// null, an id or a list of ids.
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
}    // namespace

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
        for (const char* other : {"tokenizer.model", "spiece.model", "vocab.json", "vocab.txt"})
            if (!fs::exists(file, error)) file.replace_filename(other);
        if (!fs::exists(file, error) && is_byt5(path + "/tokenizer_config.json"))
            file.replace_filename("tokenizer_config.json");
        if (!fs::exists(file, error))
            return fail(Exit::input,
                        "%s: expected a tokenizer.json, tokenizer.model, spiece.model or vocab.txt, or "
                        "vocab.json with merges.txt, found none%s",
                        path.c_str(), foreign_tokenizer(path).c_str());
    }
    if (const std::string other = foreign_tokenizer(file); !other.empty())
        return fail(Exit::input, "%s: expected a tokenizer.json%s", path.c_str(), other.c_str());
    if (is_gguf(file)) {
        Tokenizer t = TRY(gguf_tokenizer(TRY(GgufFile::open(file))));
        if (!t.vocab_size()) return fail(Exit::input, "%s: this file holds no tokenizer", path.c_str());
        return t;
    }
    const bool merges = file.filename() == "vocab.json", lines = file.filename() == "vocab.txt";
    const bool byt5 = file.filename() == "tokenizer_config.json" && is_byt5(file);
    Unspelled unspelled;
    Vocabulary v = TRY(merges  ? vocab_merges_read(file, &unspelled)
                       : lines ? vocab_txt_read(file)
                       : byt5  ? byt5_read(file)
                               : read_vocabulary(file));
    if (file.stem() != "tokenizer" && file.stem() != "spiece" && !merges && !lines && !byt5)
        return Tokenizer(std::move(v));    // has no companion files
    const fs::path jinja = file.parent_path() / "chat_template.jinja";
    json beside[3];
    const char* const names[] = {"tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"};
    for (size_t i = 0; i < std::size(names); i++)
        if (const fs::path other = file.parent_path() / names[i]; fs::exists(other, error))
            beside[i] = TRY(json_parse(TRY(read_file(other, MAX_CONFIG)), other, 64));
    const std::string folder = file.parent_path();
    ConfigReader reader{{folder}, std::move(beside[0]), v, file.extension() == ".model", merges};
    for (const auto& [name, id] : unspelled) reader.ids.unspelled(name, id);
    TRY(reader.read(beside[1], beside[2]));
    for (size_t i = 0; byt5 && i < 3; i++) v.added[i].special = true;    // files say false
    for (const char* config : {"config.json", "generation_config.json"}) TRY(read_ends(file.parent_path() / config, v));
    if (fs::exists(jinja, error)) v.chat_template = TRY(read_file(jinja, MAX_CONFIG));
    return Tokenizer(std::move(v));
}

std::string Tokenizer::config_json() const {
    const Vocabulary& v = vocabulary();
    Json all = Json::object();
    auto token = [&](const char* key, int id) {
        if (id >= 0) all.set(key, v.name(id));
    };
    if (v.bos != v.cls) token("bos_token", v.bos);
    // eos_token is omitted if only config.json names tokens that end a text, so that the tokenizer
    // reads back unchanged.
    if (v.eos < 0 || v.eos != v.sep) token("eos_token", v.eos >= 0 ? v.eos : v.ends.empty() ? end_of_text() : -1);
    token("cls_token", v.cls);
    token("sep_token", v.sep);
    token("mask_token", v.mask);
    token("pad_token", v.pad);
    token("unk_token", v.unknown);
    if (!v.chat_template.empty()) all.set("chat_template", v.chat_template);
    all.set("clean_up_tokenization_spaces", false, "tokenizer_class", "PreTrainedTokenizerFast");
    return all.text(2) + "\n";
}
