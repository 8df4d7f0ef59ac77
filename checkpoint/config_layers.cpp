// config_layers.cpp - fields of config.json that differ by layer: windows, and RoPE by its older
// keys and by rope_parameters.
#include <cmath>

#include "config_json.h"
#include "model/position_tables.h"

namespace {
using nlohmann::json;
using nlohmann::ordered_json;

// ---- windows ------------------------------------------------------------------------------------

// Words in config.json for layers without a window (global) and with one (local).
struct Kinds {
    const char *global, *local;
};
constexpr Kinds TYPES = {"full_attention", "sliding_attention"}, NEO = {"global", "local"};

// Returns n if every n-th layer is marked: of each n layers the first one if `first`, else the
// last. Returns 0 if no layer is marked, and -1 for another pattern. Returns `own`, the family's n,
// if it fits.
int every_nth(const std::vector<bool>& marked, bool first, int own) {
    auto fits = [&](int n) {
        for (int l = 0; l < int(marked.size()); l++)
            if (marked[size_t(l)] != (n > 0 && (l + !first) % n == 0)) return false;
        return true;
    };
    if (fits(own)) return own;
    for (int n = 0; n <= int(marked.size()); n++)
        if (fits(n)) return n;
    return -1;
}

}    // namespace

Status window_pattern(const JsonFields& f, const char* key, const std::vector<bool>& global, Config* c) {
    if (std::count(global.begin(), global.end(), true) == int64_t(global.size())) {
        c->window = 0;
        return {};
    }
    for (const bool last : {c->global_last, !c->global_last}) {
        // Where windows decide which layers have RoPE, global_last would not (Config::has_rope).
        if (last && (!global.back() || (c->family->layers & Family::rope_if_windowed))) continue;
        const int n = every_nth({global.begin(), global.end() - last}, c->global_first, c->global_every);
        if (n < 0) continue;
        c->global_every = n;
        c->global_last = last;
        return {};
    }
    return fail(Exit::input,
                "%s: %s: flatgpt runs only models in which every n-th layer, and maybe the last one, has no window, "
                "found another order",
                f.name.c_str(), key);
}

namespace {
// Parses an array with one value per layer: `yes` (true) or `no` (false).
Result<std::vector<bool>> marks(const JsonFields& f, const char* key, const json& array, const json& yes,
                                const json& no, int L) {
    if (!array.is_array() || int64_t(array.size()) != L)
        return fail(Exit::input, "%s: %s: expected an array of %d, one for each layer", f.name.c_str(), key, L);
    std::vector<bool> marked;
    for (const json& word : array) {
        if (word != yes && word != no)
            return fail(Exit::input, "%s: %s: flatgpt has only %s and %s, found %s", f.name.c_str(), key,
                        yes.dump().c_str(), no.dump().c_str(),
                        word.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 60).c_str());
        marked.push_back(word == yes);
    }
    return marked;
}

// GPT-Neo's [[["global", "local"], 12]] repeats these two kinds 12 times. transformers derives
// attention_layers from it, but a file's own attention_layers takes precedence.
Status neo_parse(const JsonFields& f, Config* c) {
    const char *key = "attention_types", *expanded = "attention_layers";
    if (f.has(expanded))
        return window_pattern(f, expanded, TRY(marks(f, expanded, f.object[expanded], NEO.global, NEO.local, c->L)), c);
    if (!f.has(key)) return {};
    json layers = json::array();
    for (const json& item : f.object[key]) {
        const bool whole = item.is_array() && item.size() == 2 && item[0].is_array() && item[1].is_number_unsigned();
        const uint64_t times = whole ? item[1].get<uint64_t>() : 0;
        if (!whole || times > 1024 || layers.size() + times * item[0].size() > size_t(c->L))
            return fail(Exit::input, "%s: %s: expected lists of words with a count, %d words in all", f.name.c_str(),
                        key, c->L);
        for (uint64_t i = 0; i < times; i++) layers.insert(layers.end(), item[0].begin(), item[0].end());
    }
    return window_pattern(f, key, TRY(marks(f, key, layers, NEO.global, NEO.local, c->L)), c);
}
}    // namespace

