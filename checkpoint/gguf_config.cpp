// gguf_config.cpp - converts a GGUF file's metadata to a Config and back.
#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <map>

#include "checkpoint/gguf.h"
#include "checkpoint/tensor_check.h"
#include "model/families/families.h"
#include "model/position_tables.h"

namespace {
// Values of pooling_type and classifier.pooling_type (llama.h).
constexpr int POOLING_MEAN = 1, POOLING_FIRST = 2, POOLING_RANK = 4;
// Keys and assumptions of each architecture, from llama.cpp's src/models/*.cpp.
const std::vector<GgufArchitecture>& architectures() {
    using C = Config;
    using Biases = GgufArchitecture::Biases;
    static const std::vector<GgufArchitecture> all = {
        {.name = "gpt2", .families = {"gpt2"}, .biases = Biases::all, .fused_qkv = true},
        {.name = "llama",
         .families = {"llama", "mistral", "mixtral"},
         .biases = Biases::any,
         .permuted = true,
         .rope_freqs = true,
         .experts = {&C::experts, &C::experts_used},
         .normalises = true},
        {.name = "qwen2", .families = {"qwen2"}},
        {.name = "qwen3", .families = {"qwen3"}},
        {.name = "qwen2moe",
         .families = {"qwen2_moe"},
         .needs_head = true,
         .experts = {&C::experts, &C::experts_used, &C::expert_ffn, &C::shared_ffn}},
        {.name = "qwen3moe",
         .families = {"qwen3_moe"},
         .experts = {&C::experts, &C::experts_used, &C::expert_ffn},
         .normalises = true},
        {.name = "olmoe", .families = {"olmoe"}, .needs_head = true, .experts = {&C::experts, &C::experts_used}},
        {.name = "gemma", .families = {"gemma"}, .may_untie = false},
        {.name = "gemma2",
         .families = {"gemma2"},
         .keys = {{"attn_logit_softcapping", &C::score_cap}, {"final_logit_softcapping", &C::logit_cap}},
         .may_untie = false,
         .window = 4096,
         .global_every = 2,
         .wide_layers = 46},
        {.name = "gemma3",
         .families = {"gemma3_text"},
         .keys = {{"final_logit_softcapping", &C::logit_cap}, {"rope.freq_base_swa", &C::rope_local_theta}},
         .window = 0,
         .global_every = 6,
         .wide_layers = 62},
        {.name = "phi3", .families = {"phi3"}, .fused_qkv = true, .fused_up = true, .window = 0, .window_unused = true},
        {.name = "olmo2",
         .families = {"olmo2", "olmo3"},
         .keys = {{"rope.freq_base_swa", &C::rope_local_theta}},
         .needs_head = true,
         .window = 0,
         .global_every = 4,
         .one_theta = true},
        {.name = "gptneox",
         .families = {"gpt_neox"},
         .keys = {{"use_parallel_residual", &C::parallel, ConfigKey::flag, NAN, int(Parallel::two)}},
         .biases = Biases::all,
         .fused_qkv = true,
         .needs_head = true},
        {.name = "granite",
         .families = {"granite"},
         .keys = {{"attention.scale", &C::score_scale},
                  {"embedding_scale", &C::embed_scale},
                  {"residual_scale", &C::branch_scale},
                  {"logit_scale", &C::logit_scale, ConfigKey::inverse}},
         .biases = Biases::any,
         .permuted = true,
         .rope_freqs = true,
         .finetuned_rope = true},
        {.name = "smollm3", .families = {"smollm3"}, .permuted = true},
        {.name = "t5",
         .families = {"t5", "mt5"},
         .keys = {{"block_count", &C::encoder_layers},
                  {"decoder_block_count", &C::L},
                  {"decoder_start_token_id", &C::decoder_start},
                  {"attention.layer_norm_epsilon", &C::norm_eps},
                  {"logit_scale", &C::logit_scale}},
         .fixed = {{"attention.relative_buckets_count", GgufValue::integer(RELATIVE_BUCKETS)}},
         .names = {{"projw", "attn_o.weight"}},
         .stacks = true},
        {.name = "t5encoder",
         .families = {"t5_encoder", "mt5_encoder"},
         .keys = {{"attention.layer_norm_epsilon", &C::norm_eps}},
         .fixed = {{"attention.relative_buckets_count", GgufValue::integer(RELATIVE_BUCKETS)}},
         .names = {{"projw", "attn_o.weight"}},
         .stacks = true},
        {.name = "modern-bert",
         .families = {"modernbert"},
         .keys = {{"rope.freq_base_swa", &C::rope_local_theta}},
         .fixed = {{"attention.causal", GgufValue::boolean(false)}},
         .biases = Biases::none,
         .fused_qkv = true,
         .fused_up = true,
         .window = 0,
         .two_sided = true,
         .global_every = 3,
         .body = true,
         .mean_pooled = true,
         .names_act = true},
        {.name = "bert",
         .families = {"bert", "distilbert", "roberta", "xlm-roberta", "camembert"},
         .fixed = {{"attention.causal", GgufValue::boolean(false)}},
         .biases = Biases::any,
         .body = true,
         .names = {{"post1w", "attn_output_norm.weight"},
                   {"post1b", "attn_output_norm.bias"},
                   {"post2w", "layer_output_norm.weight"},
                   {"post2b", "layer_output_norm.bias"}}},
    };
    return all;
}
const Family* find_family(const char* type) {
    for (const Family* f : families())
        if (!strcmp(f->type, type)) return f;
    return nullptr;
}
// Returns the architecture's first family whose use of a window, of experts and of segments is as
// given; if there is none, its first family.
const Family* family_of(const GgufArchitecture& a, bool window, bool experts, bool segments) {
    for (const char* type : a.families)
        if (const Family* f = find_family(type);
            bool(f->kinds.window) == window && bool(f->kinds.experts) == experts && bool(f->kinds.segments) == segments)
            return f;
    return find_family(a.families[0]);
}
typedef ConfigRow::Member Member;
bool reads(const GgufArchitecture& a, const Member& m) { return std::count(a.experts.begin(), a.experts.end(), m); }
// True if every architecture has a key for this field.
bool for_all(const ConfigRow& row) {
    return row.gguf && row.member != Member(&Config::window) && !std::string_view(row.gguf).starts_with("expert_");
}
// A field's GGUF key in this model; LayerNorm and RMSNorm have different keys for epsilon.
std::string key_of(const ConfigRow& row, const Config& c) {
    const bool rms = row.member == Member(&Config::norm_eps) && c.norm == NormKind::rms;
    return rms ? "attention.layer_norm_rms_epsilon" : row.gguf;
}

// Reads keys of the architecture; if an optional key is missing, the field stays unchanged.
struct Reader {
    const GgufMetadata& m;
    std::string prefix;
    mutable std::set<std::string> read = {};    // keys looked up so far
    bool has(const char* key) const { return read.insert(prefix + key), m.has(prefix + key); }
    Status take(const char* key, int* out, int least = 1) const {
        return has(key) ? m.get(prefix + key, out, least, INT_MAX) : Status{};
    }
    Status take(const char* key, float* out, double least = 0) const {
        double wide = *out;
        if (has(key)) TRY(m.get(prefix + key, &wide, least, 1e12));
        *out = float(wide);
        return {};
    }
    Status field(const ConfigKey& k, Config* c, bool needed = false) const {
        const ConfigRow& row = config_row(k.field);
        const bool inverse = k.form == ConfigKey::inverse;
        double value = 0;
        if (!has(k.key) && !needed) return {};
        if (k.form == ConfigKey::flag) {
            bool yes = false;
            TRY(m.get(prefix + k.key, &yes));
            value = yes ? k.on : 0;
        } else if (std::holds_alternative<int Config::*>(row.member)) {
            int whole = 0;
            TRY(m.get(prefix + k.key, &whole, int(row.min), int(row.max)));
            value = whole;
        } else {
            TRY(m.get(prefix + k.key, &value, inverse ? 1e-6 : double(float(row.min)),
                      inverse ? 1e9 : double(float(row.max))));    // the file has floats
        }
        config_set(*c, row, inverse ? 1 / value : value);
        return {};
    }
};

// Recovers llama3's fields from rope_freqs.weight, which has a divisor of each pair's frequency.
// The divisor is the factor for a pair with less than `low` rotations over the original context,
// and 1 for a pair with more than `high`; between them, 1 / divisor is linear in the rotations.
// Llama 3's models have low = 1, high = 4.
Status read_divisors(const std::string& name, const std::vector<float>& given, Config* c) {
    const int pairs = c->rope_dims / 2;
    const float factor = *std::max_element(given.begin(), given.end());
    if (int(given.size()) != pairs || !(factor >= 1 && factor < 1e6))
        return fail(Exit::input, "%s: rope_freqs.weight: expected %d numbers from 1 on, found %zu up to %g",
                    name.c_str(), pairs, given.size(), double(factor));
    c->rope_scaling = RopeScaling::llama3;
    c->rope_factor = factor, c->rope_low = 1, c->rope_high = 4, c->rope_original = 8192;
    for (int i = 0; i < pairs; i++) {
        const double part = (1.0 / given[size_t(i)] - 1.0 / factor) / (1 - 1.0 / factor);
        if (!(part > 0.01 && part < 0.99)) continue;
        const double frequency = std::pow(double(c->rope_theta), -2.0 * i / c->rope_dims);
        c->rope_original = int(std::lround((1 + 3 * part) * 2 * M_PI / frequency));
        break;
    }
    const std::vector<float> ours = gguf_rope_divisors(*c);
    for (size_t i = 0; i < ours.size(); i++)
        if (!(std::fabs(ours[i] - given[i]) <= 1e-3f * given[i]))
            return fail(Exit::input,
                        "%s: rope_freqs.weight: expected Llama 3's divisors, found %g for pair %zu, where "
                        "they have %g",
                        name.c_str(), double(given[i]), i, double(ours[i]));
    return {};
}

Status read_rope(const Reader& r, const GgufArchitecture& a, const std::vector<float>& divisors, Config* c) {
    c->rope_dims = c->HS;
    TRY(r.take("rope.dimension_count", &c->rope_dims));
    if (a.permuted && c->rope_dims != c->HS)    // permutation needs whole heads
        return fail(Exit::input, "%s: %srope.dimension_count: expected the head size %d, found %d", r.m.name.c_str(),
                    r.prefix.c_str(), c->HS, c->rope_dims);
    TRY(r.take("rope.freq_base", &c->rope_theta, 1));
    std::string type = "linear";
    if (r.has("rope.scaling.type")) TRY(r.m.get(r.prefix + "rope.scaling.type", &type));
    float factor = 0;
    TRY(r.take("rope.scale_linear", &factor));
    TRY(r.take("rope.scaling.factor", &factor));
    if (type == "linear" && factor > 0 && factor != 1) c->rope_scaling = RopeScaling::linear, c->rope_factor = factor;
    if (type == "yarn") {
        c->rope_scaling = RopeScaling::yarn, c->rope_factor = factor > 0 ? factor : 1;
        c->rope_low = 1, c->rope_high = 32;
        TRY(r.take("rope.scaling.yarn_beta_slow", &c->rope_low));
        TRY(r.take("rope.scaling.yarn_beta_fast", &c->rope_high));
        TRY(r.take("rope.scaling.original_context_length", &c->rope_original));
        float attention = 1;
        TRY(r.take("rope.scaling.attn_factor", &attention));
        if (attention != 1) c->rope_magnitude = attention * (1 + 0.1f * std::log(c->rope_factor));
    } else if (type != "linear" && type != "none") {
        return fail(Exit::input, "%s: %srope.scaling.type: expected none, linear or yarn, found \"%s\"",
                    r.m.name.c_str(), r.prefix.c_str(), type.c_str());
    }
    return divisors.empty() ? Status{} : read_divisors(r.m.name, divisors, c);
}

Status read_attention(const Reader& r, const GgufArchitecture& a, Config* c) {
    int value = c->HS;
    TRY(r.take("attention.value_length", &value));
    if (value != c->HS)
        return fail(Exit::input, "%s: %sattention.value_length: expected %d as of keys, found %d", r.m.name.c_str(),
                    r.prefix.c_str(), c->HS, value);
    c->score_scale = c->L == a.wide_layers ? 1 / std::sqrt(float(c->C / c->NH)) : a.stacks ? 1 : 0;
    if (a.window < 0) return {};
    c->window = a.window, c->global_every = a.global_every;
    TRY(r.take("attention.sliding_window", &c->window, 0));
    const std::string pattern = r.prefix + "attention.sliding_window_pattern";
    if (r.has("attention.sliding_window_pattern") && r.m.find(pattern)->array) {
        std::vector<int64_t> local;
        TRY(r.m.get(pattern, &local));
        // The last of every n layers has no window, in encoders the first.
        const auto from = local.begin() + (c->global_first && !local.empty());
        const auto first = std::find(from, local.end(), 0);
        c->global_every = first == local.end() && !c->global_first ? 0 : int(first - from) + 1;
        bool as_found = int64_t(local.size()) == c->L;
        for (int l = 0; as_found && l < c->L; l++) as_found = !c->window || bool(local[size_t(l)]) == c->windowed(l);
        if (!as_found)
            return fail(Exit::input, "%s: %s: expected every n-th of %d layers without a window", r.m.name.c_str(),
                        pattern.c_str(), c->L);
    } else {
        TRY(r.take("attention.sliding_window_pattern", &c->global_every, 0));
    }
    if (c->global_every == 1) c->window = 0;
    return {};
}

// The file may lack the keys of the widths. An expert's width is then the ffn's divided by the
// experts per token, and the shared expert's width is the ffn's. An architecture that has no such
// keys has experts of the ffn's width, and no shared expert.
Status read_experts(const Reader& r, const GgufArchitecture& a, Config* c) {
    c->experts = 0;
    if (reads(a, &Config::experts)) TRY(r.field({config_row(&Config::experts).gguf, &Config::experts}, c));
    if (!c->experts) return c->shared_ffn = c->experts_used = 0, Status{};
    TRY(r.field({config_row(&Config::experts_used).gguf, &Config::experts_used}, c, true));
    c->expert_ffn = reads(a, &Config::expert_ffn) ? c->F / std::max(1, c->experts_used) : c->F;
    c->shared_ffn = reads(a, &Config::shared_ffn) ? c->F : 0;
    for (const Member& width : {Member(&Config::expert_ffn), Member(&Config::shared_ffn)})
        if (reads(a, width)) TRY(r.field({config_row(width).gguf, width}, c));
    c->experts_normalised = a.normalises;
    return {};
}

// Chooses the family, and reads the fields whose keys all architectures have: first the sizes, from
// which the family's defaults are computed, then the others.
Status read_sizes(const Reader& r, const GgufArchitecture& a, int V, int segments, Config* c) {
    int window = a.window, experts = 0;
    TRY(r.take("attention.sliding_window", &window, 0));
    if (reads(a, &Config::experts)) TRY(r.take(config_row(&Config::experts).gguf, &experts, 0));
    c->family = family_of(a, a.window >= 0 && window > 0, experts > 0, segments > 0);
    c->V = V;
    for (const bool sizes : {true, false}) {
        for (const ConfigRow& row : config_rows())
            if (for_all(row) && row.member != Member(&Config::V) && (row.presence == ConfigRow::required) == sizes)
                TRY(r.field({key_of(row, *c).c_str(), row.member}, c, row.presence <= ConfigRow::usual));
        if (!sizes) break;
        *c = c->family_defaults();
        c->NKV = c->NH, c->HS = c->C % c->NH ? 0 : c->C / c->NH;
    }
    c->segments = segments;
    if (a.body) *c = gguf_model(*c);
    return {};
}

// Reads the head of a classifier of texts. transformed: a product, an activation and, in
// ModernBERT, a norm come before the classes.
Status read_classifier(const Reader& r, const GgufArchitecture& a, bool transformed, Config* c) {
    const std::vector<Family::Head>& heads = find_family(a.families[0])->heads;
    const auto row = std::find_if(heads.begin(), heads.end(), [](auto& h) { return h.kind == HeadKind::texts; });
    c->head = HeadKind::texts;
    c->transform = transformed ? row->transform : HeadTransform::none;
    c->transform_act = row->act.value_or(Act::gelu);
    int pooling = a.mean_pooled ? POOLING_MEAN : POOLING_FIRST;
    TRY(r.take("classifier.pooling_type", &pooling, 0));
    if (pooling != POOLING_MEAN && pooling != POOLING_FIRST)
        return fail(Exit::input, "%s: %sclassifier.pooling_type: expected %d (mean) or %d (first state), found %d",
                    r.m.name.c_str(), r.prefix.c_str(), POOLING_MEAN, POOLING_FIRST, pooling);
    c->mean_pooled = pooling == POOLING_MEAN;
    c->classes = {"LABEL_0"};
    const char* key = "classifier.output_labels";
    if (r.has(key)) TRY(r.m.get(r.prefix + key, &c->classes));
    if (!c->classes.empty() && c->classes.size() <= Config::MOST_CLASSES) return {};
    return fail(Exit::input, "%s: %s%s: expected 1 to %d names, found %zu", r.m.name.c_str(), r.prefix.c_str(), key,
                Config::MOST_CLASSES, c->classes.size());
}
// Reads the ffn's activation by its name.
Status read_activation(const Reader& r, Config* c) {
    const char* key = "hidden_activation";
    std::string found;
    if (!r.has(key)) return {};
    TRY(r.m.get(r.prefix + key, &found));
    for (const Act act : {Act::gelu, Act::gelu_tanh, Act::silu})
        for (const std::string& name : config_row(&Config::activation).choices[size_t(act)])
            if (name == found) return c->activation = act, Status{};
    return fail(Exit::input, "%s: %s%s: expected gelu or silu, found \"%s\"", r.m.name.c_str(), r.prefix.c_str(), key,
                found.c_str());
}

// Reads the fields that metadata gives. It leaves out biases and a separate LM head, which follow
// from the tensors in the file. divisors: rope_freqs.weight, or empty.
Status read_fields(const Reader& r, const GgufArchitecture& a, const std::vector<float>& divisors, Config* c) {
    TRY(read_attention(r, a, c));
    if (a.names_act) TRY(read_activation(r, c));
    TRY(read_experts(r, a, c));
    if (c->position == Position::rope) TRY(read_rope(r, a, divisors, c));
    if (a.one_theta) c->rope_local_theta = c->window ? c->rope_theta : 0;             // no scaling in windowed layers
    if (c->encoder_layers && c->tied) c->logit_scale = 1 / std::sqrt(float(c->C));    // as transformers
    for (const ConfigKey& k : a.keys) TRY(r.field(k, c));
    if (a.two_sided && c->window) c->window = c->window / 2 + 1;
    if (!c->window)    // unused fields get the family's values
        c->global_every = c->family->kinds.global_every, c->rope_local_theta = c->family->kinds.rope_local_theta;
    return {};
}

Status match(const GgufFile& f, const Config& c, const GgufArchitecture& a) {
    std::vector<ExpectedTensor> wanted;
    std::map<std::string, std::vector<int64_t>> held;
    const std::string block = a.stack(c, false) + "blk.0.";
    const bool qkv = f.find(block + "attn_qkv.weight"), up = c.gated && !f.find(block + "ffn_gate.weight");
    for (const Tensor& t : config_tensors(c))
        for (const GgufPiece& p : gguf_pieces(t, c, a, qkv, up)) {
            const GgufTensor* found = f.find(p.name);
            if (found && t.vector && found->format->numbers > 1)
                return fail(Exit::input, "tensor %s: expected a vector as F32, F16 or BF16, found %s", p.name.c_str(),
                            found->format->name);
            wanted.push_back({p.name, p.name, gguf_shape(t, p)});
        }
    // Files of T5's first checkpoints have a table for cross-attention, which llama.cpp ignores.
    // An encoder may be read from a file that has its decoder, too.
    const bool alone = a.stacks && !c.encoder_layers;
    for (const GgufTensor& t : f.tensors())
        if (t.name != "rope_freqs.weight" && !t.name.ends_with(".cross_attn_rel_b.weight") &&
            !(alone && (t.name.starts_with("dec.") || t.name == "output.weight")))
            held[t.name] = t.shape;
    for (auto& [name, shape] : held)    // (1,C) in our layout, a vector in ggml's
        if (shape.size() == 1 && name.ends_with(".ffn_gate_inp_shexp.weight")) shape.insert(shape.begin(), 1);
    return check_tensors(f.metadata().name, wanted, held);
}

void put(GgufKeys* m, const std::string& key, const GgufValue& v) {
    std::erase_if(*m, [&](auto& row) { return row.first == key; });
    m->push_back({key, v});
}
}    // namespace

