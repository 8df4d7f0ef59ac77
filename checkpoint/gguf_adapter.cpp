// gguf_adapter.cpp - low-rank adapters as a GGUF file of their own, for llama.cpp's --lora.
//
// For each matrix of the model's file there are NAME.lora_a (rank,in) and NAME.lora_b (out,rank).
// llama.cpp multiplies their product by adapter.lora.alpha / rank, or by 1 if alpha is 0.
#include <algorithm>

#include "checkpoint/adapter_files.h"
#include "checkpoint/gguf.h"

namespace {
struct Columns {
    int64_t from, to;
};
// Columns of b that are not zero in some of the piece's rows.
Columns columns_of(const RowBlocks& blocks, const GgufPiece& p) {
    Columns c = {INT64_MAX, 0};
    for (int i = 0; i < blocks.count; i++) {
        if (blocks.row[i + 1] <= p.first || blocks.row[i] >= p.first + p.rows || blocks.col[i] == blocks.col[i + 1])
            continue;
        c = {std::min<int64_t>(c.from, blocks.col[i]), std::max<int64_t>(c.to, blocks.col[i + 1])};
    }
    return c;
}
// The model's row that is row r of the piece. The piece's heads may be permuted (gguf_tensors.cpp).
int64_t row_of(const GgufPiece& p, int HS, int64_t r) {
    const int64_t in_head = r % HS;
    return p.first + (p.heads ? r - in_head + in_head % 2 * (HS / 2) + in_head / 2 : r);
}
std::function<Status(const FileSink&)> writing(std::vector<float> x) {
    return [x = std::move(x)](const FileSink& to) { return to(x.data(), int64_t(4 * x.size())); };
}
}    // namespace

Status gguf_save_adapters(const Config& c, const std::vector<AdapterFiles>& adapters, const FileSink& sink) {
    if (c.adapter.magnitudes)
        return fail(Exit::usage,
                    "%s: llama.cpp's adapters have no magnitudes (DoRA); convert the merged model, without "
                    "--adapter-only",
                    adapters[0].dir.c_str());
    Config plain = c;
    plain.adapter = {};
    const GgufArchitecture& a = *TRY(gguf_architecture_for(plain));
    const std::map<std::string, AdapterMatrices> all = TRY(adapter_matrices(c, adapters));
    struct Half {
        const Tensor* t;
        GgufPiece piece;
        Columns columns;
    };
    std::vector<Half> halves;
    const std::vector<Tensor> tensors = config_tensors(c);
    for (const Tensor& t : tensors) {
        const auto m = all.find(t.name);
        if (m == all.end()) continue;
        for (const GgufPiece& p : gguf_pieces(t, c, a, a.fused_qkv, a.fused_up))
            if (const Columns columns = columns_of(m->second.blocks, p); columns.from < columns.to)
                halves.push_back({&t, p, columns});
    }
    auto rank = [](const Half& h) { return h.columns.to - h.columns.from; };
    const bool uniform = std::ranges::all_of(halves, [&](const Half& h) { return rank(h) == rank(halves[0]); });
    const float factor = uniform ? 1 : c.adapter.scale;
    std::vector<GgufSource> sources;
    for (const Half& h : halves) {
        const AdapterMatrices& m = all.at(h.t->name);
        const int64_t C = h.t->cols;
        std::vector<float> b;
        for (int64_t r = 0; r < h.piece.rows; r++)
            for (int64_t k = h.columns.from; k < h.columns.to; k++)
                b.push_back(factor * m.b[size_t(row_of(h.piece, c.HS, r) * m.R + k)]);
        const auto from = m.a.begin() + h.columns.from * C, to = m.a.begin() + h.columns.to * C;
        const BlockFormat* format = &block_format(BlockType::f32);
        sources.push_back({h.piece.name + ".lora_a", format, {rank(h), C}, writing({from, to})});
        sources.push_back({h.piece.name + ".lora_b", format, {h.piece.rows, rank(h)}, writing(std::move(b))});
    }
    const double alpha = uniform ? double(c.adapter.scale) * double(rank(halves[0])) : 0;
    return gguf_write({{"general.architecture", GgufValue::text(a.name)},
                       {"general.type", GgufValue::text("adapter")},
                       {"adapter.type", GgufValue::text("lora")},
                       {"adapter.lora.alpha", GgufValue::number(float(alpha))}},
                      sources, sink);
}
