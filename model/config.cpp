// config.cpp - derived properties, checks, overrides and listings of a configuration.
#include "config.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/console.h"
#include "model/families/families.h"

bool Config::windowed(int l) const {
    const bool global = (global_every && (l + !global_first) % global_every == 0) || (global_last && l + 1 == L);
    return window && !recurrent(l) && !global;
}
bool Config::has_key_parts(int l) const { return windowed(l) && (random_blocks || (dilation > 1 && l >= L / 2)); }
bool Config::has_rope(int l) const {
    // RoPE requires that the rotated channels of a query and a key are multiplied unchanged, so
    // that their product depends on the distance alone. But linear attention of kind elu first
    // applies a feature map to each channel, and kind gated scales each channel by a decay of its
    // own. Performer's features keep the distance alone only on average over w.
    if (recurrent(l) && linear != LinearAttention::retention) return false;
    return position == Position::rope && !(rope_skip_every && (l + 1) % rope_skip_every == 0);
}
bool Config::rope_unused() const {
    bool any = position != Position::rope;
    for (int l = 0; l < L; l++) any |= has_rope(l);
    return !any;
}
void Config::fill_experts() {
    if (!experts) return;
    if (!experts_used) experts_used = std::min(2, experts);
    if (expert_ffn) return;
    expert_ffn = std::max(1, F / experts_used);
    if (experts_every == 1) F = expert_ffn;    // every layer has experts, none a dense ffn
}
int Config::recurrent_layers_below(int l) const {
    int n = 0;
    while (l-- > 0) n += recurrent(l);
    return n;
}
Heads Config::heads(int l) const {
    if (recurrent(l)) return {.NH = NH, .NKV = NKV, .HS = HS, .scale = score_scale, .linear = linear};
    const bool near = windowed(l);
    return {.NH = NH,
            .NKV = NKV,
            .HS = HS,
            .window = near ? window : 0,
            .stride = near ? stride : 0,
            .global_tokens = near ? global_tokens : 0,
            .scale = score_scale,
            .softcap = score_cap,
            .alibi = position == Position::alibi,
            .max_distance = bias_distance(),
            .bias_step = position == Position::relative_key ? int(NH * (2 * int64_t(bias_distance()) + 1)) : 0};
}
int Config::bias_distance() const {
    if (position == Position::t5) return RELATIVE_MAX_DISTANCE;
    // transformers' tables count the rows before position 0, too.
    const int all = std::max(1, T + position_offset - 1);
    return position != Position::relative_key ? 0 : max_distance ? max_distance : all;
}
Config Config::encoder() const {
    Config e = *this;
    e.L = encoder_layers;
    e.encoder_layers = 0;
    e.in_encoder = true;
    e.mask_kind = MaskKind::all;
    e.head = HeadKind::none;
    for (const Adapter::Product p : {Adapter::cross_q, Adapter::cross_kv, Adapter::cross_proj})
        std::ranges::fill(e.adapter.ranks[p], 0);
    return e;
}
Config Config::body() const {
    const Family* alone = encoder_layers ? encoder_family(*family) : nullptr;
    if (!alone && (encoder_layers || family->heads.empty())) return *this;
    Config b = alone ? encoder() : *this;
    if (alone) b.family = alone, b.in_encoder = false;
    b.head = HeadKind::none;
    b.transform = HeadTransform::none;
    b.classes = {};
    b.next_sentence = false;
    for (auto own : {&Config::head_bias, &Config::tied}) b.*own = b.family->kinds.*own;
    b.decoder_start = b.family->kinds.decoder_start;
    b.logit_scale = b.family->kinds.logit_scale;
    return b;
}
Heads Config::cross_heads(int source) const {
    return {.NH = NH, .NKV = NKV, .HS = HS, .scale = score_scale, .softcap = score_cap, .source = source};
}
QkNormRope Config::rope(int l) const {
    return {.dims = has_rope(l) ? rope_dims : 0,
            .interleaved = rope_interleaved,
            .norm = qk_norm,
            .eps = norm_eps,
            .plus = float(norm_plus)};
}
int Config::rope_table_of(int l) const {
    const bool others = rope_local_theta > 0 && (rope_local_theta != rope_theta || rope_scaling != RopeScaling::none);
    return others && windowed(l);
}
int Config::layer_of_rope_table(int table) const {
    for (int l = 0; l < L; l++)
        if (has_rope(l) && rope_dims > 0 && rope_table_of(l) == table) return l;
    return -1;
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
std::string value_text(const Config& c, const ConfigRow& row) {
    const double value = config_value(c, row);
    if (!row.choices.empty()) return row.choices[size_t(value)][0];
    if (std::holds_alternative<bool Config::*>(row.member)) return value != 0 ? "true" : "false";
    char number[32] = {};    // shortest text that parses to the same float
    if (std::holds_alternative<float Config::*>(row.member)) std::to_chars(number, number + 31, float(value));
    else std::to_chars(number, number + 31, int64_t(value));
    return number;
}
// A field's value as a flag: "--position rope".
std::string flag_text(const Config& c, const ConfigRow::Member& member) {
    const ConfigRow& row = config_row(member);
    return std::string(row.flag) + " " + value_text(c, row);
}
}    // namespace