Status layers_parse(const JsonFields& f, Config* c) {
    const unsigned layers = c->family->layers;
    if (layers & Family::no_rope_layers) {
        if (f.has("no_rope_layers")) {
            const char* key = "no_rope_layers";
            const int n = every_nth(TRY(marks(f, key, f.object[key], 0, 1, c->L)), false, c->rope_skip_every);
            if (n < 0)
                return fail(Exit::input, "%s: %s: flatgpt runs only models in which every n-th layer has no RoPE",
                            f.name.c_str(), key);
            c->rope_skip_every = n;
        } else if (f.has("no_rope_layer_interval")) {
            TRY(f.get("no_rope_layer_interval", &c->rope_skip_every, 1, 1024));
        }
    }
    if (layers & Family::neo) return neo_parse(f, c);
    if (layers & Family::use_window) {
        const bool no_rope_layers = layers & Family::no_rope_layers;    // then layers without RoPE have the window
        const bool asked = f.has("use_sliding_window") && f.object["use_sliding_window"] == true;
        if (!asked && !(no_rope_layers && f.has("layer_types"))) c->window = 0;
        int first = 28;    // default of transformers' classes
        if (f.has("max_window_layers")) TRY(f.get("max_window_layers", &first, 0, 1 << 20));
        if (c->window && (layers & Family::types) && !f.has("layer_types")) {
            std::vector<bool> global;
            const bool other = layers & Family::every_other;
            for (int l = 0; l < c->L; l++)
                global.push_back(no_rope_layers ? c->has_rope(l) : other ? l % 2 || l >= first : l < first);
            TRY(window_pattern(f, no_rope_layers ? "use_sliding_window" : "max_window_layers", global, c));
        }
    }
    if (const char* key = "sliding_window_pattern"; (layers & Family::pattern) && f.has(key))
        TRY(f.get(key, &c->global_every, 1, 1024));
    if (const char* key = "layer_types"; (layers & Family::types) && c->window && f.has(key))
        TRY(window_pattern(f, key, TRY(marks(f, key, f.object[key], TYPES.global, TYPES.local, c->L)), c));
    if (layers & Family::rope_if_windowed)
        c->rope_skip_every = c->window ? c->global_every : 1;    // 1: no layer has RoPE
    return {};
}

void layers_json(const Config& c, ordered_json* j) {
    const unsigned layers = c.family->layers;
    auto list = [&](auto word) {
        ordered_json all = json::array();
        for (int l = 0; l < c.L; l++) all.push_back(word(l));
        return all;
    };
    if (layers & Family::neo) {
        auto word = [&](int l) { return c.windowed(l) ? NEO.local : NEO.global; };
        (*j)["attention_types"] = json::array({json::array({list(word), 1})});
    }
    if (layers & Family::use_window) {
        (*j)["use_sliding_window"] = c.window > 0;
        (*j)["max_window_layers"] = c.window > 0 ? 0 : c.L;
    }
    if (layers & Family::types)
        (*j)["layer_types"] = list([&](int l) { return c.windowed(l) ? TYPES.local : TYPES.global; });
    // transformers' classes of these families require a number even if no layer has a window.
    if ((layers & Family::types) && !(layers & Family::use_window) && !c.window) (*j)["sliding_window"] = c.T;
    if (layers & Family::no_rope_layers) (*j)["no_rope_layers"] = list([&](int l) { return int(c.has_rope(l)); });
}

// ---- rotation -----------------------------------------------------------------------------------

