// config.h - a model's configuration: sizes and kinds, one row per field.
#pragma once
#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "base/command.h"
#include "layers/ops.h"

struct Family;    // model/families/families.h
extern const Family GPT2;

enum class NormKind { layer, rms };
enum class NormPlacement {
    pre,         // x + f(n(x))
    branch,      // x + n(f(x))
    sandwich,    // x + n'(f(n(x)))
    post         // n(x + f(x))
};
enum class RouterKind { softmax, sigmoid };    // how the router scores experts
enum class Parallel { none, one, two };        // attention and ffn share an input: norms of it
enum class Position { none, learned, rope, alibi, sinusoidal, t5, relative_key };
// T5's position bias: number of buckets, and the distance from which on all share the last bucket.
// Raffel et al. 2020.
constexpr int RELATIVE_BUCKETS = 32, RELATIVE_MAX_DISTANCE = 128;
// Keys that a query attends to. causal: those up to its own position; prefix: also the whole
// prefix; all: the whole text.
enum class MaskKind { causal, prefix, all };
// Rows of logits: the vocabulary's at each position; none, where states are the result; those of a
// classifier for a whole text, which its first position decides, or for each position; one number
// at each position, whether the token was replaced (ELECTRA's discriminator).
enum class HeadKind { tokens, none, texts, positions, replaced };
// A step between the last state and the head's product: act(x w^T + b), and its norm.
enum class HeadTransform { none, dense, norm };
constexpr int NO_VALUE = -1;    // bits of a NaN: a position without a number as target
// Scaling of RoPE's frequencies for longer contexts; sources: model/position_tables.h.
enum class RopeScaling { none, linear, dynamic, yarn, llama3, ntk };

// Low-rank adapters (LoRA, Hu et al. 2021). The matrix w (OC,C) of a block's product acts as
// w + scale * b a, with a (R,C), b (OC,R). A file may hold w in pieces, such as query, key and
// value. Each piece then has an adapter of its own: `ranks` rows of a, and as many columns of b,
// which are zero outside of the piece's rows. An encoder's blocks have the ranks of the decoder's.
struct Adapter {
    enum Product { qkv, proj, fc, fc2, cross_q, cross_kv, cross_proj, PRODUCTS };
    static constexpr bool of_attention(Product p) { return p != fc && p != fc2; }
    static constexpr int PIECES = RowBlocks::MOST;
    int ranks[PRODUCTS][PIECES] = {};    // 0: no adapter
    float scale = 1;                     // alpha / rank or, rank-stabilised, alpha / sqrt(rank)
    float dropout = 0;                   // dropout of the product's input, in training
    bool magnitudes = false;             // each row has a norm of its own (DoRA); without dropout
    std::string base = {};               // path of the model to which it belongs
    int rank(Product p) const { return ranks[p][0] + ranks[p][1] + ranks[p][2]; }    // R
    int widest() const {
        int most = 0;
        for (int p = 0; p < PRODUCTS; p++) most = std::max(most, rank(Product(p)));
        return most;
    }
    bool any() const { return widest() > 0; }
    bool operator==(const Adapter&) const = default;
};

