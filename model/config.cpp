// config.cpp - the rows of a configuration, and what is done with all of them alike.
#include "config.h"

#include <algorithm>
#include <charconv>

#include "base/console.h"
#include "families.h"

bool Config::windowed(int l) const {
    return window && !(global_every && (l + !global_first) % global_every == 0);
}
bool Config::turns(int l) const {
    return position == Position::rope && !(rope_skip_every && (l + 1) % rope_skip_every == 0);
}
Heads Config::heads(int l) const {
    return {.NH = NH, .NKV = NKV, .HS = HS, .window = windowed(l) ? window : 0, .scale = score_scale,
            .softcap = score_cap, .alibi = position == Position::alibi};
}
Turn Config::turn(int l) const {
    return {.dims = turns(l) ? rope_dims : 0, .interleaved = rope_interleaved, .norm = qk_norm, .eps = norm_eps,
            .plus = float(norm_plus)};
}
int Config::table_of(int l) const {
    const bool others = rope_local_theta > 0 && (rope_local_theta != rope_theta || rope_scaling != RopeScaling::none);
    return others && windowed(l);
}
int Config::reader_of(int table) const {
    for (int l = 0; l < L; l++)
        if (turns(l) && rope_dims > 0 && table_of(l) == table) return l;
    return -1;
}

// A field that only families set. Its key is its name, marked as ours.
static ConfigRow kind(ConfigRow::Member member, const char* name, const char* key, double min, double max,
                      std::vector<std::vector<std::string>> choices = {}) {
    return {member, name, false, nullptr, key, nullptr, min, max, ConfigRow::rare, "", std::move(choices)};
}
#define KIND(member, name, ...) kind(member, name, "flatgpt_" name, __VA_ARGS__)