namespace {
// Names of RopeScaling's values in transformers.
constexpr const char* SCALINGS[] = {"default", "linear", "dynamic", "yarn", "llama3"};
// The enumeration's last value, ntk, has no name in transformers; a changed theta expresses it
// there.
bool has_name(RopeScaling s) { return size_t(s) < std::size(SCALINGS); }

Status number(const JsonFields& f, const char* key, float Config::*field, Config* c) {
    const ConfigRow& row = config_row(field);
    double value = 0;
    TRY(f.get(key, &value, row.min, row.max));
    c->*field = float(value);
    return {};
}
Status optional(const JsonFields& f, const char* key, float Config::*field, Config* c) {
    return f.has(key) ? number(f, key, field, c) : Status{};
}

// Reads YaRN's fields. Its factor on cos and sin may be given directly or by two other factors.
Status yarn_parse(const JsonFields& f, Config* c) {
    c->rope_low = 1, c->rope_high = 32;
    TRY(optional(f, "beta_slow", &Config::rope_low, c));
    TRY(optional(f, "beta_fast", &Config::rope_high, c));
    TRY(optional(f, "attention_factor", &Config::rope_magnitude, c));
    if (f.has("truncate") && f.object["truncate"] != true)
        return fail(Exit::input, "%s: truncate: flatgpt runs only models where it is true", f.name.c_str());
    if (f.has("attention_factor") || !f.has("mscale") || !f.has("mscale_all_dim") || c->rope_factor <= 1) return {};
    double one = 0, all = 0;
    TRY(f.get("mscale", &one, 0.0, 1000.0));
    TRY(f.get("mscale_all_dim", &all, 0.0, 1000.0));
    const double grown = 0.1 * std::log(double(c->rope_factor));
    if (one > 0 && all > 0) c->rope_magnitude = float((one * grown + 1) / (all * grown + 1));
    return {};
}

// Parses rope_parameters, or its object for one kind of layers; rope_theta may be missing.
Status scaling_parse(const JsonFields& f, const JsonFields& top, Config* c) {
    std::string type = "default";
    for (const char* key : {"type", "rope_type"})
        if (f.has(key)) TRY(f.get(key, &type));
    const auto known = std::find(std::begin(SCALINGS), std::end(SCALINGS), type);
    const bool plain = type == "default", by_layers = c->family->rope.by_layers;
    if (known == std::end(SCALINGS) || (!plain && !c->family->rope.scaled))
        return fail(Exit::input, "%s: rope_type: expected %s, found \"%s\"", f.name.c_str(),
                    c->family->rope.scaled ? "default, linear, dynamic, yarn or llama3" : "default", type.c_str());
    TRY(optional(f, "rope_theta", &Config::rope_theta, c));
    c->rope_scaling = RopeScaling(known - std::begin(SCALINGS));
    if (plain) return {};
    c->rope_original = c->T;
    for (const JsonFields* from : {&f, &top})    // top level wins, except over by-layer objects
        if (const char* key = "original_max_position_embeddings"; from->has(key) && (from == &f || !by_layers))
            TRY(from->get(key, &c->rope_original, 1, 1 << 24));
    const bool yarn = c->rope_scaling == RopeScaling::yarn;
    if (yarn && !f.has("factor")) c->rope_factor = float(c->T) / float(c->rope_original);
    else TRY(number(f, "factor", &Config::rope_factor, c));
    if (yarn) return yarn_parse(f, c);
    if (c->rope_scaling != RopeScaling::llama3)
        return c->rope_original = 0, Status{};    // unused by linear and dynamic
    TRY(number(f, "low_freq_factor", &Config::rope_low, c));
    return number(f, "high_freq_factor", &Config::rope_high, c);
}

// Parses the rotated fraction of a head's channels.
Status part_parse(const JsonFields& f, const char* key, double* part) {
    return f.has(key) ? f.get(key, part, 0.0, 1.0) : Status{};
}

Result<json> object_of(const JsonFields& f, const char* key) {
    if (!f.has(key)) return json::object();
    if (!f.object[key].is_object()) return fail(Exit::input, "%s: %s: expected an object", f.name.c_str(), key);
    return f.object[key];
}
}    // namespace

