// packed.h - weights that are only read: in their files' formats, laid out for inference.
//
// In a panel, numbers of several outputs (rows of the matrix) are adjacent, k after k. A vector's
// lane is an output, so no sum crosses lanes, and each sum adds k in order. (AMX tiles add k in an
// order of their own.) So a row of x gives the same bits, whatever other rows the call has. Panels:
//   fp32, fp16   48 outputs: [k][48]             bf16   48 outputs, pairs of k: [k/2][48][2]
//   8 to 4 bits  16 outputs, in the format's blocks of 32 k. A block has [16] scales, [16] offsets,
//                bits above the fourth, and quarters of 4 k: [4 or 8][16][4]. A byte of 4-bit
//                numbers holds k and k + 16.
// The "K" formats put the scales of 256 numbers before the scales of 32 (BlockLayout). Offsets and
// scales have the bits of the file.
//
// Rows of fp32, fp16 and bf16 may first lie in a mapped file. A product of up to FEW_ROWS rows of x
// then packs each panel into its thread's scratch and reads it from L2, so that a first token waits
// for no copy of the weights. After `wait` such products the panels are packed into `data`; a
// product of more rows does so at once.
#pragma once
#include "base/block_format.h"
#include "layers/ops.h"

struct PackedPart {         // rows of one format; whole panels, zero-padded
    int64_t first, rows;    // in the matrix
    BlockType format;
    char* data;
    // Before the panels hold the rows: each row's address in a mapped file, or null for zeros.
    const char* const* mapped = nullptr;
    int wait = 0;    // products until the panels are packed
};
// A parameter: as floats if no product reads it (a vector, a table of positions), else in parts.
struct PackedWeight {
    float* floats;
    PackedPart* parts;    // in the order of their rows
    int count;
};
template <> struct GradOf<PackedWeight> { typedef float type; };
template <> inline constexpr Element element_of<PackedWeight> = Element::packed;

// Byte layout of a block: 32 numbers of each of 16 outputs. In the K formats a `head`, with the
// scales of 256 numbers, precedes every eighth block.
struct BlockLayout {
    int head, scales, high, quarters;
    bool offsets;    // x is d q + m, else d (q - zero)
    int zero;
    constexpr int block() const { return scales + high + quarters; }
    constexpr int64_t bytes(int64_t numbers) const { return numbers / 32 * block() + numbers / 256 * head; }
};
constexpr BlockLayout block_layout(BlockType format) {
    switch (format) {
        case BlockType::q8_0: return {0, 32, 0, 512, false, 128};    // bytes are q + 128
        case BlockType::q4_0: return {0, 32, 0, 256, false, 8};
        case BlockType::q4_1: return {0, 64, 0, 256, true, 0};
        case BlockType::q5_0: return {0, 32, 64, 256, false, 16};
        case BlockType::q5_1: return {0, 64, 64, 256, true, 0};
        case BlockType::q4_k: return {64, 32, 0, 256, true, 0};    // head: d, m; scales: s, t
        case BlockType::q5_k: return {64, 32, 64, 256, true, 0};
        case BlockType::q6_k: return {32, 32, 128, 256, false, 32};    // scales of k 0..15, then of k 16..31
        default: return {0, 0, 0, 0, false, 0};
    }
}
constexpr int64_t FEW_ROWS = 64;    // most rows of x that leave weights mapped
constexpr bool in_blocks(BlockType format) { return block_layout(format).quarters > 0; }
constexpr int panel_outputs(BlockType format) { return in_blocks(format) ? 16 : 48; }
constexpr int64_t panel_bytes(BlockType format, int64_t cols) {
    const BlockLayout b = block_layout(format);
    if (b.quarters) return b.bytes(cols);
    return format == BlockType::f32 ? cols * 192 : format == BlockType::f16 ? cols * 96 : (cols + 1) / 2 * 192;
}
inline int64_t part_bytes(BlockType format, int64_t rows, int64_t cols) {
    return ceil_div(rows, panel_outputs(format)) * panel_bytes(format, cols);
}
// The format of a file's numbers in memory: the file's, or fp32 if no product supports that.
constexpr BlockType packed_format(BlockType format) {
    const bool floats = format == BlockType::f32 || format == BlockType::f16 || format == BlockType::bf16;
    return floats || in_blocks(format) ? format : BlockType::f32;
}

// pack copies n numbers (whole blocks in the part's format) of a row of the part, from column `col`
// on, into the panels; unpack copies them back. Threads may pack different rows at once.
void pack(const PackedPart& part, int64_t cols, int64_t row, int64_t col, int64_t n, const void* blocks);
void unpack(const PackedPart& part, int64_t cols, int64_t row, int64_t col, int64_t n, void* blocks);
// Returns the file's pages to the system. Must be called once the panels hold the part's rows.
void packed_now(PackedPart* part, int64_t cols);
// Writes a row of a matrix to `out` as floats.
void unpack_row(const PackedWeight& matrix, int64_t cols, int64_t row, float* out);