const std::vector<ConfigRow>& config_rows() {
    using C = Config;
    using enum ConfigRow::Presence;
    // clang-format off
    static const std::vector<ConfigRow> rows = {
        {&C::V, "vocabulary", false, "--vocab", "vocab_size", "vocab_size", 2, 1 << 24, required,
         "tokens of the vocabulary; 0: the tokenizer's where one is used, else the model's"},
        {&C::T, "context", false, nullptr, "flatgpt_context", "context_length", 1, 1 << 20, required, ""},
        {&C::C, "channels", true, "--channels", "hidden_size", "embedding_length", 1, 1 << 16, required,
         "channels, without --head-size a multiple of the heads; 0: the model's"},
        {&C::L, "layers", true, "--layers", "num_hidden_layers", "block_count", 1, 1024, required,
         "layers; 0: the model's"},
        {&C::NH, "heads", true, "--heads", "num_attention_heads", "attention.head_count", 1, 1024, required,
         "attention heads; 0: the model's"},
        {&C::F, "ffn", false, nullptr, "flatgpt_ffn", "feed_forward_length", 1, 1 << 18, usual, ""},
        KIND(&C::activation, "activation", 0, 4,
             {{"gelu_new", "gelu_pytorch_tanh"}, {"gelu"}, {"silu", "swish"}, {"relu"}, {"relu2"}}),
        {&C::norm_eps, "norm_epsilon", false, nullptr, "flatgpt_norm_epsilon", "attention.layer_norm_epsilon", 1e-12,
         0.1, rare, ""},
        {&C::NKV, "kv_heads", true, "--kv-heads", "num_key_value_heads", "attention.head_count_kv", 1, 1024, rare,
         "key/value heads, each shared by as many heads; 0: the model's (in a new one, or with other heads: as many)"},
        {&C::HS, "head_size", false, "--head-size", "head_dim", "attention.key_length", 1, 1 << 16, rare,
         "channels of a head; 0: the model's (in a new one, or where they change: channels / heads)"},
        {&C::window, "window", false, "--window", "sliding_window", "attention.sliding_window", 0, 1 << 20, rare,
         "positions that attention looks back, the token's own included; 0: the model's, all in a new one"},
        // Kinds.
        KIND(&C::gated, "gated", 0, 1),
        KIND(&C::norm, "norm", 0, 1, {{"layer"}, {"rms"}}),
        KIND(&C::place, "norm_place", 0, 2, {{"pre"}, {"branch"}, {"sandwich"}}),
        KIND(&C::parallel, "parallel", 0, 2, {{"none"}, {"one"}, {"two"}}),
        KIND(&C::norm_weight, "norm_weight", 0, 1),
        KIND(&C::norm_bias, "norm_bias", 0, 1),
        KIND(&C::norm_plus, "norm_plus_one", 0, 1),
        KIND(&C::embed_norm, "embedding_norm", 0, 1),
        KIND(&C::qk_norm, "qk_norm", 0, 2, {{"none"}, {"head"}, {"all"}}),
        KIND(&C::global_every, "global_every", 0, 1024),
        KIND(&C::global_first, "global_first", 0, 1),
        KIND(&C::sees, "sees", 0, 2, {{"causal"}, {"prefix"}, {"all"}}),
        KIND(&C::mask, "mask_token", -1, 1 << 24),
        KIND(&C::score_scale, "attention_scale", 0, 1000.0),
        KIND(&C::score_cap, "attention_softcap", 0, 1000000.0),
        KIND(&C::qkv_bias, "qkv_bias", 0, 1),
        KIND(&C::proj_bias, "projection_bias", 0, 1),
        KIND(&C::up_bias, "ffn_bias", 0, 1),
        KIND(&C::down_bias, "ffn_output_bias", 0, 1),
        KIND(&C::head_bias, "head_bias", 0, 1),
        KIND(&C::tied, "tied", 0, 1),
        KIND(&C::embed_scale, "embedding_scale", -1e6, 1e6),
        KIND(&C::branch_scale, "residual_scale", -1e6, 1e6),
        KIND(&C::logit_scale, "logit_scale", -1e6, 1e6),
        KIND(&C::logit_cap, "logit_softcap", 0, 1000000.0),
        KIND(&C::position, "position", 0, 3, {{"none"}, {"learned"}, {"rope"}, {"alibi"}}),
        KIND(&C::position_offset, "position_offset", 0, 1024),
        KIND(&C::rope_dims, "rope_dims", 0, 1 << 16),
        KIND(&C::rope_interleaved, "rope_interleaved", 0, 1),
        KIND(&C::rope_skip_every, "rope_skip_every", 0, 1024),
        KIND(&C::rope_theta, "rope_theta", 1.01, 1e12),
        KIND(&C::rope_local_theta, "rope_local_theta", 0, 1e12),
        KIND(&C::rope_scaling, "rope_scaling", 0, 4, {{"none"}, {"linear"}, {"dynamic"}, {"yarn"}, {"llama3"}}),
        KIND(&C::rope_factor, "rope_factor", 1e-3, 1e6),
        KIND(&C::rope_low, "rope_low", 1e-6, 1e6),
        KIND(&C::rope_high, "rope_high", 1e-6, 1e6),
        KIND(&C::rope_original, "rope_original_context", 0, 1 << 24),
        KIND(&C::rope_magnitude, "rope_magnitude", 0, 1000.0),
    };
    // clang-format on
    return rows;
}

const ConfigRow& config_row(const ConfigRow::Member& member) {
    const std::vector<ConfigRow>& rows = config_rows();
    auto row = std::find_if(rows.begin(), rows.end(), [&](const ConfigRow& r) { return r.member == member; });
    CHECK(row != rows.end(), "a field of Config has no row");
    return *row;
}
double config_value(const Config& c, const ConfigRow& row) {
    return std::visit([&](auto member) { return double(c.*member); }, row.member);
}
void config_set(Config& c, const ConfigRow& row, double value) {
    std::visit([&](auto member) { c.*member = std::decay_t<decltype(c.*member)>(value); }, row.member);
}

namespace {
std::string words(const ConfigRow& row) {    // "kv heads"
    std::string text = row.name;
    std::replace(text.begin(), text.end(), '_', ' ');
    return text;
}
}    // namespace

