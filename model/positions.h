// positions.h - numbers that tell positions apart and are not learned. RoPE's are in rope.h.
#pragma once
#include <vector>

#include "config.h"

// What is added to a token's embedding at each position: (positions, C), channels 2i and 2i+1 the sine and cosine of
// position * 10000^(-2i/C). Vaswani et al. 2017, section 3.5. The embeddings' scale, which multiplies both, is taken
// off.
std::vector<float> sinusoids(const Config& c, int positions);
// T5's bucket of each distance, the key's position less the query's, from -RELATIVE_REACH to RELATIVE_REACH: half of
// them hold one distance each, the others ever more. both_sides: keys behind the query have buckets of their own; else
// there are none, and all count as at distance 0. Raffel et al. 2020; _relative_position_bucket of transformers.
std::vector<int> relative_buckets(bool both_sides);
