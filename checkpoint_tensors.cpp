// checkpoint_tensors.cpp - weights and moments between the model's memory and safetensors files.
//
// Hugging Face's GPT-2 keeps matrices as (in, out), we as (out, in): those are transposed on the way. Rows that pad the
// vocabulary exist in memory only, as zeros.
#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint.h"
#include "data/file.h"
#include "data/json.h"

namespace {
constexpr int64_t PIECE = 1 << 20;    // elements on the host at a time, for tensors that need no transposition

int64_t file_elements(const Tensor& t) { return t.file_rows * t.cols; }

std::vector<int64_t> file_shape(const Tensor& t) {
    if (t.vector) return {t.cols};
    return t.transposed ? std::vector{t.cols, t.file_rows} : std::vector{t.file_rows, t.cols};
}

std::string shape_text(const std::vector<int64_t>& shape) {
    std::string text;
    for (int64_t d : shape) text += (text.empty() ? "" : ", ") + std::to_string(d);
    return "(" + text + ")";
}

// to (cols, rows) = from (rows, cols), in tiles that stay in cache
void transpose(float* to, const float* from, int64_t rows, int64_t cols) {
    constexpr int64_t TILE = 32;
    for (int64_t r0 = 0; r0 < rows; r0 += TILE)
        for (int64_t c0 = 0; c0 < cols; c0 += TILE)
            for (int64_t c = c0; c < std::min(cols, c0 + TILE); c++)
                for (int64_t r = r0; r < std::min(rows, r0 + TILE); r++) to[c * rows + r] = from[r * cols + c];
}
}   // namespace

// ---- writing -------------------------------------------------------------------------------------------------------

std::string checkpoint_file(const std::string& stem, int rank, int ranks) {
    char numbers[48] = "";
    if (ranks > 1) snprintf(numbers, sizeof numbers, "-%05d-of-%05d", rank + 1, ranks);
    return stem + numbers + ".safetensors";
}

std::string checkpoint_index(const Model& g, const std::string& stem, const std::vector<std::string>& prefixes) {
    const std::vector<int> owners = config_owners(g.c, g.plan.ranks);
    nlohmann::ordered_json files;
    int64_t bytes = 0;
    for (const std::string& prefix : prefixes)
        for (const Tensor& t : g.tensors) {
            files[prefix + t.name] = checkpoint_file(stem, owners[size_t(t.bucket)], g.plan.ranks);
            bytes += file_elements(t) * int64_t(sizeof(float));
        }
    return nlohmann::ordered_json{{"metadata", {{"total_size", bytes}}}, {"weight_map", files}}.dump(1) + "\n";
}

void checkpoint_tensors(const Model& g, Part part, const std::string& prefix, std::vector<TensorSource>* sources) {
    const std::vector<int> owners = config_owners(g.c, g.plan.ranks);
    for (const Tensor& t : g.tensors) {
        if (owners[size_t(t.bucket)] != g.plan.rank) continue;
        auto plain = [&g, part, at = t.offset](int64_t first, int64_t count, float* out) {
            g.read(part, at + first, count, out);
        };
        // Asked for in order: the first piece brings the whole tensor, the last one lets it go.
        auto turned = [&g, part, t, host = std::vector<float>()](int64_t first, int64_t count, float* out) mutable {
            if (first == 0) {
                std::vector<float> rows(size_t(t.size()));
                g.read(part, t.offset, t.size(), rows.data());
                host.resize(rows.size());
                transpose(host.data(), rows.data(), t.rows, t.cols);
            }
            std::copy_n(host.data() + first, count, out);
            if (first + count == t.size()) std::vector<float>().swap(host);    // = {} would keep the memory
        };
        TensorSource source{prefix + t.name, TensorType::f32, file_shape(t), plain};
        if (t.transposed) source.fill = turned;
        sources->push_back(std::move(source));
    }
}

// ---- reading -------------------------------------------------------------------------------------------------------

namespace {
struct Found { const SafetensorsFile* file; const TensorEntry* entry; };
struct Weights {
    std::vector<SafetensorsFile> files;
    std::map<std::string, Found> tensors;    // names without "transformer.", which the Hub's own gpt2 leaves out, too
};

std::string bare_name(const std::string& name) {
    return name.starts_with("transformer.") ? name.substr(strlen("transformer.")) : name;
}

// The files that hold weights (stem model) or moments (optimizer): one, or those that the index names.
Result<std::vector<std::string>> tensor_files(const std::string& dir, const std::string& stem) {
    std::string one = dir + "/" + stem + ".safetensors", index = one + ".index.json";
    if (access(one.c_str(), F_OK) == 0 || access(index.c_str(), F_OK) != 0) return std::vector{one};
    Result<std::string> text = read_file(index, 64 << 20);
    TRY(text.status);
    Result<nlohmann::json> j = json_parse(text.value, index, 8);
    TRY(j.status);
    if (!j.value.is_object() || !j.value["weight_map"].is_object() || j.value["weight_map"].empty())
        return fail(Exit::input, "%s: weight_map: expected an object from tensor names to files", index.c_str());
    std::vector<std::string> files;
    for (const auto& [tensor, file] : j.value["weight_map"].items()) {
        if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos)
            return fail(Exit::input, "%s: weight_map: %s: expected a file of this directory", index.c_str(),
                        tensor.c_str());
        files.push_back(dir + "/" + file.get<std::string>());
    }
    std::sort(files.begin(), files.end());
    files.erase(std::unique(files.begin(), files.end()), files.end());
    return files;
}