Status config_check(const Config& c) {
    if (c.NH > 0 && c.HS == 0)
        return fail(Exit::usage, "channels (%d) are not a multiple of heads (%d), and no head size is given", c.C,
                    c.NH);
    for (const ConfigRow& row : config_rows()) {
        const double value = config_value(c, row);
        // A float field's value at a bound is the bound in float; ints' bounds are the same in float.
        if (!(value >= double(float(row.min)) && value <= double(float(row.max))))
            return fail(Exit::usage, "%s: expected %.15g to %.15g, found %.15g", words(row).c_str(), row.min, row.max,
                        value);
    }
    if (c.NH % c.NKV) return fail(Exit::usage, "heads (%d) are not a multiple of kv heads (%d)", c.NH, c.NKV);
    if (const int most = 1 << 18, width = c.qkv_width(); width > most)
        return fail(Exit::usage, "attention: (%d + 2 x %d) heads of size %d are %d wide, %d at most", c.NH, c.NKV, c.HS,
                    width, most);
    // What no family has, and the pages of gpt.cpp do not carry.
    auto either = [](bool both, const char* what) {
        return both ? fail(Exit::usage, "%s: a model has one of them at most", what) : Status{};
    };
    TRY(either(c.post_norm() && c.parallel != Parallel::none, "norms of the branches' outputs, parallel branches"));
    TRY(either(c.post_norm() && c.branch_scale != 1, "norms of the branches' outputs, a residual scale"));
    TRY(either(c.embed_scale != 1 && c.position == Position::learned, "an embedding scale, learned positions"));
    if (c.window && c.sees != Sees::causal)
        return fail(Exit::usage, "--window %d, --objective %s: a window is for models that see what lies before alone",
                    c.window, c.sees == Sees::prefix ? "prefix" : "mlm");
    if (c.mask >= c.V) return fail(Exit::usage, "mask token %d: the vocabulary has %d tokens", c.mask, c.V);
    if (c.rope_scaling == RopeScaling::llama3 && c.rope_high <= c.rope_low)
        return fail(Exit::usage, "rope high (%g): expected more than rope low (%g)", c.rope_high, c.rope_low);
    if (c.position == Position::rope && (c.rope_dims < 2 || c.rope_dims % 2 || c.rope_dims > c.HS))
        return fail(Exit::usage, "rope dims: expected an even number from 2 to the head size (%d), found %d", c.HS,
                    c.rope_dims);
    return {};
}

// ---- what flags ask for ---------------------------------------------------------------------------------------------

Config config_nothing() {
    Config none;
    for (const ConfigRow& row : config_rows()) config_set(none, row, 0);
    return none;
}

std::vector<Flag> config_flags(Config& asked) {
    std::vector<Flag> flags;
    for (const ConfigRow& row : config_rows())
        if (row.flag)
            flags.push_back({row.flag, &(asked.*std::get<int Config::*>(row.member)), row.help, 0, row.max});
    return flags;
}

// Where heads have another size, the same part of them turns.
static int turned_part(const Config& c, int HS) { return c.HS ? int(int64_t(c.rope_dims) * HS / c.HS) : c.rope_dims; }

Config config_with(const Config& base, const Config& asked) {
    Config c = base;
    for (const ConfigRow& row : config_rows())
        if (const double value = config_value(asked, row); value != 0) config_set(c, row, value);
    const Config before = base.plain(), now = c.plain();
    for (const ConfigRow& row : config_rows())
        if (config_value(asked, row) == 0 && config_value(before, row) != config_value(now, row))
            config_set(c, row, config_value(now, row));
    if (asked.HS) c.rope_dims = turned_part(base, c.HS);
    return c;
}

// ---- listings -------------------------------------------------------------------------------------------------------

std::vector<const ConfigRow*> config_listed(const Config& c, const Config* other) {
    std::vector<const ConfigRow*> rows;
    Config usual = other ? *other : c.plain();
    if (!other && c.position == Position::rope) usual.rope_dims = int(c.HS * c.family->rope.usual);
    for (const ConfigRow& row : config_rows()) {
        const bool differs = config_value(c, row) != config_value(usual, row);
        if (differs || (!other && row.presence != ConfigRow::rare)) rows.push_back(&row);
    }
    return rows;
}

static std::string field_text(const Config& c, const ConfigRow& row) {
    const double value = config_value(c, row);
    const std::string name = words(row);
    if (row.counted) return counted(int64_t(value), name.substr(0, name.size() - 1).c_str());
    if (std::holds_alternative<bool Config::*>(row.member)) return (value != 0 ? "" : "no ") + name;
    if (!row.choices.empty()) return name + " " + row.choices[size_t(value)][0];
    char number[32] = {};    // the shortest that reads back to the same float
    if (std::holds_alternative<float Config::*>(row.member)) std::to_chars(number, number + 31, float(value));
    else std::to_chars(number, number + 31, int64_t(value));
    return name + " " + number;
}
std::string config_text(const Config& c, const std::vector<const ConfigRow*>& rows) {
    std::string text;
    for (const ConfigRow* row : rows) text += (text.empty() ? "" : ", ") + field_text(c, *row);
    return text;
}
