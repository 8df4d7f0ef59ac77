// dropout.h - which random word decides whether a number is dropped, defined once for every table.
// Words are those of philox (base/philox.h) with the dropout's seed; a number is kept if its word
// is at least keep_threshold.
#pragma once
#include "base/philox.h"
#include "ops.h"

// Element i of an array has index = first + i, and word index % 4 of philox(seed, 0, index / 4).
HOST_DEVICE static inline bool is_kept(const Dropout& d, int64_t i) {
    const uint64_t index = uint64_t(d.first + i);
    return philox(d.seed, 0, index / 4).v[index % 4] >= d.keep_threshold();
}

// Dropout of attention's probabilities: for a query and a key of head `head` in sequence b, word
// pair_word of philox(seed, pair_row, pair_index) decides. A philox call's four words serve two
// queries 8 apart and two keys 8 apart: one lane holds these four elements of a tensor-core
// product, whether queries or keys are its rows. Neighbouring keys have consecutive indices.
HOST_DEVICE static inline uint64_t pair_row(const Dropout& d, int64_t b, int head, int NH) {
    return uint64_t((d.first + b) * NH + head);
}
HOST_DEVICE static inline uint64_t pair_index(int query, int key) {
    return uint64_t(query / 16 * 8 + query % 8) << 32 | uint64_t(key / 16 * 8 + key % 8);
}
HOST_DEVICE static inline int pair_word(int query, int key) { return query % 16 / 8 * 2 + key % 16 / 8; }
HOST_DEVICE static inline bool is_pair_kept(const Dropout& d, uint64_t row, int query, int key) {
    return philox(d.seed, row, pair_index(query, key)).v[pair_word(query, key)] >= d.keep_threshold();
}
