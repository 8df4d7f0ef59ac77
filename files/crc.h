// crc.h - CRC-32C (Castagnoli, reflected) of files: by the CPU's instruction where available;
// checksums of pieces can be combined.
#pragma once
#include "base/common.h"

uint32_t crc32c(uint32_t crc, const void* data, int64_t bytes);          // continues crc; first call: 0
uint32_t crc32c_table(uint32_t crc, const void* data, int64_t bytes);    // crc32c without the instruction
// Combines the checksums of two consecutive pieces into one. bytes: length of the second piece.
uint32_t crc32c_combine(uint32_t first, uint32_t second, int64_t bytes);
