// gguf_config.cpp - a GGUF file's metadata as a Config, and back.
#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <set>

#include "checkpoint/gguf.h"
#include "model/families.h"

namespace {
// llama.cpp's src/models/*.cpp: what each architecture reads, and what it takes for granted.
const std::vector<GgufArchitecture>& architectures() {
    static const std::vector<GgufArchitecture> all = {
        {.name = "gpt2", .families = {"gpt2"}, .fused_qkv = true},
        {.name = "llama", .families = {"llama", "mistral"}, .permuted = true},
        {.name = "qwen2", .families = {"qwen2"}},
        {.name = "qwen3", .families = {"qwen3"}},
        {.name = "gemma", .families = {"gemma"}},
        {.name = "gemma2", .families = {"gemma2"}, .global_every = 2},
        {.name = "gemma3", .families = {"gemma3_text"}, .global_every = 6},
        {.name = "phi3", .families = {"phi3"}, .fused_qkv = true, .fused_up = true},
        {.name = "olmo2", .families = {"olmo2", "olmo3"}, .needs_head = true, .global_every = 4},
        {.name = "gptneox", .families = {"gpt_neox"}, .fused_qkv = true, .needs_head = true},
        {.name = "granite", .families = {"granite"}, .permuted = true},
        {.name = "smollm3", .families = {"smollm3"}, .permuted = true},
    };
    return all;
}
const Family* find_family(const char* type) {
    for (const Family* f : families())
        if (!strcmp(f->type, type)) return f;
    return nullptr;
}
bool is(const GgufArchitecture& a, const char* name) { return !strcmp(a.name, name); }
bool has_window(const GgufArchitecture& a) { return a.global_every > 0; }

// Keys with the architecture in front; fields that may be missing keep their value.
struct Reader {
    const GgufMetadata& m;
    std::string prefix;
    bool has(const char* key) const { return m.has(prefix + key); }
    Status need(const char* key, int* out, int most) const { return m.get(prefix + key, out, 1, most); }
    Status take(const char* key, int* out, int least = 1) const {
        return has(key) ? m.get(prefix + key, out, least, INT_MAX) : Status{};
    }
    Status take(const char* key, float* out, double least = 0) const {
        double wide = *out;
        if (has(key)) TRY(m.get(prefix + key, &wide, least, 1e12));
        *out = float(wide);
        return {};
    }
};

// The divisors are max at pairs that turn less than `low` times over the old context, 1 at those that turn more than
// `high` times, and between them 1 / f is linear in the turns. low = 1 and high = 4 in all of Llama 3's models.
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
            return fail(Exit::input, "%s: rope_freqs.weight: expected Llama 3's divisors, found %g for pair %zu, where "
                        "they have %g", name.c_str(), double(given[i]), i, double(ours[i]));
    return {};
}

