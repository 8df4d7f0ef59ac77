// tensors.cpp - weights and optimizer states between the model's memory and safetensors files.
//
// A tensor in memory corresponds to one or more tensors in files, its pieces
// (model/families/families.h). Layouts may differ: GPT-2's files have matrices as (in, out),
// memory as (out, in); GPT-NeoX's interleave query, key and value rows by head. Rows that pad the
// vocabulary are only in memory.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <unistd.h>

#include "adapter_files.h"
#include "checkpoint.h"
#include "foreign.h"
#include "gguf.h"
#include "manifest.h"
#include "nanochat.h"
#include "tensor_check.h"
#include "base/file.h"
#include "base/pool.h"
#include "files/json.h"
#include "layers/quant/quant.h"
#include "model/families/families.h"

namespace {
std::vector<int64_t> file_shape(const Tensor& t, const Piece& p) {
    if (t.vector) return t.layout == FileLayout::row ? std::vector<int64_t>{1, p.rows} : std::vector{p.rows};
    return t.layout == FileLayout::transposed ? std::vector{t.cols, p.rows} : std::vector{p.rows, t.cols};
}

// Writes `from` (rows, cols) transposed to `to`, whose rows are `stride` apart, in tiles that fit
// the cache.
void transpose(float* to, const float* from, int64_t rows, int64_t cols, int64_t stride) {
    constexpr int64_t TALL = 8, WIDE = 16;
    for (int64_t c0 = 0; c0 < cols; c0 += WIDE)
        for (int64_t r0 = 0; r0 < rows; r0 += TALL)
            for (int64_t c = c0; c < std::min(cols, c0 + WIDE); c++)
                for (int64_t r = r0; r < std::min(rows, r0 + TALL); r++) to[c * stride + r] = from[r * cols + c];
}
}    // namespace

std::string bare_name(std::string name, const Family& family) {
    for (auto [from, to] : family.renames)
        if (const size_t at = name.find(from); at != name.npos) name.replace(at, strlen(from), to);
    size_t longest = 0;
    for (const std::string_view prefix : family.prefixes)
        if (name.starts_with(prefix)) longest = std::max(longest, prefix.size());
    return name.substr(longest);
}
std::vector<FileRows> file_rows(const Config& c, const Tensor& t, const Piece& p) {
    if (t.layout != FileLayout::by_head) return {{0, p.first, p.rows}};
    std::vector<FileRows> all;
    for (int h = 0; h < c.NH; h++)
        for (int part = 0; part < 3; part++)
            all.push_back({(3 * h + part) * int64_t(c.HS), (int64_t(part) * c.NH + h) * c.HS, c.HS});
    return all;
}

// ---- writing ------------------------------------------------------------------------------------

namespace {
// Appends one source for each piece of tensor t.
void add_sources(const Config& c, const Tensor& t, const std::string& prefix, TensorType type,
                 const std::function<Status(int64_t first, int64_t count, float* out)>& read,
                 std::vector<TensorSource>* sources) {
    for (const Piece& p : t.pieces) {
        const int64_t at = p.first * t.cols, rows = p.rows, cols = t.cols;
        auto plain = [read, cols, order = file_rows(c, t, p)](int64_t first, int64_t count, float* out) -> Status {
            for (const FileRows& r : order) {
                const int64_t from = std::max(first, r.file * cols);
                const int64_t to = std::min(first + count, (r.file + r.count) * cols);
                const int64_t moved = (r.memory - r.file) * cols;
                if (from < to) TRY(read(moved + from, to - from, out + from - first));
            }
            return {};
        };
        auto transposed = [=](float* out) -> Status {
            // Some rows at a time, which stay in the cache and need no new memory.
            const int64_t some = std::max<int64_t>(8, (int64_t(1) << 16) / cols / 8 * 8);
            std::vector<float> straight(size_t(std::min(some, rows) * cols));
            for (int64_t first = 0; first < rows; first += some) {
                const int64_t count = std::min(some, rows - first);
                TRY(read(at + first * cols, count * cols, straight.data()));
                transpose(out + first, straight.data(), count, cols, rows);
            }
            return {};
        };
        // Must be called for all elements at once, or in order: the first call then reads the whole
        // tensor, the last call frees it.
        auto read_transposed = [=, host = std::vector<float>()](int64_t first, int64_t count,
                                                                float* out) mutable -> Status {
            if (count == rows * cols) return transposed(out);
            if (first == 0) {
                host.resize(size_t(rows * cols));
                TRY(transposed(host.data()));
            }
            std::copy_n(host.data() + first, count, out);
            if (first + count == rows * cols) std::vector<float>().swap(host);    // `= {}` would keep the memory
            return {};
        };
        TensorSource source{prefix + p.name, type, file_shape(t, p), plain};
        if (t.layout == FileLayout::transposed) {
            source.fill = read_transposed;
            source.in_order = true;
        }
        sources->push_back(std::move(source));
    }
}
}    // namespace

