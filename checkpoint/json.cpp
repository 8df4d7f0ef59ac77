// json.cpp - reads and writes state.json. Every field has a range.
#include <cfloat>
#include <filesystem>

#include "checkpoint.h"
#include "base/file.h"
#include "files/json.h"

namespace {
using nlohmann::json;
using nlohmann::ordered_json;

Result<json> object_parse(std::string_view text, const std::string& name, int max_depth) {
    json j = TRY(json_parse(text, name, max_depth));
    if (!j.is_object()) return fail(Exit::input, "%s: expected a JSON object", name.c_str());
    return j;
}
}    // namespace

// ---- state.json ---------------------------------------------------------------------------------

namespace {
// One row per number of TrainState, used for writing and reading.
template <class T> struct Row {
    const char* key;
    T TrainState::*field;
};
constexpr Row<int64_t> COUNTS[] = {{"step", &TrainState::step},       {"tokens", &TrainState::tokens},
                                   {"updates", &TrainState::updates}, {"skipped", &TrainState::skipped},
                                   {"epoch", &TrainState::epoch},     {"bad_in_a_row", &TrainState::bad_in_a_row},
                                   {"index", &TrainState::index},     {"metrics_bytes", &TrainState::metrics_bytes}};
constexpr int64_t MOST = (int64_t(1) << 62) - 1;    // largest count: sums of two cannot overflow
constexpr Row<uint64_t> HASHES[] = {{"data", &TrainState::data}, {"seed", &TrainState::seed}};
constexpr Row<OutlierDetector> DETECTORS[] = {{"loss", &TrainState::loss}, {"grad_norm", &TrainState::grad_norm}};
constexpr size_t FIELDS = std::size(COUNTS) + std::size(HASHES) + std::size(DETECTORS) + 1;    // + 1: config
// Fields that are written only if they differ from those of a new TrainState. A missing field gets
// the value that it has there.
constexpr Row<int64_t> OPTIONAL[] = {
    {"best_step", &TrainState::best_step},     {"bad_validations", &TrainState::bad_validations},
    {"averaged", &TrainState::averaged},       {"documents", &TrainState::documents},
    {"decay_begin", &TrainState::decay_begin}, {"samples_bytes", &TrainState::samples_bytes}};
constexpr Row<std::string> OPTIONAL_TEXTS[] = {{"dtype", &TrainState::dtype},
                                               {"backend", &TrainState::backend},
                                               {"algorithms", &TrainState::algorithms},
                                               {"unwritten", &TrainState::unwritten}};

int64_t window_size(int64_t seen) { return std::min<int64_t>(seen, OutlierDetector::WINDOW); }

Status detector_parse(const JsonFields& state, const char* key, OutlierDetector* d) {
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
Status noise_parse(const json& pair, const std::string& name, NoiseScale* noise) {
    if (!pair.is_array() || pair.size() != 2)
        return fail(Exit::input, "%s: noise_scale: expected two numbers", name.c_str());
    for (size_t i = 0; i < 2; i++) {
        if (!pair[i].is_number() || !std::isfinite(pair[i].get<double>()))
            return fail(Exit::input, "%s: noise_scale[%zu]: expected a number", name.c_str(), i);
        (i ? noise->square : noise->trace) = pair[i].get<double>();
    }
    return {};
}
}    // namespace

// Doubles are written in the shortest form that parses back to the same bits.
std::string state_json(const TrainState& s) {
    ordered_json j;
    for (auto& row : COUNTS) j[row.key] = s.*row.field;
    for (auto& row : HASHES) j[row.key] = s.*row.field;
    for (auto& row : DETECTORS) {
        const OutlierDetector& d = s.*row.field;
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
    if (s.decay_begin >= 0) j["decay_rate"] = s.decay_rate;
    if (s.noise != NoiseScale{}) j["noise_scale"] = {s.noise.trace, s.noise.square};
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
    if (given("decay_rate")) TRY(f.get("decay_rate", &s.decay_rate, 0.0, 10.0));
    if (given("noise_scale")) TRY(noise_parse(j["noise_scale"], name, &s.noise));
    for (auto [one, other] : {std::pair{"best_step", "best_loss"}, std::pair{"decay_begin", "decay_rate"}})
        if (j.contains(one) != j.contains(other))
            return fail(Exit::input, "%s: %s and %s: expected both or neither", name.c_str(), one, other);
    if (j.size() != fields)
        return fail(Exit::input, "%s: expected %zu fields, found %zu", name.c_str(), fields, j.size());
    return s;
}

// ---- from a directory ---------------------------------------------------------------------------

Result<TrainState> checkpoint_state(const std::string& dir) {
    const std::string path = dir + "/state.json";
    const TrainState s = TRY(state_parse(TRY(read_file(path, 64 << 20)), path));
    const std::string name = std::filesystem::path(dir).filename().string();    // or any name, if a user renamed it
    const bool numbered = name.starts_with("step_") && name.find_first_not_of("0123456789", 5) == name.npos;
    if (const int64_t named = checkpoint_step(dir); numbered && named != s.step)
        return fail(Exit::input, "%s: step: expected %lld, the number in its directory's name, found %lld",
                    path.c_str(), (long long)named, (long long)s.step);
    return s;
}
