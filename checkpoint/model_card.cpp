// model_card.cpp - see model_card.h.
#include "model_card.h"

#include <sstream>

#include "base/file.h"
#include "files/json.h"
#include "files/json_write.h"

namespace {
// Fields of README.md that llama.cpp's converter copies to GGUF keys (gguf-py's metadata.py).
struct CardRow {
    const char *name, *key;
    bool list;
};
constexpr CardRow ROWS[] = {{"model_name", "general.name", false},
                            {"license", "general.license", false},
                            {"license_name", "general.license.name", false},
                            {"license_link", "general.license.link", false},
                            {"language", "general.languages", true},
                            {"tags", "general.tags", true},
                            {"author", "general.author", false},
                            {"organization", "general.organization", false},
                            {"basename", "general.basename", false},
                            {"size_label", "general.size_label", false},
                            {"description", "general.description", false}};
constexpr int64_t MAX_README = 4 << 20;

std::string trimmed(const std::string& s) {
    const size_t from = s.find_first_not_of(" \t\r"), to = s.find_last_not_of(" \t\r");
    return from == s.npos ? "" : s.substr(from, to + 1 - from);
}
// Strips the quotes or a trailing comment from a value.
std::string plain(const std::string& value) {
    if (value.starts_with('"')) {
        const Result<nlohmann::json> text = json_parse(value, "README.md", 2);
        return text.ok() && text.value.is_string() ? text.value.get<std::string>() : "";
    }
    if (value.size() > 1 && value.starts_with('\'') && value.ends_with('\'')) return value.substr(1, value.size() - 2);
    return value.starts_with('|') || value.starts_with('>') ? "" : trimmed(value.substr(0, value.find(" #")));
}
void add(std::vector<std::string>* to, const std::string& value) {
    if (const std::string text = plain(trimmed(value)); !text.empty()) to->push_back(text);
}
}    // namespace

ModelCard card_parse(const std::string& readme) {
    ModelCard card;
    std::vector<std::string>* list = nullptr;    // list of the last name read
    std::istringstream lines(readme);
    std::string line;
    if (!std::getline(lines, line) || trimmed(line) != "---") return card;
    while (std::getline(lines, line) && trimmed(line) != "---") {
        const std::string text = trimmed(line);
        const size_t colon = text.find(':');
        if (text.starts_with("- ")) {
            if (list) add(list, text.substr(2));
            continue;
        }
        if (line.starts_with(' ') || colon == text.npos) continue;
        list = nullptr;
        for (const CardRow& row : ROWS)
            if (text.substr(0, colon) == row.name) list = &card[row.name];
        const std::string value = trimmed(text.substr(colon + 1));
        if (!list) continue;
        if (!value.starts_with('[')) {
            add(list, value);
            continue;
        }
        std::istringstream items(value.substr(1, value.find(']') - 1));
        for (std::string item; std::getline(items, item, ',');) add(list, item);
    }
    std::erase_if(card, [](auto& entry) { return entry.second.empty(); });
    return card;
}

std::string card_readme(const ModelCard& card) {
    std::string text;
    for (const CardRow& row : ROWS) {
        const auto found = card.find(row.name);
        if (found == card.end() || found->second.empty()) continue;
        text += std::string(row.name) + ":" + (row.list ? "\n" : " " + json_string(found->second[0]) + "\n");
        for (size_t i = 0; row.list && i < found->second.size(); i++)
            text += "- " + json_string(found->second[i]) + "\n";
    }
    return text.empty() ? "" : "---\n" + text + "---\n";
}

GgufKeys card_keys(const ModelCard& card) {
    GgufKeys keys;
    for (const CardRow& row : ROWS)
        if (const auto found = card.find(row.name); found != card.end() && !found->second.empty())
            keys.push_back(
                {row.key, row.list ? GgufValue::text_array(found->second) : GgufValue::text(found->second[0])});
    return keys;
}

ModelCard checkpoint_card(const ModelSource& m) {
    ModelCard card;
    if (m.gguf) {
        for (const CardRow& row : ROWS)
            if (const GgufValue* v = m.gguf->metadata().find(row.key); v && !v->texts.empty())
                card[row.name] = v->texts;
        return card;
    }
    for (const std::string& dir : {m.path, checkpoint_step(m.path) < 0 ? m.path : m.path + "/.."})
        if (const Result<std::string> readme = read_file(dir + "/README.md", MAX_README); readme.ok())
            return card_parse(readme.value);
    return card;
}
