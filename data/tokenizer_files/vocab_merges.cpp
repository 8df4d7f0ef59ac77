// vocab_merges.cpp - see vocab_merges.h. Builds a tokenizer.json for its parser to check.
#include "vocab_merges.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "base/file.h"
#include "json_reader.h"
#include "data/pretokenize.h"

namespace {
using nlohmann::json;
constexpr int64_t MAX_FILE = 256 << 20;

// Parts of a tokenizer.json that a tokenizer_class of transformers implies.
json byte_level(bool regex, bool space) {
    return {{"type", "ByteLevel"}, {"add_prefix_space", space}, {"trim_offsets", true}, {"use_regex", regex}};
}
json gpt2_parts(bool space) { return {{"pre_tokenizer", byte_level(true, space)}}; }
json qwen2_parts(bool) {
    const json split = {{"type", "Split"},
                        {"behavior", "Isolated"},
                        {"invert", false},
                        {"pattern", {{"Regex", pattern_row(Pattern::qwen2).splits[0].regex}}}};
    return {{"normalizer", {{"type", "NFC"}}},
            {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, byte_level(false, false)}}}}};
}
const struct {
    const char* name;
    json (*parts)(bool space);
} CLASSES[] = {
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

}    // namespace

Result<Vocabulary> vocab_merges_read(const std::string& vocab, Unspelled* unspelled) {
    const std::string dir = std::filesystem::path(vocab).replace_filename("").string();
    const json config = TRY(object_in(dir + "tokenizer_config.json")), tokens = TRY(object_in(vocab));
    std::string name = config.contains("tokenizer_class") && config["tokenizer_class"].is_string()
                           ? config["tokenizer_class"].get<std::string>()
                           : "";
    if (name.ends_with("Fast")) name.resize(name.size() - 4);
    const auto known = std::find_if(std::begin(CLASSES), std::end(CLASSES), [&](auto& c) { return name == c.name; });
    if (known == std::end(CLASSES))
        return fail(Exit::input,
                    "%s: flatgpt reads vocab.json and merges.txt of GPT-2, CodeGen and Qwen 2, not of "
                    "\"%s\"; transformers makes a tokenizer.json of them:\n  python3 -c \"from transformers import "
                    "AutoTokenizer as T; T.from_pretrained('%s').save_pretrained('%s')\"",
                    vocab.c_str(), name.c_str(), dir.c_str(), dir.c_str());
    const bool space = config.contains("add_prefix_space") && config["add_prefix_space"] == true;
    json all = known->parts(space);
    all["added_tokens"] = json::array();
    all["decoder"] = byte_level(true, space);
    all["model"] = {{"type", "BPE"}, {"vocab", tokens}, {"merges", TRY(merges_in(dir + "merges.txt"))}};
    // Invalid UTF-8 becomes a replacement character, which no token has, so the parser refuses it.
    Vocabulary v = TRY(tokenizer_json_parse(all.dump(-1, ' ', false, json::error_handler_t::replace), vocab));
    for (const auto& [token, id] : tokens.items())
        if (v.tokens[id.get<size_t>()].empty()) unspelled->emplace_back(token, id.get<int>());
    return v;
}

