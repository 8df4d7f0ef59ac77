// adapter_files.cpp - see adapter_files.h.
#include "checkpoint/adapter_files.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "files/json.h"
#include "files/json_write.h"
#include "layers/quant/quant.h"
#include "model/families/families.h"
#include "tensor_check.h"

namespace {
constexpr const char *CONFIG = "/adapter_config.json", *WEIGHTS = "/adapter_model.safetensors";
constexpr std::string_view PREFIX = "base_model.model.", A = ".lora_A.weight", B = ".lora_B.weight";

// Looks a module up in alpha_pattern, where PEFT keeps values by the end of a module's name.
// Returns `usual` if no key fits.
double by_pattern(const std::map<std::string, double>& pattern, const std::string& module, double usual) {
    for (const auto& [key, value] : pattern)
        if (module == key || module.ends_with("." + key)) return value;
    return usual;
}

// Fields of adapter_config.json that the matrices do not show.
struct AdapterConfig {
    std::string base;
    double alpha = 8, dropout = 0;
    bool rank_stabilised = false;
    std::map<std::string, double> alphas;    // alpha_pattern
};
// Fields of which only one value is supported.
struct Fixed {
    const char* key;
    nlohmann::json value;
    const char* why;
};
Result<AdapterConfig> parse_config(const std::string& text, const std::string& name) {
    const nlohmann::json j = TRY(json_parse(text, name, 16));
    if (!j.is_object()) return fail(Exit::input, "%s: expected an object", name.c_str());
    static const Fixed fixed[] = {
        {"peft_type", "LORA", "flatgpt has low-rank adapters alone"},
        {"use_dora", false, "DoRA's magnitudes are not supported"},
        {"bias", "none", "biases that are trained with an adapter are not supported"},
        {"lora_bias", false, "biases of adapters are not supported"},
        {"modules_to_save", nullptr, "whole matrices beside the adapters are not supported; merge with PEFT"},
    };
    for (const Fixed& f : fixed)
        if (j.contains(f.key) && !j[f.key].is_null() && j[f.key] != f.value && j[f.key] != nlohmann::json::array())
            return fail(Exit::input, "%s: %s: expected %s, found %s: %s", name.c_str(), f.key, f.value.dump().c_str(),
                        j[f.key].dump().c_str(), f.why);
    if (!j.contains("peft_type")) return fail(Exit::input, "%s: peft_type: it is not there", name.c_str());
    const nlohmann::json init = j.value("init_lora_weights", nlohmann::json(true));
    if (init.is_string() && init != "gaussian" && init != "orthogonal")
        return fail(Exit::input,
                    "%s: init_lora_weights: %s changes the base model; convert the adapter with PEFT first",
                    name.c_str(), init.dump().c_str());
    const JsonFields fields = {j, name};
    AdapterConfig c;
    if (fields.has("base_model_name_or_path")) TRY(fields.get("base_model_name_or_path", &c.base));
    if (fields.has("lora_alpha")) TRY(fields.get("lora_alpha", &c.alpha, 1e-9, 1e9));
    if (fields.has("lora_dropout")) TRY(fields.get("lora_dropout", &c.dropout, 0, 0.99));
    if (fields.has("use_rslora") && !j["use_rslora"].is_boolean())
        return fail(Exit::input, "%s: use_rslora: expected true or false, found %s", name.c_str(),
                    j["use_rslora"].dump().c_str());
    c.rank_stabilised = fields.has("use_rslora") && j["use_rslora"] == true;
    const nlohmann::json alphas = fields.has("alpha_pattern") ? j["alpha_pattern"] : nlohmann::json::object();
    if (!alphas.is_object()) return fail(Exit::input, "%s: alpha_pattern: expected an object", name.c_str());
    for (const auto& [key, value] : alphas.items()) {
        if (!value.is_number() || !(double(value) >= 1e-9 && double(value) <= 1e9) ||
            key.find_first_of("*+?[](){}|\\^$") != key.npos)
            return fail(Exit::input, "%s: alpha_pattern: \"%s\": expected the end of a module's name, and 1e-9 to 1e9",
                        name.c_str(), key.c_str());
        c.alphas[key] = double(value);
    }
    return c;
}

Status read_tensor(const AdapterFiles& from, const TensorEntry& e, std::vector<float>* to) {
    const int64_t n = e.shape[0] * e.shape[1], element = SafetensorsFile::element_bytes(e.type);
    std::vector<char> raw(size_t(n * element));
    TRY(from.file->read_bytes(from.file->data_begin() + e.begin, raw.data(), n * element));
    if (!all_finite(block_format(block_type(e.type)), raw.data(), n)) return not_finite(from.file->path(), e.name);
    to->resize(size_t(n));
    SafetensorsFile::convert(e.type, raw.data(), n, to->data());
    return {};
}

using AllMatrices = std::map<std::string, AdapterMatrices>;

// Copies the rows of b (rows,rank), which are in the order of files, to the block of `to` (OC,R)
// that begins at `column`.
void put_b(const Config& c, const Tensor& t, const Piece& p, const std::vector<float>& b, int rank, int64_t column,
           float factor, AdapterMatrices* to) {
    for (const FileRows& run : file_rows(c, t, p))
        for (int64_t r = 0; r < run.count; r++)
            for (int k = 0; k < rank; k++)
                to->b[size_t((run.memory + r) * to->R + column + k)] = factor * b[size_t((run.file + r) * rank + k)];
}

// The common factor of all modules if there is one adapter, as in training; else 1.
double common_scale(const std::vector<AdapterFiles>& adapters) {
    if (adapters.size() != 1 || adapters[0].weight != 1) return 1;
    const double scale = adapters[0].modules[0].scale;
    for (const AdapterModule& m : adapters[0].modules)
        if (m.scale != scale) return 1;
    return scale;
}
const AdapterModule* find_module(const AdapterFiles& from, const std::string& name, const Family& family) {
    for (const AdapterModule& m : from.modules)
        if (bare_name(m.name, family) == name) return &m;
    return nullptr;
}

}    // namespace