// Refuses fields that cannot be combined with an encoder.
static Status encoder_decoder_check(const Config& c) {
    if (!c.encoder_layers) return {};
    const std::pair<bool, const char*> refused[] = {
        {c.mask_kind != MaskKind::causal, "a mask that is not causal"},
        {c.parallel != Parallel::none, "parallel branches"},
        {c.linear != LinearAttention::none, "linear attention"},
        {c.experts > 0, "experts"},
        {c.residual_scalars || c.backout || c.smear, "nanochat's shortcuts"},
        {c.value_embeddings, "value embeddings"},
        {c.position == Position::alibi, "ALiBi"},
        {c.stride || c.global_tokens || c.dilation > 1 || c.random_blocks, "a sparse pattern"}};
    if (c.decoder_start >= c.V)
        return fail(Exit::usage, "decoder start token %d: expected one of the vocabulary's %d", c.decoder_start, c.V);
    for (auto [is, what] : refused)
        if (is)
            return fail(Exit::usage,
                        "%d encoder layers, %s: flatgpt has no such encoder-decoders; leave out one of them",
                        c.encoder_layers, what);
    return {};
}
// Refuses what cannot be combined with projections of global tokens.
static Status globals_check(const Config& c) {
    if (!c.global_projections) return {};
    const char* const option = "--global-projections true";
    if (!c.window || !c.global_tokens)
        return fail(Exit::usage, "%s needs --window and --global-tokens: without, no token is global", option);
    if (c.mask_kind != MaskKind::all)
        return fail(Exit::usage, "%s is for encoders: expected --objective mlm beside it; leave it out", option);
    const std::pair<bool, const char*> refused[] = {{c.position == Position::rope, "--position rope"},
                                                    {c.qk_norm != QkNormRope::QkNorm::none, "--qk-norm"},
                                                    {c.value_embeddings, "--value-embeddings"}};
    for (auto [is, other] : refused)
        if (is)
            return fail(Exit::usage, "%s: expected no %s, which is for local attention alone; leave out one of them",
                        option, other);
    return {};
}
// Refuses fields that cannot be combined with the keys beyond a window, or in it with gaps.
static Status sparse_check(const Config& c) {
    struct Pattern {
        int value;
        const char* option;
        bool parts;    // model/sparse
    } const patterns[] = {{c.stride, "--stride", false},
                          {c.global_tokens, "--global-tokens", false},
                          {c.dilation > 1 ? c.dilation : 0, "--dilation", true},
                          {c.random_blocks, "--random-blocks", true}};
    for (const auto& [value, option, parts] : patterns) {
        if (!value) continue;
        if (!c.window)
            return fail(Exit::usage, "%s %d needs --window: without, attention reads all positions", option, value);
        if (parts && c.mask_kind != MaskKind::all)
            return fail(Exit::usage, "%s %d is for encoders: expected --objective mlm beside it; leave it out", option,
                        value);
        if (c.mask_kind == MaskKind::all && c.bias_distance())
            return fail(Exit::usage,
                        "%s %d, %s, --objective mlm: its biases have no gradient for keys beyond a window; "
                        "leave out one of them",
                        option, value, flag_text(c, &Config::position).c_str());
    }
    const std::pair<bool, const char*> refused[] = {{c.dilation > 1 && c.random_blocks, "--dilation, --random-blocks"},
                                                    {c.dilation > 1 && c.global_tokens, "--dilation, --global-tokens"},
                                                    {c.dilation > 1 && c.stride, "--dilation, --stride"},
                                                    {c.random_blocks && c.stride, "--random-blocks, --stride"}};
    for (auto [both, options] : refused)
        if (both) return fail(Exit::usage, "%s: they exclude each other; expected one of them", options);
    return {};
}
// Refuses fields that cannot be combined with linear attention.
static Status linear_check(const Config& c) {
    if (c.linear == LinearAttention::none) return {};
    const std::string linear = flag_text(c, &Config::linear), position = flag_text(c, &Config::position);
    const std::string all = linear + " without --softmax-every";
    auto refused = [&](const std::string& other, const char* why) {
        return fail(Exit::usage, "%s, %s: %s; expected one of them", linear.c_str(), other.c_str(), why);
    };
    if (c.softmax_every == 1)
        return fail(Exit::usage, "--softmax-every 1, %s: all layers would have softmax; expected 0, or 2 and more",
                    linear.c_str());
    if (c.softmax_every > c.L)
        return fail(Exit::usage, "--softmax-every %d: none of the %d layers would have softmax; leave it out",
                    c.softmax_every, c.L);
    if (c.HS > 256)
        return fail(Exit::usage, "%s, head size %d: its states are head size x head size; 256 at most", linear.c_str(),
                    c.HS);
    if (c.position == Position::alibi || c.bias_distance())
        return refused(position, "its biases are for softmax's scores");
    if (c.score_cap != 0) return refused(flag_text(c, &Config::score_cap), "the cap is for softmax's scores");
    if (c.mask_kind != MaskKind::causal)
        return refused(c.mask_kind == MaskKind::prefix ? "--objective prefix" : "--objective mlm",
                       "a state holds only earlier positions");
    if (c.window && !c.softmax_every)
        return fail(Exit::usage, "--window %d, %s: windows are for softmax, which no layer has", c.window, all.c_str());
    return {};
}