Status read_rope(const Reader& r, const GgufArchitecture& a, const std::vector<float>& divisors, Config* c) {
    c->rope_dims = c->HS;
    TRY(r.take("rope.dimension_count", &c->rope_dims));
    if (a.permuted && c->rope_dims != c->HS)    // rows change places within whole heads
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
    TRY(r.take("attention.head_count_kv", &c->NKV));
    TRY(r.take("attention.key_length", &c->HS));
    int value = c->HS;
    TRY(r.take("attention.value_length", &value));
    if (value != c->HS)
        return fail(Exit::input, "%s: %sattention.value_length: expected %d as of keys, found %d", r.m.name.c_str(),
                    r.prefix.c_str(), c->HS, value);
    c->score_scale = 0;
    // The 27B models divide by the square root of channels / heads.
    if ((is(a, "gemma2") && c->L == 46) || (is(a, "gemma3") && c->L == 62))
        c->score_scale = 1 / std::sqrt(float(c->C / c->NH));
    if (is(a, "granite")) TRY(r.take("attention.scale", &c->score_scale));
    if (is(a, "gemma2")) TRY(r.take("attn_logit_softcapping", &c->score_cap));
    if (!has_window(a) && !is(a, "phi3")) return {};    // llama.cpp passes over phi3's window; transformers has it
    if (!is(a, "gemma2")) c->window = 0;
    TRY(r.take("attention.sliding_window", &c->window, 0));
    c->global_every = a.global_every;
    const std::string pattern = r.prefix + "attention.sliding_window_pattern";
    if (const GgufValue* v = r.m.find(pattern); v && v->array) {
        std::vector<int64_t> local;
        TRY(r.m.get(pattern, &local));
        const auto first = std::find(local.begin(), local.end(), 0);
        c->global_every = first == local.end() ? 0 : int(first - local.begin()) + 1;
        bool as_found = int64_t(local.size()) == c->L;
        for (int l = 0; as_found && l < c->L; l++)
            as_found = bool(local[size_t(l)]) != (c->global_every && (l + 1) % c->global_every == 0);
        if (!as_found)
            return fail(Exit::input, "%s: %s: expected every n-th of %d layers without a window", r.m.name.c_str(),
                        pattern.c_str(), c->L);
    } else {
        TRY(r.take("attention.sliding_window_pattern", &c->global_every, 0));
    }
    if (c->global_every == 1) c->window = 0;
    return {};
}

// The sizes but for the vocabulary, and the family's kinds.
Status read_sizes(const Reader& r, const GgufArchitecture& a, int V, Config* c) {
    c->family = find_family(a.families[0]);
    c->V = V;
    TRY(r.need("context_length", &c->T, INT_MAX));
    TRY(r.need("embedding_length", &c->C, 1 << 16));
    TRY(r.need("block_count", &c->L, 1024));
    TRY(r.need("attention.head_count", &c->NH, 1024));
    *c = c->plain();
    c->NKV = c->NH, c->HS = c->C % c->NH ? 0 : c->C / c->NH;
    return r.need("feed_forward_length", &c->F, 1 << 18);
}

// The keys alone, without a look at the tensors, which say whether there are biases and a head. divisors: of
// rope_freqs.weight, empty where there is none.
Status read_fields(const Reader& r, const GgufArchitecture& a, const std::vector<float>& divisors, Config* c) {
    TRY(read_attention(r, a, c));
    TRY(r.take(c->norm == NormKind::rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon",
               &c->norm_eps));
    if (c->position == Position::rope) TRY(read_rope(r, a, divisors, c));
    if (is(a, "olmo2")) c->rope_local_theta = c->window ? c->rope_theta : 0;    // windows' layers are not scaled
    if (is(a, "olmo2") || is(a, "gemma3")) TRY(r.take("rope.freq_base_swa", &c->rope_local_theta));
    if (is(a, "gemma2") || is(a, "gemma3")) TRY(r.take("final_logit_softcapping", &c->logit_cap));
    if (is(a, "gptneox")) {
        bool parallel = true;
        TRY(r.m.get(r.prefix + "use_parallel_residual", &parallel));
        c->parallel = parallel ? Parallel::two : Parallel::none;
    }
    if (is(a, "granite")) {
        float divisor = 1;
        TRY(r.take("logit_scale", &divisor, 1e-6));
        c->logit_scale = 1 / divisor;
        TRY(r.take("residual_scale", &c->branch_scale));
        TRY(r.take("embedding_scale", &c->embed_scale));
    }
    return {};
}

