// nanochat.cpp - see nanochat.h.
#include "nanochat.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "base/file.h"
#include "config_json.h"
#include "model/families/families.h"

namespace fs = std::filesystem;

// "DIR/model_000650.pt" becomes "DIR/meta_000650.json".
static std::string meta_of(const std::string& weights) {
    const fs::path path = weights;
    const std::string stem = path.stem().string();
    return (path.parent_path() / ("meta" + stem.substr(stem.find('_')) + ".json")).string();
}

std::string nanochat_weights(const std::string& dir) {
    std::error_code error;
    std::string newest;
    int64_t last = -1;
    for (fs::directory_iterator e(dir, error), end; !error && e != end; e.increment(error)) {
        const std::string name = e->path().filename().string(), begin = "model_", ending = ".pt";
        if (name == "config.json") return "";
        if (!name.starts_with(begin) || !name.ends_with(ending)) continue;
        const std::string step = name.substr(begin.size(), name.size() - begin.size() - ending.size());
        if (step.empty() || step.size() > 9 || step.find_first_not_of("0123456789") != step.npos) continue;
        const std::string path = dir + "/" + name;
        if (atoll(step.c_str()) <= last || !fs::exists(meta_of(path), error)) continue;
        last = atoll(step.c_str()), newest = path;
    }
    return newest;
}

// "SSSL": layers with a short window and with all positions, repeated; the last layer has all.
static Status read_windows(const JsonFields& f, const char* key, Config* c) {
    std::string text = f.object[key].is_string() ? f.object[key].get<std::string>() : "";
    for (char& letter : text) letter = char(toupper(static_cast<unsigned char>(letter)));
    if (text.empty() || text.find_first_not_of("SL") != text.npos)
        return fail(Exit::input, "%s: %s: expected letters S and L", f.name.c_str(), key);
    std::vector<bool> global;
    for (int l = 0; l < c->L; l++) global.push_back(l + 1 == c->L || text[size_t(l) % text.size()] == 'L');
    return window_pattern(f, key, global, c);
}

Result<Config> nanochat_config(const std::string& weights) {
    const std::string path = meta_of(weights);
    const nlohmann::json meta = TRY(json_parse(TRY(read_file(path, 1 << 20)), path, 16));
    if (!meta.is_object() || !meta.contains("model_config") || !meta["model_config"].is_object())
        return fail(Exit::input, "%s: model_config: expected an object, as nanochat writes it", path.c_str());
    const JsonFields f = {meta["model_config"], path + ": model_config"};
    const std::pair<const char*, int Config::*> sizes[] = {{"sequence_len", &Config::T},
                                                           {"vocab_size", &Config::V},
                                                           {"n_layer", &Config::L},
                                                           {"n_head", &Config::NH},
                                                           {"n_embd", &Config::C}};
    const char *const kv_heads = "n_kv_head", *const pattern = "window_pattern";
    for (const auto& [key, value] : f.object.items())
        if (key != kv_heads && key != pattern &&
            std::ranges::none_of(sizes, [&](const auto& known) { return key == known.first; }))
            return fail(Exit::input,
                        "%s: model_config: expected nanochat's keys of 2025 or of July 2026, found \"%s\", a kind of "
                        "model that flatgpt lacks",
                        path.c_str(), key.c_str());
    const std::string type = f.has(pattern) ? "nanochat_2026" : "nanochat";
    const auto family = std::ranges::find_if(families(), [&](auto* row) { return row->type == type; });
    Config c;
    c.family = *family;
    auto read = [&](const char* key, int Config::*field) {
        const ConfigRow& row = config_row(field);
        return f.get(key, &(c.*field), int(row.min), int(row.max));
    };
    for (auto [key, field] : sizes) TRY(read(key, field));
    c = c.family_defaults();
    TRY(read(kv_heads, &Config::NKV));
    c.norm_eps = std::numeric_limits<float>::epsilon();    // PyTorch's, as nanochat gives none
    if (f.has(pattern)) TRY(read_windows(f, pattern, &c));
    if (Status s = config_check(c); !s.ok()) return fail(Exit::input, "%s: %s", path.c_str(), s.message.c_str());
    return c;
}