// In generation, the embedding of the token before is computed again, without its position.
static Status shortcuts_check(const Config& c) {
    if (c.smear && (c.position == Position::learned || c.position == Position::sinusoidal))
        return fail(Exit::usage, "--smear, %s: expected positions that are not added to embeddings, such as rope",
                    flag_text(c, &Config::position).c_str());
    return {};
}

static Status encoder_check(const Config& c) {
    const bool classifies = c.head == HeadKind::texts || c.head == HeadKind::positions;
    if (classifies == c.classes.empty())
        return fail(Exit::usage, "a head %s classes: found %zu of them", classifies ? "of" : "without",
                    c.classes.size());
    if (c.pools_mean() && (c.attention_width() != c.C || c.NKV != c.NH))
        return fail(Exit::usage,
                    "classifier_pooling mean: expected as many key as query heads, whose width is channels");
    if (!c.embed_size) return {};
    if (!c.embed_norm || c.position == Position::sinusoidal || c.smear)
        return fail(Exit::usage, "embedding size %d: expected a norm of the embeddings and no sinusoidal positions",
                    c.embed_size);
    if (c.reads_wte() && c.head_width() != c.embed_size)
        return fail(Exit::usage, "embedding size %d, channels %d: a tied head needs a transform", c.embed_size, c.C);
    return {};
}