// Adapters are no part of a model's weights: adapter_files.h reads and writes them.
static std::vector<Tensor> without_adapters(std::vector<Tensor> tensors) {
    std::erase_if(tensors, [](const Tensor& t) { return t.adapter; });
    return tensors;
}
SavedState weights_state(const Model& g) { return {StateKind::weights, "", without_adapters(g.tensors)}; }
std::vector<SavedState> optimizer_states(const Model& g) {
    std::vector<SavedState> all;
    const Optimizer& o = *g.plan.optimizer;
    for (size_t i = 0; i < g.store.state_rows.size(); i++) {
        const Element type = g.store.states[i].type;
        const auto [name, size] = g.store.state_rows[i];
        const std::vector<Tensor> tensors = state_tensors(g.tensors, o, size);
        // bf16 holds codes, too: they have 8 bits.
        const TensorType in_files = type == Element::f32 ? TensorType::f32 : TensorType::bf16;
        all.push_back({optimizer_state(i), name + std::string("."), tensors, in_files});
        if (type == Element::uint8)
            all.push_back({state_scales(i), name + std::string("_scales."), scale_tensors(tensors)});
    }
    return all;
}

std::vector<TensorSource> checkpoint_tensors(const Model& g, const std::vector<SavedState>& states) {
    std::vector<TensorSource> sources;
    const std::vector<int> owners = config_owners(g.c, g.plan.ranks);
    for (const SavedState& state : states)
        for (const Tensor& t : state.tensors) {
            if (owners[size_t(t.bucket)] != g.plan.rank) continue;
            auto read = [&g, part = state.part, at = t.offset](int64_t first, int64_t count, float* out) {
                g.read(part, at + first, count, out);
                return Status{};
            };
            add_sources(g.c, t, state.prefix, state.type, read, &sources);
        }
    return sources;
}
std::vector<TensorSource> checkpoint_tensors(const WeightsReader& w) {
    std::vector<TensorSource> sources;
    for (const Tensor& t : w.tensors) {
        auto read = [&](int64_t first, int64_t count, float* out) { return w.read(t, first, count, out); };
        add_sources(w.c, t, "", TensorType::f32, read, &sources);
    }
    return sources;
}
WeightsReader weights_reader(const Model& g) {
    return {g.c, without_adapters(g.tensors), [&g](const Tensor& t, int64_t first, int64_t n, float* to) {
                g.read(StateKind::weights, t.offset + first, n, to);
                return Status{};
            }};
}

// ---- reading ------------------------------------------------------------------------------------

Result<std::vector<std::string>> checkpoint_tensor_files(const std::string& dir, const std::string& stem) {
    auto there = [](const std::string& path) { return access(path.c_str(), F_OK) == 0; };
    std::string one = dir + "/" + stem + ".safetensors", index = one + ".index.json";
    if (const std::string torch = dir + "/pytorch_model.bin"; stem == "model" && !there(one) && !there(index)) {
        if (there(torch)) return std::vector{torch};
        if (const std::string nanochat = nanochat_weights(dir); !nanochat.empty()) return std::vector{nanochat};
        if (there(torch + ".index.json")) index = torch + ".index.json";
    }
    if (there(one) || !there(index)) return std::vector{one};
    nlohmann::json j = TRY(json_parse(TRY(read_file(index, 64 << 20)), index, 8));
    if (!j.is_object() || !j["weight_map"].is_object() || j["weight_map"].empty())
        return fail(Exit::input, "%s: weight_map: expected an object from tensor names to files", index.c_str());
    std::set<std::string> files;
    for (const auto& [tensor, file] : j["weight_map"].items()) {
        if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos)
            return fail(Exit::input, "%s: weight_map: %s: expected a file of this directory", index.c_str(),
                        tensor.c_str());
        files.insert(dir + "/" + file.get<std::string>());
    }
    return std::vector<std::string>(files.begin(), files.end());
}