// A model's configuration. The defaults are GPT-2's; each family's row (families.h) sets its own. A
// new kind needs a field here, a row in config_rows.cpp and its computation in gpt.cpp.
struct Config {
    int V = 50257;    // vocabulary
    int T = 1024;     // context: positions of a sequence, at most
    int L = 12;       // blocks
    int NH = 12;      // query heads
    int C = 768;      // channels
    int F = 4 * C;    // ffn width
    float norm_eps = 1e-5f;
    int NKV = NH;                                   // key/value heads; query head h uses h / (NH / NKV)
    int HS = NH > 0 && C % NH == 0 ? C / NH : 0;    // head size; attention is NH * HS wide
    Act activation = Act::gelu_tanh;
    bool gated = false;    // act(gate) * up
    // Experts replace the ffn in every experts_every-th layer. Their matrices have no biases.
    int experts = 0, experts_used = 0;    // experts per layer, per token; 0: none
    int expert_ffn = 0;                   // an expert's width
    int experts_every = 1;
    int shared_ffn = 0;          // width of the shared expert; 0: none
    bool shared_gate = false;    // multiplies its output by sigmoid(x w)
    RouterKind router = RouterKind::softmax;
    bool experts_normalised = true;    // factors of a token's experts sum to 1
    // Norms.
    NormKind norm = NormKind::layer;
    NormPlacement norm_placement = NormPlacement::pre;
    Parallel parallel = Parallel::none;
    bool norm_weight = true, norm_bias = true;    // norm_weight: of QK-norm, too
    bool norm_plus = false;                       // the norm's factor is w + 1 (Gemma)
    bool embed_norm = false;                      // a norm follows the embeddings
    bool first_norm = true;                       // the first block's attention has a norm before it
    QkNormRope::QkNorm qk_norm = QkNormRope::QkNorm::none;
    // Attention.
    int window = 0;                       // visible positions, the query's own included; 0: all
    int global_every = 0;                 // every N-th layer has no window; 0: none
    bool global_first = false;            // the first, not the last, of N layers
    bool global_last = false;             // the last layer of all has no window either
    int stride = 0, global_tokens = 0;    // keys visible beyond the window (Heads)
    // Sparse attention of encoders (model/sparse). dilation: windows of the upper half of layers
    // have every N-th position. random_blocks: blocks of random_block keys beyond a window.
    // global_projections: queries of global tokens, and the keys and values they see, have weights
    // of their own.
    int dilation = 0, random_blocks = 0, random_block = 64;
    bool global_projections = false;
    MaskKind mask_kind = MaskKind::causal;
    float score_scale = 0, score_cap = 0;              // factor of scores; soft cap; 0: 1/sqrt(HS); none
    LinearAttention linear = LinearAttention::none;    // replaces softmax attention
    int softmax_every = 0;                             // with linear attention: every N-th layer has softmax
    // Which products have biases: qkv, attention's output projection, the ffn's two, the head.
    bool qkv_bias = true, proj_bias = true, up_bias = true, down_bias = true, head_bias = false;
    bool tied = true;    // the head's weights are wte
    // The head: its rows, the step before its product, the step's activation and bias.
    HeadKind head = HeadKind::tokens;
    HeadTransform transform = HeadTransform::none;
    Act transform_act = Act::gelu;
    bool transform_bias = true;
    // Beside the head of tokens, one that tells whether the second text of a pair follows the first
    // (BERT).
    bool next_sentence = false;
    bool mean_pooled = false;    // a classifier of texts reads the mean of the states, not the first one
    static constexpr int MOST_CLASSES = 4096;    // eval counts each pair of classes
    std::vector<std::string> classes = {};       // a classifier's; one: a number instead (regression)
    // Embeddings. segments: rows of a table that is added by a position's segment. embed_size:
    // width of the embeddings; a product follows their norm. 0: C, without the product.
    int segments = 0, embed_size = 0;
    // Shortcuts around blocks, as in nanochat of 2026 (layers/shortcuts.cpp). residual_scalars: a
    // block reads a weighted sum of its predecessor's output and of the embeddings. backout: the
    // head reads the last block's output less a part of the middle one's.
    bool residual_scalars = false, backout = false;
    bool smear = false;                         // an embedding gets a part of the one before
    bool value_embeddings = false;              // in every second layer, the last one included
    int mask = -1;                              // mask token for masked prediction; -1: none
    float embed_scale = 1, branch_scale = 1;    // factors of embeddings, of branch outputs
    float logit_scale = 1, logit_cap = 0;       // factor and soft cap of logits; cap 0: none
    // Positions.
    Position position = Position::learned;
    int max_distance = 0;       // relative_key: from here on all distances share a key; 0: T - 1
    int position_offset = 0;    // rows of wpe before position 0
    int rope_dims = 0;          // rotated channels per head, its first ones
    bool rope_interleaved = false;
    bool rope_backwards = false;                      // rotates by the opposite angles (nanochat)
    int rope_skip_every = 0;                          // every N-th layer has no RoPE; 0: none
    float rope_theta = 1e4f, rope_local_theta = 0;    // local: theta of layers with a window; 0: rope_theta
    RopeScaling rope_scaling = RopeScaling::none;
    float rope_factor = 1, rope_low = 1, rope_high = 4;    // llama3's low and high; yarn's beta_slow, beta_fast
    int rope_original = 0;                                 // trained context; 0: T
    float rope_magnitude = 0;                              // yarn: factor of cos, sin; 0: 1 + ln(factor) / 10
    // Encoder-decoders: number of the encoder's blocks; 0: no encoder. Each block of the decoder
    // attends to the encoder's output. All other fields hold for both; the encoder sees both ways.
    int encoder_layers = 0;
    bool in_encoder = false;         // this is the encoder of such a pair (encoder())
    int decoder_start = 0;           // token before a decoder's first one
    bool sinusoid_halves = false;    // sines in the first half of the channels, cosines in the second
    const Family* family = &GPT2;    // gives keys and names in files
    // What a run begins with, adds and trains; no part of config.json. zero_init: the last matrix
    // of a branch is 0 at first. trained: patterns of the names of trained tensors (is_frozen). If
    // it is empty, the adapters are trained, or without them everything.
    bool zero_init = false;
    Adapter adapter = {};
    std::vector<std::string> trained = {};

