// embeddings.cpp - see embeddings.h.
#include "embeddings.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/command.h"
#include "base/element.h"
#include "base/file.h"
#include "files/gguf.h"
#include "files/json.h"

namespace {
// A JSON file of the directory; null: it does not exist.
Result<nlohmann::json> read_json(const std::string& path) {
    std::error_code none;
    if (!std::filesystem::exists(path, none)) return nlohmann::json();
    return json_parse(TRY(read_file(path, 16 << 20)), path, 8);
}
Result<Pooling> read_pooling(const std::string& path, const nlohmann::json& j) {
    if (!j.is_object()) return fail(Exit::input, "%s: expected a JSON object", path.c_str());
    std::vector<std::string> on;
    for (const auto& [key, value] : j.items())
        if (key.starts_with("pooling_mode_") && value == true) on.push_back(key.substr(13));
    if (j.contains("pooling_mode") && j["pooling_mode"].is_string()) on = {j["pooling_mode"].get<std::string>()};
    const std::string mode = on.size() == 1 ? on[0] : "";
    if (mode == "mean_tokens" || mode == "mean") return Pooling::mean;
    if (mode == "cls_token" || mode == "cls") return Pooling::first;
    if (mode == "lasttoken") return Pooling::last;
    return fail(Exit::input, "%s: expected one pooling of mean_tokens, cls_token and lasttoken, found %s", path.c_str(),
                on.empty() ? "none" : join(on, " and ").c_str());
}
Status check_modules(const std::string& path, const nlohmann::json& j) {
    if (!j.is_array()) return fail(Exit::input, "%s: expected a JSON array of modules", path.c_str());
    for (const nlohmann::json& module : j) {
        const std::string type = module.is_object() && module.contains("type") && module["type"].is_string()
                                     ? module["type"].get<std::string>()
                                     : "";
        const std::string name = type.substr(type.rfind('.') + 1);
        if (name != "Transformer" && name != "Pooling" && name != "Normalize")
            return fail(Exit::input, "%s: expected the modules Transformer, Pooling and Normalize, found '%s'",
                        path.c_str(), type.c_str());
    }
    return {};
}
}    // namespace

int gguf_pooling(Pooling pooling) { return pooling == Pooling::mean ? 1 : pooling == Pooling::first ? 2 : 3; }

Result<SentenceConfig> sentence_config(const std::string& directory) {
    SentenceConfig config;
    if (is_gguf(directory)) {
        const GgufFile file = TRY(GgufFile::open(directory));
        std::string architecture;
        int pooling = 0;
        TRY(file.metadata().get("general.architecture", &architecture));
        const std::string key = architecture + ".pooling_type";
        if (file.metadata().has(key)) TRY(file.metadata().get(key, &pooling, 0, 4));
        for (const Pooling each : {Pooling::mean, Pooling::first, Pooling::last})
            if (pooling == gguf_pooling(each)) config.pooling = each;
        return config;
    }
    const std::string modules = directory + "/modules.json", pooling = directory + "/1_Pooling/config.json",
                      settings = directory + "/sentence_bert_config.json";
    if (const nlohmann::json j = TRY(read_json(modules)); !j.is_null()) TRY(check_modules(modules, j));
    if (const nlohmann::json j = TRY(read_json(pooling)); !j.is_null()) config.pooling = TRY(read_pooling(pooling, j));
    if (const nlohmann::json j = TRY(read_json(settings)); !j.is_null()) {
        if (!j.is_object()) return fail(Exit::input, "%s: expected a JSON object", settings.c_str());
        const JsonFields f{j, settings};
        if (f.has("max_seq_length")) TRY(f.get("max_seq_length", &config.longest, 1, 1 << 30));
    }
    // sentence-transformers 6 writes it as the tokenizer's, which may be 1e30: unlimited.
    const nlohmann::json tokenizer = TRY(read_json(directory + "/tokenizer_config.json"));
    if (const char* key = "model_max_length"; !config.longest && config.pooling && tokenizer.is_object() &&
                                              tokenizer.contains(key) && tokenizer[key].is_number_integer())
        config.longest = int(std::clamp<int64_t>(tokenizer[key].get<int64_t>(), 0, 1 << 30));
    return config;
}

namespace {
// states: (length,C)
void pool(const float* states, int length, int C, const EmbedOptions& o, int dims, float* to) {
    const int from = o.pooling == Pooling::last ? length - 1 : 0;
    const int until = o.pooling == Pooling::first ? 1 : length;
    std::vector<double> sum(static_cast<size_t>(dims));
    for (int s = from; s < until; s++)
        for (int i = 0; i < dims; i++) sum[size_t(i)] += double(states[int64_t(s) * C + i]);
    double square = 0;
    for (double& x : sum) {
        x /= until - from;
        square += x * x;
    }
    // A vector of zeros stays one.
    const double scale = o.normalize && square > 0 ? 1 / std::sqrt(square) : 1;
    for (int i = 0; i < dims; i++) to[i] = float(sum[size_t(i)] * scale);
}
}    // namespace

std::vector<float> embed_texts(Model& model, const std::vector<std::vector<int>>& texts, const EmbedOptions& o) {
    const int C = model.c.C, dims = o.dims ? o.dims : C;
    std::vector<size_t> order(texts.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return texts[a].size() > texts[b].size(); });
    std::vector<float> all(texts.size() * size_t(dims)), states;
    std::vector<char> raw;
    for (size_t first = 0; first < order.size();) {
        const int S = int(texts[order[first]].size());
        CHECK(S >= 1 && S <= model.plan.S, "a text of %d tokens", S);
        const int B = int(std::min(order.size() - first, size_t(model.plan.max_tokens() / S)));
        std::vector<int> tokens(size_t(B) * size_t(S));
        Spans spans;
        for (int b = 0; b < B; b++) {
            const std::vector<int>& ids = texts[order[first + size_t(b)]];
            std::copy(ids.begin(), ids.end(), &tokens[size_t(b) * size_t(S)]);
            // Padding is a text of its own, to which no other position attends.
            std::vector<Text> parts = {{0, int(ids.size())}};
            if (int(ids.size()) < S) parts.push_back({int(ids.size())});
            spans.add(parts, S, model.c.mask_kind);
        }
        // Under a causal mask, no position attends to the padding behind it.
        model.batch.upload(tokens.data(), nullptr, B, S, model.c.mask_kind == MaskKind::causal ? nullptr : &spans);
        model.forward();
        const int64_t n = int64_t(B) * S * C;
        raw.resize(size_t(model.op.bytes(model.lnf, n)));
        model.op.download(raw.data(), model.lnf, int64_t(raw.size()));
        states.resize(size_t(n));
        to_floats(states.data(), raw.data(), model.op.input, n);
        for (int b = 0; b < B; b++, first++)
            pool(&states[size_t(b) * size_t(S) * size_t(C)], int(texts[order[first]].size()), C, o, dims,
                 &all[order[first] * size_t(dims)]);
    }
    return all;
}
