// adapter_files.cpp - see adapter_files.h.
#include "checkpoint/adapter_files.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>

#include "files/json.h"
#include "files/json_write.h"
#include "layers/quant/quant.h"
#include "model/families/families.h"
#include "tensor_check.h"

namespace {
constexpr const char *CONFIG = "/adapter_config.json", *WEIGHTS = "/adapter_model.safetensors";
constexpr std::string_view PREFIX = "base_model.model.";
// Ends of the names of a module's tensors: a, b, magnitudes.
constexpr std::string_view ENDS[] = {".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector"};

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
    bool rank_stabilised = false, magnitudes = false;
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
    for (auto [key, to] : {std::pair{"use_rslora", &c.rank_stabilised}, {"use_dora", &c.magnitudes}}) {
        if (fields.has(key) && !j[key].is_boolean())
            return fail(Exit::input, "%s: %s: expected true or false, found %s", name.c_str(), key,
                        j[key].dump().c_str());
        *to = fields.has(key) && j[key] == true;
    }
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
    const int64_t n = e.shape[0] * (e.shape.size() > 1 ? e.shape[1] : 1),
                  element = SafetensorsFile::element_bytes(e.type);
    std::vector<char> raw(size_t(n * element));
    TRY(from.file->read_bytes(from.file->data_begin() + e.begin, raw.data(), n * element));
    if (!all_finite(block_format(block_type(e.type)), raw.data(), n)) return not_finite(from.file->path(), e.name);
    to->resize(size_t(n));
    SafetensorsFile::convert(e.type, raw.data(), n, to->data());
    return {};
}

using AllMatrices = std::map<std::string, AdapterMatrices>;

// Copies rows of n numbers, in the order of files, to the columns of `to` (OC,width) from `column`
// on.
void put_rows(const Config& c, const Tensor& t, const Piece& p, const std::vector<float>& rows, int n, int64_t column,
              int width, float factor, std::vector<float>* to) {
    for (const FileRows& run : file_rows(c, t, p))
        for (int64_t r = 0; r < run.count; r++)
            for (int k = 0; k < n; k++)
                (*to)[size_t((run.memory + r) * width + column + k)] = factor * rows[size_t((run.file + r) * n + k)];
}

