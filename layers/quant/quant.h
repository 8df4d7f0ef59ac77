// quant.h - a tensor's numbers in the formats of GGUF files: blocks to floats and floats to blocks.
#pragma once
#include "base/block_format.h"

// Converts n numbers (whole blocks) to floats, with the same bits as ggml's dequantize_row_* and
// Python's gguf.quants.
void dequantise(const BlockFormat& format, const void* blocks, int64_t n, float* out);
// Whether none of n numbers (whole blocks) is NaN or infinite, without conversion to floats.
bool all_finite(const BlockFormat& format, const void* blocks, int64_t n);

// The largest |x| of n numbers; NaN if one is NaN.
float largest_size(const float* x, int64_t n);

// can_quantise: whether the format has an encoder; other formats are only read. quantise converts n
// numbers (whole blocks), by all threads. F16 and BF16 round to nearest even; Q8_0 gives the same
// bytes as ggml; the others search for the scales with the least squared error.
bool can_quantise(const BlockFormat& format);
void quantise(const BlockFormat& format, const float* x, int64_t n, void* blocks);
