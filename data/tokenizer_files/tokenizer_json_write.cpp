// tokenizer_json_write.cpp - writes Hugging Face's tokenizer.json from any tokenizer.
#include <algorithm>

#include "data/bpe.h"
#include "files/json.h"

namespace {
// A JSON list or object, one item a line.
struct Items {
    std::string text;
    void add(const std::string& item) { text += (text.empty() ? "\n      " : ",\n      ") + item; }
};
std::string sequence(const std::string& list, const std::vector<std::string>& steps) {
    if (steps.empty()) return "null";
    if (steps.size() == 1) return steps[0];
    Items all;
    for (const std::string& s : steps) all.add(s);
    return R"({"type": "Sequence", ")" + list + "\": [" + all.text + "\n  ]}";
}
const char* yes(bool b) { return b ? "true" : "false"; }

std::string normalizer(const Vocabulary& v) {
    const char* const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    std::vector<std::string> steps;
    for (const Normalization& n : v.normalization) {
        if (n.kind == Normalization::Kind::prepend)
            steps.push_back(R"({"type": "Prepend", "prepend": )" + json_string(n.to) + "}");
        else if (n.kind == Normalization::Kind::replace)
            steps.push_back(R"({"type": "Replace", "pattern": {"String": )" + json_string(n.from) +
                            R"(}, "content": )" + json_string(n.to) + "}");
        else steps.push_back(std::string(R"({"type": ")") + forms[int(n.kind)] + "\"}");
    }
    return sequence("normalizers", steps);
}

std::string byte_level(bool prefix, bool use_regex) {
    return std::string(R"({"type": "ByteLevel", "add_prefix_space": )") + yes(prefix) +
           R"(, "trim_offsets": true, "use_regex": )" + yes(use_regex) + "}";
}
std::string pre_tokenizer(const Vocabulary& v) {
    const char* const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"};
    const std::vector<Split>& splits = v.pattern == Pattern::other ? v.splits : pattern_row(v.pattern).splits;
    std::vector<std::string> steps;
    bool bytes = v.symbols == Symbols::bytes;    // ByteLevel is still to come
    const bool prefixed = v.spaces == Spaces::prefixed;
    if (v.spaces >= Spaces::marked) {
        const char* const schemes[] = {"never", "first", "always"};
        steps.push_back(R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": ")" +
                        std::string(schemes[int(v.spaces) - int(Spaces::marked)]) + R"(", "split": false})");
    }
    if (prefixed && !(splits.size() == 1 && splits[0].regex == GPT2_REGEX)) {    // the space comes before every step
        steps.push_back(byte_level(true, false));
        bytes = false;
    }
    for (size_t i = 0; i < splits.size(); i++) {
        const Split& cut = splits[i];
        const bool last = i + 1 == splits.size() || splits[i + 1].spelled;    // before ByteLevel
        if (bytes && last && cut == Split{GPT2_REGEX}) {
            steps.push_back(byte_level(prefixed, true));
            bytes = false;
            continue;
        }
        if (bytes && cut.spelled) {
            steps.push_back(byte_level(false, false));
            bytes = false;
        }
        steps.push_back(R"({"type": "Split", "pattern": {"Regex": )" + json_string(cut.regex) + R"(}, "behavior": ")" +
                        names[int(cut.behavior)] + R"(", "invert": )" + yes(cut.invert) + "}");
    }
    if (bytes) steps.push_back(byte_level(false, false));
    return sequence("pretokenizers", steps);
}

std::string decoder(const Vocabulary& v) {
    if (v.symbols == Symbols::bytes) return byte_level(false, true);
    std::vector<std::string> steps = {R"({"type": "Replace", "pattern": {"String": "▁"}, "content": " "})",
                                      R"({"type": "ByteFallback"})", R"({"type": "Fuse"})"};
    if (v.strip == Strip::first_marks)
        steps[0] = R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false})";
    if (v.strip == Strip::space) steps.push_back(R"({"type": "Strip", "content": " ", "start": 1, "stop": 0})");
    return sequence("decoders", steps);
}

