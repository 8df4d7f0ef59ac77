// gguf_vocabulary.cpp - reads and writes the keys tokenizer.* of a GGUF file (tokenizer_gguf.h).
#include "tokenizer_gguf.h"

namespace {
const std::string PREFIX = "tokenizer.ggml.", TEMPLATE = "tokenizer.chat_template";
const std::string SPACE_PREFIX = "tokenizer.flatgpt.space_prefix", HUGGINGFACE = "tokenizer.huggingface.json";
const std::string CHARSMAP = PREFIX + "precompiled_charsmap";
struct IdRow {
    const char* key;
    int GgufTokenizer::*field;
};
constexpr IdRow IDS[] = {
    {"bos_token_id", &GgufTokenizer::bos_token_id},         {"eos_token_id", &GgufTokenizer::eos_token_id},
    {"unknown_token_id", &GgufTokenizer::unknown_token_id}, {"padding_token_id", &GgufTokenizer::padding_token_id},
    {"eot_token_id", &GgufTokenizer::eot_token_id},         {"eom_token_id", &GgufTokenizer::eom_token_id},
    {"cls_token_id", &GgufTokenizer::cls_token_id},         {"seperator_token_id", &GgufTokenizer::seperator_token_id},
    {"mask_token_id", &GgufTokenizer::mask_token_id}};
constexpr IdRow FLAGS[] = {{"add_bos_token", &GgufTokenizer::add_bos_token},
                           {"add_eos_token", &GgufTokenizer::add_eos_token},
                           {"add_sep_token", &GgufTokenizer::add_sep_token},
                           {"add_space_prefix", &GgufTokenizer::add_space_prefix},
                           {"remove_extra_whitespaces", &GgufTokenizer::remove_extra_whitespaces},
                           {"normalizer.lowercase", &GgufTokenizer::lowercase},
                           {"normalizer.strip_accents", &GgufTokenizer::strip_accents}};
// llama.cpp warns of a missing pre, and does not load a file without merges.
void warn_of_missing_keys(const GgufTokenizer& g, const Tokenizer& made, const std::string& name) {
    const Vocabulary& v = made.vocabulary();
    size_t longer = 0;    // number of tokens that only merges produce
    for (const std::string& token : v.tokens) longer += token.size() > 1;
    for (const AddedToken& a : v.added) longer -= v.tokens[size_t(a.id)].size() > 1;
    const std::string missing = "warning: " + name + ": tokenizer.ggml.";
    if (g.pre.empty())
        note_once(missing +
                  "pre is missing: texts are cut as llama.cpp's \"default\" does it; where the model learnt "
                  "from other pieces its answers get worse; convert the model again");
    if (g.merges.empty() && longer)
        note_once(missing +
                  "merges is missing: texts become single bytes, from which the model did not learn; convert "
                  "the model again");
}
}    // namespace

Result<Tokenizer> gguf_tokenizer(const GgufFile& file) {
    const GgufMetadata& m = file.metadata();
    GgufTokenizer t;
    if (!m.has(PREFIX + "model")) return Tokenizer();
    TRY(m.get(PREFIX + "model", &t.model));
    if (t.model == "no_vocab" || t.model == "none") return Tokenizer();
    if (m.has(PREFIX + "pre")) TRY(m.get(PREFIX + "pre", &t.pre));
    TRY(m.get(PREFIX + "tokens", &t.tokens));
    if (m.has(PREFIX + "merges")) TRY(m.get(PREFIX + "merges", &t.merges));
    std::vector<double> scores;
    if (m.has(PREFIX + "scores")) TRY(m.get(PREFIX + "scores", &scores));
    t.scores.assign(scores.begin(), scores.end());
    std::vector<int64_t> types;
    if (m.has(PREFIX + "token_type")) TRY(m.get(PREFIX + "token_type", &types));
    t.token_type.assign(types.begin(), types.end());
    for (const IdRow& row : IDS)
        if (m.has(PREFIX + row.key)) TRY(m.get(PREFIX + row.key, &(t.*row.field), 0, INT32_MAX));
    for (const IdRow& row : FLAGS) {
        bool yes = false;
        if (!m.has(PREFIX + row.key)) continue;
        TRY(m.get(PREFIX + row.key, &yes));
        t.*row.field = yes;
    }
    std::vector<int64_t> map;
    if (m.has(CHARSMAP)) TRY(m.get(CHARSMAP, &map));
    t.charsmap.assign(map.begin(), map.end());
    if (m.has(HUGGINGFACE)) TRY(m.get(HUGGINGFACE, &t.huggingface));
    if (m.has(TEMPLATE)) TRY(m.get(TEMPLATE, &t.chat_template));
    if (m.has(SPACE_PREFIX)) TRY(m.get(SPACE_PREFIX, &t.space_prefix));
    Tokenizer made = TRY(tokenizer_from_gguf(t, m.name));
    if (t.model == "gpt2") warn_of_missing_keys(t, made, m.name);
    return made;
}

Result<GgufKeys> gguf_vocabulary(const Tokenizer& tokenizer, int V) {
    if (!tokenizer.vocab_size()) return GgufKeys{{PREFIX + "model", GgufValue::text("no_vocab")}};
    GgufTokenizer t = TRY(tokenizer_to_gguf(tokenizer));
    // llama.cpp requires a distinct text for each row of the embeddings; type 5 marks unused
    // tokens.
    for (size_t id = t.tokens.size(); id < size_t(V); id++) {
        t.tokens.push_back("[PAD" + std::to_string(id) + "]");
        t.token_type.push_back(5);
        if (!t.scores.empty()) t.scores.push_back(t.model == "t5" ? -1e4f : 0);    // as converters do
    }
    GgufKeys keys = {{PREFIX + "model", GgufValue::text(t.model)},
                     {PREFIX + "pre", GgufValue::text(t.pre)},
                     {PREFIX + "tokens", GgufValue::text_array(t.tokens)},
                     {PREFIX + "token_type", GgufValue::integer_array({t.token_type.begin(), t.token_type.end()})}};
    if (!t.scores.empty())
        keys.push_back({PREFIX + "scores", GgufValue::number_array({t.scores.begin(), t.scores.end()})});
    if (t.model == "gpt2" || !t.merges.empty()) keys.push_back({PREFIX + "merges", GgufValue::text_array(t.merges)});
    for (const IdRow& row : IDS)
        if (t.*row.field >= 0) keys.push_back({PREFIX + row.key, GgufValue::integer(t.*row.field)});
    for (const IdRow& row : FLAGS)
        if (t.*row.field >= 0) keys.push_back({PREFIX + row.key, GgufValue::boolean(t.*row.field)});
    if (const auto* map = reinterpret_cast<const unsigned char*>(t.charsmap.data()); !t.charsmap.empty())
        keys.push_back({CHARSMAP, {GgufType::u8, true, {map, map + t.charsmap.size()}, {}, {}}});
    if (!t.huggingface.empty()) keys.push_back({HUGGINGFACE, GgufValue::text(t.huggingface)});
    if (!t.space_prefix.empty()) keys.push_back({SPACE_PREFIX, GgufValue::text(t.space_prefix)});
    if (!t.chat_template.empty()) keys.push_back({TEMPLATE, GgufValue::text(t.chat_template)});
    return keys;
}
