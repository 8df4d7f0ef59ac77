// packed.cpp - moves rows of a matrix into panels and out of them. Bound by memory: a row touches
// every cache line of its panel, which stays in L2 for the following rows.
#include "packed.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/half.h"
#include "quant.h"

namespace {
// Copies between a file's block and a panel. One list of moves serves both directions.
template <bool in> struct Mover {
    uint8_t *block, *panel;

    static void copy(uint8_t* block, uint8_t* panel, int bytes) {
        if (in) memcpy(panel, block, size_t(bytes));
        else memcpy(block, panel, size_t(bytes));
    }
    void half(int at_block, int at_panel) { copy(block + at_block, panel + at_panel, 2); }
    // Copies `bits` bits of each byte of a word. In the block's bytes they begin at bit `from`, in
    // the panel's at bit `to`.
    template <class Word> void bits(int at_block, int from, int at_panel, int to, int bits) {
        const Word mask = Word(Word(~Word(0)) / 255 * ((1u << bits) - 1));
        Word b, p;
        memcpy(&b, block + at_block, sizeof b);
        memcpy(&p, panel + at_panel, sizeof p);
        if (in) p = Word((p & ~(mask << to)) | (b >> from & mask) << to);
        else b = Word((b & ~(mask << from)) | (p >> to & mask) << from);
        if (in) memcpy(panel + at_panel, &p, sizeof p);
        else memcpy(block + at_block, &b, sizeof b);
    }
    void bits(int at_block, int from, int at_panel, int to, int n) { bits<uint8_t>(at_block, from, at_panel, to, n); }
    // Copies bits of four numbers that are neighbours in the block and in the panel.
    void four(int at_block, int from, int at_panel, int to, int n) { bits<uint32_t>(at_block, from, at_panel, to, n); }
};

// Offset of number k (of 32) of output o in a block's quarters (4 k of 16 outputs). With 4 bits a
// number, k and k + 16 share a byte.
int quarter(int k, int o) { return k % 16 / 4 * 64 + o * 4 + k % 4; }

// Moves a block of 32 numbers: d, in some formats m or fifth bits, then each number's 4 or 8 bits.
template <bool in> void simple(Mover<in> m, BlockType format, int o) {
    const BlockLayout l = block_layout(format);
    m.half(0, 2 * o);
    int at = 2;
    if (l.offsets) m.half(2, 32 + 2 * o), at = 4;
    if (format == BlockType::q8_0) {
        for (int k = 0; k < 32; k += 4) {
            const int to = l.scales + k / 4 * 64 + o * 4;
            m.copy(m.block + at + k, m.panel + to, 4);
            for (int i = 0; i < 4; i++) (in ? m.panel[to + i] : m.block[at + k + i]) ^= 0x80;
        }
        return;
    }
    for (int k = 0; l.high && k < 32; k++) m.bits(at + k / 8, k % 8, l.scales + o * 4 + k % 4, k / 4, 1);
    if (l.high) at += 4;
    uint8_t* quads = m.panel + l.scales + l.high;
    for (int k = 0; k < 16; k += 4) m.copy(m.block + at + k, quads + quarter(k, o), 4);
}

// Packs (in) or unpacks a block's scales and offsets of 6 bits, which take 12 bytes in the file
// (layout: unpack_scales in decode.cpp).
template <bool in> void six_bits(Mover<in> m, const BlockLayout& l, int o) {
    const int scales = 4;    // in the block
    for (int j = 0; j < 8; j++) {
        const int s = l.head + j * l.block() + o, t = s + 16;    // in the panel
        if (j < 4) {
            m.bits(scales + j, 0, s, 0, 6), m.bits(scales + 4 + j, 0, t, 0, 6);
        } else {
            m.bits(scales + 4 + j, 0, s, 0, 4), m.bits(scales + j - 4, 6, s, 4, 2);
            m.bits(scales + 4 + j, 4, t, 0, 4), m.bits(scales + j, 6, t, 4, 2);
        }
    }
}
template <bool in> void q4_k_or_q5_k(Mover<in> m, BlockType format, int o) {
    const BlockLayout l = block_layout(format);
    m.half(0, 2 * o), m.half(2, 32 + 2 * o);
    six_bits(m, l, o);
    const int fifth = 16, quads = l.high ? 48 : 16;
    for (int j = 0; j < 8; j++) {
        const int at = l.head + j * l.block() + l.scales;
        for (int k = 0; k < 32; k += 4) {
            if (l.high) m.four(fifth + k, j, at + o * 4, k / 4, 1);
            m.four(quads + j / 2 * 32 + k, j % 2 * 4, at + l.high + quarter(k, o), k / 16 * 4, 4);
        }
    }
}
template <bool in> void q6_k(Mover<in> m, int o) {
    const BlockLayout l = block_layout(BlockType::q6_k);
    m.half(208, 2 * o);
    for (int j = 0; j < 8; j++) {
        const int at = l.head + j * l.block();
        for (int h = 0; h < 2; h++) m.copy(m.block + 192 + 2 * j + h, m.panel + at + 16 * h + o, 1);
        for (int k = 0; k < 32; k += 4) {
            const int i = 32 * j + k;
            m.four(128 + i / 128 * 32 + i % 32, i % 128 / 32 * 2, at + l.scales + k / 16 * 64 + o * 4, k % 16 / 4 * 2,
                   2);
            m.four(i / 128 * 64 + i % 64, i % 128 / 64 * 4, at + l.scales + l.high + quarter(k, o), k / 16 * 4, 4);
        }
    }
}

template <bool in>
void move(const PackedPart& part, int64_t cols, int64_t row, int64_t col, int64_t n, uint8_t* blocks) {
    const int width = panel_outputs(part.format), o = int(row % width);
    auto* panel = reinterpret_cast<uint8_t*>(part.data) + row / width * panel_bytes(part.format, cols);
    const BlockFormat& f = block_format(part.format);
    CHECK(col % f.numbers == 0 && n % f.numbers == 0 && col + n <= cols && row < part.rows,
          "row %lld, columns %lld+%lld", (long long)row, (long long)col, (long long)n);
    if (!in_blocks(part.format)) {
        auto each = [&](auto offset_of, auto bytes) {    // constant: memcpy calls are 4 times slower
            for (int64_t k = col; k < col + n; k++, blocks += bytes)
                Mover<in>::copy(blocks, panel + offset_of(k) * bytes, bytes);
        };
        auto side_by_side = [&](int64_t k) { return k * width + o; };
        if (part.format == BlockType::f32) return each(side_by_side, std::integral_constant<int, 4>());
        if (part.format == BlockType::f16) return each(side_by_side, std::integral_constant<int, 2>());
        return each([&](int64_t k) { return (k / 2 * width + o) * 2 + k % 2; }, std::integral_constant<int, 2>());
    }
    const int64_t bytes = block_layout(part.format).bytes(f.numbers);
    for (int64_t k = col; k < col + n; k += f.numbers, blocks += f.bytes) {
        const Mover<in> m = {blocks, panel + k / f.numbers * bytes};
        if (f.numbers == 32) simple(m, part.format, o);
        else if (part.format == BlockType::q6_k) q6_k(m, o);
        else q4_k_or_q5_k(m, part.format, o);
    }
}
}    // namespace

