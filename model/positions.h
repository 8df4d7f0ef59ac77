// positions.h - fixed position tables: sinusoids, T5's buckets. RoPE: rope_table.h.
#pragma once
#include <vector>

#include "config.h"

// Position embeddings (positions, C): channels 2i and 2i+1 are sine and cosine of position *
// 10000^(-2i/C). Vaswani et al. 2017, section 3.5. Divided by embed_scale, which gpt.cpp applies to
// their sum with the token's embedding.
std::vector<float> sinusoids(const Config& c, int positions);
// T5's bucket of each distance (key's position - query's) from -RELATIVE_MAX_DISTANCE to
// RELATIVE_MAX_DISTANCE: half of the buckets hold one distance each, the others logarithmic ranges.
// both_sides: keys after the query have half of the buckets; else they share distance 0's. Raffel
// et al. 2020; transformers' _relative_position_bucket.
std::vector<int> relative_buckets(bool both_sides);