// The common factor of all modules if there is one adapter, as in training; else 1.
double common_scale(const std::vector<AdapterFiles>& adapters) {
    if (adapters.size() != 1 || adapters[0].weight != 1) return 1;
    const double scale = adapters[0].modules[0].scale;
    for (const AdapterModule& m : adapters[0].modules)
        if (m.scale != scale) return 1;
    return scale;
}
// The last parts of a module's name, which dots separate.
std::string name_end(const std::string& module, int parts) {
    size_t at = module.size();
    for (int i = 0; i < parts && at != module.npos; i++) at = at ? module.rfind('.', at - 1) : module.npos;
    return at == module.npos ? module : module.substr(at + 1);
}
// Whether this model leaves out the matrix: it is an encoder whose decoder the adapter has, too.
bool leaves_out(const Family& family, const std::string& name) {
    return std::ranges::any_of(family.redundant, [&](std::string_view part) {
        return part.ends_with('*') && bare_name(name, family).starts_with(part.substr(0, part.size() - 1));
    });
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
    AdapterFiles to = {.dir = dir, .magnitudes = c.magnitudes, .base = c.base, .dropout = c.dropout};
    to.file = std::make_shared<const SafetensorsFile>(TRY(SafetensorsFile::open(dir + WEIGHTS)));
    std::map<std::string, std::array<TensorEntry, 3>> modules;
    for (const TensorEntry& e : to.file->entries()) {
        const std::string_view n = e.name;
        const auto end = std::ranges::find_if(ENDS, [&](std::string_view s) { return n.ends_with(s); });
        const size_t which = size_t(end - std::begin(ENDS));
        if (which == 2 && !c.magnitudes)
            return fail(Exit::input, "%s: %s belongs to DoRA, but use_dora is not true in %s", to.file->path().c_str(),
                        e.name.c_str(), name.c_str());
        if (which == std::size(ENDS) || !n.starts_with(PREFIX) || e.shape.size() != (which < 2 ? 2 : 1))
            return fail(Exit::input, "%s: tensor \"%s\": expected matrices named %sMODULE%s and %s%s",
                        to.file->path().c_str(), e.name.c_str(), std::string(PREFIX).c_str(),
                        std::string(ENDS[0]).c_str(), std::string(ENDS[1]).c_str(),
                        c.magnitudes ? formatted(", and vectors named %s", std::string(ENDS[2]).c_str()).c_str() : "");
        modules[e.name.substr(PREFIX.size(), n.size() - PREFIX.size() - end->size())][which] = e;
    }
    for (const auto& [module, t] : modules) {
        const auto& [a, b, m] = t;
        const bool pair = a.shape.size() == 2 && b.shape.size() == 2 && b.shape[1] == a.shape[0] && a.shape[0] >= 1 &&
                          a.shape[0] <= 1 << 16;
        if (!pair || (c.magnitudes && (m.shape.empty() || m.shape[0] != b.shape[0])))
            return fail(Exit::input, "%s: %s: expected lora_A (rank,in) and lora_B (out,rank)%s",
                        to.file->path().c_str(), module.c_str(),
                        c.magnitudes ? " and, as use_dora says, lora_magnitude_vector (out)" : "");
        const double rank = double(a.shape[0]), alpha = by_pattern(c.alphas, module, c.alpha);
        to.modules.push_back({module, a, b, m, alpha / (c.rank_stabilised ? std::sqrt(rank) : rank)});
    }
    if (to.modules.empty())
        return fail(Exit::input, "%s: expected a lora_A and a lora_B for each module, found none",
                    to.file->path().c_str());
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
        if (from.magnitudes && adapters.size() > 1)
            return fail(Exit::usage,
                        "%s: its magnitudes (DoRA) are those of the base model with this adapter alone; merge one of "
                        "the two first",
                        from.dir.c_str());
        if (from.magnitudes && from.weight != 1)
            return fail(Exit::usage, "%s=%g: an adapter with magnitudes (DoRA) applies in full; leave out =%g",
                        from.dir.c_str(), from.weight, from.weight);
        std::set<std::string> used;
        int ranks[Adapter::PRODUCTS][Adapter::PIECES] = {};
        std::vector<const AdaptedMatrix*> without;
        for (const AdaptedMatrix& m : matrices) {
            const AdapterModule* module = find_module(from, bare_name(m.module, *c->family), *c->family);
            if (!module) {
                without.push_back(&m);
                continue;
            }
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
            if (!used.contains(m.name) && !leaves_out(*c->family, m.name))
                return fail(Exit::input, "%s: %s: the model has no such matrix in its blocks",
                            from.file->path().c_str(), m.name.c_str());
        for (const AdaptedMatrix* m : without)
            if (from.magnitudes && ranks[m->product][m->piece])
                return fail(Exit::input,
                            "%s: %s: it has no adapter, which other layers have; with magnitudes (DoRA) expected one "
                            "in each layer, or merge with PEFT",
                            from.file->path().c_str(), m->module.c_str());
        for (int p = 0; p < Adapter::PRODUCTS; p++)
            for (int i = 0; i < Adapter::PIECES; i++) c->adapter.ranks[p][i] += ranks[p][i];
    }
    c->adapter.scale = float(common_scale(adapters));
    c->adapter.magnitudes = adapters[0].magnitudes;
    c->adapter.base = adapters[0].base;
    c->adapter.dropout = float(adapters[0].dropout);    // training, which reads it, has one adapter
    return {};
}

