// packed_gradient.cpp - dx = dy w with packed weights (packed.h): a product's input gradient.
//
// Up to OUTPUTS rows of w at a time become floats in scratch, transposed, since a panel's vectors
// hold one column of neighbouring rows. A product in fp32 then adds their part of dx. Bound by the
// product's 2 N C OC FLOPs; unpacking costs as much as some 10 rows of dy.
#include "layers/quant/block_panels.h"
#include "layers/quant/pack_file_rows.h"
#include "layers/matmul/matmul.h"

namespace ISA {
namespace {
constexpr int OUTPUTS = 384;    // whole panels of either kind

// Each unpack function writes column k of a panel's outputs to to + k * OUTPUTS.
template <BlockType F> void unpack_blocks(float* to, const char* panel, int C) {
    constexpr BlockLayout L = block_layout(F);
    constexpr bool eight = F == BlockType::q8_0;
    for (int lane = 0; lane < 16; lane += VW) {
        const uint8_t* p = reinterpret_cast<const uint8_t*>(panel);
        BlockScales<F> s;
        auto put = [&](vq quads, int k) {
            const vu words = reinterpret_cast<vu>(quads);
            const vf scale = s.scale[SUMS<F> == 2 ? k % 32 / 16 : 0];
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                const vf q = __builtin_convertvector(reinterpret_cast<vi>(words >> 8 * j & 0xFF), vf);
                vf v = (q - float(L.zero)) * scale;
                if (L.offsets) v = L.head > 0 ? v - s.offset : v + s.offset;
                store(to + int64_t(k + j) * OUTPUTS + lane, v);
            }
        };
        for (int b = 0; b < C / 32; b++, p += L.block()) {
            p = s.read(p, b, lane);
            const uint8_t *high = p + L.scales + 4 * lane, *quads = high + L.high;
            for (int g = 0; g < (eight ? 8 : 4); g++) {
                const vq both = load_quants(quads + 64 * g);
                put(eight ? both : with_high<F>(both & 15, high, g), 32 * b + 4 * g);
                if (!eight) put(with_high<F>(right(both, 4) & 15, high, g + 4), 32 * b + 16 + 4 * g);
            }
        }
    }
}
void unpack_floats(float* to, const char* panel, int C, BlockType format) {
    constexpr int W = panel_outputs(BlockType::f32);
    for (int k = 0; k < C; k++)
        for (int lane = 0; lane < W; lane += VW) {
            const int64_t at = int64_t(k) * W + lane;
            vf v;
            if (format == BlockType::f32) v = load(reinterpret_cast<const float*>(panel) + at);
            else if (format == BlockType::f16) v = load_halves(panel + 2 * at);
            else {    // a word has k and k + 1
                const float* words = reinterpret_cast<const float*>(panel) + int64_t(k / 2) * W + lane;
                const vu u = reinterpret_cast<vu>(load(words));
                v = reinterpret_cast<vf>(k % 2 ? u & 0xFFFF0000 : u << 16);
            }
            store(to + int64_t(k) * OUTPUTS + lane, v);
        }
}
typedef void (*Unpack)(float* to, const char* panel, int C);
Unpack unpack_of(BlockType format) {
    return with_block_format(format, []<BlockType F>() -> Unpack { return unpack_blocks<F>; });
}

// dx (N,C) (+)= dy w for the rows of w in scratch. dy's rows are `apart` floats apart.
Floats product(float* dx, const float* dy, const float* w, int N, int C, int rows, int64_t apart, bool add) {
    return {
        .M = N, .N = C, .K = rows, .a = dy, .ra = apart, .ca = 1, .b = w, .rb = 1, .cb = OUTPUTS, .c = dx, .add = add};
}
}    // namespace

// Scratch of the product and, behind it, of the rows.
int64_t packed_gradient_scratch(int N, int C, int OC) {
    const int64_t own = max_matmul_scratch(product(nullptr, nullptr, nullptr, N, C, OUTPUTS, OC, true));
    return (own + 63) / 64 * 64 + int64_t(sizeof(float)) * C * OUTPUTS;
}

// p: dx as y, dy as x. Only rows [from, from + OC) of w are multiplied, as those of one expert.
void packed_gradient(const PackedProduct& p, int64_t from) {
    const int64_t bytes = packed_gradient_scratch(p.N, p.C, p.OC), rows_bytes = int64_t(sizeof(float)) * p.C * OUTPUTS;
    float* w = reinterpret_cast<float*>(static_cast<char*>(cpu_scratch(bytes)) + bytes - rows_bytes);
    bool add = false;
    for (int i = 0; i < p.w->count; i++) {
        PackedPart& part = p.w->parts[i];
        if (part.first < from || part.first >= from + p.OC) continue;
        if (part.mapped) {
            pack_all(part, p.C);
            packed_now(&part, p.C);
        }
        const int W = panel_outputs(part.format);
        const int64_t panel = panel_bytes(part.format, p.C);
        const Unpack unpack = unpack_of(part.format);
        for (int64_t o = 0; o < part.rows; o += OUTPUTS) {
            const int rows = int(least64(OUTPUTS, part.rows - o)), panels = (rows + W - 1) / W;
            each_item(panels, int64_t(panels) * W * p.C, [&](int64_t n) {
                const char* data = part.data + (o / W + n) * panel;
                if (unpack) unpack(w + n * W, data, p.C);
                else unpack_floats(w + n * W, data, p.C, part.format);
            });
            matmul(product(p.y, p.x + part.first - from + o, w, p.N, p.C, rows, p.OC, add));
            add = true;
        }
    }
}
}    // namespace ISA
