// model_files.cpp - generation_config.json, and what ends an answer.
#include "model_files.h"

#include <algorithm>
#include <climits>
#include <unistd.h>

#include "base/file.h"
#include "files/json.h"

namespace {
using nlohmann::json;

constexpr int64_t MOST_BYTES = 64 << 20;
constexpr int DEPTH = 32;

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }
Result<json> parse_object(std::string_view text, const std::string& name) {
    json j = TRY(json_parse(text, name, DEPTH));
    if (!j.is_object()) return fail(Exit::input, "%s: expected a JSON object", name.c_str());
    return j;
}
// The object in a file; an empty one where there is no file.
Result<json> read_object(const std::string& path) {
    if (!exists(path)) return json::object();
    return parse_object(TRY(read_file(path, MOST_BYTES)), path);
}

template <class V> Status take(const JsonFields& f, const char* key, V min, V max, std::optional<V>* to) {
    V value{};
    if (!f.has(key)) return {};
    TRY(f.get(key, &value, min, max));
    *to = value;
    return {};
}
// eos_token_id: null, a number or a list of them.
Status take_ends(const json& j, const std::string& name, std::vector<int>* to) {
    if (!j.contains("eos_token_id") || j["eos_token_id"].is_null()) return {};
    const json ids = j["eos_token_id"].is_array() ? j["eos_token_id"] : json::array({j["eos_token_id"]});
    for (const json& id : ids) {
        if (!id.is_number_integer() || (id.is_number_unsigned() && id.get<uint64_t>() > INT_MAX) || id < -1)
            return fail(Exit::input, "%s: eos_token_id: expected the id of a token or a list of them", name.c_str());
        to->push_back(id.get<int>());
    }
    return {};
}
}    // namespace

// ---- generation_config.json -----------------------------------------------------------------------------------------

Result<GenerationConfig> generation_config_parse(std::string_view text, const std::string& name) {
    const json j = TRY(parse_object(text, name));
    const JsonFields f{j, name};
    GenerationConfig c;
    TRY(take(f, "temperature", 0.0, 100.0, &c.temperature));
    TRY(take(f, "top_k", 0, INT_MAX, &c.top_k));
    TRY(take(f, "top_p", 0.0, 1.0, &c.top_p));
    TRY(take(f, "min_p", 0.0, 1.0, &c.min_p));
    TRY(take(f, "repetition_penalty", 0.01, 100.0, &c.repetition_penalty));
    TRY(take(f, "max_new_tokens", 1, INT_MAX, &c.max_new_tokens));
    TRY(take_ends(j, name, &c.ends));
    if (f.has("do_sample")) {
        if (!j["do_sample"].is_boolean())
            return fail(Exit::input, "%s: do_sample: expected true or false", name.c_str());
        c.do_sample = j["do_sample"].get<bool>();
    }
    if (!f.has("stop_strings")) return c;
    const json stop = j["stop_strings"].is_array() ? j["stop_strings"] : json::array({j["stop_strings"]});
    for (const json& s : stop) {
        if (!s.is_string()) return fail(Exit::input, "%s: stop_strings: expected strings", name.c_str());
        c.stop.push_back(s);
    }
    return c;
}
Result<GenerationConfig> read_generation_config(const std::string& dir) {
    const std::string path = dir + "/generation_config.json";
    if (!exists(path)) return GenerationConfig();
    return generation_config_parse(TRY(read_file(path, MOST_BYTES)), path);
}

std::vector<Flag> sampling_flags(Sampling& s) {
    return {{"--temperature", &s.temperature, "higher: more varied; 0: always the likeliest token", 0, 100},
            {"--top-k", &s.top_k, "only the k likeliest tokens; 0: all", 0, 1e7},
            {"--top-p", &s.top_p, "only the smallest set of likeliest tokens with this probability", 1e-9, 1},
            {"--min-p", &s.min_p, "no token below this fraction of the likeliest one's probability", 0, 1},
            {"--repetition-penalty", &s.repetition_penalty, "above 1: tokens seen so far become less likely", 0.01,
             100}};
}

std::string take_defaults(const GenerationConfig& file, const std::vector<std::string>& given, Sampling* s,
                          int* tokens) {
    std::string taken;
    auto take = [&](const char* name, const auto& from, auto* to) {
        if (!from || *to == *from || std::count(given.begin(), given.end(), name)) return;
        *to = *from;
        taken += formatted("%s %s %g", taken.empty() ? "" : ",", name, double(*from));
    };
    std::optional<double> temperature = file.temperature;
    if (file.do_sample) temperature = *file.do_sample ? temperature.value_or(1) : 0;
    take("--temperature", temperature, &s->temperature);
    take("--top-k", file.top_k, &s->top_k);
    take("--top-p", file.top_p, &s->top_p);
    take("--min-p", file.min_p, &s->min_p);
    take("--repetition-penalty", file.repetition_penalty, &s->repetition_penalty);
    take("--tokens", file.max_new_tokens, tokens);
    return taken;
}

// ---- the chat template ----------------------------------------------------------------------------------------------

namespace {
const char* const CHATML = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
                           "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
                           "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
// What ends a turn in the templates of today's families. Models say it, whether or not their files list it.
const char* const END_MARKERS[] = {"<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|eot|>",
                                   "<|end_of_turn|>"};

// The id of a text that is one token; -1: it is none.
int one_token(const Tokenizer& tokenizer, const std::string& text) {
    const std::vector<int> ids = tokenizer.encode(text, true);
    return ids.size() == 1 ? ids[0] : -1;
}
}    // namespace

Result<ChatFormat> chat_format(const std::string& model, const std::string& named, const Tokenizer& tokenizer) {
    const Vocabulary& v = tokenizer.vocabulary();
    ChatFormat c{v.chat_template, model, {}, {}, {}, {}};
    if (named == "chatml") c.chat_template = CHATML, c.name = named;
    else if (!named.empty()) c.chat_template = TRY(read_file(named, MOST_BYTES)), c.name = named;
    if (c.chat_template.empty())
        return fail(Exit::usage,
                    "%s has no chat template (chat_template in tokenizer_config.json or in a GGUF, or "
                    "chat_template.jinja): it was not made for conversations. Give one: --template FILE, or --template "
                    "chatml; or continue a text with flatgpt sample", model.c_str());
    if (v.bos >= 0) c.bos = v.tokens[size_t(v.bos)];
    if (v.eos >= 0) c.eos = v.tokens[size_t(v.eos)];
    const std::string config_path = model + "/config.json";
    TRY(take_ends(TRY(read_object(config_path)), config_path, &c.ends));
    c.ends.push_back(v.eos);
    c.ends.push_back(tokenizer.end_of_text());
    for (const char* marker : END_MARKERS) {
        if (c.chat_template.find(marker) == std::string::npos) continue;
        const int id = one_token(tokenizer, marker);
        if (id >= 0) c.ends.push_back(id);
        else c.stop.push_back(marker);
    }
    std::sort(c.ends.begin(), c.ends.end());
    c.ends.erase(std::unique(c.ends.begin(), c.ends.end()), c.ends.end());
    std::erase(c.ends, -1);
    return c;
}
