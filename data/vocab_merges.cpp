// vocab_merges.cpp - see vocab_merges.h. The files are put together as a tokenizer.json, whose parser then checks them.
#include "vocab_merges.h"

#include <filesystem>
#include <sstream>

#include "base/file.h"
#include "json_reader.h"
#include "pretokenize.h"

namespace {
using nlohmann::json;
constexpr int64_t MAX_FILE = 256 << 20, MAX_IDS = 1 << 20;

// The parts of a tokenizer.json that a tokenizer_class implies.
json byte_level(bool regex, bool space) {
    return {{"type", "ByteLevel"}, {"add_prefix_space", space}, {"trim_offsets", true}, {"use_regex", regex}};
}
json gpt2_parts(bool space) { return {{"pre_tokenizer", byte_level(true, space)}}; }
json qwen2_parts(bool) {
    const json split = {{"type", "Split"}, {"behavior", "Isolated"}, {"invert", false},
                        {"pattern", {{"Regex", pattern_row(Pattern::qwen2).cuts[0].regex}}}};
    return {{"normalizer", {{"type", "NFC"}}},
            {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, byte_level(false, false)}}}}};
}
const struct { const char* name; json (*parts)(bool space); } CLASSES[] = {
    {"", gpt2_parts}, {"GPT2Tokenizer", gpt2_parts}, {"CodeGenTokenizer", gpt2_parts}, {"Qwen2Tokenizer", qwen2_parts}};

Result<json> object_in(const std::string& path) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) return json::object();
    json j = TRY(json_parse(TRY(read_file(path, MAX_FILE)), path, 64));
    if (!j.is_object()) return fail(Exit::input, "%s: expected an object", path.c_str());
    return j;
}

Result<json> merges_in(const std::string& path) {
    std::istringstream lines(TRY(read_file(path, MAX_FILE)));
    json merges = json::array();
    int64_t number = 0;
    for (std::string line; std::getline(lines, line);) {
        number++;
        if (line.ends_with('\r')) line.pop_back();
        if (line.empty() || line.starts_with("#version")) continue;
        const size_t space = line.find(' ');
        if (space == 0 || space >= line.size() - 1 || line.find(' ', space + 1) != line.npos)
            return fail(Exit::input, "%s:%lld: expected two tokens with a space between them", path.c_str(),
                        (long long)number);
        merges.push_back(line);
    }
    return merges;
}

constexpr const char* SPECIAL[] = {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
                                   "mask_token", "additional_special_tokens"};
// A special token's row of added_tokens, of "<s>" or {"content": "<s>", "lstrip": false, ...}; null: it is none.
json special_row(const json& token) {
    json row = token.is_string() ? json{{"content", token}} : token;
    if (!row.is_object() || !row.contains("content") || !row["content"].is_string()) return nullptr;
    row["special"] = true;
    for (const char* flag : {"lstrip", "rstrip", "single_word"})
        if (!row.contains(flag)) row[flag] = false;
    row["normalized"] = false;
    return row;
}
// The rows of added_tokens: tokens that special names, or added_tokens.json. Those that vocab.json lacks get the next
// ids, in SPECIAL's order. added: from names to ids.
json added_rows(const json& special, const json& tokens, const json& added) {
    int64_t next = 0;
    for (const json* ids : {&tokens, &added})
        for (const auto& [content, id] : ids->items())
            if (id.is_number_integer() && id < MAX_IDS) next = std::max(next, id.get<int64_t>() + 1);
    json rows = json::array(), taken = json::object();
    for (const char* name : SPECIAL) {
        const json& value = special.contains(name) ? special[name] : json();
        for (const json& token : value.is_array() ? value : json::array({value})) {
            json row = special_row(token);
            if (row.is_null() || taken.contains(row["content"].get<std::string>())) continue;
            const std::string content = row["content"];
            row["id"] = next;
            for (const json* ids : {&added, &tokens})
                if (ids->contains(content)) row["id"] = (*ids)[content];
            next += row["id"] == next;
            taken[content] = true;
            rows.push_back(row);
        }
    }
    for (const auto& [content, id] : added.items())
        if (!taken.contains(content)) rows.push_back({{"content", content}, {"id", id}, {"normalized", true}});
    return rows;
}
}    // namespace

