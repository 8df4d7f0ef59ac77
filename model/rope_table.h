// rope_table.h - the angles by which RoPE turns queries and keys.
#pragma once
#include <vector>

#include "config.h"

// Cosines and sines of layer l, times the magnitude of its scaling: (positions, 2, rope_dims / 2). Su et al. 2021;
// scalings: Chen et al. 2023 (linear), Peng et al. 2023 (NTK-aware, dynamic, YaRN), Llama 3.1 (llama3). Angles are
// formed in float, as the models were trained; beyond the context, where that would be coarse, in double.
// first: the first position.  turn: for keys that turn by so much more, so without the magnitude, which they have.
std::vector<float> rope_cos_sin(const Config& c, int l, int positions, int first = 0, bool delta = false);
// Theta under NTK-aware scaling; elsewhere rope_theta. Dynamic scaling is NTK-aware for the model's context T, where
// that is beyond the one that it was trained with. (transformers takes the length so far: keys that it caches keep the
// angles of a shorter one. Here generation equals the whole sequence's pass.)
double rope_base(const Config& c);
int64_t cos_sin_bytes(const Config& c, int positions);    // all its tables
// How much of pair i's frequency f the scaling leaves, 0 to 1; the rest is divided by its factor.
double rope_ramp(const Config& c, int i, double f);
// Both tables of angles, one after the other from `at` on, for so many positions: where they lie; and filled.
void split_cos_sin(const Config& c, float* (&tables)[2], float* at, int positions);
void fill_cos_sin(const Table& op, const Config& c, float* (&tables)[2], float* at, int positions);
// Layer l's angles at `count` positions from each of these on. turn: as rope_cos_sin has it
void upload_cos_sin(const Table& op, const Config& c, float* to, int l, const std::vector<int>& positions, int count,
                    bool delta);