// Reads the older keys first, then rope_parameters; if both have a scaling, key rope_scaling wins.
Status rope_parse(const JsonFields& f, Config* c) {
    const Family::Rope& rope = c->family->rope;
    double part = rope.usual;
    if (!rope.theta) return {};
    TRY(optional(f, rope.theta, &Config::rope_theta, c));
    if (rope.local) TRY(optional(f, rope.local, &Config::rope_local_theta, c));
    if (rope.part) TRY(part_parse(f, rope.part, &part));
    json given = TRY(object_of(f, "rope_parameters"));
    const json scaling = TRY(object_of(f, "rope_scaling"));
    const bool nested = given.contains(TYPES.global) || given.contains(TYPES.local);
    if (nested != rope.by_layers && !given.empty())
        return fail(Exit::input, "%s: rope_parameters: expected %s", f.name.c_str(),
                    rope.by_layers ? "objects full_attention and sliding_attention" : "one object for all layers");
    if (nested) {
        const JsonFields both = {given, f.name + ": rope_parameters"};
        const json local = TRY(object_of(both, TYPES.local));
        const JsonFields sliding = {local, both.name + ": " + TYPES.local};
        if (sliding.has("rope_type") && local["rope_type"] != "default")
            return fail(Exit::input, "%s: rope_type: flatgpt runs only models where it is default",
                        sliding.name.c_str());
        TRY(optional(sliding, "rope_theta", &Config::rope_local_theta, c));
        given = TRY(object_of(both, TYPES.global));
    }
    if (!scaling.empty()) {
        if (rope.by_layers) given.update(scaling);
        else given = scaling;
    }
    const JsonFields last = {given, f.name + (scaling.empty() ? ": rope_parameters" : ": rope_scaling")};
    TRY(scaling_parse(last, f, c));
    if (rope.part) TRY(part_parse(last, "partial_rotary_factor", &part));
    c->rope_dims = int(c->HS * part);
    return {};
}

void rope_json(const Config& c, ordered_json* j) {
    const Family::Rope& rope = c.family->rope;
    if (!rope.theta) return;
    const RopeScaling kind = has_name(c.rope_scaling) ? c.rope_scaling : RopeScaling::none;
    const double theta = json_shortest(kind == c.rope_scaling ? c.rope_theta : float(rope_base(c)));
    ordered_json all = {{"rope_type", SCALINGS[int(kind)]}}, scaling;
    if (kind != RopeScaling::none) {
        all["factor"] = json_shortest(c.rope_factor);
        if (c.rope_original) all["original_max_position_embeddings"] = c.rope_original;
    }
    if (c.rope_scaling == RopeScaling::llama3)
        all["low_freq_factor"] = json_shortest(c.rope_low), all["high_freq_factor"] = json_shortest(c.rope_high);
    if (c.rope_scaling == RopeScaling::yarn) {
        all["beta_slow"] = json_shortest(c.rope_low), all["beta_fast"] = json_shortest(c.rope_high);
        if (c.rope_magnitude != 0) all["attention_factor"] = json_shortest(c.rope_magnitude);
    }
    if (kind != RopeScaling::none) scaling = all;
    all["rope_theta"] = theta;
    double part = double(c.rope_dims) / c.HS;
    while (int(c.HS * part) < c.rope_dims)
        part = std::nextafter(part, 2.0);    // transformers truncates the product to int
    if (rope.part) all["partial_rotary_factor"] = (*j)[rope.part] = part;
    if (rope.local) (*j)[rope.local] = json_shortest(c.rope_local_theta);
    (*j)[rope.theta] = theta;
    (*j)["rope_scaling"] = scaling;
    if (!rope.by_layers) (*j)["rope_parameters"] = all;
    else
        (*j)["rope_parameters"] = {
            {TYPES.global, all},
            {TYPES.local, {{"rope_type", "default"}, {"rope_theta", json_shortest(c.rope_local_theta)}}}};
}
