// gguf_vocabulary.cpp - the tokenizer between a GGUF file's metadata and data/.
#include "checkpoint/gguf.h"
#include "data/sentencepiece.h"
#include "data/tokenizer_gguf.h"

Result<Tokenizer> gguf_tokenizer(const GgufMetadata& m) {
    const std::string prefix = "tokenizer.ggml.";
    if (!m.has(prefix + "tokens")) return Tokenizer();
    GgufTokenizer g;
    TRY(m.get(prefix + "model", &g.model));
    TRY(m.get(prefix + "tokens", &g.tokens));
    if (m.has(prefix + "pre")) TRY(m.get(prefix + "pre", &g.pre));
    if (m.has(prefix + "merges")) TRY(m.get(prefix + "merges", &g.merges));
    std::vector<int64_t> types;
    if (m.has(prefix + "token_type")) TRY(m.get(prefix + "token_type", &types));
    for (int64_t type : types) g.token_type.push_back(type >= 0 && type <= 6 ? int(type) : 0);
    std::vector<double> scores;
    if (m.has(prefix + "scores")) TRY(m.get(prefix + "scores", &scores));
    g.scores.assign(scores.begin(), scores.end());
    struct { const char* key; int* to; } ids[] = {
        {"bos_token_id", &g.bos_token_id}, {"eos_token_id", &g.eos_token_id},
        {"unknown_token_id", &g.unknown_token_id}, {"padding_token_id", &g.padding_token_id}};
    for (auto& [key, to] : ids)
        if (m.has(prefix + key)) TRY(m.get(prefix + key, to, -1, INT32_MAX));
    struct { const char* key; int* to; } flags[] = {{"add_bos_token", &g.add_bos_token},
        {"add_eos_token", &g.add_eos_token}, {"add_space_prefix", &g.add_space_prefix}};
    for (auto& [key, to] : flags) {
        bool on = false;
        if (!m.has(prefix + key)) continue;
        TRY(m.get(prefix + key, &on));
        *to = on;
    }
    if (m.has("tokenizer.chat_template")) TRY(m.get("tokenizer.chat_template", &g.chat_template));
    return tokenizer_from_gguf(g, m.name);
}

Result<std::vector<std::pair<std::string, GgufValue>>> gguf_vocabulary(const Tokenizer& tokenizer, int V) {
    std::vector<std::pair<std::string, GgufValue>> keys;
    if (tokenizer.vocab_size() == 0) {
        keys.emplace_back("tokenizer.ggml.model", GgufValue::text("no_vocab"));
        return keys;
    }
    GgufTokenizer g = TRY(tokenizer_to_gguf(tokenizer));
    for (int id = int(g.tokens.size()); id < V; id++) {    // the model's rows beyond the tokenizer's
        g.tokens.push_back("[PAD" + std::to_string(id) + "]");
        g.token_type.push_back(ScoredPiece::unused);
        if (!g.scores.empty()) g.scores.push_back(0);
    }
    auto add = [&](const char* key, GgufValue value) {
        keys.emplace_back(std::string("tokenizer.ggml.") + key, std::move(value));
    };
    add("model", GgufValue::text(g.model));
    add("pre", GgufValue::text(g.pre));
    add("tokens", GgufValue::text_array(g.tokens));
    if (!g.scores.empty()) add("scores", GgufValue::number_array({g.scores.begin(), g.scores.end()}));
    add("token_type", GgufValue::integer_array({g.token_type.begin(), g.token_type.end()}));
    if (!g.merges.empty()) add("merges", GgufValue::text_array(g.merges));
    struct { const char* key; int id; } ids[] = {{"bos_token_id", g.bos_token_id}, {"eos_token_id", g.eos_token_id},
        {"unknown_token_id", g.unknown_token_id}, {"padding_token_id", g.padding_token_id}};
    for (auto& [key, id] : ids)
        if (id >= 0) add(key, GgufValue::integer(id));
    struct { const char* key; int on; } flags[] = {{"add_bos_token", g.add_bos_token},
        {"add_eos_token", g.add_eos_token}, {"add_space_prefix", g.add_space_prefix}};
    for (auto& [key, on] : flags)
        if (on >= 0) add(key, GgufValue::boolean(on));
    if (!g.chat_template.empty()) keys.emplace_back("tokenizer.chat_template", GgufValue::text(g.chat_template));
    return keys;
}