// Every tensor of the model is there in its shape, and nothing else: before anybody allocates what the keys promise.
Status match_tensors(const GgufFile& f, const Config& c, const GgufArchitecture& a) {
    const char* name = f.metadata().name.c_str();
    std::set<std::string> known = {"rope_freqs.weight"};
    auto shape_text = [](const std::vector<int64_t>& shape) {
        std::string text;
        for (int64_t d : shape) text += (text.empty() ? "" : ", ") + std::to_string(d);
        return "(" + text + ")";
    };
    const bool qkv = f.find("blk.0.attn_qkv.weight"), up = c.gated && !f.find("blk.0.ffn_gate.weight");
    for (const Tensor& t : config_tensors(c))
        for (const GgufPiece& p : gguf_pieces(t, c, a, qkv, up)) {
            const GgufTensor* found = f.find(p.name);
            const std::vector<int64_t> shape = gguf_shape(t, p);
            if (!found)
                return fail(Exit::input, "%s: tensor \"%s\" %s: not found", name, p.name.c_str(),
                            shape_text(shape).c_str());
            if (found->shape != shape)
                return fail(Exit::input, "%s: tensor \"%s\": expected shape %s, found %s", name, p.name.c_str(),
                            shape_text(shape).c_str(), shape_text(found->shape).c_str());
            known.insert(p.name);
        }
    for (const GgufTensor& t : f.tensors())
        if (!known.count(t.name))
            return fail(Exit::input, "%s: tensor \"%s\" %s is no part of this model", name, t.name.c_str(),
                        shape_text(t.shape).c_str());
    return {};
}

void put(GgufKeys* m, const std::string& key, const GgufValue& v) {
    m->push_back({key, v});
}
}   // namespace

const GgufArchitecture* find_gguf_architecture(const std::string& name) {
    for (const GgufArchitecture& a : architectures())
        if (name == a.name && find_family(a.families[0])) return &a;
    return nullptr;
}

std::vector<float> gguf_rope_divisors(const Config& c) {
    std::vector<float> divisors;
    const double context = c.rope_original ? c.rope_original : c.T;
    for (int i = 0; i < c.rope_dims / 2; i++) {
        const double frequency = std::pow(double(c.rope_theta), -2.0 * i / c.rope_dims);
        const double turns = context * frequency / (2 * M_PI);
        const double part = std::clamp((turns - c.rope_low) / (double(c.rope_high) - c.rope_low), 0.0, 1.0);
        divisors.push_back(float(1 / ((1 - part) / c.rope_factor + part)));
    }
    return divisors;
}

Result<Config> gguf_config(const GgufFile& f) {
    const GgufMetadata& m = f.metadata();
    std::string name, known;
    TRY(m.get("general.architecture", &name));
    const GgufArchitecture* a = find_gguf_architecture(name);
    for (const GgufArchitecture& each : architectures()) known += (known.empty() ? "" : ", ") + std::string(each.name);
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
    std::vector<float> divisors;
    if (const GgufTensor* t = f.find("rope_freqs.weight")) {
        if (t->format->type != BlockType::f32 || t->numbers() < 1 || t->numbers() > 1 << 16)
            return fail(Exit::input, "%s: rope_freqs.weight: expected F32", m.name.c_str());
        divisors.resize(size_t(t->numbers()));
        TRY(f.read_bytes(t->at, divisors.data(), t->bytes));
    }
    const Reader r{m, name + "."};
    Config c;
    TRY(read_sizes(r, *a, int(embeddings->shape[0]), &c));
    TRY(read_fields(r, *a, divisors, &c));
    c.tied = !f.find("output.weight");
    c.head_bias = f.find("output.bias");
    c.qkv_bias = f.find("blk.0.attn_q.bias") || f.find("blk.0.attn_qkv.bias");
    c.proj_bias = f.find("blk.0.attn_output.bias");
    c.up_bias = f.find("blk.0.ffn_up.bias");
    c.down_bias = f.find("blk.0.ffn_down.bias");
    if (Status s = config_check(c); !s.ok()) return fail(Exit::input, "%s: %s", m.name.c_str(), s.message.c_str());
    TRY(match_tensors(f, c, *a));
    return c;
}

