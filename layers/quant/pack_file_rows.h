// pack_file_rows.h - packs rows of a matrix, laid out as in its file, into a panel of packed.h. VW
// rows are read at once along k and transposed, so that each of their cache lines is read once.
#pragma once
#include "layers/simd/pack_panels.h"

namespace ISA {
// Packs n rows into 48 columns, k after k; missing rows become zero. `to` gets floats, pairs of
// bf16 or, with `unpaired`, numbers of 16 bits. E: float, or bf16 for 16 bits of any kind.
template <class E, bool unpaired> static void pack_rows(float* to, const char* const* rows, int n, int C) {
    typedef Words<E, sizeof(E) == 2, false> Word;
    constexpr int W = 48, PER = Word::PER;
    for (int j = 0; j < W; j += VW) {
        const E *p[VW], *next[VW];
        for (int i = 0; i < VW; i++) {
            p[i] = reinterpret_cast<const E*>(rows[least(j + i, n - 1)]);
            next[i] = reinterpret_cast<const E*>(rows[least(j + i + VW, n - 1)]);
        }
        auto put = [&](int k, int words, vf* r) {    // transposed, r[i] is word i of VW rows
            transpose(r);
            for (int i = 0; n < j + VW && i < VW; i++) r[i] = lanes() < n - j ? r[i] : vf{};
#pragma GCC unroll 16
            for (int i = 0; i < VW; i++) {
                if (i >= words) break;
                if constexpr (unpaired) {    // a word is two neighbours of k
                    const vu u = reinterpret_cast<vu>(r[i]);
                    const vh pair[2] = {__builtin_convertvector(u & 0xFFFF, vh), __builtin_convertvector(u >> 16, vh)};
                    for (int h = 0; h < 2 && k + 2 * i + h < C; h++)
                        __builtin_memcpy(reinterpret_cast<bf16*>(to) + int64_t(k + 2 * i + h) * W + j, &pair[h],
                                         sizeof(vh));
                } else {
                    store(to + int64_t(k / PER + i) * W + j, r[i]);
                }
            }
        };
        vf r[VW];
        int k = 0;
        for (; k + VW * PER <= C; k += VW * PER) {
#pragma GCC unroll 16
            for (int i = 0; i < VW; i++) {
                r[i] = Word::along(p[i] + k, VW * PER);
                __builtin_prefetch(next[i] + k);
            }
            put(k, VW, r);
        }
        if (k == C) continue;
        for (int i = 0; i < VW; i++) r[i] = Word::along(p[i] + k, C - k);
        put(k, (C - k + PER - 1) / PER, r);
    }
}
// Packs the panel that begins at row `row` of the part.
static void pack_file_rows(const PackedPart& part, int64_t row, int C, char* panel) {
    int n = int(least64(48, part.rows - row));
    const char* const* rows = part.mapped + row;
    while (n > 0 && !rows[n - 1]) n--;    // zero rows come last
    float* to = reinterpret_cast<float*>(panel);
    if (n == 0) return void(__builtin_memset(panel, 0, size_t(panel_bytes(part.format, C))));
    if (part.format == BlockType::f32) pack_rows<float, false>(to, rows, n, C);
    else if (part.format == BlockType::bf16) pack_rows<bf16, false>(to, rows, n, C);
    else pack_rows<bf16, true>(to, rows, n, C);
}
// Packs all rows of a part from its mapped file.
static void pack_all(const PackedPart& part, int C) {
    const int64_t bytes = panel_bytes(part.format, C);
    each_chunk((part.rows + 47) / 48,
               [&](int64_t panel, int) { pack_file_rows(part, panel * 48, C, part.data + panel * bytes); });
}
}    // namespace ISA
