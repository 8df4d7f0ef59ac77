// generation_config.cpp - reads and writes generation_config.json. Every field has a range.
#include "generation_config.h"

#include <climits>

#include "config_json.h"

namespace {
using nlohmann::json;
using nlohmann::ordered_json;

// One row per numeric field, used for reading and writing.
template <class V> struct Row {
    const char* key;
    std::optional<V> GenerationConfig::*field;
    V min, max;
};
constexpr Row<double> NUMBERS[] = {{"temperature", &GenerationConfig::temperature, 0, 100},
                                   {"top_p", &GenerationConfig::top_p, 0, 1},
                                   {"min_p", &GenerationConfig::min_p, 0, 1},
                                   {"typical_p", &GenerationConfig::typical_p, 0, 1},
                                   {"repetition_penalty", &GenerationConfig::repetition_penalty, 0.01, 100}};
constexpr Row<int> COUNTS[] = {{"top_k", &GenerationConfig::top_k, 0, INT_MAX},
                               {"max_new_tokens", &GenerationConfig::max_new_tokens, 1, INT_MAX}};

template <class V> Status take(const JsonFields& f, const Row<V>& row, GenerationConfig* g) {
    if (!f.has(row.key)) return {};
    return f.get(row.key, &(g->*row.field).emplace(), row.min, row.max);
}
}    // namespace

Result<GenerationConfig> generation_config_parse(std::string_view text, const std::string& name) {
    const json j = TRY(json_parse(text, name, 32));
    if (!j.is_object()) return fail(Exit::input, "%s: expected a JSON object", name.c_str());
    const JsonFields f{j, name};
    GenerationConfig g;
    for (auto& row : NUMBERS) TRY(take(f, row, &g));
    for (auto& row : COUNTS) TRY(take(f, row, &g));
    if (f.has("do_sample")) {
        if (!j["do_sample"].is_boolean())
            return fail(Exit::input, "%s: do_sample: expected true or false", name.c_str());
        g.do_sample = j["do_sample"].get<bool>();
    }
    if (!f.has("stop_strings")) return g;
    for (const json& s : j["stop_strings"].is_array() ? j["stop_strings"] : json::array({j["stop_strings"]})) {
        if (!s.is_string()) return fail(Exit::input, "%s: stop_strings: expected strings", name.c_str());
        g.stop.push_back(s);
    }
    return g;
}

std::string generation_config_json(const GenerationConfig& g, const Vocabulary& v, const std::vector<int>& ends) {
    ordered_json j;
    if (v.bos >= 0) j["bos_token_id"] = v.bos;
    if (v.pad >= 0) j["pad_token_id"] = v.pad;
    if (!ends.empty()) j["eos_token_id"] = ids_json(ends);
    if (g.do_sample) j["do_sample"] = *g.do_sample;
    for (auto& row : NUMBERS)
        if (g.*row.field) j[row.key] = *(g.*row.field);
    for (auto& row : COUNTS)
        if (g.*row.field) j[row.key] = *(g.*row.field);
    if (!g.stop.empty()) j["stop_strings"] = g.stop;
    return j.empty() ? "" : j.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}