void pack(const PackedPart& part, int64_t cols, int64_t row, int64_t col, int64_t n, const void* blocks) {
    move<true>(part, cols, row, col, n, static_cast<uint8_t*>(const_cast<void*>(blocks)));
}
void unpack(const PackedPart& part, int64_t cols, int64_t row, int64_t col, int64_t n, void* blocks) {
    move<false>(part, cols, row, col, n, static_cast<uint8_t*>(blocks));
}

void packed_now(PackedPart* part, int64_t cols) {
    const BlockFormat& f = block_format(part->format);
    const int64_t row_bytes = cols / f.numbers * f.bytes, page = 4096;
    int64_t first = INT64_MAX, last = 0;
    for (int64_t r = 0; r < part->rows; r++)
        if (const auto at = int64_t(reinterpret_cast<uintptr_t>(part->mapped[r])))
            first = std::min(first, at), last = std::max(last, at + row_bytes);
    const int64_t from = last ? round_up(first, page) : 0, to = last / page * page;
    // Pages are kept if the rows are scattered over the file: other matrices lie between them, and
    // would have to be read again.
    if (to > from && to - from <= 2 * part->rows * row_bytes)
        madvise(reinterpret_cast<void*>(from), size_t(to - from), MADV_DONTNEED);
    part->mapped = nullptr;
}

void unpack_row(const PackedWeight& matrix, int64_t cols, int64_t row, float* out) {
    const PackedPart* part = matrix.parts;
    while (row >= part->first + part->rows) part++;
    const BlockFormat& f = block_format(part->format);
    if (part->mapped) {
        const char* in_file = part->mapped[row - part->first];
        return in_file ? dequantise(f, in_file, cols, out) : void(std::fill_n(out, cols, 0.0f));
    }
    if (part->format == BlockType::f32) return unpack(*part, cols, row - part->first, 0, cols, out);
    std::vector<uint8_t> blocks(size_t(cols / f.numbers * f.bytes));
    unpack(*part, cols, row - part->first, 0, cols, blocks.data());
    dequantise(f, blocks.data(), cols, out);
}