// ---- reading ------------------------------------------------------------------------------------

bool is_adapter(const std::string& path) {
    auto there = [&](const char* name) { return access((path + name).c_str(), F_OK) == 0; };
    return there(CONFIG) && !there("/model.safetensors") && !there("/model.safetensors.index.json");
}

Result<AdapterFiles> adapter_open(const std::string& dir) {
    const std::string name = dir + CONFIG;
    const AdapterConfig c = TRY(parse_config(TRY(read_file(name, 1 << 20)), name));
    AdapterFiles to = {.dir = dir, .base = c.base, .dropout = c.dropout};
    to.file = std::make_shared<const SafetensorsFile>(TRY(SafetensorsFile::open(dir + WEIGHTS)));
    std::map<std::string, const TensorEntry*> halves[2];
    for (const TensorEntry& e : to.file->entries()) {
        const std::string_view n = e.name;
        const bool a = n.ends_with(A), prefixed = n.starts_with(PREFIX);
        if (!prefixed || (!a && !n.ends_with(B)) || e.shape.size() != 2)
            return fail(Exit::input, "%s: tensor \"%s\": expected matrices named %sMODULE%s and %s",
                        to.file->path().c_str(), e.name.c_str(), std::string(PREFIX).c_str(), std::string(A).c_str(),
                        std::string(B).c_str());
        halves[a ? 0 : 1][e.name.substr(PREFIX.size(), n.size() - PREFIX.size() - (a ? A : B).size())] = &e;
    }
    for (const auto& [module, a] : halves[0]) {
        const auto b = halves[1].find(module);
        if (b == halves[1].end() || b->second->shape[1] != a->shape[0] || a->shape[0] < 1 || a->shape[0] > 1 << 16)
            return fail(Exit::input, "%s: %s: expected lora_A (rank,in) and lora_B (out,rank)", to.file->path().c_str(),
                        module.c_str());
        const double rank = double(a->shape[0]), alpha = by_pattern(c.alphas, module, c.alpha);
        to.modules.push_back({module, *a, *b->second, alpha / (c.rank_stabilised ? std::sqrt(rank) : rank)});
    }
    if (to.modules.empty() || halves[0].size() != halves[1].size())
        return fail(Exit::input, "%s: expected a lora_A and a lora_B for each module, found %zu and %zu",
                    to.file->path().c_str(), halves[0].size(), halves[1].size());
    return to;
}