Result<Weights> weights_open(const std::vector<std::string>& paths) {
    Weights w;
    for (const std::string& path : paths) {
        Result<SafetensorsFile> file = SafetensorsFile::open(path);
        TRY(file.status);
        w.files.push_back(std::move(file.value));
    }
    for (size_t i = 0; i < paths.size(); i++)
        for (const TensorEntry& e : w.files[i].entries())
            if (!w.tensors.emplace(bare_name(e.name), Found{&w.files[i], &e}).second)
                return fail(Exit::input, "%s: tensor \"%s\" occurs twice", paths[i].c_str(), e.name.c_str());
    return w;
}

// Tensors of other exporters that say nothing new: the causal mask, and the head that is wte.
bool redundant(const std::string& name, const TensorEntry& e, const Config& c) {
    if (name == "lm_head.weight") return e.shape == std::vector<int64_t>{c.V, c.C};
    return name.starts_with("h.") && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

// Every tensor of the model is there in its shape, and nothing else; before any of them is touched.
Status weights_match(const Weights& w, const Model& g, const std::vector<std::string>& prefixes,
                     const std::string& place) {
    std::set<std::string> known;
    for (const std::string& prefix : prefixes)
        for (const Tensor& t : g.tensors) {
            std::string name = prefix + t.name, expected = shape_text(file_shape(t));
            auto it = w.tensors.find(bare_name(name));
            if (it == w.tensors.end())
                return fail(Exit::input, "%s: tensor \"%s\" %s: not found (as F32, BF16 or F16)", place.c_str(),
                            name.c_str(), expected.c_str());
            if (it->second.entry->shape != file_shape(t))
                return fail(Exit::input, "%s: tensor \"%s\": expected shape %s, found %s", place.c_str(), name.c_str(),
                            expected.c_str(), shape_text(it->second.entry->shape).c_str());
            known.insert(it->first);
        }
    for (auto& [name, found] : w.tensors)
        if (!known.contains(name) && !redundant(name, *found.entry, g.c))
            return fail(Exit::input, "%s: tensor \"%s\" %s is no part of this model", place.c_str(), name.c_str(),
                        shape_text(found.entry->shape).c_str());
    return {};
}

void load(const Weights& w, Model& g, const std::string& prefix, Part part) {
    std::vector<float> host, turned;
    for (const Tensor& t : g.tensors) {
        if (!g.holds(part, t.offset, t.size())) continue;
        const Found& found = w.tensors.at(bare_name(prefix + t.name));
        const std::vector<float> padding(size_t(t.size() - file_elements(t)));
        if (!padding.empty()) g.write(part, t.offset + file_elements(t), int64_t(padding.size()), padding.data());
        int64_t piece = t.transposed ? t.size() : PIECE;
        for (int64_t first = 0; first < file_elements(t); first += piece) {
            int64_t count = std::min(piece, file_elements(t) - first);
            host.resize(size_t(count));
            found.file->read(*found.entry, first, count, host.data());
            if (t.transposed) {
                turned.resize(host.size());
                transpose(turned.data(), host.data(), t.cols, t.rows);
            }
            g.write(part, t.offset + first, count, (t.transposed ? turned : host).data());
        }
    }
}
}   // namespace

Status checkpoint_weight_headers(const std::string& dir) {
    Result<std::vector<std::string>> paths = tensor_files(dir, "model");
    return paths.ok() ? weights_open(paths.value).status : paths.status;
}

Status checkpoint_weights(const std::string& dir, Model& g) {
    Result<std::vector<std::string>> paths = tensor_files(dir, "model");
    TRY(paths.status);
    Result<Weights> w = weights_open(paths.value);
    TRY(w.status);
    TRY(weights_match(w.value, g, {""}, paths.value.size() == 1 ? paths.value[0] : dir));
    load(w.value, g, "", Part::weights);
    return {};
}

Status checkpoint_optimizer(const std::string& dir, Model& g) {
    Result<std::vector<std::string>> paths = tensor_files(dir, "optimizer");
    TRY(paths.status);
    Result<Weights> w = weights_open(paths.value);
    TRY(w.status);
    TRY(weights_match(w.value, g, {"m.", "v."}, paths.value.size() == 1 ? paths.value[0] : dir));
    load(w.value, g, "m.", Part::m);
    load(w.value, g, "v.", Part::v);
    return {};
}

Result<Config> checkpoint_config(const std::string& dir) {
    std::string path = dir + "/config.json";
    Result<std::string> text = read_file(path, 1 << 20);
    TRY(text.status);
    Result<Config> c = config_parse(text.value, path);
    if (!c.ok()) return c;
    Result<std::vector<std::string>> paths = tensor_files(dir, "model");
    TRY(paths.status);
    // Before anybody allocates what it promises: two bytes a number is the least. (A config alone is a model, too.)
    int64_t least = 2 * config_parameters(c.value), found = 0;
    struct stat file;
    for (const std::string& weights : paths.value)
        if (stat(weights.c_str(), &file) == 0) found += file.st_size;
    if (found && found < least)
        return fail(Exit::input, "%s: the model it describes takes at least %lld bytes, the weights have %lld",
                    path.c_str(), (long long)least, (long long)found);
    return c;
}
