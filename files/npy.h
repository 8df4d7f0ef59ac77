// npy.h - the header of NumPy's .npy files (format 1.0).
#pragma once
#include <string>

#include "base/common.h"

constexpr int NPY_HEADER_BYTES = 128;
// The header of an fp32 matrix, row after row, little-endian.
inline std::string npy_header(int64_t rows, int64_t cols) {
    const std::string shape = formatted("{'descr': '<f4', 'fortran_order': False, 'shape': (%lld, %lld), }",
                                        (long long)rows, (long long)cols);
    std::string header("\x93NUMPY\x01\x00\x76\x00", 10);    // 118 bytes follow
    header += shape + std::string(NPY_HEADER_BYTES - 1 - header.size() - shape.size(), ' ') + '\n';
    CHECK(header.size() == NPY_HEADER_BYTES, "a header of %zu bytes", header.size());
    return header;
}
