// dropout_mask.h - dropout of probabilities on the CPU (layers/dropout.h): which pairs of a tile
// are kept, one byte each.
#pragma once
#include "layers/dropout.h"
#include "layers/simd/philox_vec.h"
#include "attention_cpu.h"

namespace ISA {
INLINE vf kept_lanes(vf x, vi keep) { return reinterpret_cast<vf>(reinterpret_cast<vi>(x) & keep); }

constexpr int RUN = 2 * COUNTERS;    // keys
// Writes -1 for each pair of query and key that dropout keeps, and 0 for the others. The keys are
// the RUN keys from `key` on. The bytes of query q go to `low`, those of query q + 8 to `high`.
// Required: q % 16 < 8, and key is a multiple of RUN.
INLINE void kept_run(int8_t* low, int8_t* high, const Dropout& d, uint64_t row, int q, int key) {
    uint32_t words[RANDOMS];
    random_words<1, COUNTERS>(words, d.seed, row, pair_index(q, key));
    const vu keep_threshold = vu{} + d.keep_threshold();
#pragma GCC unroll 16
    for (int i = 0; i < RANDOMS; i += VW) {
        vu word;
        __builtin_memcpy(&word, words + i, sizeof word);
        int8_t bytes[VW];
        store_bytes(bytes, word >= keep_threshold);
        constexpr int N = VW < 8 ? VW : 8;
#pragma GCC unroll 2
        for (int h = 0; h < VW; h += N) {
            const int k = (i + h) / COUNTERS, at = (i + h) % COUNTERS;
            __builtin_memcpy((k / 2 ? high : low) + at / 8 * 16 + k % 2 * 8 + at % 8, bytes + h, N);
        }
    }
}

// Kept pairs of at most QB queries and KB keys.
template <int QB, int KB> struct DropoutMask {
    static constexpr int ROW = KB + RUN;
    int8_t bytes[(QB + 32) / 16 * 16 * ROW];    // whole blocks of 16 queries
    int skip = 0;                               // queries in the first block before the tile
    INLINE_MEMBER const int8_t* of(int r) const { return bytes + (skip + r) * ROW; }

    // Draws for m queries from position q0 on and a stream's keys from j0 on. Query r needs keys
    // first(r)..limit(r); both ends rise with r.
    template <class First, class Limit>
    void draw(const Dropout& d, uint64_t row, int q0, int m, const Stream& stream, int j0, First first, Limit limit) {
        const bool aligned = stream.step == 1 && stream.key(j0) % RUN == 0;
        skip = q0 % 16;
        for (int q = q0 - skip; q < q0 + m; q += q % 8 == 7 ? 9 : 1) {
            if (q + 8 < q0) continue;
            const int end = limit(least(q + 8 - q0, m - 1));
            int8_t *low = bytes + (q - q0 + skip) * ROW, *high = low + 8 * ROW;
            int j = first(most(q - q0, 0)) / RUN * RUN;
            for (; aligned && j < end; j += RUN) kept_run(low + j, high + j, d, row, q, stream.key(j0 + j));
            while (j < end) {    // strided or unaligned keys
                int8_t run[2][RUN];
                const int from = stream.key(j0 + j) / RUN * RUN;
                kept_run(run[0], run[1], d, row, q, from);
                for (int k; j < end && (k = stream.key(j0 + j) - from) < RUN; j++)
                    low[j] = run[0][k], high[j] = run[1][k];
            }
        }
    }
    INLINE_MEMBER vi lanes_of(int r, int j) const { return load_bytes(of(r) + j); }
};
}    // namespace ISA