    // Rows of wte in memory, padded with zeros: GEMMs are fastest at multiples of 128, but in a
    // small model so much padding would cost too much.
    int Vp() const { return int(round_up(V, V < 1024 ? 16 : 128)); }
    int default_length() const { return std::min(T, 2048); }
    // Properties of layer l. recurrent: the layer has linear attention instead of softmax.
    bool recurrent(int l) const {
        return linear != LinearAttention::none && !(softmax_every && (l + 1) % softmax_every == 0);
    }
    bool windowed(int l) const;
    bool has_key_parts(int l) const;    // a window with gaps or random blocks
    bool projects_globals(int l) const { return windowed(l) && global_projections; }
    bool has_rope(int l) const;
    bool rope_unused() const;    // position is rope, but no layer rotates
    Heads heads(int l) const;
    int bias_distance() const;              // Heads::max_distance; 0: scores have no biases
    Config encoder() const;                 // configuration of the encoder, which has no head
    Config body() const;                    // without the head; its encoder alone, if encoder_family() is one
    Heads cross_heads(int source) const;    // attention to `source` positions of the encoder's output
    QkNormRope rope(int l) const;
    int recurrent_layers_below(int l) const;
    int rope_table_of(int l) const;              // 0; 1 for windowed layers with their own theta
    int layer_of_rope_table(int table) const;    // first layer that reads this table; -1: none
    Norm norm_of() const { return {norm == NormKind::rms, norm_eps, float(norm_plus)}; }
    Logits logits_of() const { return {logit_scale, logit_cap}; }
    bool embeds_values(int l) const { return value_embeddings && l % 2 == (L - 1) % 2; }
    int backout_layer() const { return backout ? L / 2 : -1; }    // whose output is subtracted
    int embed_width() const { return embed_size ? embed_size : C; }
    // Rows of the head's product, and their width.
    int outputs() const { return head == HeadKind::tokens ? V : head == HeadKind::replaced ? 1 : int(classes.size()); }
    int padded_outputs() const { return head == HeadKind::tokens ? Vp() : int(round_up(outputs(), 16)); }
    int head_width() const { return head == HeadKind::tokens && transform != HeadTransform::none ? embed_width() : C; }
    // The head gives one number, not probabilities: targets are bits of floats (value_loss).
    bool predicts_values() const { return head != HeadKind::tokens && outputs() == 1; }
    // The head of pairs: its classes, and its rows in memory.
    static constexpr int NEXT_CLASSES = 2, NEXT_PADDED = 16;
    bool predicts_next() const { return next_sentence && head == HeadKind::tokens; }
    bool pools_mean() const { return mean_pooled && head == HeadKind::texts; }
    bool reads_wte() const { return head == HeadKind::tokens && tied; }    // the head's product reads wte
    int attention_width() const { return NH * HS; }
    int qkv_width() const { return (NH + 2 * NKV) * HS; }
    bool has_experts(int l) const { return experts && (l + 1) % experts_every == 0; }
    int ffn_width(int l) const { return has_experts(l) ? shared_ffn : F; }    // dense ffn or shared expert
    int up_width(int l) const { return (gated ? 2 : 1) * ffn_width(l); }      // gate, then up
    int max_up_width() const { return (gated ? 2 : 1) * std::max(experts && experts_every == 1 ? 0 : F, shared_ffn); }
    int expert_up_width() const { return (gated ? 2 : 1) * expert_ffn; }
    bool gates_shared_expert(int l) const { return has_experts(l) && shared_ffn && shared_gate; }
    Router router_of() const {
        return {
            .E = experts, .K = experts_used, .sigmoid = router == RouterKind::sigmoid, .normalise = experts_normalised};
    }
    bool pre_norm() const { return norm_placement == NormPlacement::pre || norm_placement == NormPlacement::sandwich; }
    // Whether a norm follows each branch or, if sum_norm(), the sum of the branch and the residual.
    // With sum_norm(), the last norm of the last block is the model's final norm.
    bool post_norm() const { return norm_placement != NormPlacement::pre; }
    bool sum_norm() const { return norm_placement == NormPlacement::post; }
    Config family_defaults() const;    // the family's usual fields for these sizes
    void derive();                     // sets the fields that follow from others
    void fill_experts();               // replaces zeros of experts_used and expert_ffn
    bool operator==(const Config&) const = default;
};