Result<Vocabulary> vocab_merges_read(const std::string& vocab) {
    const std::string dir = std::filesystem::path(vocab).replace_filename("").string();
    const json config = TRY(object_in(dir + "tokenizer_config.json")), tokens = TRY(object_in(vocab));
    std::string name = config.contains("tokenizer_class") && config["tokenizer_class"].is_string()
                           ? config["tokenizer_class"].get<std::string>() : "";
    if (name.ends_with("Fast")) name.resize(name.size() - 4);
    const auto known = std::find_if(std::begin(CLASSES), std::end(CLASSES), [&](auto& c) { return name == c.name; });
    if (known == std::end(CLASSES))
        return fail(Exit::input, "%s: flatgpt reads vocab.json and merges.txt of GPT-2, CodeGen and Qwen 2, not of "
                    "\"%s\"; transformers makes a tokenizer.json of them:\n  python3 -c \"from transformers import "
                    "AutoTokenizer as T; T.from_pretrained('%s').save_pretrained('%s')\"", vocab.c_str(), name.c_str(),
                    dir.c_str(), dir.c_str());
    const bool space = config.contains("add_prefix_space") && config["add_prefix_space"] == true;
    json all = known->parts(space), special = {{"eos_token", "<|endoftext|>"}, {"unk_token", "<|endoftext|>"}};
    special.update(TRY(object_in(dir + "special_tokens_map.json")));
    special.update(config);
    json added = TRY(object_in(dir + "added_tokens.json"));
    if (config.contains("added_tokens_decoder") && config["added_tokens_decoder"].is_object())
        for (const auto& [id, row] : config["added_tokens_decoder"].items())
            if (row.is_object() && row.contains("content") && row["content"].is_string() && id.size() < 8)
                added[row["content"].get<std::string>()] = atoi(id.c_str());
    all["added_tokens"] = added_rows(special, tokens, added);
    all["decoder"] = byte_level(true, space);
    all["model"] = {{"type", "BPE"}, {"vocab", tokens}, {"merges", TRY(merges_in(dir + "merges.txt"))}};
    // What is no UTF-8 becomes a replacement character, which no token of the vocabulary has: the parser refuses it.
    Vocabulary v = TRY(tokenizer_json_parse(all.dump(-1, ' ', false, json::error_handler_t::replace), vocab));
    for (auto& [name, id] : {std::pair{"bos_token", &v.bos}, {"eos_token", &v.eos}, {"pad_token", &v.pad}}) {
        const json own = special.contains(name) ? special_row(special[name]) : json();
        for (const json& row : all["added_tokens"])
            if (own.is_object() && own["content"] == row["content"]) *id = row["id"];
    }
    return v;
}

std::string foreign_tokenizer(const std::string& path) {
    namespace fs = std::filesystem;
    std::error_code error;
    std::string file = path;
    for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
        const std::string name = entry->path().filename();
        if (name == "tekken.json" || name.ends_with(".tiktoken")) file = entry->path();
    }
    const std::string dir = fs::path(file).replace_filename("").string(), to = dir.empty() ? "." : dir;
    if (fs::path(file).filename() == "tekken.json")
        return ", but " + file + " is Mistral's tekken; transformers (with mistral-common) makes a tokenizer.json of "
               "it:\n  python3 -c \"from transformers.integrations.mistral import convert_tekken_tokenizer as c; c('" +
               file + "').save_pretrained('" + to + "')\"";
    if (file.ends_with(".tiktoken"))
        return ", but " + file + " is tiktoken's, which lacks the pattern and the special tokens; of an encoding that "
               "tiktoken knows by name transformers makes a tokenizer.json:\n  python3 -c \"import tiktoken; from "
               "transformers.integrations.tiktoken import convert_tiktoken_to_fast as c; c(tiktoken.get_encoding("
               "'cl100k_base'), '" + to + "')\"";
    return "";
}