Result<std::vector<AdapterFiles>> open_adapters(const std::vector<std::string>& named) {
    std::vector<AdapterFiles> all;
    for (const std::string& name : named) {
        std::error_code none;
        const size_t equals = std::filesystem::is_directory(name, none) ? name.npos : name.rfind('=');
        std::string dir = without_slashes(name.substr(0, equals));
        double weight = 1;
        if (equals != name.npos) {
            const Flag number = {.name = "--adapter " + dir, .to = &weight, .help = "", .min = -1000, .max = 1000};
            TRY(flag_set(number, {name.substr(equals + 1)}));
        }
        if (!is_adapter(dir) && !checkpoint_list(dir).empty()) dir = TRY(checkpoint_find(dir, nullptr)).path;
        if (!is_adapter(dir))
            return fail(Exit::input, "--adapter %s: expected a directory with adapter_config.json", dir.c_str());
        all.push_back(TRY(adapter_open(dir)));
        all.back().weight = weight;
    }
    return all;
}
Result<ModelSource> base_of(const ModelSource& m) {
    if (m.gguf || !is_adapter(m.path)) return m;
    const AdapterFiles adapter = TRY(adapter_open(m.path));
    std::error_code none;
    if (adapter.base.empty() || !std::filesystem::exists(adapter.base, none))
        return fail(Exit::input,
                    "%s%s: base_model_name_or_path: \"%s\" is not there; give the base model itself, and "
                    "--adapter %s",
                    m.path.c_str(), CONFIG, adapter.base.c_str(), m.path.c_str());
    const ModelSource base =
        TRY(checkpoint_find(adapter.base, nullptr, "last", [](const ModelSource& s) { return s.opened; }));
    if (!base.gguf && is_adapter(base.path))
        return fail(Exit::input, "%s: its base model %s is an adapter, too; merge that one first", m.path.c_str(),
                    base.path.c_str());
    return base;
}

Status add_adapters(Config* c, const std::vector<AdapterFiles>& adapters) {
    if (adapters.empty()) return {};
    for (auto& ranks : c->adapter.ranks) std::ranges::fill(ranks, 0);
    const std::vector<AdaptedMatrix> matrices = adapted_matrices(*c);
    for (const AdapterFiles& from : adapters) {
        std::set<std::string> used;
        int ranks[Adapter::PRODUCTS][Adapter::PIECES] = {};
        for (const AdaptedMatrix& m : matrices) {
            const AdapterModule* module = find_module(from, bare_name(m.module, *c->family), *c->family);
            if (!module) continue;
            used.insert(module->name);
            const int64_t in = module->a.shape[1], out = module->b.shape[0];
            if (in != m.cols || out != m.rows)
                return fail(Exit::input, "%s: %s: an adapter of a matrix of %lld x %lld; the model's has %lld x %lld",
                            from.file->path().c_str(), module->name.c_str(), (long long)out, (long long)in,
                            (long long)m.rows, (long long)m.cols);
            int& rank = ranks[m.product][m.piece];
            rank = std::max(rank, int(module->a.shape[0]));
        }
        for (const AdapterModule& m : from.modules)
            if (!used.contains(m.name))
                return fail(Exit::input, "%s: %s: the model has no such matrix in its blocks",
                            from.file->path().c_str(), m.name.c_str());
        for (int p = 0; p < Adapter::PRODUCTS; p++)
            for (int i = 0; i < Adapter::PIECES; i++) c->adapter.ranks[p][i] += ranks[p][i];
    }
    c->adapter.scale = float(common_scale(adapters));
    c->adapter.base = adapters[0].base;
    c->adapter.dropout = float(adapters[0].dropout);    // training, which reads it, has one adapter
    return {};
}

// The rows of a, and columns of b, of a piece's adapters follow each other.
Result<AllMatrices> adapter_matrices(const Config& c, const std::vector<AdapterFiles>& adapters) {
    AllMatrices all;
    const double common = common_scale(adapters);
    const std::vector<Tensor> tensors = config_tensors(c);
    for (const AdaptedMatrix& m : adapted_matrices(c)) {
        if (!c.adapter.rank(m.product)) continue;
        const auto t = std::ranges::find(tensors, m.tensor, &Tensor::name);
        AdapterMatrices& to = all[m.tensor];
        if (!to.R) {
            to.R = c.adapter.rank(m.product);
            to.blocks = adapter_blocks(c, m.product);
            to.a.resize(size_t(to.R * t->cols));
            to.b.resize(size_t(t->rows * to.R));
        }
        int64_t column = m.column;
        for (const AdapterFiles& from : adapters) {
            const AdapterModule* module = find_module(from, bare_name(m.module, *c.family), *c.family);
            if (!module) continue;
            std::vector<float> a, b;
            TRY(read_tensor(from, module->a, &a));
            TRY(read_tensor(from, module->b, &b));
            const int rank = int(module->a.shape[0]);
            std::ranges::copy(a, to.a.begin() + column * t->cols);
            put_b(c, *t, t->pieces[size_t(m.piece)], b, rank, column, float(module->scale * from.weight / common), &to);
            column += rank;
        }
    }
    return all;
}

Status load_adapters(Model& g, const std::vector<AdapterFiles>& adapters) {
    for (const auto& [name, m] : TRY(adapter_matrices(g.c, adapters)))
        for (const Tensor& t : g.tensors) {
            if (t.name == adapter_tensor(name, 'a')) g.write(StateKind::weights, t.offset, t.size(), m.a.data());
            if (t.name == adapter_tensor(name, 'b')) g.write(StateKind::weights, t.offset, t.size(), m.b.data());
        }
    return {};
}

