// encoders.cpp - families like BERT: bidirectional attention, and a head with a transform.
#include "families.h"

namespace {
using C = Config;
using Names = std::vector<Family::Name>;
using HeadRows = std::vector<Family::Head>;
using enum HeadKind;
constexpr HeadTransform dense = HeadTransform::dense, norm = HeadTransform::norm;

// Fields of BERT and its kin: norms of sums, one after the embeddings, biases everywhere.
Config bert_kinds(void (*more)(Config& c) = nullptr) {
    Config c;
    c.mask_kind = MaskKind::all;
    c.norm_placement = NormPlacement::post;
    c.norm_eps = 1e-12f;
    c.embed_norm = c.head_bias = true;
    c.activation = Act::gelu;
    c.transform = norm;
    c.segments = 2;
    if (more) more(c);
    return c;
}
// c with the fields of another head.
Config with_head(Config c, HeadKind kind, HeadTransform transform) {
    c.head = kind, c.transform = transform;
    return c;
}
std::vector<ConfigKey> bert_keys(const std::vector<ConfigKey>& more = {}) {
    std::vector<ConfigKey> keys = {{"vocab_size", &C::V},
                                   {"max_position_embeddings", &C::T, ConfigKey::positions},
                                   {"hidden_size", &C::C},
                                   {"num_hidden_layers", &C::L},
                                   {"num_attention_heads", &C::NH},
                                   {"intermediate_size", &C::F},
                                   {"hidden_act", &C::activation},
                                   {"type_vocab_size", &C::segments, ConfigKey::as_is, 2},
                                   {"layer_norm_eps", &C::norm_eps},
                                   {"position_embedding_type", &C::position, ConfigKey::bert_position},
                                   {"tie_word_embeddings", &C::tied}};
    keys.insert(keys.end(), more.begin(), more.end());
    return keys;
}
std::vector<Family::Fixed> bert_fixed(const char* pad, const std::vector<Family::Fixed>& more = {}) {
    std::vector<Family::Fixed> all = {{"hidden_dropout_prob", "0.0", true, false},
                                      {"attention_probs_dropout_prob", "0.0", true, false},
                                      {"pad_token_id", pad, true, false},
                                      {"is_decoder", "false", false, true},
                                      {"problem_type", "\"single_label_classification\"", false, false}};
    all.insert(all.end(), more.begin(), more.end());
    return all;
}
// Names of BERT's body behind a prefix such as "bert.".
#define BERT_NAMES(prefix)                                                                                             \
    {                                                                                                                  \
        {"wte", {prefix "embeddings.word_embeddings"}}, {"wpe", {prefix "embeddings.position_embeddings"}},            \
            {"seg", {prefix "embeddings.token_type_embeddings"}}, {"lne", {prefix "embeddings.LayerNorm"}},            \
            {"embed_proj", {prefix "embeddings_project"}},                                                             \
            {"qkv",                                                                                                    \
             {prefix "encoder.layer.#.attention.self.query", prefix "encoder.layer.#.attention.self.key",              \
              prefix "encoder.layer.#.attention.self.value"}},                                                         \
            {"relative_key", {prefix "encoder.layer.#.attention.self.distance_embedding"}},                            \
            {"proj", {prefix "encoder.layer.#.attention.output.dense"}},                                               \
            {"post1", {prefix "encoder.layer.#.attention.output.LayerNorm"}},                                          \
            {"fc", {prefix "encoder.layer.#.intermediate.dense"}}, {"fc2", {prefix "encoder.layer.#.output.dense"}}, { \
            "post2", { prefix "encoder.layer.#.output.LayerNorm" }                                                     \
        }                                                                                                              \
    }

// Spellings of BERT's first files.
const std::vector<std::pair<const char*, const char*>> OLD_NORMS = {{"LayerNorm.gamma", "LayerNorm.weight"},
                                                                    {"LayerNorm.beta", "LayerNorm.bias"}};

const Names BERT_MLM = {{"transform", {"cls.predictions.transform.dense"}},
                        {"head_norm", {"cls.predictions.transform.LayerNorm"}},
                        {"headb", {"cls.predictions"}},
                        {"head", {"cls.predictions.decoder"}}};
Names with_names(Names names, const Names& more) {
    names.insert(names.end(), more.begin(), more.end());
    return names;
}
const Names CLASSIFIER = {{"head", {"classifier"}}};

// The heads of RoBERTa and its copies, whose classes begin with `Class`.
#define ROBERTA_HEADS(Class)                                                                      \
    {                                                                                             \
        {Class "ForMaskedLM",                                                                     \
         tokens,                                                                                  \
         norm,                                                                                    \
         Act::gelu,                                                                               \
         {{"transform", {"lm_head.dense"}},                                                       \
          {"head_norm", {"lm_head.layer_norm"}},                                                  \
          {"headb", {"lm_head"}},                                                                 \
          {"head", {"lm_head.decoder"}}}},                                                        \
            {Class "Model", HeadKind::none, dense, Act::tanh, {{"transform", {"pooler.dense"}}}}, \
            {Class "ForSequenceClassification",                                                   \
             texts,                                                                               \
             dense,                                                                               \
             Act::tanh,                                                                           \
             {{"transform", {"classifier.dense"}}, {"head", {"classifier.out_proj"}}}},           \
        {                                                                                         \
            Class "ForTokenClassification", positions, HeadTransform::none, {}, CLASSIFIER        \
        }                                                                                         \
    }

Family roberta(const char* type, const char* architecture, HeadRows heads) {
    return {.type = type,
            .architecture = architecture,
            .kinds = bert_kinds([](Config& c) { c.position_offset = 2, c.segments = 1; }),
            .keys = bert_keys(),
            .fixed = bert_fixed("1", {{"pad_token_id", "1", true, true}}),
            .names = BERT_NAMES("roberta."),
            .heads = std::move(heads),
            .prefixes = {"roberta."},
            .redundant = {".position_ids", ".position_embeddings.weight", "lm_head.decoder.bias", "pooler.*",
                          "roberta.pooler.*", "lm_head.*", "classifier.*"}};
}

// RoBERTa's body with a window. The first token is global, and has projections of its own. In
// transformers a mask chooses global tokens; here the first flatgpt_global_tokens are global.
Family longformer() {
    Family f = roberta("longformer", "LongformerForMaskedLM", ROBERTA_HEADS("Longformer"));
    f.kinds.window = 257;
    f.kinds.global_tokens = 1;
    f.kinds.global_projections = true;
    f.keys = bert_keys({{"attention_window", &C::window, ConfigKey::by_layer, 512},
                        {"flatgpt_global_tokens", &C::global_tokens, ConfigKey::as_is, 1}});
    f.names =
        with_names(BERT_NAMES("longformer."), {{"global_q", {"longformer.encoder.layer.#.attention.self.query_global"}},
                                               {"global_kv",
                                                {"longformer.encoder.layer.#.attention.self.key_global",
                                                 "longformer.encoder.layer.#.attention.self.value_global"}}});
    f.prefixes = {"longformer."};
    f.redundant = {".position_ids", "lm_head.decoder.bias", "pooler.*", "longformer.pooler.*",
                   "lm_head.*",     "classifier.*"};
    f.presets = {{"longformer-base-4096", 50265, 4096, 12, 12, 12, 64, 768, 3072},
                 {"longformer-large-4096", 50265, 4096, 24, 16, 16, 64, 1024, 4096}};
    return f;
}

const std::vector<Family> ROWS = {
    {.type = "bert",
     .architecture = "BertForMaskedLM",
     .kinds = bert_kinds(),
     .keys = bert_keys(),
     .fixed = bert_fixed("0"),
     .names = BERT_NAMES("bert."),
     .heads = {{"BertForMaskedLM", tokens, norm, {}, BERT_MLM},
               {"BertForPreTraining",
                tokens,
                norm,
                {},
                with_names(BERT_MLM, {{"pool", {"bert.pooler.dense"}}, {"next", {"cls.seq_relationship"}}}),
                true},
               {"BertModel", HeadKind::none, dense, Act::tanh, {{"transform", {"bert.pooler.dense"}}}},
               {"BertForSequenceClassification",
                texts,
                dense,
                Act::tanh,
                {{"transform", {"bert.pooler.dense"}}, {"head", {"classifier"}}}},
               {"BertForTokenClassification", positions, HeadTransform::none, {}, CLASSIFIER}},
     .prefixes = {"bert."},
     .redundant = {".position_ids", ".position_embeddings.weight", "cls.*", "pooler.*", "bert.pooler.*",
                   "classifier.*"},
     .renames = OLD_NORMS,
     .presets = {{"bert-base-uncased", 30522, 512, 12, 12, 12, 64, 768, 3072},
                 {"bert-large-uncased", 30522, 512, 24, 16, 16, 64, 1024, 4096}}},
    roberta("roberta", "RobertaForMaskedLM", ROBERTA_HEADS("Roberta")),
    roberta("xlm-roberta", "XLMRobertaForMaskedLM", ROBERTA_HEADS("XLMRoberta")),
    roberta("camembert", "CamembertForMaskedLM", ROBERTA_HEADS("Camembert")),
    longformer(),
    {.type = "distilbert",
     .architecture = "DistilBertForMaskedLM",
     .kinds = bert_kinds([](Config& c) { c.segments = 0; }),
     .keys = {{"vocab_size", &C::V},
              {"max_position_embeddings", &C::T},
              {"dim", &C::C},
              {"n_layers", &C::L},
              {"n_heads", &C::NH},
              {"hidden_dim", &C::F},
              {"activation", &C::activation},
              {"tie_word_embeddings", &C::tied}},
     .fixed = {{"dropout", "0.0", true, false},
               {"attention_dropout", "0.0", true, false},
               {"pad_token_id", "0", true, false}},
     .names = {{"wte", {"distilbert.embeddings.word_embeddings"}},
               {"wpe", {"distilbert.embeddings.position_embeddings"}},
               {"lne", {"distilbert.embeddings.LayerNorm"}},
               {"qkv",
                {"distilbert.transformer.layer.#.attention.q_lin", "distilbert.transformer.layer.#.attention.k_lin",
                 "distilbert.transformer.layer.#.attention.v_lin"}},
               {"proj", {"distilbert.transformer.layer.#.attention.out_lin"}},
               {"post1", {"distilbert.transformer.layer.#.sa_layer_norm"}},
               {"fc", {"distilbert.transformer.layer.#.ffn.lin1"}},
               {"fc2", {"distilbert.transformer.layer.#.ffn.lin2"}},
               {"post2", {"distilbert.transformer.layer.#.output_layer_norm"}}},
     .heads =
         {{"DistilBertForMaskedLM",
           tokens,
           norm,
           {},
           {{"transform", {"vocab_transform"}}, {"head_norm", {"vocab_layer_norm"}}, {"head", {"vocab_projector"}}}},
          {"DistilBertModel", HeadKind::none, HeadTransform::none, {}, {}},
          {"DistilBertForSequenceClassification",
           texts,
           dense,
           Act::relu,
           {{"transform", {"pre_classifier"}}, {"head", {"classifier"}}}},
          {"DistilBertForTokenClassification", positions, HeadTransform::none, {}, CLASSIFIER}},
     .prefixes = {"distilbert."},
     .redundant = {".position_ids", "vocab_*", "pre_classifier.*", "classifier.*"},
     .presets = {{"distilbert-base-uncased", 30522, 512, 6, 12, 12, 64, 768, 3072}}},
    {.type = "electra",
     .architecture = "ElectraForPreTraining",
     .kinds = with_head(bert_kinds(), replaced, dense),
     .keys = bert_keys({{"embedding_size", &C::embed_size, ConfigKey::width, 128}}),
     .fixed = bert_fixed("0"),
     .names = BERT_NAMES("electra."),
     .heads = {{"ElectraForPreTraining",
                replaced,
                dense,
                {},
                {{"transform", {"discriminator_predictions.dense"}},
                 {"head", {"discriminator_predictions.dense_prediction"}}}},
               {"ElectraForMaskedLM",
                tokens,
                norm,
                Act::gelu,
                {{"transform", {"generator_predictions.dense"}},
                 {"head_norm", {"generator_predictions.LayerNorm"}},
                 {"head", {"generator_lm_head"}}}},
               {"ElectraModel", HeadKind::none, HeadTransform::none, {}, {}},
               {"ElectraForSequenceClassification",
                texts,
                dense,
                Act::gelu,
                {{"transform", {"classifier.dense"}}, {"head", {"classifier.out_proj"}}}},
               {"ElectraForTokenClassification", positions, HeadTransform::none, {}, CLASSIFIER}},
     .prefixes = {"electra."},
     .redundant = {".position_ids", ".position_embeddings.weight", "discriminator_predictions.*", "generator_*",
                   "classifier.*"}},
    {.type = "modernbert",
     .architecture = "ModernBertForMaskedLM",
     .kinds = bert_kinds([](Config& c) {
         c.norm_placement = NormPlacement::pre;
         c.norm_eps = 1e-5f;
         c.norm_bias = c.first_norm = false;
         c.gated = true;
         c.qkv_bias = c.proj_bias = c.up_bias = c.down_bias = c.transform_bias = false;
         c.position = Position::rope;
         c.rope_theta = 160000, c.rope_local_theta = 1e4f;
         c.window = 65, c.global_every = 3, c.global_first = true;
         c.segments = 0;
     }),
     .keys = {{"vocab_size", &C::V},
              {"max_position_embeddings", &C::T},
              {"hidden_size", &C::C},
              {"num_hidden_layers", &C::L},
              {"num_attention_heads", &C::NH},
              {"intermediate_size", &C::F},
              {"hidden_activation", &C::activation},
              {"norm_eps", &C::norm_eps},
              {"norm_bias", &C::norm_bias},
              {"attention_bias", &C::qkv_bias},
              {"attention_bias", &C::proj_bias},
              {"mlp_bias", &C::up_bias},
              {"mlp_bias", &C::down_bias},
              {"local_attention", &C::window, ConfigKey::both_sides},
              {"global_attn_every_n_layers", &C::global_every, ConfigKey::as_is, 3},
              {"decoder_bias", &C::head_bias},
              {"classifier_bias", &C::transform_bias},
              {"classifier_activation", &C::activation, ConfigKey::copy},
              {"classifier_pooling", &C::mean_pooled, ConfigKey::as_is, 0},
              {"tie_word_embeddings", &C::tied}},
     .rope = {.theta = "global_rope_theta", .local = "local_rope_theta", .by_layers = true},
     .layers = Family::types,
     .fixed = {{"pad_token_id", "null", true, false}},
     .names = {{"wte", {"model.embeddings.tok_embeddings"}},
               {"lne", {"model.embeddings.norm"}},
               {"ln1", {"model.layers.#.attn_norm"}},
               {"qkv", {"model.layers.#.attn.Wqkv"}},
               {"proj", {"model.layers.#.attn.Wo"}},
               {"ln2", {"model.layers.#.mlp_norm"}},
               {"fc", {"model.layers.#.mlp.Wi"}},
               {"fc2", {"model.layers.#.mlp.Wo"}},
               {"lnf", {"model.final_norm"}}},
     .heads = {{"ModernBertForMaskedLM",
                tokens,
                norm,
                {},
                {{"transform", {"head.dense"}}, {"head_norm", {"head.norm"}}, {"head", {"decoder"}}}},
               {"ModernBertModel", HeadKind::none, HeadTransform::none, {}, {}},
               {"ModernBertForSequenceClassification",
                texts,
                norm,
                {},
                {{"transform", {"head.dense"}}, {"head_norm", {"head.norm"}}, {"head", {"classifier"}}}},
               {"ModernBertForTokenClassification",
                positions,
                norm,
                {},
                {{"transform", {"head.dense"}}, {"head_norm", {"head.norm"}}, {"head", {"classifier"}}}}},
     .redundant = {".rotary_emb.inv_freq", "head.*", "decoder.*", "classifier.*"},
     .presets = {{"modernbert-base", 50368, 8192, 22, 12, 12, 64, 768, 1152},
                 {"modernbert-large", 50368, 8192, 28, 16, 16, 64, 1024, 2624}}},
};
}    // namespace

const std::vector<Family>& encoder_families() { return ROWS; }
