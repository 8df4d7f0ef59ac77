// position_tables.h - tables computed from positions: RoPE's cos and sin, sinusoids, T5's buckets.
#pragma once
#include <vector>

#include "config.h"

// Cosines and sines of layer l's RoPE (Su et al. 2021), times the scaling's magnitude: (positions,
// 2, rope_dims / 2), from position `first` on. delta: the table rotates keys further that are
// already rotated and have the magnitude, so it lacks the magnitude. Scalings: Chen et al. 2023
// (linear), Peng et al. 2023 (NTK-aware, dynamic, YaRN), Llama 3.1 (llama3). Angles are computed in
// float, as in the models' training. With `delta`, or beyond the context, where float is too
// coarse, they are computed in double.
std::vector<float> rope_cos_sin(const Config& c, int l, int positions, int first = 0, bool delta = false);
// Theta as NTK-aware scaling changes it; without such scaling, rope_theta. Dynamic scaling is
// NTK-aware scaling to the context T, if T exceeds the trained context. transformers instead scales
// to the current length, so its cached keys keep the angles of shorter lengths. Here, generation
// gives the same angles as one pass over the whole sequence.
double rope_base(const Config& c);
int64_t cos_sin_bytes(const Config& c, int positions);    // bytes of all tables
// Fraction (0 to 1) of pair i's frequency f that scaling leaves as it is; the rest is divided by
// rope_factor.
double rope_ramp(const Config& c, int i, double f);
// Points `tables` to two tables of `positions` rows from `at` on; fill_cos_sin also fills them,
// with equally many rows from each of `starts` on.
void split_cos_sin(const Config& c, float* (&tables)[2], float* at, int positions);
void fill_cos_sin(const Table& op, const Config& c, float* (&tables)[2], float* at, const std::vector<int>& starts,
                  int positions);
// Uploads rows of layer l's table: for each p of `positions`, the `count` rows from p on. delta: as
// in rope_cos_sin.
void upload_cos_sin(const Table& op, const Config& c, float* to, int l, const std::vector<int>& positions, int count,
                    bool delta);

// Position embeddings (positions, C): channels 2i and 2i+1 are sine and cosine of position *
// 10000^(-2i/C). Vaswani et al. 2017, section 3.5. The table is divided by embed_scale, because
// gpt.cpp multiplies the sum of position and token embeddings by it.
std::vector<float> sinusoids(const Config& c, int positions);
// T5's bucket of each distance (key's position minus query's) from -RELATIVE_MAX_DISTANCE to
// RELATIVE_MAX_DISTANCE. both_sides: half of all buckets are for keys after the query; otherwise
// such keys have the bucket of distance 0. On each side, the first half of the buckets hold one
// distance each, the second half logarithmic ranges. Raffel et al. 2020; transformers'
// _relative_position_bucket.
std::vector<int> relative_buckets(bool both_sides);
