// block_format.h - element formats of GGUF tensors: plain, or blocks of small integers with scales.
#pragma once
#include <cstdint>
#include <iterator>
#include <string_view>

// One row per supported format, named as in ggml's ggml-common.h, which defines the blocks.
enum class BlockType { f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl };
struct BlockFormat {
    BlockType type;
    const char* name;
    int ggml_type;         // tensor type in GGUF files
    int numbers, bytes;    // elements and bytes of a block; rows are whole blocks
    // Byte offsets of the two fp16 numbers of a block. A block with a single one has its offset
    // twice. The plain formats do not use this field.
    int halves[2] = {};
};
inline constexpr BlockFormat BLOCK_FORMATS[] = {
    {BlockType::f32, "F32", 0, 1, 4},
    {BlockType::f16, "F16", 1, 1, 2},
    {BlockType::bf16, "BF16", 30, 1, 2},
    {BlockType::q4_0, "Q4_0", 2, 32, 18, {0, 0}},
    {BlockType::q4_1, "Q4_1", 3, 32, 20, {0, 2}},
    {BlockType::q5_0, "Q5_0", 6, 32, 22, {0, 0}},
    {BlockType::q5_1, "Q5_1", 7, 32, 24, {0, 2}},
    {BlockType::q8_0, "Q8_0", 8, 32, 34, {0, 0}},
    {BlockType::q2_k, "Q2_K", 10, 256, 84, {80, 82}},
    {BlockType::q3_k, "Q3_K", 11, 256, 110, {108, 108}},
    {BlockType::q4_k, "Q4_K", 12, 256, 144, {0, 2}},
    {BlockType::q5_k, "Q5_K", 13, 256, 176, {0, 2}},
    {BlockType::q6_k, "Q6_K", 14, 256, 210, {208, 208}},
    {BlockType::iq4_nl, "IQ4_NL", 20, 32, 18, {0, 0}},
};
constexpr const BlockFormat& block_format(BlockType b) { return BLOCK_FORMATS[int(b)]; }
// Finds a format by its type number in GGUF files; null if it is not supported.
constexpr const BlockFormat* find_block_format(uint32_t ggml_type) {
    for (const BlockFormat& f : BLOCK_FORMATS)
        if (uint32_t(f.ggml_type) == ggml_type) return &f;
    return nullptr;
}
