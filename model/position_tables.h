// position_tables.h - tables that are computed from positions: RoPE's cosines and sines, sinusoids, T5's buckets.
#pragma once
#include <vector>

#include "config.h"

// Table of layer l: (positions, 2, rope_dims / 2), cosines and sines times the scaling's magnitude,
// from position `first` on. delta: rotates keys that are already rotated, so without the magnitude.
// Su et al. 2021; scalings: Chen et al. 2023 (linear), Peng et al. 2023 (NTK-aware, dynamic, YaRN),
// Llama 3.1 (llama3). Angles are computed in float, as models were trained; beyond the context,
// where float is too coarse, in double.
std::vector<float> rope_cos_sin(const Config& c, int l, int positions, int first = 0, bool delta = false);
// Theta under NTK-aware scaling, else rope_theta. Dynamic scaling is NTK-aware scaling to the
// context T if T exceeds the trained context. (transformers scales to the length so far, so its
// cached keys keep the angles of shorter lengths; here generation equals a pass over the whole
// sequence.)
double rope_base(const Config& c);
int64_t cos_sin_bytes(const Config& c, int positions);    // all tables
// Unscaled part of pair i's frequency f, 0 to 1; the rest is divided by rope_factor.
double rope_ramp(const Config& c, int i, double f);
// Places both tables of `positions` rows from `at` on, one after the other; fill_ also fills them.
void split_cos_sin(const Config& c, float* (&tables)[2], float* at, int positions);
void fill_cos_sin(const Table& op, const Config& c, float* (&tables)[2], float* at, int positions);
// Uploads layer l's table of `count` positions from each of `positions` on. delta: as rope_cos_sin
void upload_cos_sin(const Table& op, const Config& c, float* to, int l, const std::vector<int>& positions, int count,
                    bool delta);

// Position embeddings (positions, C): channels 2i and 2i+1 are sine and cosine of position *
// 10000^(-2i/C). Vaswani et al. 2017, section 3.5. Divided by embed_scale, which gpt.cpp applies to
// their sum with the token's embedding.
std::vector<float> sinusoids(const Config& c, int positions);
// T5's bucket of each distance (key's position - query's) from -RELATIVE_MAX_DISTANCE to
// RELATIVE_MAX_DISTANCE: half of the buckets hold one distance each, the others logarithmic ranges.
// both_sides: keys after the query have half of the buckets; else they share distance 0's. Raffel
// et al. 2020; transformers' _relative_position_bucket.
std::vector<int> relative_buckets(bool both_sides);