std::string post_processor(const Vocabulary& v) {
    if (v.before.empty() && v.after.empty()) return "null";
    Items single, pair, tokens;
    std::vector<int> seen;
    auto add = [&](const std::vector<int>& ids) {
        for (int id : ids) {
            const std::string name = json_string(v.name(id));
            single.add(R"({"SpecialToken": {"id": )" + name + R"(, "type_id": 0}})");
            if (std::find(seen.begin(), seen.end(), id) != seen.end()) continue;
            seen.push_back(id);
            tokens.add(name + R"(: {"id": )" + name + R"(, "ids": [)" + std::to_string(id) + R"(], "tokens": [)" +
                       name + "]}");
        }
    };
    add(v.before);
    single.add(R"({"Sequence": {"id": "A", "type_id": 0}})");
    add(v.after);
    pair.add(R"({"Sequence": {"id": "A", "type_id": 0}})");
    pair.add(R"({"Sequence": {"id": "B", "type_id": 1}})");
    return R"({"type": "TemplateProcessing", "single": [)" + single.text + "],\n    \"pair\": [" + pair.text +
           "],\n    \"special_tokens\": {" + tokens.text + "}}";
}
}    // namespace

std::string Tokenizer::to_json() const {
    const Vocabulary& v = vocabulary();
    std::vector<std::string> spelled = v.tokens;
    if (v.symbols == Symbols::bytes)
        for (std::string& s : spelled) s = byte_alphabet().spell(s);
    std::string user_defined;
    std::vector<char> outside(v.tokens.size());
    for (const AddedToken& a : v.added) {
        spelled[size_t(a.id)] = a.user_defined ? with_spaces(v.name(a)) : v.name(a);
        outside[size_t(a.id)] = !a.in_model;
        if (a.user_defined) user_defined += (user_defined.empty() ? "" : ", ") + std::to_string(a.id);
    }
    // A key of flatgpt's; other readers find these tokens in the text, and put a space after each.
    if (!user_defined.empty()) user_defined = ",\n    \"user_defined\": [" + user_defined + "]";
    Items added, vocab, merges;
    for (const AddedToken& a : v.added)
        added.add("{\"id\": " + std::to_string(a.id) + ", \"content\": " + json_string(spelled[size_t(a.id)]) +
                  R"(, "single_word": )" + yes(a.single_word) + R"(, "lstrip": )" + yes(a.lstrip) + R"(, "rstrip": )" +
                  yes(a.rstrip) + R"(, "normalized": )" + yes(a.normalized) + R"(, "special": )" + yes(a.special) +
                  "}");
    for (size_t id = 0; id < spelled.size(); id++)
        if (!spelled[id].empty() && !outside[id]) vocab.add(json_string(spelled[id]) + ": " + std::to_string(id));
    for (const Merge& m : v.merges) {
        const std::string &left = spelled[size_t(m.left)], &right = spelled[size_t(m.right)];
        const bool spaces = left.find(' ') != std::string::npos || right.find(' ') != std::string::npos;
        merges.add(spaces ? "[" + json_string(left) + ", " + json_string(right) + "]"
                          : json_string(left + " " + right));
    }
    const std::string unknown = v.unknown < 0 ? "null" : json_string(spelled[size_t(v.unknown)]);
    return R"({
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": [)" +
           added.text + "\n  ],\n  \"normalizer\": " + normalizer(v) + ",\n  \"pre_tokenizer\": " + pre_tokenizer(v) +
           ",\n  \"post_processor\": " + post_processor(v) + ",\n  \"decoder\": " + decoder(v) + R"(,
  "model": {
    "type": "BPE",
    "dropout": null,
    "unk_token": )" +
           unknown + R"(,
    "continuing_subword_prefix": null,
    "end_of_word_suffix": null,
    "fuse_unk": )" +
           yes(v.fuse_unknown) + R"(,
    "byte_fallback": )" +
           yes(v.byte_fallback) + R"(,
    "ignore_merges": )" +
           yes(v.ignore_merges) + user_defined + ",\n    \"vocab\": {" + vocab.text + "\n    },\n    \"merges\": [" +
           merges.text + "\n    ]\n  }\n}\n";
}