Status check_no_encoder(const Config& c, const char* command) {
    if (!c.encoder_layers) return {};
    return fail(Exit::usage, "%s: the model is an encoder-decoder (%s); expected a decoder or an encoder", command,
                c.family->type);
}
Status config_check(const Config& c) {
    TRY(encoder_decoder_check(c));
    if (c.NH > 0 && c.HS == 0)
        return fail(Exit::usage, "channels (%d) are not a multiple of heads (%d), and no head size is given", c.C,
                    c.NH);
    for (const ConfigRow& row : config_rows()) {
        const double value = config_value(c, row);
        // A float field holds a bound such as 0.1 only rounded, so the bounds are rounded, too. The
        // bounds of int fields are exact in float.
        if (!(value >= double(float(row.min)) && value <= double(float(row.max))))
            return fail(Exit::usage, "%s: expected %.15g to %.15g, found %.15g", words(row).c_str(), row.min, row.max,
                        value);
    }
    if (c.NH % c.NKV) return fail(Exit::usage, "heads (%d) are not a multiple of kv heads (%d)", c.NH, c.NKV);
    if (const int most = 1 << 18, width = c.qkv_width(); width > most)
        return fail(Exit::usage, "attention: (%d + 2 x %d) heads of size %d are %d wide, %d at most", c.NH, c.NKV, c.HS,
                    width, most);
    if (c.experts && (c.experts_used < 1 || c.experts_used > c.experts || c.expert_ffn < 1))
        return fail(Exit::usage,
                    "--experts %d: expected --experts-used of 1 to %d and an --expert-ffn of at least 1, "
                    "found %d and %d",
                    c.experts, c.experts, c.experts_used, c.expert_ffn);
    if (c.experts && c.experts_every > c.L)
        return fail(Exit::usage, "--experts-every %d: none of the %d layers would have experts; expected 1 to %d",
                    c.experts_every, c.L, c.L);
    const int max_experts = 1 << 16, with_experts = c.L / c.experts_every;    // bounds the table of tensor names
    if (int64_t(c.experts) * with_experts > max_experts)
        return fail(Exit::usage, "--experts %d: %d layers have them; %d in all at most", c.experts, with_experts,
                    max_experts);
    // Refuses combinations that no family has and gpt.cpp does not compute.
    auto either = [](bool both, const std::string& what) {
        return both ? fail(Exit::usage, "%s: they exclude each other; expected one of them", what.c_str()) : Status{};
    };
    const std::string norm_placement = flag_text(c, &Config::norm_placement),
                      position = flag_text(c, &Config::position);
    const std::string scale = flag_text(c, &Config::embed_scale), scaling = flag_text(c, &Config::rope_scaling);
    TRY(either(c.post_norm() && c.parallel != Parallel::none, norm_placement + ", " + flag_text(c, &Config::parallel)));
    TRY(either(c.post_norm() && c.branch_scale != 1, norm_placement + ", a residual scale"));
    TRY(either(c.embed_scale != 1 && c.position == Position::learned, scale + ", " + position));
    TRY(either(c.embed_scale == 0 && c.position == Position::sinusoidal, scale + ", " + position));
    TRY(either(c.score_cap != 0 && c.bias_distance(), flag_text(c, &Config::score_cap) + ", " + position));
    TRY(either(c.qk_norm != QkNormRope::QkNorm::none && c.position == Position::relative_key,
               flag_text(c, &Config::qk_norm) + ", " + position));
    if (c.rope_scaling != RopeScaling::none && c.position != Position::rope)
        return fail(Exit::usage, "%s needs --position rope, found %s", scaling.c_str(), position.c_str());
    if (c.rope_factor != 1 && c.rope_scaling == RopeScaling::none)
        return fail(Exit::usage, "%s needs --rope-scaling", flag_text(c, &Config::rope_factor).c_str());
    if (int64_t(c.NH) * (2 * int64_t(c.bias_distance()) + 1) > INT32_MAX)
        return fail(Exit::usage,
                    "%s: %d heads x (2 x %d + 1) distances are too many; expected a smaller --max-distance",
                    position.c_str(), c.NH, c.bias_distance());
    TRY(sparse_check(c));
    TRY(globals_check(c));
    if (c.position == Position::alibi && c.mask_kind != MaskKind::causal)
        return fail(Exit::usage,
                    "%s, --objective %s: its slopes are for keys before the query; expected another "
                    "--position, or --objective causal",
                    position.c_str(), c.mask_kind == MaskKind::prefix ? "prefix" : "mlm");
    if (c.window && c.mask_kind == MaskKind::prefix)
        return fail(Exit::usage,
                    "--window %d, --objective prefix: windows are for --objective causal or mlm; expected one of them",
                    c.window);
    TRY(encoder_check(c));
    TRY(linear_check(c));
    TRY(shortcuts_check(c));
    if (c.mask >= c.V)
        return fail(Exit::usage,
                    "mask token %d: the vocabulary ends at %d; --mask-token names another, --vocab makes "
                    "it larger",
                    c.mask, c.V - 1);
    if (c.rope_scaling == RopeScaling::llama3 && c.rope_high <= c.rope_low)
        return fail(Exit::usage, "rope high (%g): expected more than rope low (%g)", c.rope_high, c.rope_low);
    if (c.position == Position::rope && (c.rope_dims < 2 || c.rope_dims % 2 || c.rope_dims > c.HS))
        return fail(Exit::usage, "rope dims: expected an even number from 2 to the head size (%d), found %d", c.HS,
                    c.rope_dims);
    return {};
}