namespace {
struct Found {
    const SafetensorsFile* file;
    const TensorEntry* entry;
};
using SafetensorsFiles = std::vector<SafetensorsFile>;
struct Weights {
    std::shared_ptr<const SafetensorsFiles> files;
    std::map<std::string, Found> tensors;    // by name without prefix
    // File or directory that messages name: the only file, or else the directory.
    const std::string& location(const std::string& dir) const { return files->size() == 1 ? (*files)[0].path() : dir; }
};

Result<std::shared_ptr<const SafetensorsFiles>> open_all(const std::vector<std::string>& paths) {
    SafetensorsFiles files;
    for (const std::string& path : paths) files.push_back(TRY(SafetensorsFile::open(path)));
    return std::make_shared<const SafetensorsFiles>(std::move(files));
}
Result<Weights> weights_of(std::shared_ptr<const SafetensorsFiles> files, const Family& family) {
    Weights w = {std::move(files), {}};
    for (const SafetensorsFile& file : *w.files)
        for (const TensorEntry& e : file.entries())
            if (!w.tensors.emplace(bare_name(e.name, family), Found{&file, &e}).second)
                return fail(Exit::input, "%s: tensor \"%s\" occurs twice", file.path().c_str(), e.name.c_str());
    return w;
}

bool is_head(const std::string& name, const Family& family) {
    return std::any_of(family.names.begin(), family.names.end(), [&](const Family::Name& n) {
        return n.ours == std::string_view("head") && name == n.file[0] + std::string(".weight");
    });
}
// Whether a tensor that another program wrote is ignored: a head that copies wte, or a name in
// Family::redundant.
bool redundant(const std::string& name, const TensorEntry& e, const Config& c) {
    const Family& family = *c.family;
    if (c.tied && is_head(name, family)) return e.shape == std::vector<int64_t>{c.V, c.C};
    return std::any_of(family.redundant.begin(), family.redundant.end(), [&](std::string_view part) {
        return part.ends_with('*') ? e.name.starts_with(part.substr(0, part.size() - 1)) : e.name.ends_with(part);
    });
}

Status weights_match(const Weights& w, const Config& c, const std::vector<SavedState>& states,
                     const std::string& location) {
    std::vector<ExpectedTensor> wanted;
    std::map<std::string, std::vector<int64_t>> held;
    for (const SavedState& state : states)
        for (const Tensor& t : state.tensors)
            for (const Piece& p : t.pieces)
                wanted.push_back(
                    {state.prefix + p.name, bare_name(state.prefix + p.name, *c.family), file_shape(t, p)});
    for (auto& [name, found] : w.tensors) held[name] = found.entry->shape;
    return check_tensors(location, wanted, held, " (as F32, BF16 or F16)",
                         [&](const std::string& name) { return redundant(name, *w.tensors.at(name).entry, c); });
}

// A tied model's file may also store lm_head. It must equal wte, because transformers would use it.
Status heads_match(const Weights& w, const Config& c, const Tensor& wte, const std::string& location) {
    const auto head =
        std::find_if(w.tensors.begin(), w.tensors.end(), [&](auto& t) { return is_head(t.first, *c.family); });
    if (!c.tied || head == w.tensors.end()) return {};
    const Found &a = head->second, &b = w.tensors.at(bare_name(wte.pieces[0].name, *c.family));
    const int64_t all = int64_t(c.V) * c.C, most = std::min(all, int64_t(1) << 18);
    std::vector<char> raw(size_t(4 * most));
    std::vector<float> x(static_cast<size_t>(most)), y(x);
    auto read = [&](const Found& f, int64_t first, int64_t n, std::vector<float>& to) -> Status {
        const int64_t element = SafetensorsFile::element_bytes(f.entry->type);
        TRY(f.file->read_bytes(f.file->data_begin() + f.entry->begin + first * element, raw.data(), n * element));
        SafetensorsFile::convert(f.entry->type, raw.data(), n, to.data());
        return {};
    };
    bool same = true;
    for (int64_t first = 0; same && first < all; first += most) {
        const int64_t n = std::min(all - first, most);
        TRY(read(a, first, n, x));
        TRY(read(b, first, n, y));
        same = !memcmp(x.data(), y.data(), size_t(n) * sizeof(float));
    }
    if (same) return {};
    return fail(Exit::input,
                "%s: tensor \"%s\": expected a copy of the embeddings, as tie_word_embeddings is true, "
                "found other numbers; set that to false in config.json",
                location.c_str(), a.entry->name.c_str());
}

// Loads tensors from files into the model, by parallel loops if the model is in host memory. Each
// worker has two buffers of PIECE elements, for the file's bytes and for floats. `raw`, which all
// workers share, holds one whole tensor that is to be transposed.
struct Loading {
    static constexpr int64_t PIECE = 1 << 16;    // elements; stays in a core's cache until written
    struct Buffers {
        std::vector<char> bytes = std::vector<char>(size_t(4 * PIECE));
        std::vector<float> floats = std::vector<float>(size_t(PIECE));
    };
    const Weights& w;
    Model& g;
    SavedState state;
    ReadChecksums* sums;    // may be null
    std::unique_ptr<char[]> raw = {};
    typedef std::map<const SafetensorsFile*, std::shared_ptr<const char>> Maps;
    std::shared_ptr<Maps> maps = std::make_shared<Maps>();    // null: files are read, not mapped
    FirstFailure failure = {}, broken = {};                   // broken: tensors with non-finite elements
    std::vector<Buffers> buffers = std::vector<Buffers>(size_t(pool_threads()));    // by worker

