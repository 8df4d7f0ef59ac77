// positions.h - numbers that tell positions apart and are not learned. RoPE's are in rope.h.
#pragma once
#include <vector>

#include "config.h"

// What is added to a token's embedding at each position: (positions, C), channels 2i and 2i+1 the sine and cosine of
// position * 10000^(-2i/C). Vaswani et al. 2017, section 3.5. The embeddings' scale, which multiplies both, is taken off.
std::vector<float> sinusoids(const Config& c, int positions);