// One row per field. Flags, reading and writing of config.json, range checks, messages and listings
// are derived from these rows.
struct ConfigRow {
    // required: every config.json must have the field. Listings show a field if it differs from
    // family_defaults(), if it is required or usual, or if it is `some` and not 0.
    enum Presence { required, usual, some, rare };
    typedef std::variant<int Config::*, float Config::*, bool Config::*, Act Config::*, NormKind Config::*,
                         NormPlacement Config::*, Parallel Config::*, QkNormRope::QkNorm Config::*, Position Config::*,
                         RopeScaling Config::*, MaskKind Config::*, RouterKind Config::*, LinearAttention Config::*,
                         HeadKind Config::*, HeadTransform Config::*>
        Member;
    Member member;
    const char* name;    // in listings: "kv_heads"; null: not listed
    bool counted;        // listed as "6 layers", not as "layers 6"
    const char* flag;    // option of train and bench; null: none
    const char* key;     // key in config.json unless the family names one
    const char* gguf;    // GGUF key after the architecture; null: implied
    double min, max;
    Presence presence;
    const char* help;    // help text of the flag
    // Enumerations: accepted names of each value, the first of which is written.
    std::vector<std::vector<std::string>> choices = {};
    // Rule (base/command.h) that names another row's flag, which this row's flag needs. The rule is
    // also satisfied if the model itself has the other row's field set.
    const char* needs = "";
};
const std::vector<ConfigRow>& config_rows();
const ConfigRow& config_row(const ConfigRow::Member& member);
double config_value(const Config& c, const ConfigRow& row);
void config_set(Config& c, const ConfigRow& row, double value);

Status config_check(const Config& c);    // exit 2: impossible field
// The model of a name: a preset, dN or FAMILY:dN. context: 0, or in place of the preset's. Exit 2:
// unknown.
Result<Config> config_named(const std::string& name, int context = 0);
std::string config_names();    // for help: "gpt2, gpt2-medium, ..., dN"

// Values of flags. An int is in its field of Config, where 0 means that the flag was not given. The
// other types are in vectors with one element per row of config_rows(): floats in `numbers` (0: not
// given), enumerations and bools in `words` ("model": not given).
struct ConfigOverrides : Config {
    std::vector<double> numbers;
    std::vector<std::string> words;
};
ConfigOverrides no_overrides();
std::vector<Flag> config_flags(ConfigOverrides& overrides);
// Checks flags against the resulting model c. Exit 2: a given option would have no effect in c,
// because another option is missing.
Status check_overrides(const ConfigOverrides& overrides, const Config& c);
// Returns `base` with the given overrides. Fields derived from a changed field are computed again.
Config config_with(const Config& base, const ConfigOverrides& overrides);

// Options to run a model at a context other than the trained one.
struct ContextExtension {
    int context = 0;                  // 0: the model's
    std::string scaling = "model";    // a value of --rope-scaling; "model": unchanged
    double factor = 0;                // 0: new context divided by trained context
};
// Applies the options to c. Exit 2: learned positions would go beyond the trained context, or
// scaling is given without RoPE.
Status extend_context(Config* c, const ContextExtension& to);
std::vector<Flag> context_extension_flags(ContextExtension& to);

// Fields to list by their Presence; with `other`, only the fields whose values differ from it.
std::vector<const ConfigRow*> config_listed(const Config& c, const Config* other = nullptr);
std::string config_text(const Config& c, const std::vector<const ConfigRow*>& rows);    // "context 64, 2 layers"
