// json.cpp - config.json and state.json, both ways. Hostile until checked: every field has a range.
#include <cfloat>
#include <charconv>
#include <unistd.h>

#include "checkpoint.h"
#include "gguf.h"
#include "base/file.h"
#include "files/json.h"
#include "model/families.h"

namespace {
using nlohmann::json;
using nlohmann::ordered_json;

Result<json> object_parse(std::string_view text, const std::string& name, int max_depth) {
    json j = TRY(json_parse(text, name, max_depth));
    if (!j.is_object()) return fail(Exit::input, "%s: expected a JSON object", name.c_str());
    return j;
}

// The double with the float's shortest decimal form: 1e-05, not 9.999999747378752e-06.
double shortest(float x) {
    char text[32];
    std::to_chars_result end = std::to_chars(text, text + sizeof text, x);
    double wide = 0;
    std::from_chars(text, end.ptr, wide);
    return wide;
}
}    // namespace

// ---- config.json ----------------------------------------------------------------------------------------------------

// The model_type of what the family's class in transformers cannot run: "flatgpt-gpt2". transformers then refuses the
// file instead of running it wrongly. The first checkpoints of that kind have "flatgpt" alone; they are GPT-2's.
static const char* const OWN_TYPE = "flatgpt";
static std::string own_type(const Family& family) { return std::string(OWN_TYPE) + "-" + family.type; }

static json field_json(const Config& c, const ConfigRow& row) {
    if (auto number = std::get_if<float Config::*>(&row.member)) return shortest(c.**number);
    const int value = int(config_value(c, row));
    return row.choices.empty() ? json(value) : json(row.choices[size_t(value)][0]);
}

std::string config_json(const Config& c, int end_of_text, int bos) {
    const Family& family = *c.family;
    const Config plain = c.plain();
    ordered_json j = {{"architectures", {family.architecture}}, {"model_type", family.type}};
    if (!config_beyond_class(c).empty()) j["architectures"] = json::array(), j["model_type"] = own_type(family);
    for (const ConfigRow& row : config_rows())
        if (row.presence != ConfigRow::rare || config_value(c, row) != config_value(plain, row))
            for (const char* key : row.keys[family.spelling]) j[key] = field_json(c, row);
    for (const Family::Fixed& f : family.fixed)
        if (f.written) j[f.key] = json::parse(f.value);
    j["bos_token_id"] = bos >= 0 ? json(bos) : end_of_text >= 0 ? json(end_of_text) : json();
    j["eos_token_id"] = end_of_text >= 0 ? json(end_of_text) : json();
    j["torch_dtype"] = "float32";
    return j.dump(2) + "\n";
}

namespace {
Result<const Family*> family_parse(const JsonFields& f) {
    std::string type, known;
    TRY(f.get("model_type", &type));
    if (type == OWN_TYPE) return &GPT2;
    for (const Family* family : families()) {
        if (type == family->type || type == own_type(*family)) return family;
        known += (known.empty() ? "" : ", ") + std::string(family->type);
    }
    return fail(Exit::input, "%s: model_type: expected %s, each also with \"%s-\" in front, found \"%s\"",
                f.name.c_str(), known.c_str(), OWN_TYPE, type.c_str());
}

Status fixed_check(const JsonFields& f, const Family& family) {
    for (const Family::Fixed& fixed : family.fixed)
        if (fixed.checked && f.has(fixed.key) && f.object[fixed.key] != json::parse(fixed.value))
            return fail(Exit::input, "%s: %s: flatgpt runs only models where it is %s", f.name.c_str(), fixed.key,
                        fixed.value);
    return {};
}

Status field_parse(const JsonFields& f, const ConfigRow& row, Config* c) {
    const char* key = row.keys[c->family->spelling][0];
    if (!f.has(key) && row.presence != ConfigRow::required) {
        config_set(*c, row, config_value(c->plain(), row));
        return {};
    }
    if (auto number = std::get_if<float Config::*>(&row.member)) {
        double value = 0;
        TRY(f.get(key, &value, row.min, row.max));
        c->**number = float(value);
        return {};
    }
    int& value = c->*std::get<int Config::*>(row.member);
    if (row.choices.empty()) return f.get(key, &value, int(row.min), int(row.max));
    std::string name, known;
    TRY(f.get(key, &name));
    for (size_t i = 0; i < row.choices.size(); i++)
        for (const std::string& choice : row.choices[i]) {
            if (name == choice) return value = int(i), Status{};
            known += (known.empty() ? "" : " or ") + choice;
        }
    return fail(Exit::input, "%s: %s: expected %s, found \"%s\"", f.name.c_str(), key, known.c_str(), name.c_str());
}
}    // namespace

Result<Config> config_parse(std::string_view text, const std::string& name) {
    const json j = TRY(object_parse(text, name, 16));
    const JsonFields f{j, name};
    Config c;
    c.family = TRY(family_parse(f));
    TRY(fixed_check(f, *c.family));
    for (const ConfigRow& row : config_rows()) TRY(field_parse(f, row, &c));
    if (Status s = config_check(c); !s.ok()) return fail(Exit::input, "%s: %s", name.c_str(), s.message.c_str());
    return c;
}

// ---- state.json -----------------------------------------------------------------------------------------------------