// ---- overrides by flags -------------------------------------------------------------------------

static const char* const AS_MODEL = "model";    // value of a flag that was not given

ConfigOverrides no_overrides() {
    ConfigOverrides none;
    for (const ConfigRow& row : config_rows()) config_set(none, row, 0);
    none.numbers.resize(config_rows().size());
    none.words.assign(config_rows().size(), AS_MODEL);
    return none;
}

// Words that a field's flag accepts: AS_MODEL, then an enumeration's choices, or false and true for
// a bool. A number's flag accepts no words, and the list is AS_MODEL alone.
static std::vector<std::string> flag_words(const ConfigRow& row) {
    std::vector<std::string> words = {AS_MODEL};
    for (auto& names : row.choices) words.push_back(names[0]);
    if (std::holds_alternative<bool Config::*>(row.member)) words.insert(words.end(), {"false", "true"});
    return words;
}

std::vector<Flag> config_flags(ConfigOverrides& overrides) {
    std::vector<Flag> flags;
    for (size_t i = 0; i < config_rows().size(); i++) {
        const ConfigRow& row = config_rows()[i];
        if (!row.flag) continue;
        const std::vector<std::string> needs = flag_rule(row.needs).flags;
        Flag flag = {row.flag, &overrides.numbers[i], (needs.empty() ? "" : "with " + needs[0] + ": ") + row.help,
                     std::min(row.min, 0.0), row.max};
        if (auto field = std::get_if<int Config::*>(&row.member)) flag.to = &(overrides.*(*field));
        else if (flag_words(row).size() > 1) {
            flag.to = &overrides.words[i];
            flag.choices = flag_words(row);
        }
        flags.push_back(flag);
    }
    return flags;
}

// Value that a flag gives to row i's field; empty if the flag was not given.
static std::optional<double> override_value(const ConfigOverrides& overrides, size_t i) {
    const ConfigRow& row = config_rows()[i];
    if (overrides.words[i] != AS_MODEL) {
        const std::vector<std::string> words = flag_words(row);
        return double(std::find(words.begin(), words.end(), overrides.words[i]) - words.begin() - 1);
    }
    const double value = overrides.numbers[i] != 0 ? overrides.numbers[i] : config_value(overrides, row);
    return value != 0 ? std::optional(value) : std::nullopt;
}