GgufKeys gguf_metadata(const Config& c, const GgufArchitecture& a) {
    GgufKeys m;
    const std::string prefix = std::string(a.name) + ".";
    auto integer = [&](const char* key, int v) { put(&m, prefix + key, GgufValue::integer(v)); };
    auto number = [&](const char* key, float v) { put(&m, prefix + key, GgufValue::number(v)); };
    integer("vocab_size", c.V);
    integer("context_length", c.T);
    integer("embedding_length", c.C);
    integer("block_count", c.L);
    integer("feed_forward_length", c.F);
    integer("attention.head_count", c.NH);
    if (c.position == Position::rope || c.NKV != c.NH) integer("attention.head_count_kv", c.NKV);
    if (c.HS * c.NH != c.C || is(a, "qwen3") || is(a, "gemma") || has_window(a))
        integer("attention.key_length", c.HS), integer("attention.value_length", c.HS);
    number(c.norm == NormKind::rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon", c.norm_eps);
    if (c.position == Position::rope) {
        integer("rope.dimension_count", c.rope_dims);
        number("rope.freq_base", c.rope_theta);
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
    if (has_window(a) && c.window) {
        integer("attention.sliding_window", c.window);
        if (c.global_every != a.global_every) integer("attention.sliding_window_pattern", c.global_every);
        if (c.rope_local_theta > 0) number("rope.freq_base_swa", c.rope_local_theta);
    }
    if (is(a, "gemma2")) number("attn_logit_softcapping", c.score_cap);
    if (is(a, "gemma2") || (is(a, "gemma3") && c.logit_cap > 0)) number("final_logit_softcapping", c.logit_cap);
    if (is(a, "gptneox"))
        put(&m, prefix + "use_parallel_residual", GgufValue::boolean(c.parallel == Parallel::two));
    if (is(a, "granite")) {
        if (c.score_scale > 0) number("attention.scale", c.score_scale);
        number("embedding_scale", c.embed_scale), number("residual_scale", c.branch_scale);
        number("logit_scale", 1 / c.logit_scale);
    }
    return m;
}

// The same model in one spelling: what has no effect is as if it were not there.
static Config simplest(Config c) {
    if (c.window >= c.T) c.window = 0;
    if (!c.window) c.global_every = 0, c.rope_local_theta = 0;
    if (std::fabs(c.score_scale * std::sqrt(float(c.HS)) - 1) < 1e-5f) c.score_scale = 0;
    if (c.position != Position::rope) c.rope_theta = 1e4f, c.rope_dims = 0, c.rope_scaling = RopeScaling::none;
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
    std::string known;
    for (const GgufArchitecture& a : architectures()) {
        for (const char* family : a.families) known += (known.empty() ? "" : ", ") + std::string(family);
        auto named = [&](const char* f) { return !strcmp(f, c.family->type); };
        if (std::none_of(a.families.begin(), a.families.end(), named)) continue;
        // What llama.cpp would make of the file.
        GgufMetadata m;
        for (auto& [key, value] : gguf_metadata(c, a)) m.values.emplace(key, value);
        const bool all_biases = is(a, "gpt2") || is(a, "gptneox"), any_biases = is(a, "llama") || is(a, "granite");
        const bool divisors = c.rope_scaling == RopeScaling::llama3 && any_biases;
        const Reader r{m, std::string(a.name) + "."};
        Config read;
        TRY(read_sizes(r, a, c.V, &read));
        if (Status s = read_fields(r, a, divisors ? gguf_rope_divisors(c) : std::vector<float>{}, &read); !s.ok())
            return fail(Exit::usage, "GGUF's architecture %s cannot say this model%s", a.name, s.message.c_str());
        read.family = c.family;
        if (!all_biases) read.qkv_bias = c.qkv_bias;
        if (any_biases) read.proj_bias = c.proj_bias, read.up_bias = c.up_bias, read.down_bias = c.down_bias;
        if (!is(a, "gemma") && !is(a, "gemma2")) read.tied = c.tied;    // these never have output.weight
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