const GgufArchitecture* find_gguf_architecture(const std::string& name) {
    for (const GgufArchitecture& a : architectures())
        if (name == a.name && find_family(a.families[0])) return &a;
    return nullptr;
}

Config gguf_model(Config c) {
    if (c.family->heads.empty()) return c;
    c.head_bias = c.family->kinds.head_bias;
    if (c.head == HeadKind::texts || c.head == HeadKind::positions) return c;
    c = c.body();
    c.transform_act = c.activation;
    c.transform_bias = c.family->kinds.transform_bias;
    c.mean_pooled = false;
    return c;
}

std::vector<float> gguf_rope_divisors(const Config& c) {
    std::vector<float> divisors;
    for (int i = 0; i < c.rope_dims / 2; i++) {
        const double part = rope_ramp(c, i, std::pow(double(c.rope_theta), -2.0 * i / c.rope_dims));
        divisors.push_back(float(1 / ((1 - part) / c.rope_factor + part)));
    }
    return divisors;
}

Result<Config> gguf_config(const GgufFile& f, std::vector<std::string>* unknown) {
    const GgufMetadata& m = f.metadata();
    std::string name, known, type = "model";
    if (m.has("general.type")) TRY(m.get("general.type", &type));
    if (type != "model")
        return fail(Exit::input, "%s: general.type: expected model, found \"%s\"%s", m.name.c_str(), type.c_str(),
                    type != "adapter" ? ""
                                      : ": LoRA matrices without their base model; llama-export-lora makes one "
                                        "file of both");
    TRY(m.get("general.architecture", &name));
    const GgufArchitecture* a = find_gguf_architecture(name);
    for (const GgufArchitecture& each : architectures()) known += (known.empty() ? "" : ", ") + std::string(each.name);
    if (const char* lacks = a ? nullptr : missing_for(name))
        return fail(Exit::input, "%s: general.architecture \"%s\": flatgpt lacks %s", m.name.c_str(), name.c_str(),
                    lacks);
    if (!a)
        return fail(Exit::input, "%s: general.architecture: expected %s, found \"%s\"", m.name.c_str(), known.c_str(),
                    name.c_str());
    int64_t files = 1;
    if (m.has("split.count")) TRY(m.get("split.count", &files, 0, 65535));
    if (files > 1)
        return fail(Exit::input, "%s: one of %lld files; llama-gguf-split --merge makes them one", m.name.c_str(),
                    (long long)files);
    for (const char* factors : {"rope_factors_long.weight", "rope_factors_short.weight"})
        if (f.find(factors))
            return fail(Exit::input, "%s: tensor \"%s\": flatgpt has no LongRoPE", m.name.c_str(), factors);
    const GgufTensor* embeddings = f.find("token_embd.weight");
    if (!embeddings || embeddings->shape.size() != 2 || embeddings->shape[0] > 1 << 24)
        return fail(Exit::input, "%s: tensor \"token_embd.weight\" (vocabulary, channels): not found", m.name.c_str());
    if (f.find("blk.0.ffn_gate.0.weight") || f.find("blk.0.ffn_down.0.weight"))
        return fail(Exit::input,
                    "%s: tensor \"blk.0.ffn_down.0.weight\": each expert has tensors of its own, as "
                    "converters of old wrote them, and llama.cpp no longer reads them; expected one of all experts, "
                    "\"blk.0.ffn_down_exps.weight\"",
                    m.name.c_str());
    std::vector<float> divisors;
    if (const GgufTensor* t = f.find("rope_freqs.weight")) {
        if (t->format->type != BlockType::f32 || t->numbers() < 1 || t->numbers() > 1 << 16)
            return fail(Exit::input, "%s: rope_freqs.weight: expected F32", m.name.c_str());
        divisors.resize(size_t(t->numbers()));
        TRY(f.read_bytes(t->at, divisors.data(), t->bytes));
    }
    const Reader r{m, name + "."};
    Config c;
    const GgufTensor* segments = f.find("token_types.weight");
    const bool table = a->body && segments && segments->shape.size() == 2 && segments->shape[0] <= 1024;
    TRY(read_sizes(r, *a, int(embeddings->shape[0]), table ? int(segments->shape[0]) : 0, &c));
    const std::string block = a->stack(c, false) + "blk.0.";
    c.tied = !f.find("output.weight");
    TRY(read_fields(r, *a, divisors, &c));
    if (!a->body) c.head_bias = f.find("output.bias");
    if (a->body && f.find("cls.output.weight")) {
        TRY(read_classifier(r, *a, f.find("cls.weight"), &c));
        if (a->biases == GgufArchitecture::Biases::any && f.find("cls.weight")) c.transform_bias = f.find("cls.bias");
    }
    c.qkv_bias = f.find(block + "attn_q.bias") || f.find(block + "attn_qkv.bias");
    c.proj_bias = f.find(block + "attn_output.bias");
    c.up_bias = f.find(block + "ffn_up.bias");
    c.down_bias = f.find(block + "ffn_down.bias");
    if (a->stacks && f.find(block + "ffn_gate.weight")) c.gated = true, c.activation = a->gated;
    if (Status s = config_check(c); !s.ok()) return fail(Exit::input, "%s: %s", m.name.c_str(), s.message.c_str());
    TRY(match(f, c, *a));
    const std::vector<std::string> unread = TRY(gguf_unread_keys(m, r.read, c, *a));
    if (unknown) *unknown = unread;
    return c;
}

