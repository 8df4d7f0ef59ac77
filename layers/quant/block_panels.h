// block_panels.h - panels of weights in blocks of integers (packed.h): how their numbers and scales
// are read, and how the sums of integers over a block are added to a row's products. Vectors
// (packed_linear.cpp) and tiles (packed_tiles.cpp) share this, and so give the same bits.
#pragma once
#include <utility>

#include "layers/quant/packed.h"
#include "int_dot.h"

namespace ISA {
template <BlockType F> constexpr int SUMS = F == BlockType::q6_k ? 2 : 1;    // integer sums, each with a scale

// Calls f<F>() with this format of blocks; for other formats it returns null.
template <class F> INLINE auto with_block_format(BlockType format, F f) {
    decltype(f.template operator()<BlockType::q8_0>()) result = {};
    auto try_format = [&]<BlockType type>() {
        if constexpr (in_blocks(type))
            if (format == type) result = f.template operator()<type>();
    };
    [&]<size_t... i>(std::index_sequence<i...>) { (try_format.template operator()<BLOCK_FORMATS[i].type>(), ...); }
    (std::make_index_sequence<std::size(BLOCK_FORMATS)>());
    return result;
}

// Returns 4 weights of each output that are neighbours along k: group g of a block's 8 groups of 4.
// quads: their low 4 bits, to which the format's high bits, if any, are added.
template <BlockType F> INLINE vq with_high(vq quads, const uint8_t* high, int g) {
    if constexpr (F == BlockType::q6_k) return quads | (moved(load_quants(high + g / 4 * 64), 4 - g % 4 * 2) & 0x30);
    else if constexpr (block_layout(F).high) return quads | (moved(load_quants(high), 4 - g) & 0x10);
    else return quads;
}
INLINE vf from_bytes(const uint8_t* p) { return __builtin_convertvector(load_bytes(p), vf); }

// Scales and offsets of the block that `read` read last, for VW of the panel's 16 outputs, from
// output `lane` on.
template <BlockType F> struct BlockScales {
    vf d = {}, m = {}, scale[SUMS<F>], offset = {};

    // p: the address of block b or, if b % 8 == 0, of the head before it. Returns the block's
    // address.
    INLINE_MEMBER const uint8_t* read(const uint8_t* p, int b, int lane) {
        constexpr BlockLayout L = block_layout(F);
        if (L.head && b % 8 == 0) {
            d = load_halves(p + 2 * lane);
            if (L.offsets) m = load_halves(p + 32 + 2 * lane);
            p += L.head;
        }
        if constexpr (SUMS<F> == 2) {
            for (int h = 0; h < 2; h++) scale[h] = d * from_bytes(p + 16 * h + lane);
        } else if (L.head) {
            scale[0] = d * from_bytes(p + lane);
            offset = m * from_bytes(p + 16 + lane);
        } else {
            scale[0] = load_halves(p + 2 * lane);
            if (L.offsets) offset = load_halves(p + 32 + 2 * lane);
        }
        return p;
    }
};
// Adds a block's products to sum. s: sums of products of integers; scale, offset: the weights'. dx:
// the scale of the row of x; mx: dx times the sum of the row's integers in the block.
template <BlockType F>
INLINE vf add_block(vf sum, const vi* s, const vf* scale, vf offset, const float* dx, const float* mx) {
    constexpr BlockLayout L = block_layout(F);
    const vf d = set1(*dx);
    sum += __builtin_convertvector(s[0], vf) * (scale[0] * d);
    if constexpr (SUMS<F> == 2) sum += __builtin_convertvector(s[1], vf) * (scale[1] * d);
    if constexpr (!L.offsets) return sum;
    else if constexpr (L.head > 0) return sum - offset * *mx;
    else return sum + offset * *mx;
}

// Rows of x as int8. scales has for each row: the scales, one for each 32 numbers; then the sum of
// each 32 numbers times their scale.
struct ByteRows {
    const int8_t* numbers;
    const float* scales;
    int64_t apart;    // bytes between rows, of numbers and of scales
    int C;
    ByteRows from(int row) const { return {numbers + row * apart, scales + row * (apart / 4), apart, C}; }
};
// BlockTiles (packed_tiles.cpp): sums (rows,16) = products of up to 64 rows with a panel. set: the
// thread's AMX tiles, configured for block_depth bytes. Reads and writes 16 rows at a time; rows
// beyond the last may hold anything.
typedef void (*BlockTiles)(void* set, float* sums, const char* panel, const ByteRows& x, int rows);
BlockTiles block_tiles(BlockType format, Tiles kind);

// Rows of x as three planes of bf16 (bf16_planes.h). For each 32 k a row has 16 words of each
// plane; a word is the pair k and k + 16. Numbers beyond the last k are zero.
struct PlaneRows {
    static constexpr int STEP = 48;    // words of 32 k
    const float* planes;
    int64_t apart;     // words between rows
    int C, outputs;    // outputs of the whole matrix
};
// FloatTiles: sums (rows,48) = products with a panel of floats, by AMX tiles. set: the thread's
// tiles, configured for `rows` rows or more. ahead: prefetch distance in bytes; 0: no prefetch.
typedef void (*FloatTiles)(void* set, float* sums, const char* panel, const PlaneRows& x, int rows, int ahead);
FloatTiles float_tiles(Tiles kind);
constexpr int block_depth(BlockType format) { return format == BlockType::q6_k ? 16 : 32; }
}    // namespace ISA