// The rows of a, and columns of b, of a piece's adapters follow each other.
Result<AllMatrices> adapter_matrices(const Config& c, const std::vector<AdapterFiles>& adapters) {
    AllMatrices all;
    const double common = common_scale(adapters);
    const std::vector<Tensor> tensors = config_tensors(c);
    const auto blocks = adapter_blocks(c);
    for (const AdaptedMatrix& m : adapted_matrices(c)) {
        if (!c.adapter.rank(m.product)) continue;
        const auto t = std::ranges::find(tensors, m.tensor, &Tensor::name);
        AdapterMatrices& to = all[m.tensor];
        if (!to.R) {
            to.R = c.adapter.rank(m.product);
            to.blocks = blocks[size_t(m.block)][m.product];
            to.a.resize(size_t(to.R * t->cols));
            to.b.resize(size_t(t->rows * to.R));
            to.m.resize(c.adapter.magnitudes ? size_t(t->rows) : 0);
        }
        int64_t column = m.column;
        for (const AdapterFiles& from : adapters) {
            const AdapterModule* module = find_module(from, bare_name(m.module, *c.family), *c.family);
            if (!module) continue;
            std::vector<float> a, b, magnitudes;
            TRY(read_tensor(from, module->a, &a));
            TRY(read_tensor(from, module->b, &b));
            const int rank = int(module->a.shape[0]);
            std::ranges::copy(a, to.a.begin() + column * t->cols);
            const Piece& piece = t->pieces[size_t(m.piece)];
            put_rows(c, *t, piece, b, rank, column, to.R, float(module->scale * from.weight / common), &to.b);
            if (c.adapter.magnitudes) {
                TRY(read_tensor(from, module->magnitude, &magnitudes));
                put_rows(c, *t, piece, magnitudes, 1, 0, 1, 1, &to.m);
            }
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
            if (t.name == adapter_tensor(name, 'm')) g.write(StateKind::weights, t.offset, t.size(), m.m.data());
        }
    return {};
}

Result<WeightsReader> merged_reader(WeightsReader base, const std::vector<AdapterFiles>& adapters) {
    Config c = base.c;
    TRY(add_adapters(&c, adapters));
    auto all = std::make_shared<const AllMatrices>(TRY(adapter_matrices(c, adapters)));
    base.read = [read = base.read, all, scale = c.adapter.scale](const Tensor& t, int64_t first, int64_t n,
                                                                 float* to) -> Status {
        const auto found = all->find(t.name);
        if (found == all->end()) return read(t, first, n, to);
        const AdapterMatrices& m = found->second;
        // A row's norm needs the whole row.
        const int64_t begin = first / t.cols, end = ceil_div(first + n, t.cols);
        std::vector<float> rows(size_t((end - begin) * t.cols));
        TRY(read(t, begin * t.cols, int64_t(rows.size()), rows.data()));
        for (int64_t r = begin; r < end; r++) {
            float* row = rows.data() + (r - begin) * t.cols;
            for (int k = 0; k < m.R; k++) {
                const float factor = scale * m.b[size_t(r * m.R + k)];
                const float* a = m.a.data() + k * t.cols;
                for (int64_t j = 0; factor != 0 && j < t.cols; j++) row[j] += factor * a[j];
            }
            if (m.m.empty() || !m.blocks.columns(r)) continue;
            const double norm = std::sqrt(std::inner_product(row, row + t.cols, row, 0.0));
            const float factor = norm > 0 ? float(double(m.m[size_t(r)]) / norm) : 1;
            for (int64_t j = 0; j < t.cols; j++) row[j] *= factor;
        }
        std::copy_n(rows.begin() + (first - begin * t.cols), n, to);
        return {};
    };
    return base;
}

// ---- writing ------------------------------------------------------------------------------------

std::vector<TensorSource> adapter_sources(const Model& g, StateKind part) {
    std::vector<TensorSource> sources;
    auto tensor = [&](const std::string& name) { return std::ranges::find(g.tensors, name, &Tensor::name); };
    for (const AdaptedMatrix& m : adapted_matrices(g.c)) {
        if (!m.rank) continue;
        const std::string module = std::string(PREFIX) + m.module;
        const auto a = tensor(adapter_tensor(m.tensor, 'a')), b = tensor(adapter_tensor(m.tensor, 'b'));
        auto fill_a = [&g, part, at = a->offset + m.column * a->cols](int64_t first, int64_t count, float* out) {
            g.read(part, at + first, count, out);
            return Status{};
        };
        // Reads n numbers, from `column` on, of each of the module's rows in a tensor (OC,width).
        // Must be called in order: the first call reads all, the last one frees them.
        auto rows_of = [&](auto from, int64_t column, int64_t n) {
            const auto of = tensor(m.tensor);
            return [&g, part, from, of, m, column, n, host = std::vector<float>()](int64_t first, int64_t count,
                                                                                   float* out) mutable -> Status {
                if (first == 0) {
                    std::vector<float> whole(size_t(from->size()));
                    g.read(part, from->offset, from->size(), whole.data());
                    host.resize(size_t(m.rows * n));
                    for (const FileRows& run : file_rows(g.c, *of, of->pieces[size_t(m.piece)]))
                        for (int64_t r = 0; r < run.count; r++)
                            std::copy_n(whole.data() + (run.memory + r) * from->cols + column, n,
                                        host.data() + (run.file + r) * n);
                }
                std::copy_n(host.data() + first, count, out);
                if (first + count == m.rows * n) std::vector<float>().swap(host);
                return {};
            };
        };
        sources.push_back({module + std::string(ENDS[0]), TensorType::f32, {m.rank, a->cols}, fill_a});
        sources.push_back(
            {module + std::string(ENDS[1]), TensorType::f32, {m.rows, m.rank}, rows_of(b, m.column, m.rank)});
        if (g.c.adapter.magnitudes)
            sources.push_back({module + std::string(ENDS[2]),
                               TensorType::f32,
                               {m.rows},
                               rows_of(tensor(adapter_tensor(m.tensor, 'm')), 0, 1)});
    }
    for (TensorSource& s : sources) s.in_order = true;
    return sources;
}

std::string adapter_config_json(const Config& c) {
    std::set<std::string> modules;
    int rank = 0;
    bool transposed = false;
    std::map<std::string, int> own;    // rank of each module
    // PEFT adapts every module whose name ends in a target. Self-attention and cross-attention have
    // matrices of the same name. If their ranks differ, the target includes the attention's name.
    const std::vector<AdaptedMatrix> matrices = adapted_matrices(c);
    std::map<std::string, std::set<int>> ranks_of;
    for (const AdaptedMatrix& m : matrices) ranks_of[name_end(m.module, 1)].insert(m.rank);
    for (const AdaptedMatrix& m : matrices) {
        if (!m.rank) continue;
        const std::string last = name_end(m.module, 1),
                          module = ranks_of[last].size() > 1 ? name_end(m.module, 2) : last;
        modules.insert(module);
        own[module] = m.rank;
        rank = std::max(rank, m.rank);
    }
    Json ranks = Json::object(), alphas = Json::object();
    for (const auto& [module, of_module] : own)
        if (of_module != rank) ranks.set(module, of_module), alphas.set(module, double(c.adapter.scale) * of_module);
    for (const Family::Name& n : c.family->names) transposed |= n.layout == FileLayout::transposed;
    const char* const task = c.encoder_layers ? "SEQ_2_SEQ_LM" : "CAUSAL_LM";
    return Json::object("peft_type", "LORA", "task_type", task, "base_model_name_or_path", c.adapter.base, "r", rank,
                        "lora_alpha", double(c.adapter.scale) * rank, "lora_dropout", double(c.adapter.dropout),
                        "target_modules", Json::list(std::vector<std::string>(modules.begin(), modules.end())), "bias",
                        "none", "fan_in_fan_out", transposed, "inference_mode", true, "init_lora_weights", true,
                        "use_rslora", false, "use_dora", c.adapter.magnitudes, "modules_to_save", nullptr,
                        "rank_pattern", ranks, "alpha_pattern", alphas)
               .text(2) +
           "\n";
}
