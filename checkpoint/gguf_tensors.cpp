// gguf_tensors.cpp - weights from and to GGUF files, with ggml's names, layouts and formats.
//
// Matrices are (out, in) in GGUF, as in memory. In architectures whose RoPE rotates adjacent
// channels, the rows of q and k are permuted within each head h: for pair i and s = 0 or 1, GGUF's
// row h HS + 2 i + s is our row h HS + s HS / 2 + i. Gemma's norms are stored as 1 + w. Experts'
// matrices are (experts, out, in), with gates and ups in separate tensors; in memory, each expert's
// gate and up are together.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/half.h"
#include "base/pool.h"
#include "checkpoint/gguf.h"
#include "checkpoint/tensor_check.h"
#include "layers/quant/quant.h"

namespace {
struct Buffers {
    std::vector<float> x, spare;
    std::vector<char> copy;
};
struct NameRow {
    const char* ours;
    std::vector<const char*> names;
};
const std::vector<NameRow>& name_rows() {
    static const std::vector<NameRow> rows = {
        {"wte", {"token_embd.weight"}},
        {"segw", {"token_types.weight"}},
        {"relw", {"blk.0.attn_rel_b.weight"}},
        {"lnew", {"token_embd_norm.weight"}},
        {"lneb", {"token_embd_norm.bias"}},
        {"headw", {"output.weight"}},
        {"headb", {"output.bias"}},
        {"transformw", {"cls.weight"}},
        {"transformb", {"cls.bias"}},
        {"head_normw", {"cls.norm.weight"}},
        {"lnfw", {"output_norm.weight"}},
        {"lnfb", {"output_norm.bias"}},
        {"ln1w", {"attn_norm.weight"}},
        {"ln1b", {"attn_norm.bias"}},
        {"qkvw", {"attn_q.weight", "attn_k.weight", "attn_v.weight"}},
        {"qkvb", {"attn_q.bias", "attn_k.bias", "attn_v.bias"}},
        {"qw", {"attn_q_norm.weight"}},
        {"kw", {"attn_k_norm.weight"}},
        {"projw", {"attn_output.weight"}},
        {"projb", {"attn_output.bias"}},
        {"post1w", {"post_attention_norm.weight"}},
        {"lncw", {"cross_attn_norm.weight"}},
        {"cross_qw", {"cross_attn_q.weight"}},
        {"cross_kvw", {"cross_attn_k.weight", "cross_attn_v.weight"}},
        {"cross_projw", {"cross_attn_o.weight"}},
        {"ln2w", {"ffn_norm.weight"}},
        {"ln2b", {"ffn_norm.bias"}},
        {"fcw", {"ffn_gate.weight", "ffn_up.weight"}},
        {"fcb", {"ffn_gate.bias", "ffn_up.bias"}},
        {"fc2w", {"ffn_down.weight"}},
        {"fc2b", {"ffn_down.bias"}},
        {"post2w", {"post_ffw_norm.weight"}},
        {"routerw", {"ffn_gate_inp.weight"}},
        {"expert_upw", {"ffn_gate_exps.weight", "ffn_up_exps.weight"}},
        {"expert_downw", {"ffn_down_exps.weight"}},
        {"shared_gatew", {"ffn_gate_inp_shexp.weight"}},
    };
    return rows;
}

// The parts of a tensor's name: "encoder.3.fcw" is fcw of the encoder's block 3.
struct NameParts {
    bool encoder;
    int layer;    // -1: outside of blocks
    std::string ours;
    explicit NameParts(const std::string& name) : encoder(name.starts_with("encoder.")), layer(-1) {
        ours = encoder ? name.substr(strlen("encoder.")) : name;
        const size_t dot = ours.find('.');
        if (dot == ours.npos) return;
        layer = atoi(ours.c_str());
        ours = ours.substr(dot + 1);
    }
};

// Permutes rows of whole heads in place, between the model's order and the file's.
void permute(float* x, std::vector<float>& spare, int64_t rows, int64_t cols, int HS, bool to_file) {
    spare.assign(x, x + rows * cols);
    for (int64_t h = 0; h < rows; h += HS)
        for (int i = 0; i < HS / 2; i++)
            for (int s = 0; s < 2; s++) {
                const int64_t file = h + 2 * i + s, ours = h + s * (HS / 2) + i;
                std::copy_n(spare.data() + (to_file ? ours : file) * cols, cols, x + (to_file ? file : ours) * cols);
            }
}

// Rows that are converted together, about `numbers` elements. They are whole heads of a permuted
// tensor, and rows of one expert in a tensor of experts.
struct Rows {
    int64_t file, memory, count;
};
std::vector<Rows> rows_of(const GgufPiece& p, int64_t cols, int HS, int64_t numbers) {
    const int64_t unit = p.heads ? HS : 1, step = std::max<int64_t>(1, numbers / (cols * unit)) * unit;
    const int64_t run = p.run ? p.run : p.rows;
    std::vector<Rows> all;
    for (int64_t start = 0; start < p.rows; start += run)
        for (int64_t row = 0; row < run; row += step)
            all.push_back({start + row, p.first + start / run * p.stride + row, std::min(step, run - row)});
    return all;
}

// llama.cpp's use_more_bits: true for the first and last eighth of layers, and every third between.
bool more_bits(int layer, int layers) {
    return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

// Format of one tensor. Rows that are not whole blocks get llama.cpp's substitute: q5_0 for q4_k,
// q8_0 for q6_k, else f16.
const BlockFormat& format_of(const GgufFileType& type, const Tensor& t, const std::string& piece, const Config& c) {
    const NameParts name(t.name);
    const char* const floats[] = {"wpe", "segw", "relw", "routerw", "shared_gatew"};
    const bool classes = t.name == "headw" && c.head != HeadKind::tokens;
    if (t.vector || classes || std::count(std::begin(floats), std::end(floats), name.ours))
        return block_format(BlockType::f32);
    BlockType b = type.matrices;
    if (t.name == "headw" || (t.name == "wte" && c.tied)) b = type.head;
    const bool more = piece.find(".attn_v.") != piece.npos || piece.find(".attn_qkv.") != piece.npos ||
                      piece.find(".ffn_down") != piece.npos;
    if (type.mixed && more && more_bits(name.layer, name.encoder ? c.encoder_layers : c.L)) b = BlockType::q6_k;
    auto fits = [&](BlockType x) { return t.cols % block_format(x).numbers == 0; };
    if (!fits(b)) b = b == BlockType::q4_k ? BlockType::q5_0 : b == BlockType::q6_k ? BlockType::q8_0 : b;
    return block_format(fits(b) ? b : BlockType::f16);
}

// Checks that the n elements of x fit the format. Exit 1: an element exceeds the format's range.
Status check_range(const std::string& name, const BlockFormat& f, const float* x, int64_t n) {
    if (f.type == BlockType::f32 || f.type == BlockType::bf16) return {};
    const float most = largest_size(x, n);
    if (most <= 65504) return {};
    return fail(Exit::run, "tensor %s: %g does not fit %s, whose limit is 65504; --type bf16 and f32 hold it",
                name.c_str(), double(most), f.name);
}

// Encodes some rows of a tensor in the file's format. x, spare: this thread's buffers.
Status encode(const WeightsReader& w, const Tensor& t, const GgufPiece& p, const Rows& rows, const BlockFormat& format,
              std::vector<float>& x, std::vector<float>& spare, std::vector<char>* blocks) {
    const int64_t n = rows.count * t.cols;
    x.resize(size_t(n));
    TRY(w.read(t, rows.memory * t.cols, n, x.data()));
    if (p.heads) permute(x.data(), spare, rows.count, t.cols, w.c.HS, true);
    if (p.add != 0)
        for (float& v : x) v += p.add;
    TRY(check_range(p.name, format, x.data(), n));
    blocks->resize(size_t(n / format.numbers * format.bytes));
    quantise(format, x.data(), n, blocks->data());
    return {};
}
// Writes tensors to a file in parts, in the file's order. All threads together encode AT_ONCE
// parts, which may belong to several tensors; meanwhile one thread writes the parts encoded before.
class TensorParts {
  public:
    explicit TensorParts(const WeightsReader& weights) : w(weights) {}
    size_t add(const Tensor& t, const GgufPiece& p, const BlockFormat& format) {
        // A part of a transposed tensor takes one read per column, so such parts are larger.
        const int64_t numbers = t.layout == FileLayout::transposed ? 1 << 18 : 1 << 15;
        for (const Rows& rows : rows_of(p, t.cols, w.c.HS, numbers)) parts.push_back({&t, p, &format, rows});
        ends.push_back(int64_t(parts.size()));
        return ends.size() - 1;
    }
    // Writes a tensor. Tensors must be written in the order in which they were added.
    Status write(size_t tensor, const FileSink& sink) {
        const int64_t end = ends[tensor];
        while (written < end)
            if (end < made || made == int64_t(parts.size())) TRY(write_to(end, sink));
            else TRY(make_more(sink));
        return {};
    }

  private:
    struct Part {
        const Tensor* t;
        GgufPiece piece;
        const BlockFormat* format;
        Rows rows;
    };
    static constexpr int64_t AT_ONCE = 32;
    const WeightsReader& w;
    std::vector<Part> parts = {};
    std::vector<int64_t> ends = {};    // index after each tensor's last part
    std::vector<char> blocks[2 * AT_ONCE] = {};
    int64_t made = 0, written = 0;

    Status write_to(int64_t end, const FileSink& sink) {
        for (; written < end; written++) {
            const std::vector<char>& part = blocks[written % (2 * AT_ONCE)];
            TRY(sink(part.data(), int64_t(part.size())));
        }
        count_progress();
        return {};
    }
    // Writes the encoded parts, and encodes AT_ONCE more.
    Status make_more(const FileSink& sink) {
        const int64_t from = made, to = std::min(made + AT_ONCE, int64_t(parts.size()));
        FirstFailure failure;
        std::vector<Buffers> own(static_cast<size_t>(pool_threads()));
        each_chunk(1 + to - from, [&](int64_t chunk, int worker) {
            if (chunk == 0) return failure.add(write_to(from, sink), 0, 0);
            const int64_t i = from + chunk - 1;
            const Part& p = parts[size_t(i)];
            Buffers& b = own[size_t(worker)];
            failure.add(encode(w, *p.t, p.piece, p.rows, *p.format, b.x, b.spare, &blocks[i % (2 * AT_ONCE)]), 1, i);
        });
        made = to;
        return failure.status();
    }
};

// Pieces of tensor t in this file.
std::vector<GgufPiece> pieces_in(const GgufFile& file, const Tensor& t, const Config& c) {
    std::string name;
    CHECK(file.metadata().get("general.architecture", &name).ok() && find_gguf_architecture(name), "%s",
          name.c_str());    // checked by gguf_config
    const GgufArchitecture& a = *find_gguf_architecture(name);
    const std::string block = a.stack(c, false) + "blk.0.";
    const bool qkv = file.find(block + "attn_qkv.weight"), up = c.gated && !file.find(block + "ffn_gate.weight");
    return gguf_pieces(t, c, a, qkv, up);
}
// Row in memory of row r of `rows` in the file. Undoes the permutation of rows within heads.
int64_t row_in_memory(const GgufPiece& p, const Rows& rows, int HS, int64_t r) {
    const int64_t in_head = r % HS;
    return rows.memory + (p.heads ? r - in_head + in_head % 2 * (HS / 2) + in_head / 2 : r);
}

// Loads pieces of tensors. All threads share the rows of each piece.
struct Loading {
    const GgufFile& file;
    Model& g;
    std::shared_ptr<const char> map = {};    // null: the file is read
    FirstFailure failure = {};
    std::vector<Buffers> own = std::vector<Buffers>(size_t(pool_threads()));    // by worker

    // Matrices whose format the model keeps are not copied: products read them in the mapped file.
    void map_rows() {
        if (g.store.packed.any()) map = file.map();
        for (const Tensor& t : g.tensors) {
            if (t.adapter) continue;
            std::vector<const char*> all(size_t(t.rows), nullptr);
            const BlockFormat* format = nullptr;
            bool same = map != nullptr;
            for (const GgufPiece& p : pieces_in(file, t, g.c)) {
                const GgufTensor& from = *file.find(p.name);
                same = same && (!format || format == from.format);
                format = from.format;
                for (const Rows& rows : rows_of(p, t.cols, g.c.HS, INT64_MAX / 2))
                    for (int64_t r = 0; same && r < rows.count; r++)
                        all[size_t(row_in_memory(p, rows, g.c.HS, r))] = map.get() + from.at +
                                                                         (rows.file + r) * (from.bytes / p.rows);
            }
            if (same) g.store.packed.use(t.offset, *format, std::move(all), map);
        }
    }
    // Packs rows that keep the file's format; permuted heads get the model's order here.
    void pack(const Tensor& t, const GgufPiece& p, const Rows& rows, const BlockFormat& format, const char* blocks) {
        const int64_t row_bytes = t.cols / format.numbers * format.bytes;
        if (!p.heads) return g.store.packed.write(t.offset + rows.memory * t.cols, rows.count * t.cols, format, blocks);
        for (int64_t r = 0; r < rows.count; r++)
            g.store.packed.write(t.offset + row_in_memory(p, rows, g.c.HS, r) * t.cols, t.cols, format,
                                 blocks + r * row_bytes);
    }
    void piece(const Tensor& t, const GgufPiece& p) {
        const GgufTensor& from = *file.find(p.name);
        const int64_t row_bytes = from.bytes / p.rows;
        const std::vector<Rows> all = rows_of(p, t.cols, g.c.HS, 1 << 16);
        const bool stays = g.store.packed.uses_file(t.offset);
        each_chunk_if(g.op.on_host(), int64_t(all.size()), [&](int64_t chunk, int worker) {
            const Rows& rows = all[size_t(chunk)];
            auto& [x, spare, copy] = own[size_t(worker)];
            const int64_t n = rows.count * t.cols, at = from.at + rows.file * row_bytes;
            copy.resize(stays ? 0 : size_t(rows.count * row_bytes));
            if (Status s = file.read_bytes(at, copy.data(), int64_t(copy.size())); !s.ok())
                return failure.add(s, 0, at);
            const char* blocks = stays ? map.get() + at : copy.data();
            if (!all_finite(*from.format, blocks, n))
                return failure.add(not_finite(file.metadata().name, p.name), 0, at);
            if (stays) return;
            if (g.store.packed.any() && p.add == 0) return pack(t, p, rows, *from.format, blocks);
            x.resize(size_t(n));
            dequantise(*from.format, blocks, n, x.data());
            if (p.heads) permute(x.data(), spare, rows.count, t.cols, g.c.HS, false);
            if (p.add != 0)
                for (float& v : x) v -= p.add;
            g.write(StateKind::weights, t.offset + rows.memory * t.cols, n, x.data());
        });
    }
    // Zeroes the rows that pad the vocabulary to Vp.
    void padding(const Tensor& t) {
        const std::vector<float> zeros(size_t((t.rows - t.file_rows) * t.cols));
        g.write(StateKind::weights, t.offset + t.file_rows * t.cols, int64_t(zeros.size()), zeros.data());
    }
};
}    // namespace

const std::vector<GgufFileType>& gguf_file_types() {
    static const std::vector<GgufFileType> types = {
        {"f32", 0, BlockType::f32, BlockType::f32, false},      {"f16", 1, BlockType::f16, BlockType::f16, false},
        {"bf16", 32, BlockType::bf16, BlockType::bf16, false},  {"q8_0", 7, BlockType::q8_0, BlockType::q8_0, false},
        {"q4_0", 2, BlockType::q4_0, BlockType::q6_k, false},   {"q4_1", 3, BlockType::q4_1, BlockType::q6_k, false},
        {"q5_0", 8, BlockType::q5_0, BlockType::q6_k, false},   {"q5_1", 9, BlockType::q5_1, BlockType::q6_k, false},
        {"q4_k_m", 15, BlockType::q4_k, BlockType::q6_k, true}, {"q6_k", 18, BlockType::q6_k, BlockType::q6_k, false},
    };
    return types;
}
std::vector<std::string> quantize_types() {
    std::vector<std::string> types = {"none"};
    for (const GgufFileType& t : gguf_file_types())
        if (t.name[0] == 'q') types.push_back(t.name);
    return types;
}
const GgufFileType* find_gguf_file_type(const std::string& name) {
    for (const GgufFileType& t : gguf_file_types())
        if (name == t.name) return &t;
    return nullptr;
}

std::vector<GgufPiece> gguf_pieces(const Tensor& t, const Config& c, const GgufArchitecture& a, bool fused_qkv,
                                   bool fused_up) {
    const auto [encoder, layer, ours] = NameParts(t.name);
    const bool of_stack = layer >= 0 || ours == "relw" || ours.starts_with("lnf");
    const std::string block = (of_stack ? a.stack(c, encoder) : "") +
                              (layer < 0 ? "" : "blk." + std::to_string(layer) + ".");
    const float add = c.norm_plus && t.vector && ours.ends_with('w') ? 1 : 0;
    const bool weight = ours.ends_with('w'), up = ours.starts_with("fc") && ours.size() == 3;
    const bool shared = ours.starts_with("fc") && c.has_experts(layer), experts = ours.starts_with("expert_");
    if (ours.starts_with("qkv") && fused_qkv)
        return {{block + (weight ? "attn_qkv.weight" : "attn_qkv.bias"), 0, t.file_rows}};
    if (up && !shared && (fused_up || !c.gated))
        return {{block + (weight ? "ffn_up.weight" : "ffn_up.bias"), 0, t.file_rows}};
    if (ours.starts_with("head") && ours.size() == 5 && c.head != HeadKind::tokens)
        return {{weight ? "cls.output.weight" : "cls.output.bias", 0, t.file_rows}};
    if (ours == "wpe") return {{"position_embd.weight", c.position_offset, t.file_rows - c.position_offset}};
    std::vector<int64_t> rows = {t.file_rows};
    if (ours.starts_with("qkv")) rows = {c.attention_width(), c.NKV * c.HS, c.NKV * c.HS};
    else if (ours.starts_with("cross_kv")) rows = {c.NKV * c.HS, c.NKV * c.HS};
    else if (up) rows = {c.ffn_width(layer), c.ffn_width(layer)};
    else if (ours == "expert_upw") rows = {c.expert_ffn, c.expert_ffn};
    else if (experts) rows = {c.C};
    std::vector<GgufPiece> pieces;
    for (const auto& [name, file] : a.names)
        if (ours == name) return {{block + file, 0, t.file_rows, 0, add}};
    for (const NameRow& row : name_rows()) {
        if (ours != row.ours) continue;
        int64_t first = 0;
        for (size_t i = 0; i < row.names.size(); first += rows[i++]) {
            const int heads = a.permuted && rows.size() == 3 ? (i == 0 ? c.NH : i == 1 ? c.NKV : 0) : 0;
            std::string name = row.names[i];
            if (shared) name.insert(name.find('.'), "_shexp");
            pieces.push_back({block + name, first, rows[i], heads, add});
            if (!experts) continue;
            pieces.back().rows = rows[i] * t.experts;
            pieces.back().run = rows[i], pieces.back().stride = t.file_rows / t.experts;
        }
        return pieces;
    }
    return {{block + ours, 0, t.file_rows}};    // a name that no file has
}

std::vector<int64_t> gguf_shape(const Tensor& t, const GgufPiece& p) {
    if (p.run) return {p.rows / p.run, p.run, t.cols};
    return t.vector ? std::vector{p.rows} : std::vector{p.rows, t.cols};
}

WeightFormats gguf_stored(const GgufFile& file, const Config& c) {
    return [&file, c](const Tensor& t) {
        std::vector<std::pair<int64_t, FormatRows>> runs;    // keyed by first row in memory
        for (const GgufPiece& p : pieces_in(file, t, c))
            for (const Rows& r : rows_of(p, t.cols, c.HS, INT64_MAX / 2))
                runs.push_back({r.memory, {r.count, file.find(p.name)->format->type}});
        std::sort(runs.begin(), runs.end(), [](auto& a, auto& b) { return a.first < b.first; });
        std::vector<FormatRows> rows;
        for (auto& run : runs) rows.push_back(run.second);
        return rows;
    };
}
WeightFormats gguf_stored(const GgufFileType& type, const Config& c) {
    return [&type, c](const Tensor& t) {
        auto format = [&](const char* piece) { return format_of(type, t, t.name + piece, c).type; };
        if (t.name.ends_with(".qkvw"))
            return std::vector<FormatRows>{{(c.NH + c.NKV) * int64_t(c.HS), format("")}, {t.rows, format(".attn_v.")}};
        const bool down = t.name.ends_with(".fc2w") || t.name.ends_with(".expert_downw");
        return std::vector<FormatRows>{{t.rows, format(down ? ".ffn_down" : "")}};
    };
}

Status gguf_weights(const GgufFile& file, Model& g) {
    Loading loading{file, g};
    // The model may be another than gguf_config's, such as one with a pooler.
    for (const Tensor& t : g.tensors)
        for (const GgufPiece& p : t.adapter ? std::vector<GgufPiece>{} : pieces_in(file, t, g.c))
            if (!file.find(p.name))
                return fail(Exit::input, "%s: tensor %s: not found", file.metadata().name.c_str(), p.name.c_str());
    loading.map_rows();
    for (const Tensor& t : g.tensors) {
        if (t.adapter || !g.store.holds(StateKind::weights, t.offset, t.size())) continue;
        for (const GgufPiece& p : pieces_in(file, t, g.c)) loading.piece(t, p);
        if (t.rows > t.file_rows && !g.store.packed.uses_file(t.offset)) loading.padding(t);
    }
    return loading.failure.status();
}

ReadElements gguf_reader(const GgufFile& file, const Config& c) {
    return [&file, c](const Tensor& t, int64_t first, int64_t n, float* to) -> Status {
        const int64_t r0 = first / t.cols, r1 = ceil_div(first + n, t.cols), HS = c.HS;    // range of whole rows
        const bool whole = first == r0 * t.cols && n == (r1 - r0) * t.cols;
        std::vector<float> x(whole ? 0 : size_t((r1 - r0) * t.cols));
        float* all = whole ? to : x.data();
        std::vector<char> blocks;
        for (const GgufPiece& p : pieces_in(file, t, c)) {
            const GgufTensor& from = *file.find(p.name);
            const int64_t row_bytes = from.bytes / p.rows, run = p.run ? p.run : p.rows;
            for (int64_t start = 0; start < p.rows; start += run) {
                const int64_t memory = p.first + start / run * p.stride, end = std::min(r1, memory + run);
                for (int64_t row = std::max(r0, memory), count; row < end; row += count) {
                    const int64_t in = row - memory, head = p.heads ? in % HS : 0;
                    const int64_t moved = p.heads ? head % (HS / 2) * 2 + head / (HS / 2) - head : 0;
                    count = p.heads ? 1 : end - row;
                    float* rows = all + (row - r0) * t.cols;
                    const bool floats = from.format->type == BlockType::f32;
                    blocks.resize(floats ? 0 : size_t(count * row_bytes));
                    void* stored = floats ? static_cast<void*>(rows) : blocks.data();
                    TRY(file.read_bytes(from.at + (start + in + moved) * row_bytes, stored, count * row_bytes));
                    if (!all_finite(*from.format, stored, count * t.cols))
                        return not_finite(file.metadata().name, p.name);
                    if (!floats) dequantise(*from.format, stored, count * t.cols, rows);
                    for (int64_t i = 0; p.add != 0 && i < count * t.cols; i++) rows[i] -= p.add;
                }
            }
        }
        if (!whole) std::copy_n(x.data() + first - r0 * t.cols, n, to);
        return {};
    };
}

Status gguf_save(const WeightsReader& w, const GgufFileType& type, const std::string& name, const GgufKeys& vocabulary,
                 const FileSink& sink) {
    const Config& c = w.c;
    const GgufArchitecture& a = *TRY(gguf_architecture_for(c));
    GgufKeys metadata = {{"general.architecture", GgufValue::text(a.name)},
                         {"general.type", GgufValue::text("model")},
                         {"general.file_type", GgufValue::integer(type.number)}};
    if (type.matrices != BlockType::f32 && type.matrices != BlockType::f16 && type.matrices != BlockType::bf16)
        metadata.push_back({"general.quantization_version", GgufValue::integer(2)});
    if (std::none_of(vocabulary.begin(), vocabulary.end(), [](auto& row) { return row.first == "general.name"; }))
        metadata.push_back({"general.name", GgufValue::text(name)});
    for (auto& row : gguf_metadata(c, a)) metadata.push_back(row);
    metadata.insert(metadata.end(), vocabulary.begin(), vocabulary.end());

    std::vector<GgufSource> sources;
    TensorParts parts(w);
    auto add = [&](const Tensor& t, const GgufPiece& p) {
        const BlockFormat& format = format_of(type, t, p.name, c);
        const size_t tensor = parts.add(t, p, format);
        sources.push_back({p.name, &format, gguf_shape(t, p),
                           [&parts, tensor](const FileSink& to) { return parts.write(tensor, to); }});
    };
    for (const Tensor& t : w.tensors) {
        for (const GgufPiece& p : gguf_pieces(t, c, a, a.fused_qkv, a.fused_up)) add(t, p);
        if (t.name == "wte" && c.tied && a.needs_head) add(t, {"output.weight", 0, t.file_rows});
    }
    const std::vector<float> divisors = gguf_rope_divisors(c);
    const int64_t bytes = int64_t(divisors.size()) * 4;
    if (c.rope_scaling == RopeScaling::llama3)
        sources.push_back({"rope_freqs.weight", &block_format(BlockType::f32), {bytes / 4}, [&](const FileSink& to) {
                               return to(divisors.data(), bytes);
                           }});
    return gguf_write(metadata, sources, sink);
}
