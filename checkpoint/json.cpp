// json.cpp - config.json and state.json, both ways. Hostile until checked: every field has a range.
#include <cfloat>
#include <charconv>
#include <climits>
#include <unistd.h>

#include "checkpoint.h"
#include "base/file.h"
#include "files/json.h"

namespace {
using nlohmann::json;
using nlohmann::ordered_json;

Result<json> object_parse(std::string_view text, const std::string& name, int max_depth) {
    Result<json> j = json_parse(text, name, max_depth);
    if (j.ok() && !j.value.is_object()) return fail(Exit::input, "%s: expected a JSON object", name.c_str());
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

std::string config_json(const Config& c, int end_of_text) {
    json eot = end_of_text >= 0 ? json(end_of_text) : json();
    // n_ctx for llama.cpp's converter, architectures for AutoModelForCausalLM.
    ordered_json j = {
        {"architectures", {"GPT2LMHeadModel"}},
        {"model_type", "gpt2"},
        {"vocab_size", c.V},
        {"n_positions", c.T},
        {"n_ctx", c.T},
        {"n_embd", c.C},
        {"n_layer", c.L},
        {"n_head", c.NH},
        {"n_inner", c.F},
        {"activation_function", "gelu_new"},
        {"layer_norm_epsilon", shortest(c.norm_eps)},
        {"attn_pdrop", 0.0},
        {"embd_pdrop", 0.0},
        {"resid_pdrop", 0.0},
        {"initializer_range", 0.02},
        {"tie_word_embeddings", true},
        {"bos_token_id", eot},
        {"eos_token_id", eot},
        {"torch_dtype", "float32"},
    };
    return j.dump(2) + "\n";
}

// Fields that have one value which flatgpt can run.
static Status config_only(const JsonFields& f) {
    struct {
        const char* key;
        bool only;
    } flags[] = {{"tie_word_embeddings", true},
                 {"scale_attn_weights", true},
                 {"scale_attn_by_inverse_layer_idx", false},
                 {"reorder_and_upcast_attn", false},
                 {"add_cross_attention", false}};
    std::string kind, activation = "gelu_new";
    TRY(f.get("model_type", &kind));
    if (kind != "gpt2")
        return fail(Exit::input, "%s: model_type: expected gpt2, found \"%s\"", f.name.c_str(), kind.c_str());
    if (f.has("activation_function")) TRY(f.get("activation_function", &activation));
    if (activation != "gelu_new" && activation != "gelu_pytorch_tanh")
        return fail(Exit::input, "%s: activation_function: expected gelu_new or gelu_pytorch_tanh, found \"%s\"",
                    f.name.c_str(), activation.c_str());
    for (auto& [key, only] : flags) {
        bool value = only;
        if (f.has(key)) TRY(f.get(key, &value));
        if (value != only)
            return fail(Exit::input, "%s: %s: flatgpt runs only models where it is %s", f.name.c_str(), key,
                        only ? "true" : "false");
    }
    return {};
}

Result<Config> config_parse(std::string_view text, const std::string& name) {
    Result<json> j = object_parse(text, name, 16);
    TRY(j.status);
    JsonFields f{j.value, name};
    TRY(config_only(f));
    Config c;
    TRY(f.get("vocab_size", &c.V, 1, INT_MAX));
    TRY(f.get("n_positions", &c.T, 1, INT_MAX));
    TRY(f.get("n_embd", &c.C, 1, INT_MAX / 4));
    TRY(f.get("n_layer", &c.L, 1, INT_MAX));
    TRY(f.get("n_head", &c.NH, 1, INT_MAX));
    c.F = 4 * c.C;
    if (f.has("n_inner")) TRY(f.get("n_inner", &c.F, 1, INT_MAX));
    double eps = 1e-5;
    if (f.has("layer_norm_epsilon")) TRY(f.get("layer_norm_epsilon", &eps, 1e-12, 0.1));
    c.norm_eps = float(eps);
    if (Status s = config_check(c); !s.ok()) return fail(Exit::input, "%s: %s", name.c_str(), s.message.c_str());
    return c;
}

// ---- state.json -----------------------------------------------------------------------------------------------------

namespace {
// One row per number of the state: writing and reading walk the same rows.
struct CountRow {
    const char* key;
    int64_t TrainState::*field;
};
constexpr CountRow COUNTS[] = {{"step", &TrainState::step},       {"tokens", &TrainState::tokens},
                               {"updates", &TrainState::updates}, {"skipped", &TrainState::skipped},
                               {"epoch", &TrainState::epoch},     {"bad_in_a_row", &TrainState::bad_in_a_row},
                               {"index", &TrainState::index},     {"metrics_bytes", &TrainState::metrics_bytes}};
constexpr int64_t MOST = (int64_t(1) << 62) - 1;    // the sum of two does not overflow
struct HashRow {
    const char* key;
    uint64_t TrainState::*field;
};
constexpr HashRow HASHES[] = {{"data", &TrainState::data}, {"seed", &TrainState::seed}};
struct DetectorRow {
    const char* key;
    Detector TrainState::*field;
};
constexpr DetectorRow DETECTORS[] = {{"loss", &TrainState::loss}, {"grad_norm", &TrainState::grad_norm}};
constexpr size_t FIELDS = std::size(COUNTS) + std::size(HASHES) + std::size(DETECTORS) + 1;    // and config
// Written only where they differ from a new state's, which is what a file without them means.
constexpr CountRow OPTIONAL[] = {{"best_step", &TrainState::best_step},
                                 {"bad_validations", &TrainState::bad_validations},
                                 {"documents", &TrainState::documents}};
struct TextRow {
    const char* key;
    std::string TrainState::*field;
};
constexpr TextRow OPTIONAL_TEXTS[] = {{"dtype", &TrainState::dtype},
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
    Result<json> j = object_parse(text, name, 4);
    TRY(j.status);
    JsonFields f{j.value, name};
    TrainState s;
    for (auto& row : COUNTS) TRY(f.get(row.key, &(s.*row.field), int64_t(0), MOST));
    for (auto& row : HASHES) TRY(f.get(row.key, &(s.*row.field)));
    for (auto& row : DETECTORS) TRY(detector_parse(f, row.key, &(s.*row.field)));
    TRY(f.get("config", &s.config));
    size_t fields = FIELDS;
    auto given = [&](const char* key) {
        fields += j.value.contains(key);
        return j.value.contains(key);
    };
    for (auto& row : OPTIONAL_TEXTS)
        if (given(row.key)) TRY(f.get(row.key, &(s.*row.field)));
    if (given("validation")) TRY(f.get("validation", &s.validation));
    for (auto& row : OPTIONAL)
        if (given(row.key)) TRY(f.get(row.key, &(s.*row.field), int64_t(0), MOST));
    if (given("best_loss")) TRY(f.get("best_loss", &s.best_loss, -DBL_MAX, DBL_MAX));
    if (j.value.contains("best_step") != j.value.contains("best_loss"))
        return fail(Exit::input, "%s: best_step and best_loss: expected both or neither", name.c_str());
    if (j.value.size() != fields)
        return fail(Exit::input, "%s: expected %zu fields, found %zu", name.c_str(), fields, j.value.size());
    return s;
}

// ---- from a directory -----------------------------------------------------------------------------------------------

Result<TrainState> checkpoint_state(const std::string& dir) {
    std::string path = dir + "/state.json";
    Result<std::string> text = read_file(path, 64 << 20);
    TRY(text.status);
    return state_parse(text.value, path);
}

Result<Tokenizer> checkpoint_tokenizer(const std::string& dir) {
    std::string path = dir + "/tokenizer.json";
    return access(path.c_str(), F_OK) == 0 ? Tokenizer::load(path) : Result<Tokenizer>(Tokenizer());
}
