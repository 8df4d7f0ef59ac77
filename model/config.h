// config.h - what a model is: its sizes and kinds, one row per field.
#pragma once
#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "base/command.h"
#include "layers/ops.h"

struct Family;    // model/families.h
extern const Family GPT2;

enum class NormKind { layer, rms };
enum class NormPlacement {
    pre,
    branch,
    sandwich,
    post
};                                             // x + f(n(x));  x + n(f(x));  x + n'(f(n(x)));  n(x + f(x))
enum class RouterKind { softmax, sigmoid };    // Router::sigmoid
enum class Parallel { none, one, two };    // attention and ffn both read the block's input: through one norm, or two
enum class Position { none, learned, rope, alibi, sinusoidal, t5 };
// T5's biases: buckets of distances, and the distance from which on all are in the last one. Raffel et al. 2020.
constexpr int RELATIVE_BUCKETS = 32, RELATIVE_MAX_DISTANCE = 128;
// Which positions of its text one sees: those before it; also all of the text's prefix; all.
enum class MaskKind { causal, prefix, all };
// How RoPE's angles are scaled; model/rope_table.h names the sources.
enum class RopeScaling { none, linear, dynamic, yarn, llama3, ntk };

// What a model is. The defaults are GPT-2's; a family's are in its row. A new kind needs a field here, its row in
// config_rows.cpp, and its meaning in gpt.cpp. Defaults that follow from earlier fields are written so.
struct Config {
    int V = 50257;    // vocabulary
    int T = 1024;     // context: the most positions of a sequence
    int L = 12;       // blocks
    int NH = 12;      // query heads
    int C = 768;      // channels
    int F = 4 * C;    // ffn width
    float norm_eps = 1e-5f;
    int NKV = NH;                                   // key/value heads; query heads h share h / (NH / NKV)
    int HS = NH > 0 && C % NH == 0 ? C / NH : 0;    // head size; attention is NH * HS wide
    Act activation = Act::gelu_tanh;                // the ffn's
    bool gated = false;                             // act(gate) * up
    // Experts, in every N-th layer in place of the ffn. Their matrices have no biases.
    int experts = 0, experts_used = 0;    // Router::E, K; 0: none
    int expert_ffn = 0;                   // an expert's width
    int experts_every = 1;
    int shared_ffn = 0;          // width of an expert that every position has; 0: none
    bool shared_gate = false;    // its output times sigmoid(x w)
    RouterKind router = RouterKind::softmax;
    bool experts_normalised = true;    // Router::normalise
    // Norms.
    NormKind norm = NormKind::layer;
    NormPlacement norm_placement = NormPlacement::pre;
    Parallel parallel = Parallel::none;
    bool norm_weight = true, norm_bias = true;
    bool norm_plus = false;     // weights are w + 1
    bool embed_norm = false;    // the embeddings are normed
    QkNormRope::QkNorm qk_norm = QkNormRope::QkNorm::none;
    // Attention.
    int window = 0;                       // positions that a query sees, itself included; 0: no limit
    int global_every = 0;                 // every N-th layer has no window; 0: all have it
    bool global_first = false;            // the first of N, not the last
    int stride = 0, global_tokens = 0;    // where there is a window: Heads::stride, Heads::globals
    MaskKind mask_kind = MaskKind::causal;
    float score_scale = 0, score_cap = 0;              // Heads::scale, Heads::softcap
    LinearAttention linear = LinearAttention::none;    // what attention is in place of softmax
    int softmax_every = 0;    // where it is: every N-th layer has softmax all the same; 0: none
    // Biases of q, k, v; of attention's projection; of the ffn's first and second product; of the head.
    bool qkv_bias = true, proj_bias = true, up_bias = true, down_bias = true, head_bias = false;
    bool tied = true;                           // the head is wte
    int mask = -1;                              // the token that stands for one to be guessed; -1: none
    float embed_scale = 1, branch_scale = 1;    // factors of the embeddings, and of what is added to the residual
    float logit_scale = 1, logit_cap = 0;       // Logits
    // Positions.
    Position position = Position::learned;
    int position_offset = 0;    // rows of wpe before position 0
    int rope_dims = 0;          // the first of each head's channels, which turn; 0 without RoPE
    bool rope_interleaved = false;
    int rope_skip_every = 0;                          // every N-th layer does not turn; 0: all do
    float rope_theta = 1e4f, rope_local_theta = 0;    // local: of layers with a window, unscaled; 0: like the others
    RopeScaling rope_scaling = RopeScaling::none;
    float rope_factor = 1, rope_low = 1, rope_high = 4;    // low, high: llama3's factors; yarn's beta_slow, beta_fast
    int rope_original = 0;                                 // context before scaling; 0: T
    float rope_magnitude = 0;                              // yarn's factor on cosines and sines; 0: 1 + ln(factor) / 10
    const Family* family = &GPT2;                          // its files use this family's names