// Checks row.needs: each field named there must have the value given there or, if none is given,
// must not be 0 or none.
static Status needs_check(const Config& c, const ConfigRow& row) {
    for (const std::string& flag : flag_rule(row.needs).flags) {
        const size_t space = std::min(flag.find(' '), flag.size());
        for (const ConfigRow& other : config_rows()) {
            if (!other.flag || flag.substr(0, space) != other.flag) continue;
            const std::string found = flag_text(c, other.member);
            if (space < flag.size() ? found == flag : config_value(c, other) != 0) continue;
            return fail(Exit::usage, "%s needs %s%s%s", flag_text(c, row.member).c_str(), row.needs,
                        space < flag.size() ? ", found " : "", space < flag.size() ? found.c_str() : "");
        }
    }
    return {};
}

Status check_overrides(const ConfigOverrides& overrides, const Config& c) {
    using enum RopeScaling;
    const std::vector<ConfigRow>& rows = config_rows();
    for (size_t i = 0; i < rows.size(); i++)
        if (rows[i].member == ConfigRow::Member(&Config::rope_scaling) && overrides.words[i] != AS_MODEL &&
            c.rope_scaling != none && c.rope_scaling != dynamic && c.rope_factor == 1)
            return fail(Exit::usage, "%s needs a --rope-factor above 1", flag_text(c, &Config::rope_scaling).c_str());
    for (size_t i = 0; i < rows.size(); i++) {
        const std::optional<double> value = override_value(overrides, i);
        if (!value || float(config_value(c, rows[i])) != float(*value))
            continue;    // --window of the context or more: none
        TRY(needs_check(c, rows[i]));
        if (rows[i].member == ConfigRow::Member(&Config::position) && c.position == Position::rope &&
            c.linear != LinearAttention::none && c.rope_unused())
            return fail(Exit::usage, "--position rope: no layer rotates with %s in all layers; leave it out",
                        flag_text(c, &Config::linear).c_str());
    }
    if (overrides.F && c.experts && c.experts_every == 1 && (overrides.expert_ffn || c.F != c.expert_ffn))
        return fail(Exit::usage, "--ffn %d has no effect: each layer has experts, of width %d; expected --expert-ffn",
                    overrides.F, c.expert_ffn);
    return config_check(c);
}

// Number of rotated channels if the head size becomes HS: the rotated fraction stays.
static int rotary_dims(const Config& c, int HS) { return c.HS ? int(int64_t(c.rope_dims) * HS / c.HS) : c.rope_dims; }

Config config_with(const Config& base, const ConfigOverrides& overrides) {
    Config c = base;
    const std::vector<ConfigRow>& rows = config_rows();
    auto asks = [&](ConfigRow::Member m) {
        return bool(override_value(overrides, size_t(&config_row(m) - rows.data())));
    };
    for (size_t i = 0; i < rows.size(); i++)
        if (const auto value = override_value(overrides, i)) config_set(c, rows[i], *value);
    Config before = base, now = c;
    before.derive();
    now.derive();
    for (size_t i = 0; i < rows.size(); i++)
        if (!override_value(overrides, i) && config_value(before, rows[i]) != config_value(now, rows[i]))
            config_set(c, rows[i], config_value(now, rows[i]));
    if (overrides.HS && base.rope_dims) c.rope_dims = rotary_dims(base, c.HS);
    if (c.position == Position::rope && !base.rope_dims) c.rope_dims = int(c.HS * c.family->rope.usual);
    if (c.experts_every == 1 && c.expert_ffn && c.expert_ffn != base.expert_ffn) c.F = c.expert_ffn;
    else if (c.F != base.F && !overrides.expert_ffn) c.expert_ffn = 0;    // derive() computes it from F
    // F was the experts' width, because each layer had experts. Now some layers have a dense ffn,
    // so F becomes the family's usual width.
    if (base.experts && base.experts_every == 1 && c.experts_every > 1 && !overrides.F) c.F = now.F;
    c.fill_experts();
    // A single expert's normalised factor is always 1: the router would not learn from the loss.
    if (c.experts_used == 1 && base.experts_used != 1 && !asks(&Config::experts_normalised))
        c.experts_normalised = false;
    // If no layer rotates, the family's RoPE is dropped.
    if (c.rope_unused() && c.linear != LinearAttention::none && !asks(&Config::position))
        c.position = Position::none, c.rope_dims = 0;
    return c;
}