    Status run() {
        int64_t most = 0;
        for (const Tensor& t : state.tensors)
            for (const Piece& p : t.pieces)
                if (t.layout == FileLayout::transposed)
                    most = std::max(most, found(p).entry->end - found(p).entry->begin);
        raw.reset(new char[size_t(most)]);
        if (g.store.packed.any()) map_rows();
        for (const Tensor& t : state.tensors) {
            if (!g.store.holds(state.part, t.offset, t.size())) continue;
            for (const Piece& p : t.pieces)
                if (t.layout == FileLayout::transposed) read_transposed(t, p);
                else plain(t, p);
        }
        return failure.status();
    }

  private:
    const Found& found(const Piece& p) const { return w.tensors.at(bare_name(state.prefix + p.name, *g.c.family)); }
    static int64_t location(const Found& f, int64_t first) {    // offset of element `first` in the file
        return f.file->data_begin() + f.entry->begin + first * SafetensorsFile::element_bytes(f.entry->type);
    }
    void read(const Found& f, int64_t first, int64_t count, char* to) {
        const int64_t bytes = count * SafetensorsFile::element_bytes(f.entry->type);
        const Status s = f.file->read_bytes(location(f, first), to, bytes);
        failure.add(s, f.file - w.files->data(), location(f, first));
        if (s.ok()) check(f, first, count, to);
    }
    void check(const Found& f, int64_t first, int64_t count, const char* numbers) {
        const int64_t bytes = count * SafetensorsFile::element_bytes(f.entry->type);
        if (sums) sums->add(f.file, location(f, first), numbers, bytes);
        if (!all_finite(block_format(block_type(f.entry->type)), numbers, count))
            broken.add(not_finite(f.file->path(), f.entry->name), f.file - w.files->data(), location(f, first));
    }
    // Matrices whose format the model keeps are not copied: products read them in the mapped files.
    void map_rows() {
        for (const SafetensorsFile& file : *w.files) (*maps)[&file] = file.map();
        for (const Tensor& t : state.tensors) {
            std::vector<const char*> all(size_t(t.rows), nullptr);
            const TensorType type = found(t.pieces[0]).entry->type;
            bool same = t.layout != FileLayout::transposed;
            for (const Piece& p : t.pieces) {
                const Found& f = found(p);
                const char* map = maps->at(f.file).get();
                same = same && map && f.entry->type == type;
                for (const FileRows& rows : file_rows(g.c, t, p))
                    for (int64_t r = 0; same && r < rows.count; r++)
                        all[size_t(rows.memory + r)] = map + location(f, (rows.file + r) * t.cols);
            }
            if (same) g.store.packed.use(t.offset, block_format(block_type(type)), std::move(all), maps);
        }
    }
    void plain(const Tensor& t, const Piece& p) {
        const Found& f = found(p);
        const bool stays = g.store.packed.uses_file(t.offset);
        struct Part {
            int64_t at, from, held, all;    // offset in memory; element in the file; elements there, in memory
        };
        std::vector<Part> parts;
        for (const FileRows& rows : file_rows(g.c, t, p)) {
            // In memory, the rows that pad the vocabulary follow the tensor's last row from a file.
            const int64_t held = rows.count * t.cols, end = rows.memory + rows.count;
            const int64_t all = stays ? held : ((end == t.file_rows ? t.rows : end) - rows.memory) * t.cols;
            for (int64_t first = 0; first < all; first += PIECE)
                parts.push_back({t.offset + rows.memory * t.cols + first, rows.file * t.cols + first,
                                 std::min(PIECE, held - first), std::min(PIECE, all - first)});
        }
        each_chunk_if(g.op.on_host(), int64_t(parts.size()), [&](int64_t chunk, int worker) {
            const auto [at, from, held, all] = parts[size_t(chunk)];
            auto& [bytes, floats] = buffers[size_t(worker)];
            if (stays) return check(f, from, held, maps->at(f.file).get() + location(f, from));
            if (held < all) std::fill(floats.begin(), floats.end(), 0.0f);
            if (held > 0) {
                const bool ready = f.entry->type == TensorType::f32;
                read(f, from, held, ready ? reinterpret_cast<char*>(floats.data()) : bytes.data());
                if (!ready) SafetensorsFile::convert(f.entry->type, bytes.data(), held, floats.data());
            }
            g.write(state.part, at, all, floats.data());
        });
    }
    void read_transposed(const Tensor& t, const Piece& p) {
        constexpr int64_t ROWS = 32;    // rows at a time: two cache lines each
        const Found& f = found(p);
        const int64_t element = SafetensorsFile::element_bytes(f.entry->type), all = p.rows * t.cols;
        each_chunk_if(g.op.on_host(), ceil_div(all, PIECE), [&](int64_t chunk, int) {
            const int64_t first = chunk * PIECE;
            read(f, first, std::min(PIECE, all - first), raw.get() + first * element);
        });
        each_chunk_if(g.op.on_host(), ceil_div(p.rows, ROWS), [&](int64_t chunk, int) {
            std::vector<float> from(static_cast<size_t>(ROWS * ROWS)), to(size_t(ROWS * t.cols));
            const int64_t r0 = chunk * ROWS, rows = std::min(ROWS, p.rows - r0);
            for (int64_t c0 = 0; c0 < t.cols; c0 += ROWS) {
                const int64_t cols = std::min(ROWS, t.cols - c0);
                for (int64_t c = 0; c < cols; c++)
                    SafetensorsFile::convert(f.entry->type, raw.get() + ((c0 + c) * p.rows + r0) * element, rows,
                                             from.data() + c * ROWS);
                for (int64_t r = 0; r < rows; r++)
                    for (int64_t c = 0; c < cols; c++) to[size_t(r * t.cols + c0 + c)] = from[size_t(c * ROWS + r)];
            }
            g.write(state.part, t.offset + (p.first + r0) * t.cols, rows * t.cols, to.data());
        });
    }
};

// Implements WeightsReader::read for safetensors files.
struct FromFiles {
    Weights w;
    Config c;

