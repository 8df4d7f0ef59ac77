// crc.h - CRC-32C (Castagnoli, reflected): checksums of files, by the CPU's instruction where it has one, and joined
// from those of pieces.
#pragma once
#include "base/common.h"

uint32_t crc32c(uint32_t crc, const void* data, int64_t bytes);          // continues crc; 0 to begin
uint32_t crc32c_table(uint32_t crc, const void* data, int64_t bytes);    // the same without the instruction
// The checksum of a piece and the `bytes` that follow it, from both their checksums.
uint32_t crc32c_combine(uint32_t first, uint32_t second, int64_t bytes);