GgufKeys gguf_metadata(const Config& c, const GgufArchitecture& a) {
    GgufKeys m;
    const std::string prefix = std::string(a.name) + ".";
    auto integer = [&](const char* key, int v) { put(&m, prefix + key, GgufValue::integer(v)); };
    auto number = [&](const char* key, float v) { put(&m, prefix + key, GgufValue::number(v)); };
    for (const ConfigRow& row : config_rows()) {
        const double value = config_value(c, row);
        if (!for_all(row)) continue;
        if (std::holds_alternative<int Config::*>(row.member)) integer(row.gguf, int(value));
        else number(key_of(row, c).c_str(), float(value));
    }
    for (const Member& member : a.experts)
        if (c.experts) integer(config_row(member).gguf, int(config_value(c, config_row(member))));
    integer("attention.value_length", c.HS);
    if (c.position == Position::rope) {
        integer("rope.dimension_count", c.rope_dims);
        number("rope.freq_base", c.rope_scaling == RopeScaling::ntk ? float(rope_base(c)) : c.rope_theta);
    }
    if (c.rope_scaling == RopeScaling::linear || c.rope_scaling == RopeScaling::yarn) {
        const bool yarn = c.rope_scaling == RopeScaling::yarn;
        put(&m, prefix + "rope.scaling.type", GgufValue::text(yarn ? "yarn" : "linear"));
        number("rope.scaling.factor", c.rope_factor);
        if (yarn) {
            integer("rope.scaling.original_context_length", c.rope_original ? c.rope_original : c.T);
            number("rope.scaling.yarn_beta_slow", c.rope_low), number("rope.scaling.yarn_beta_fast", c.rope_high);
            if (c.rope_magnitude > 0)
                number("rope.scaling.attn_factor", c.rope_magnitude / (1 + 0.1f * std::log(c.rope_factor)));
        }
    }
    if (a.window >= 0 && c.window) {
        integer("attention.sliding_window", a.two_sided ? 2 * (c.window - 1) : c.window);
        if (c.global_every != a.global_every) integer("attention.sliding_window_pattern", c.global_every);
    }
    for (const ConfigKey& k : a.keys) {
        const double value = config_value(c, config_row(k.field));
        if (k.form == ConfigKey::flag) put(&m, prefix + k.key, GgufValue::boolean(value == k.on));
        else if (std::holds_alternative<int Config::*>(k.field)) integer(k.key, int(value));
        else if (value != 0)
            number(k.key, float(k.form == ConfigKey::inverse ? 1 / value : value));    // 0: key left out
    }
    for (const auto& [key, value] : a.fixed) put(&m, prefix + key, value);
    if (a.names_act)
        put(&m, prefix + "hidden_activation",
            GgufValue::text(config_row(&Config::activation).choices[size_t(c.activation)][0]));
    if (a.body && c.head == HeadKind::texts) {
        integer("pooling_type", POOLING_RANK);
        integer("classifier.pooling_type", c.mean_pooled ? POOLING_MEAN : POOLING_FIRST);
        put(&m, prefix + "classifier.output_labels", GgufValue::text_array(c.classes));
    }
    if (a.body) put(&m, "tokenizer.ggml.token_type_count", GgufValue::integer(std::max(1, c.segments)));
    return m;
}