    Status operator()(const Tensor& t, int64_t first, int64_t n, float* to) const {
        const int64_t padding = std::clamp<int64_t>(first + n - t.file_rows * t.cols, 0, n);
        std::fill_n(to + n - padding, padding, 0.0f);
        for (const Piece& p : t.pieces) {
            const Found& f = w.tensors.at(bare_name(p.name, *c.family));
            if (t.layout == FileLayout::transposed) TRY(read_transposed(f, t, p, first, n, to));
            else
                for (const FileRows& r : file_rows(c, t, p)) {
                    const int64_t from = std::max(first, r.memory * t.cols);
                    const int64_t end = std::min(first + n, (r.memory + r.count) * t.cols);
                    const int64_t moved = (r.file - r.memory) * t.cols;
                    if (from < end) TRY(numbers(f, moved + from, end - from, to + from - first));
                }
        }
        return {};
    }

  private:
    static Status numbers(const Found& f, int64_t first, int64_t n, float* to) {
        const int64_t element = SafetensorsFile::element_bytes(f.entry->type);
        const int64_t at = f.file->data_begin() + f.entry->begin + first * element;
        std::vector<char> raw(size_t(n * element));
        TRY(f.file->read_bytes(at, raw.data(), n * element));
        if (!all_finite(block_format(block_type(f.entry->type)), raw.data(), n))
            return not_finite(f.file->path(), f.entry->name);
        SafetensorsFile::convert(f.entry->type, raw.data(), n, to);
        return {};
    }
    // Reads whole rows of the model, which are columns of the file's matrix.
    static Status read_transposed(const Found& f, const Tensor& t, const Piece& p, int64_t first, int64_t n,
                                  float* to) {
        const int64_t r0 = std::max(first / t.cols, p.first);
        const int64_t rows = std::min(ceil_div(first + n, t.cols), p.first + p.rows) - r0;
        if (rows <= 0) return {};
        std::vector<float> columns(size_t(t.cols * rows)), straight(columns.size());
        for (int64_t col = 0; col < t.cols; col++)
            TRY(numbers(f, col * p.rows + r0 - p.first, rows, columns.data() + col * rows));
        transpose(straight.data(), columns.data(), t.cols, rows, t.cols);
        const int64_t from = std::max(first, r0 * t.cols), end = std::min(first + n, (r0 + rows) * t.cols);
        std::copy_n(straight.data() + from - r0 * t.cols, end - from, to + from - first);
        return {};
    }
};
}    // namespace