Result<WeightsReader> merged_reader(WeightsReader base, const std::vector<AdapterFiles>& adapters) {
    Config c = base.c;
    TRY(add_adapters(&c, adapters));
    auto all = std::make_shared<const AllMatrices>(TRY(adapter_matrices(c, adapters)));
    base.read = [read = base.read, all, scale = c.adapter.scale](const Tensor& t, int64_t first, int64_t n,
                                                                 float* to) -> Status {
        TRY(read(t, first, n, to));
        const auto found = all->find(t.name);
        if (found == all->end()) return {};
        const AdapterMatrices& m = found->second;
        for (int64_t i = first; i < first + n;) {
            const int64_t row = i / t.cols, end = std::min(first + n, (row + 1) * t.cols);
            for (int k = 0; k < m.R; k++) {
                const float factor = scale * m.b[size_t(row * m.R + k)];
                const float* a = m.a.data() + k * t.cols - row * t.cols;
                for (int64_t j = i; factor != 0 && j < end; j++) to[j - first] += factor * a[j];
            }
            i = end;
        }
        return {};
    };
    return base;
}

// ---- writing ------------------------------------------------------------------------------------

std::vector<TensorSource> adapter_sources(const Model& g) {
    std::vector<TensorSource> sources;
    auto tensor = [&](const std::string& name) { return std::ranges::find(g.tensors, name, &Tensor::name); };
    for (const AdaptedMatrix& m : adapted_matrices(g.c)) {
        if (!m.rank) continue;
        const std::string module = std::string(PREFIX) + m.module;
        const auto a = tensor(adapter_tensor(m.tensor, 'a')), b = tensor(adapter_tensor(m.tensor, 'b'));
        const auto of = tensor(m.tensor);
        auto fill_a = [&g, at = a->offset + m.column * a->cols](int64_t first, int64_t count, float* out) {
            g.read(StateKind::weights, at + first, count, out);
            return Status{};
        };
        // Must be called in order: the first call reads b, the last one frees it.
        auto fill_b = [&g, b, of, m, host = std::vector<float>()](int64_t first, int64_t count,
                                                                  float* out) mutable -> Status {
            if (first == 0) {
                std::vector<float> whole(size_t(b->size()));
                g.read(StateKind::weights, b->offset, b->size(), whole.data());
                host.resize(size_t(m.rows * m.rank));
                for (const FileRows& run : file_rows(g.c, *of, of->pieces[size_t(m.piece)]))
                    for (int64_t r = 0; r < run.count; r++)
                        std::copy_n(whole.data() + (run.memory + r) * b->cols + m.column, m.rank,
                                    host.data() + (run.file + r) * m.rank);
            }
            std::copy_n(host.data() + first, count, out);
            if (first + count == m.rows * m.rank) std::vector<float>().swap(host);
            return {};
        };
        sources.push_back({module + std::string(A), TensorType::f32, {m.rank, a->cols}, fill_a});
        sources.push_back({module + std::string(B), TensorType::f32, {m.rows, m.rank}, fill_b});
    }
    return sources;
}

std::string adapter_config_json(const Config& c) {
    std::set<std::string> modules;
    int rank = 0;
    bool transposed = false;
    std::map<std::string, int> own;    // rank of each module
    for (const AdaptedMatrix& m : adapted_matrices(c)) {
        if (!m.rank) continue;
        const std::string module = m.module.substr(m.module.rfind('.') + 1);
        modules.insert(module);
        own[module] = m.rank;
        rank = std::max(rank, m.rank);
    }
    Json ranks = Json::object(), alphas = Json::object();
    for (const auto& [module, of_module] : own)
        if (of_module != rank) ranks.set(module, of_module), alphas.set(module, double(c.adapter.scale) * of_module);
    for (const Family::Name& n : c.family->names) transposed |= n.layout == FileLayout::transposed;
    return Json::object("peft_type", "LORA", "task_type", "CAUSAL_LM", "base_model_name_or_path", c.adapter.base, "r",
                        rank, "lora_alpha", double(c.adapter.scale) * rank, "lora_dropout", double(c.adapter.dropout),
                        "target_modules", Json::list(std::vector<std::string>(modules.begin(), modules.end())), "bias",
                        "none", "fan_in_fan_out", transposed, "inference_mode", true, "init_lora_weights", true,
                        "use_rslora", false, "use_dora", false, "modules_to_save", nullptr, "rank_pattern", ranks,
                        "alpha_pattern", alphas)
               .text(2) +
           "\n";
}