// Sets fields without an effect to fixed values, so that equal models compare equal.
static Config simplest(Config c) {
    if (c.window >= c.T) c.window = 0;
    if (!c.window) c.global_every = 0, c.global_last = false, c.rope_local_theta = 0;
    if (std::fabs(c.score_scale * std::sqrt(float(c.HS)) - 1) < 1e-5f) c.score_scale = 0;
    if (c.position != Position::rope) c.rope_theta = 1e4f, c.rope_dims = 0, c.rope_scaling = RopeScaling::none;
    if (c.rope_scaling == RopeScaling::ntk) c.rope_theta = float(rope_base(c)), c.rope_scaling = RopeScaling::none;
    if (c.rope_factor == 1) c.rope_scaling = RopeScaling::none;
    if (c.rope_scaling == RopeScaling::none) c.rope_factor = 1;
    const bool linear = c.rope_scaling == RopeScaling::none || c.rope_scaling == RopeScaling::linear;
    if (linear) c.rope_low = 1, c.rope_high = 4, c.rope_original = 0, c.rope_magnitude = 0;
    else if (!c.rope_original) c.rope_original = c.T;
    const float magnitude = 1 + 0.1f * std::log(c.rope_factor);
    if (std::fabs(c.rope_magnitude / magnitude - 1) < 1e-5f) c.rope_magnitude = 0;
    return c;
}