Result<Vocabulary> vocab_txt_read(const std::string& vocab) {
    const std::string dir = std::filesystem::path(vocab).replace_filename("").string();
    const json config = TRY(object_in(dir + "tokenizer_config.json"));
    const std::string name = JsonReader::text(config, "tokenizer_class");
    const char* const classes[] = {"", "Bert", "DistilBert", "Electra", "MobileBert", "ConvBert", "PreTrained"};
    if (std::none_of(std::begin(classes), std::end(classes), [&](const std::string& known) {
            return name == known || name == known + "Tokenizer" || name == known + "TokenizerFast";
        }))
        return fail(Exit::input, "%s: flatgpt reads vocab.txt of BERT, not of \"%s\"", vocab.c_str(), name.c_str());
    std::istringstream lines(TRY(read_file(vocab, MAX_FILE)));
    json tokens = json::object(), added = json::array(), special = json::object();
    int id = 0;
    for (std::string line; std::getline(lines, line); id++) {
        if (line.ends_with('\r')) line.pop_back();
        if (!line.empty()) tokens[line] = id;    // the last of equal ones counts
    }
    auto named = [&](const char* key, const char* otherwise) {
        const json& token = JsonReader::at(config, key);
        const std::string text = token.is_string() ? token.get<std::string>() : JsonReader::text(token, "content");
        return text.empty() ? std::string(otherwise) : text;
    };
    const std::string cls = named("cls_token", "[CLS]"), sep = named("sep_token", "[SEP]");
    const std::string unknown = named("unk_token", "[UNK]");
    for (const std::string& token : {named("pad_token", "[PAD]"), unknown, cls, sep, named("mask_token", "[MASK]")}) {
        const auto known = tokens.find(token);
        if (known != tokens.end()) added.push_back({{"id", *known}, {"content", token}, {"special", true}});
    }
    for (const std::string& token : {cls, sep, unknown})
        if (!tokens.contains(token)) return fail(Exit::input, "%s: expected a line %s", vocab.c_str(), token.c_str());
    const bool lower = JsonReader::flag(config, "do_lower_case", true);
    json all = {{"added_tokens", added},
                {"normalizer",
                 {{"type", "BertNormalizer"},
                  {"handle_chinese_chars", JsonReader::flag(config, "tokenize_chinese_chars", true)},
                  {"strip_accents", JsonReader::flag(config, "strip_accents", lower)},
                  {"lowercase", lower}}},
                {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
                {"post_processor",
                 {{"type", "BertProcessing"},
                  {"cls", json::array({cls, tokens[cls]})},
                  {"sep", json::array({sep, tokens[sep]})}}},
                {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
                {"model", {{"type", "WordPiece"}, {"unk_token", unknown}, {"vocab", tokens}}}};
    return tokenizer_json_parse(all.dump(-1, ' ', false, json::error_handler_t::replace), vocab);
}

bool is_byt5(const std::string& path) {
    const Result<json> config = object_in(path);
    return config.ok() && JsonReader::text(config.value, "tokenizer_class") == "ByT5Tokenizer";
}

Result<Vocabulary> byt5_read(const std::string& path) {
    const json config = TRY(object_in(path));
    Vocabulary v;
    v.pad = 0;
    v.eos = 1;
    v.unknown = 2;
    for (const auto& [key, usual] : {std::pair{"pad_token", "<pad>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}}) {
        const json& given = JsonReader::at(config, key);
        const auto id = int(v.tokens.size());
        AddedToken token = JsonReader::added_token(id, given, false);
        if (!given.is_object()) token.lstrip = token.rstrip = true;
        token.special = true;    // in_model, too: else transformers changes its id
        const std::string name = given.is_object() ? JsonReader::text(given, "content") : usual;
        v.tokens.push_back(given.is_string() ? given.get<std::string>() : name);
        if (v.tokens.back().empty()) return fail(Exit::input, "%s: %s: expected a text, found none", path.c_str(), key);
        v.added.push_back(std::move(token));
    }
    for (int byte = 0; byte < 256; byte++) v.tokens.emplace_back(1, char(byte));
    const json& count = JsonReader::at(config, "extra_ids");
    if (!count.is_null() && !(count.is_number_integer() && count >= 0 && count <= 1 << 16))
        return fail(Exit::input, "%s: extra_ids: expected 0 to 65536 sentinels", path.c_str());
    const bool listed = config.contains("added_tokens_decoder");
    for (int i = 0; i < (listed ? 0 : count.is_null() ? 125 : count.get<int>()); i++) {
        v.added.push_back({.id = int(v.tokens.size()), .special = true, .in_model = false});
        v.tokens.push_back("<extra_id_" + std::to_string(i) + ">");
    }
    v.after = {v.eos};
    v.pair = {{TemplatePart::FIRST, 0}, {v.eos, 0}, {TemplatePart::SECOND, 0}, {v.eos, 0}};
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
        return ", but " + file +
               " is Mistral's tekken; transformers (with mistral-common) makes a tokenizer.json of "
               "it:\n  python3 -c \"from transformers.integrations.mistral import convert_tekken_tokenizer as c; c('" +
               file + "').save_pretrained('" + to + "')\"";
    if (file.ends_with(".tiktoken"))
        return ", but " + file +
               " is tiktoken's, which lacks the pattern and the special tokens; of an encoding that "
               "tiktoken knows by name transformers (with tiktoken and blobfile) makes a tokenizer.json:\n  python3 -c "
               "\"import tiktoken; from transformers.integrations.tiktoken import convert_tiktoken_to_fast as c; "
               "c(tiktoken.get_encoding('cl100k_base'), '" +
               to + "')\"";
    return "";
}
