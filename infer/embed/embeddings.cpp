// embeddings.cpp - see embeddings.h.
#include "embeddings.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/command.h"
#include "base/element.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/tensor_check.h"
#include "files/gguf.h"
#include "files/json.h"
#include "files/safetensors.h"
#include "layers/quant/quant.h"

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
std::string shape_text(const std::vector<int64_t>& shape) {
    std::vector<std::string> sizes;
    for (const int64_t n : shape) sizes.push_back(std::to_string(n));
    return join(sizes, " x ");
}
// Reads the tensor of this name and shape, whose numbers must be finite.
Status read_tensor(const SafetensorsFile& file, const std::string& name, const std::vector<int64_t>& shape,
                   std::vector<float>* to) {
    const auto t = std::ranges::find(file.entries(), name, &TensorEntry::name);
    if (t == file.entries().end())
        return fail(Exit::input, "%s: %s: expected a tensor of F32, BF16 or F16, found none", file.path().c_str(),
                    name.c_str());
    if (t->shape != shape)
        return fail(Exit::input, "%s: %s: expected %s numbers, as config.json has them, found %s", file.path().c_str(),
                    name.c_str(), shape_text(shape).c_str(), shape_text(t->shape).c_str());
    const int64_t bytes = t->end - t->begin, count = bytes / SafetensorsFile::element_bytes(t->type);
    std::vector<char> raw(static_cast<size_t>(bytes));
    TRY(file.read_bytes(file.data_begin() + t->begin, raw.data(), bytes));
    if (!all_finite(block_format(block_type(t->type)), raw.data(), count)) return not_finite(file.path(), name);
    to->resize(size_t(count));
    SafetensorsFile::convert(t->type, raw.data(), count, to->data());
    return {};
}
Result<DenseLayer> read_dense(const std::string& directory) {
    const std::string path = directory + "/config.json";
    const nlohmann::json j = TRY(read_json(path));
    if (!j.is_object()) return fail(Exit::input, "%s: expected a file with a JSON object", path.c_str());
    const JsonFields f{j, path};
    DenseLayer layer{};
    std::string activation;
    TRY(f.get("in_features", &layer.in, 1, 1 << 16));
    TRY(f.get("out_features", &layer.out, 1, 1 << 16));
    TRY(f.get("activation_function", &activation));
    layer.tanh = activation.ends_with(".Tanh");
    if (!layer.tanh && !activation.ends_with(".Identity"))
        return fail(Exit::input, "%s: activation_function: expected Tanh or Identity, found '%s'", path.c_str(),
                    activation.c_str());
    const SafetensorsFile file = TRY(SafetensorsFile::open(TRY(checkpoint_tensor_files(directory, "model"))[0]));
    TRY(read_tensor(file, "linear.weight", {layer.out, layer.in}, &layer.w));
    layer.b.resize(size_t(layer.out));
    if (!j.contains("bias") || j["bias"] != false) TRY(read_tensor(file, "linear.bias", {layer.out}, &layer.b));
    return layer;
}
Status read_modules(const std::string& directory, const std::string& path, const nlohmann::json& j,
                    SentenceConfig* to) {
    if (!j.is_array()) return fail(Exit::input, "%s: expected a JSON array of modules", path.c_str());
    const std::vector<std::string> order = {"Transformer", "Pooling", "Dense", "Normalize"};
    size_t at = 0;
    for (const nlohmann::json& module : j) {
        auto text = [&](const char* key) {
            const bool has = module.is_object() && module.contains(key) && module[key].is_string();
            return has ? module[key].get<std::string>() : std::string();
        };
        const std::string type = text("type"), name = type.substr(type.rfind('.') + 1), part = text("path");
        while (at < order.size() && order[at] != name) at++;
        if (at == order.size())
            return fail(Exit::input,
                        "%s: expected the modules Transformer, Pooling, Dense and Normalize, in this order, found '%s'",
                        path.c_str(), type.c_str());
        if (name != "Dense") continue;
        if (part.empty() || part[0] == '.' || part.find('/') != part.npos)
            return fail(Exit::input, "%s: path: expected the name of a Dense layer's directory, found '%s'",
                        path.c_str(), part.c_str());
        DenseLayer layer = TRY(read_dense(directory + "/" + part));
        if (!to->layers.empty() && layer.in != to->layers.back().out)
            return fail(Exit::input, "%s: %s: expected %d in_features, found %d", path.c_str(), part.c_str(),
                        to->layers.back().out, layer.in);
        to->layers.push_back(std::move(layer));
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
    if (const nlohmann::json j = TRY(read_json(modules)); !j.is_null())
        TRY(read_modules(directory, modules, j, &config));
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
    std::vector<double> x(static_cast<size_t>(C));
    for (int s = from; s < until; s++)
        for (int i = 0; i < C; i++) x[size_t(i)] += double(states[int64_t(s) * C + i]);
    for (double& number : x) number /= until - from;
    for (const DenseLayer& layer : o.layers) {
        std::vector<double> y(layer.b.begin(), layer.b.end());
        for (int i = 0; i < layer.out; i++) {
            for (int k = 0; k < layer.in; k++)
                y[size_t(i)] += double(layer.w[size_t(i) * size_t(layer.in) + size_t(k)]) * x[size_t(k)];
            if (layer.tanh) y[size_t(i)] = std::tanh(y[size_t(i)]);
        }
        x = std::move(y);
    }
    double square = 0;
    for (int i = 0; i < dims; i++) square += x[size_t(i)] * x[size_t(i)];
    // A vector of zeros stays one.
    const double scale = o.normalize && square > 0 ? 1 / std::sqrt(square) : 1;
    for (int i = 0; i < dims; i++) to[i] = float(x[size_t(i)] * scale);
}
}    // namespace

std::vector<float> embed_texts(Model& model, const std::vector<std::vector<int>>& texts, const EmbedOptions& o) {
    const int C = model.c.C, dims = o.dims ? o.dims : o.width(C);
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