Result<const GgufArchitecture*> gguf_architecture_for(const Config& c) {
    using Biases = GgufArchitecture::Biases;
    std::string known;
    for (const GgufArchitecture& a : architectures()) {
        for (const char* family : a.families) known += (known.empty() ? "" : ", ") + std::string(family);
        auto named = [&](const char* f) { return !strcmp(f, c.family->type); };
        if (std::none_of(a.families.begin(), a.families.end(), named)) continue;
        // Reads the model as llama.cpp would, from the metadata that this architecture gets.
        GgufMetadata m;
        for (auto& [key, value] : gguf_metadata(c, a)) m.values.emplace(key, value);
        const bool divisors = c.rope_scaling == RopeScaling::llama3 && a.rope_freqs;
        const Reader r{m, std::string(a.name) + "."};
        Config read;
        TRY(read_sizes(r, a, c.V, c.segments, &read));
        if (a.body) read.position_offset = c.position_offset, read.mask = c.mask;
        if (a.body && c.head == HeadKind::texts) TRY(read_classifier(r, a, c.transform != HeadTransform::none, &read));
        if (a.may_untie) read.tied = c.tied;
        if (Status s = read_fields(r, a, divisors ? gguf_rope_divisors(c) : std::vector<float>{}, &read); !s.ok())
            return fail(Exit::usage, "GGUF's architecture %s cannot say this model%s", a.name, s.message.c_str());
        read.family = c.family;
        if (a.biases == Biases::qkv || a.biases == Biases::any) read.qkv_bias = c.qkv_bias;
        if (a.biases == Biases::any)
            read.proj_bias = c.proj_bias, read.up_bias = c.up_bias, read.down_bias = c.down_bias,
            read.transform_bias = c.transform_bias;
        if (a.stacks && c.gated) read.gated = true, read.activation = a.gated;
        const Config ours = simplest(c), theirs = simplest(read);
        std::vector<const ConfigRow*> differ;
        for (const ConfigRow& row : config_rows()) {
            const double x = config_value(ours, row), y = config_value(theirs, row);
            if (std::fabs(x - y) > 1e-5 * std::fabs(x) + 1e-12) differ.push_back(&row);
        }
        if (differ.empty()) return &a;
        return fail(Exit::usage, "llama.cpp would run another model: its architecture %s has %s, this model has %s",
                    a.name, config_text(theirs, differ).c_str(), config_text(ours, differ).c_str());
    }
    return fail(Exit::usage, "flatgpt writes GGUF files of these families: %s; this model's is %s", known.c_str(),
                c.family->type);
}