    // Rows of wte in memory, the last ones zero: GEMMs want multiples of 128, small models cannot afford the waste.
    int Vp() const { return int(round_up(V, V < 1024 ? 16 : 128)); }
    int default_length() const { return std::min(T, 2048); }    // a sequence, where nobody says how long
    // Layer l: it has no softmax; it has the window; it turns; its heads and its turn.
    bool recurrent(int l) const {
        return linear != LinearAttention::none && !(softmax_every && (l + 1) % softmax_every == 0);
    }
    bool windowed(int l) const;
    bool has_rope(int l) const;
    bool rope_unused() const;    // position says rope, but no layer turns
    Heads heads(int l) const;
    QkNormRope rope(int l) const;
    int recurrent_layers_below(int l) const;    // layers below l without softmax
    int rope_table_of(int l) const;    // which table of angles layer l reads: 1 where its window gives it others
    int layer_of_rope_table(int table) const;    // a layer that reads this table; -1: there is none
    Norm norm_of() const { return {norm == NormKind::rms, norm_eps, float(norm_plus)}; }
    Logits logits_of() const { return {logit_scale, logit_cap}; }
    int attention_width() const { return NH * HS; }
    int qkv_width() const { return (NH + 2 * NKV) * HS; }
    bool has_experts(int l) const { return experts && (l + 1) % experts_every == 0; }    // layer l has experts
    int ffn_width(int l) const { return has_experts(l) ? shared_ffn : F; }    // what every position has; 0: nothing
    int up_width(int l) const { return (gated ? 2 : 1) * ffn_width(l); }      // the first product: gate, then up
    int max_up_width() const { return (gated ? 2 : 1) * std::max(experts && experts_every == 1 ? 0 : F, shared_ffn); }
    int expert_up_width() const { return (gated ? 2 : 1) * expert_ffn; }
    bool gates_shared_expert(int l) const { return has_experts(l) && shared_ffn && shared_gate; }
    Router router_of() const {
        return {
            .E = experts, .K = experts_used, .sigmoid = router == RouterKind::sigmoid, .normalise = experts_normalised};
    }
    bool pre_norm() const { return norm_placement == NormPlacement::pre || norm_placement == NormPlacement::sandwich; }
    bool post_norm() const {
        return norm_placement != NormPlacement::pre;
    }    // a branch's output is normed, or its sum
    bool sum_norm() const {
        return norm_placement == NormPlacement::post;
    }                                  // the sum: the last one is the final norm
    Config family_defaults() const;    // the family's kinds at these V, T, L, NH, C
    void derive();                     // sets the fields that follow from others
    void fill_experts();    // where there are experts: how many are used, how wide they are, if nothing says it
    bool operator==(const Config&) const = default;
};

// One row per field. The rows drive flags, config.json both ways, range checks, messages and listings.
struct ConfigRow {
    // required: in every config.json. The others need not be there. Listings have required and usual ones always, some
    // where they are not 0, rare ones where they are not as in family_defaults().
    enum Presence { required, usual, some, rare };
    typedef std::variant<int Config::*, float Config::*, bool Config::*, Act Config::*, NormKind Config::*,
                         NormPlacement Config::*, Parallel Config::*, QkNormRope::QkNorm Config::*, Position Config::*,
                         RopeScaling Config::*, MaskKind Config::*, RouterKind Config::*, LinearAttention Config::*>
        Member;
    Member member;
    const char* name;    // "kv_heads"; null: never listed
    bool counted;        // people say "6 layers", but "context 256"
    const char* flag;    // option of train and bench; null: none
    const char* key;     // in config.json, where no key of the family says it
    const char* gguf;    // the key after the architecture's name; null: the architecture implies it
    double min, max;
    Presence presence;
    const char* help;    // the flag's
    // For a field with kinds: the names of each value; the first one is written.
    std::vector<std::vector<std::string>> choices = {};
    // A rule (base/command.h) on another row's flag. The model has what it names, whether by the flag or by itself.
    const char* needs = "";
};
const std::vector<ConfigRow>& config_rows();
const ConfigRow& config_row(const ConfigRow::Member& member);
double config_value(const Config& c, const ConfigRow& row);
void config_set(Config& c, const ConfigRow& row, double value);

Status config_check(const Config& c);                    // exit 2: which field is impossible, and why
Result<Config> config_named(const std::string& name);    // a preset, dN or a family's FAMILY:dN. Exit 2
std::string config_names();                              // "gpt2, gpt2-medium, ..., dN": for help

// What flags ask for: whole numbers in the fields themselves, others by their rows' places in config_rows(). 0 and
// "model" where a flag was not given.
struct ConfigOverrides : Config {
    std::vector<double> numbers;
    std::vector<std::string> words;    // where a field has kinds, or is a bool
};
ConfigOverrides no_overrides();
std::vector<Flag> config_flags(ConfigOverrides& overrides);
// Exit 2: an option that is asked for has no effect in c without another one.
Status check_overrides(const ConfigOverrides& overrides, const Config& c);
// base with what is asked for. Fields that follow from others are computed again if those have changed.
Config config_with(const Config& base, const ConfigOverrides& overrides);

// A model run with another context than it was trained with.
struct ContextExtension {
    int context = 0;                  // 0: its own
    std::string scaling = "model";    // as --rope-scaling names it, or the model's own
    double factor = 0;                // 0: the new context over the old one
};
Status extend_context(Config* c,
                      const ContextExtension& to);    // exit 2: its positions end with its context, or do not turn
std::vector<Flag> context_extension_flags(ContextExtension& to);

// The fields to list (ConfigRow::Presence). With `other`: those that differ from it.
std::vector<const ConfigRow*> config_listed(const Config& c, const Config* other = nullptr);
std::string config_text(const Config& c, const std::vector<const ConfigRow*>& rows);    // "context 64, 2 layers"