Result<WeightsReader> weights_reader(const ModelSource& m, const Config& c) {
    TRY(m.opened);
    if (!m.gguf && is_adapter(m.path)) {
        auto base = std::make_shared<const ModelSource>(TRY(base_of(m)));
        Config plain = c;
        plain.adapter = {};
        WeightsReader reader = TRY(merged_reader(TRY(weights_reader(*base, plain)), {TRY(adapter_open(m.path))}));
        reader.read = [base, read = reader.read](const Tensor& t, int64_t first, int64_t n, float* to) {
            return read(t, first, n, to);    // base must outlive its reader
        };
        return reader;
    }
    WeightsReader reader = {c, without_adapters(config_tensors(c)), nullptr};
    if (m.gguf) {
        reader.read = gguf_reader(*m.gguf, c);
        return reader;
    }
    const Weights w = TRY(weights_of(TRY(m.weights()), *c.family));
    TRY(weights_match(w, c, {{StateKind::weights, "", reader.tensors}}, w.location(m.path)));
    TRY(heads_match(w, c, reader.tensors[0], w.location(m.path)));
    reader.read = FromFiles{w, c};
    return reader;
}

Result<WeightsReader> average_reader(const ModelSource& m, const Config& c) {
    TRY(m.opened);
    const Status none = fail(Exit::usage,
                             "--average: %s: it has no average of the weights; train --ema or --average-tail keeps one",
                             m.path.c_str());
    if (!m.gguf && is_adapter(m.path))
        return fail(Exit::usage, "--average: %s: expected a run that trains weights, found adapters", m.path.c_str());
    const std::vector<std::string> paths = TRY(checkpoint_tensor_files(m.path, "optimizer"));
    if (m.gguf || access(paths[0].c_str(), F_OK) != 0) return none;
    Weights all = TRY(weights_of(TRY(open_all(paths)), *c.family)), average = {all.files, {}};
    const std::string prefix = std::string(AVERAGE.name) + ".";
    for (const auto& [name, found] : all.tensors)
        if (name.starts_with(prefix)) average.tensors.emplace(bare_name(name.substr(prefix.size()), *c.family), found);
    if (average.tensors.empty()) return none;
    // A tensor that was not trained has no average: the weights have it.
    const WeightsReader weights = TRY(weights_reader(m, c));
    auto averaged = [average, &family = *c.family](const Tensor& t) {
        return average.tensors.contains(bare_name(t.pieces[0].name, family));
    };
    std::vector<Tensor> trained = weights.tensors;
    std::erase_if(trained, [&](const Tensor& t) { return !averaged(t); });
    TRY(weights_match(average, c, {{StateKind::weights, "", trained}}, all.location(m.path)));
    auto read = [averaged, weights, files = FromFiles{average, c}](const Tensor& t, int64_t first, int64_t n,
                                                                   float* to) {
        return averaged(t) ? files(t, first, n, to) : weights.read(t, first, n, to);
    };
    return WeightsReader{c, weights.tensors, read};
}

Result<std::shared_ptr<const SafetensorsFiles>> ModelSource::weights() const {
    auto found = [&]() -> Result<std::vector<std::string>> {
        std::vector<std::string> paths = TRY(checkpoint_tensor_files(path, "model"));
        if (access(paths[0].c_str(), F_OK) != 0) TRY(check_foreign(path));
        return paths;
    };
    if (!files) files = TRY(open_all(TRY(found())));
    return files;
}
Status checkpoint_weight_headers(const ModelSource& m, const Family& family) {
    return weights_of(TRY(m.weights()), family).status;
}