// ---- another context ----------------------------------------------------------------------------

Status extend_context(Config* c, const ContextExtension& to) {
    const bool scaled = to.scaling != AS_MODEL;
    if (!to.context) return {};
    const std::string position = flag_text(*c, &Config::position);
    if (c->position == Position::learned && to.context > c->T)
        return fail(Exit::usage, "--context %d: the model has %s, a table of %d; %d at most", to.context,
                    position.c_str(), c->T, c->T);
    if (scaled && c->position != Position::rope)
        return fail(Exit::usage, "--rope-scaling %s: the model has %s", to.scaling.c_str(), position.c_str());
    if (!c->rope_original) c->rope_original = c->T;
    if (c->position == Position::relative_key) c->max_distance = c->bias_distance();    // the table keeps its size
    ConfigOverrides overrides = no_overrides();
    const std::vector<ConfigRow>& rows = config_rows();
    for (size_t i = 0; i < rows.size(); i++)
        if (rows[i].member == ConfigRow::Member(&Config::rope_scaling)) overrides.words[i] = to.scaling;
    Config now = config_with(*c, overrides);
    if (scaled && now.rope_scaling != RopeScaling::none)
        now.rope_factor = std::max(1.0f, float(to.context) / float(c->rope_original)), now.rope_magnitude = 0;
    if (to.factor != 0) now.rope_factor = float(to.factor);
    if (c->position != Position::learned) now.T = to.context;
    *c = now;
    return config_check(*c);
}
std::vector<Flag> context_extension_flags(ContextExtension& to) {
    return {{"--context", &to.context,
             "most positions of a sequence, also more than the model was trained with, "
             "unless its positions are learned; 0: the model's",
             0, 1 << 20},
            {.name = "--rope-scaling",
             .to = &to.scaling,
             .help = "for models with RoPE: how its frequencies are scaled",
             .choices = flag_words(config_row(&Config::rope_scaling)),
             .needs = {"--context"},
             .level = Level::expert},
            {.name = "--rope-factor",
             .to = &to.factor,
             .help = "the factor; 0: new context / trained context",
             .min = 0,
             .max = 1e6,
             .needs = {"--context"},
             .level = Level::expert}};
}

// ---- listings -----------------------------------------------------------------------------------

std::vector<const ConfigRow*> config_listed(const Config& c, const Config* other) {
    std::vector<const ConfigRow*> rows;
    Config usual = other ? *other : c.family_defaults();
    if (!other && c.position == Position::rope) usual.rope_dims = int(c.HS * c.family->rope.usual);
    for (const ConfigRow& row : config_rows()) {
        const bool differs = config_value(c, row) != config_value(usual, row);
        const bool some = row.presence == ConfigRow::some && config_value(c, row) != 0;
        if (differs || (!other && (some || row.presence <= ConfigRow::usual))) rows.push_back(&row);
    }
    return rows;
}

static std::string field_text(const Config& c, const ConfigRow& row) {
    const double value = config_value(c, row);
    const std::string name = words(row);
    if (row.counted) return counted(int64_t(value), name.substr(0, name.size() - 1).c_str());
    if (std::holds_alternative<bool Config::*>(row.member)) return (value != 0 ? "" : "no ") + name;
    return name + " " + value_text(c, row);
}
std::string config_text(const Config& c, const std::vector<const ConfigRow*>& rows) {
    std::string text;
    for (const ConfigRow* row : rows) text += (text.empty() ? "" : ", ") + field_text(c, *row);
    return text;
}