namespace {
// One row per number of the state: writing and reading walk the same rows.
template <class T> struct Row {
    const char* key;
    T TrainState::*field;
};
constexpr Row<int64_t> COUNTS[] = {{"step", &TrainState::step},       {"tokens", &TrainState::tokens},
                                   {"updates", &TrainState::updates}, {"skipped", &TrainState::skipped},
                                   {"epoch", &TrainState::epoch},     {"bad_in_a_row", &TrainState::bad_in_a_row},
                                   {"index", &TrainState::index},     {"metrics_bytes", &TrainState::metrics_bytes}};
constexpr int64_t MOST = (int64_t(1) << 62) - 1;    // the sum of two does not overflow
constexpr Row<uint64_t> HASHES[] = {{"data", &TrainState::data}, {"seed", &TrainState::seed}};
constexpr Row<Detector> DETECTORS[] = {{"loss", &TrainState::loss}, {"grad_norm", &TrainState::grad_norm}};
constexpr size_t FIELDS = std::size(COUNTS) + std::size(HASHES) + std::size(DETECTORS) + 1;    // and config
// Written only where they differ from a new state's, which is what a file without them means.
constexpr Row<int64_t> OPTIONAL[] = {{"best_step", &TrainState::best_step},
                                     {"bad_validations", &TrainState::bad_validations},
                                     {"documents", &TrainState::documents}};
constexpr Row<std::string> OPTIONAL_TEXTS[] = {{"dtype", &TrainState::dtype},
                                               {"backend", &TrainState::backend},
                                               {"algorithms", &TrainState::algorithms}};

int64_t window_size(int64_t seen) { return std::min<int64_t>(seen, Detector::WINDOW); }

Status detector_parse(const JsonFields& state, const char* key, Detector* d) {
    auto it = state.object.find(key);
    if (it == state.object.end() || !it->is_object() || it->size() != 2 || !it->contains("window"))
        return fail(Exit::input, "%s: %s: expected {seen, window}", state.name.c_str(), key);
    TRY((JsonFields{*it, state.name + ": " + key}).get("seen", &d->seen, 0, MOST));
    const json& window = (*it)["window"];
    if (!window.is_array() || int64_t(window.size()) != window_size(d->seen))
        return fail(Exit::input, "%s: %s: window: expected %lld numbers, found %zu", state.name.c_str(), key,
                    (long long)window_size(d->seen), window.size());
    for (size_t i = 0; i < window.size(); i++) {
        if (!window[i].is_number() || !std::isfinite(window[i].get<double>()))
            return fail(Exit::input, "%s: %s: window[%zu]: expected a number", state.name.c_str(), key, i);
        d->window[i] = window[i].get<double>();
    }
    return {};
}
}    // namespace

// Doubles are written in the shortest form that reads back to the same bits.
std::string state_json(const TrainState& s) {
    ordered_json j;
    for (auto& row : COUNTS) j[row.key] = s.*row.field;
    for (auto& row : HASHES) j[row.key] = s.*row.field;
    for (auto& row : DETECTORS) {
        const Detector& d = s.*row.field;
        std::vector<double> window(d.window, d.window + window_size(d.seen));
        for (double x : window) CHECK(std::isfinite(x), "a detector holds %g", x);
        j[row.key] = {{"seen", d.seen}, {"window", window}};
    }
    j["config"] = s.config;
    for (auto& row : OPTIONAL_TEXTS)
        if (!(s.*row.field).empty()) j[row.key] = s.*row.field;
    if (s.validation) j["validation"] = s.validation;
    for (auto& row : OPTIONAL)
        if (s.*row.field != TrainState{}.*row.field) j[row.key] = s.*row.field;
    CHECK((s.best_step >= 0) == std::isfinite(s.best_loss), "best step %lld, loss %g", (long long)s.best_step,
          s.best_loss);
    if (s.best_step >= 0) j["best_loss"] = s.best_loss;
    return j.dump(1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

Result<TrainState> state_parse(std::string_view text, const std::string& name) {
    const json j = TRY(object_parse(text, name, 4));
    const JsonFields f{j, name};
    TrainState s;
    for (auto& row : COUNTS) TRY(f.get(row.key, &(s.*row.field), int64_t(0), MOST));
    for (auto& row : HASHES) TRY(f.get(row.key, &(s.*row.field)));
    for (auto& row : DETECTORS) TRY(detector_parse(f, row.key, &(s.*row.field)));
    TRY(f.get("config", &s.config));
    size_t fields = FIELDS;
    auto given = [&](const char* key) {
        fields += j.contains(key);
        return j.contains(key);
    };
    for (auto& row : OPTIONAL_TEXTS)
        if (given(row.key)) TRY(f.get(row.key, &(s.*row.field)));
    if (given("validation")) TRY(f.get("validation", &s.validation));
    for (auto& row : OPTIONAL)
        if (given(row.key)) TRY(f.get(row.key, &(s.*row.field), int64_t(0), MOST));
    if (given("best_loss")) TRY(f.get("best_loss", &s.best_loss, -DBL_MAX, DBL_MAX));
    if (j.contains("best_step") != j.contains("best_loss"))
        return fail(Exit::input, "%s: best_step and best_loss: expected both or neither", name.c_str());
    if (j.size() != fields)
        return fail(Exit::input, "%s: expected %zu fields, found %zu", name.c_str(), fields, j.size());
    return s;
}

// ---- from a directory -----------------------------------------------------------------------------------------------

Result<TrainState> checkpoint_state(const std::string& dir) {
    const std::string path = dir + "/state.json";
    return state_parse(TRY(read_file(path, 64 << 20)), path);
}

Result<Tokenizer> checkpoint_tokenizer(const std::string& dir) {
    if (is_file(dir)) return gguf_tokenizer(TRY(GgufFile::open(dir)).metadata());
    for (const char* name : {"/tokenizer.json", "/tokenizer.model"})
        if (const std::string path = dir + name; access(path.c_str(), F_OK) == 0) return Tokenizer::load(path);
    return Tokenizer();
}