Result<WeightFormats> checkpoint_stored(const ModelSource& m, const Config& c) {
    TRY(m.opened);
    if (m.gguf) return gguf_stored(*m.gguf, c);
    const Weights w = TRY(weights_of(TRY(m.weights()), *c.family));
    std::map<std::string, BlockType> formats;
    for (const auto& [name, found] : w.tensors) formats[name] = block_type(found.entry->type);
    // A tensor whose pieces have different formats becomes fp32.
    return WeightFormats([formats, family = c.family](const Tensor& t) {
        BlockType format = BlockType::f32;
        for (const Piece& p : t.pieces) {
            const auto found = formats.find(bare_name(p.name, *family));
            const BlockType own = found == formats.end() ? BlockType::f32 : found->second;
            format = &p == &t.pieces[0] || own == format ? own : BlockType::f32;
        }
        return std::vector<FormatRows>{{t.rows, format}};
    });
}

static Status files_match(const Weights& w, const std::string& dir, ReadChecksums& sums) {
    const std::vector<FileChecksum> manifest = TRY(manifest_read(dir));
    for (const SafetensorsFile& file : *w.files) {
        auto listed = std::find_if(manifest.begin(), manifest.end(),
                                   [&](const FileChecksum& s) { return dir + "/" + s.name == file.path(); });
        if (listed == manifest.end()) return fail(Exit::input, "%s: MANIFEST does not list it", file.path().c_str());
        TRY(sums.check(file, *listed));
    }
    return {};
}

Status checkpoint_weights(const ModelSource& m, Model& g, bool verify) {
    TRY(m.opened);
    if (m.gguf) return gguf_weights(*m.gguf, g);
    if (is_adapter(m.path)) {
        TRY(checkpoint_weights(TRY(base_of(m)), g, verify));
        return load_adapters(g, {TRY(adapter_open(m.path))});
    }
    const std::string& dir = m.path;
    const Weights w = TRY(weights_of(TRY(m.weights()), *g.c.family));
    TRY(weights_match(w, g.c, {weights_state(g)}, w.location(dir)));
    TRY(heads_match(w, g.c, g.tensors[0], w.location(dir)));
    verify = verify && access((dir + "/MANIFEST").c_str(), F_OK) == 0;
    ReadChecksums sums;
    Loading loading{w, g, weights_state(g), verify ? &sums : nullptr};
    TRY(loading.run());
    if (verify) TRY(files_match(w, dir, sums));
    return loading.broken.status();    // checksums first: damage explains non-finite elements
}

namespace {
// The states' names in tensors' names: "m" of "m.wte".
std::string state_of(const std::string& name) { return name.substr(0, name.find('.')); }
const std::string AVERAGE_PREFIX = AVERAGE.name + std::string(".");
}    // namespace

// If the checkpoint lacks the average that the run keeps, the average begins with the next step. If
// the run keeps none, the checkpoint's average is not loaded.
Status checkpoint_optimizer(const std::string& dir, Model& g) {
    Weights w = TRY(weights_of(TRY(open_all(TRY(checkpoint_tensor_files(dir, "optimizer")))), *g.c.family));
    std::vector<SavedState> states = optimizer_states(g);
    auto is_average = [](const std::string& name) { return name.starts_with(AVERAGE_PREFIX); };
    const bool has_average = std::ranges::any_of(w.tensors, is_average, [](auto& t) { return t.first; });
    if (!has_average) std::erase_if(states, [&](const SavedState& s) { return is_average(s.prefix); });
    if (!g.plan.average) std::erase_if(w.tensors, [&](auto& t) { return is_average(t.first); });
    std::set<std::string> found, expected;
    for (const auto& [name, tensor] : w.tensors) found.insert(state_of(name));
    for (const SavedState& state : states) expected.insert(state_of(state.prefix));
    if (found != expected)
        return fail(Exit::usage,
                    "%s: its optimizer has the states %s, the run's has %s; give the --optimizer and --state-dtype "
                    "that it was trained with, or begin a new run --from it",
                    w.location(dir).c_str(), join({found.begin(), found.end()}, ", ").c_str(),
                    join({expected.begin(), expected.end()}, ", ").c_str());
    TRY(weights_match(w, g.c, states, w.location(dir)));
    for (const SavedState& state : states) TRY((Loading{w, g, state, nullptr}.run()));
    return {};
}
