// position_tables.cpp - RoPE's frequencies, cosines and sines; sinusoids; T5's buckets.
#include "position_tables.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numbers>

namespace {
constexpr double TAU = 2 * std::numbers::pi;

// Index, not rounded, of the channel pair that makes n full rotations over the trained context.
double yarn_correction_dim(double n, const Config& c, double context) {
    return c.rope_dims * std::log(context / (n * TAU)) / (2 * std::log(double(c.rope_theta)));
}

}    // namespace

double rope_base(const Config& c) {
    double factor = 1;
    if (c.rope_scaling == RopeScaling::ntk) factor = c.rope_factor;
    if (c.rope_scaling == RopeScaling::dynamic && c.rope_original)
        factor = std::max(1.0, double(c.rope_factor) * c.T / c.rope_original - (double(c.rope_factor) - 1));
    const double d = c.rope_dims;
    return d > 2 ? c.rope_theta * std::pow(factor, d / (d - 2)) : c.rope_theta;
}

double rope_ramp(const Config& c, int i, double f) {
    const double context = c.rope_original ? c.rope_original : c.T;
    switch (c.rope_scaling) {
        case RopeScaling::linear: return 0;
        case RopeScaling::llama3: {    // by rotations over the trained context; below rope_low: fully scaled
            const double rotations = context * f / TAU;
            return std::clamp((rotations - c.rope_low) / (double(c.rope_high) - c.rope_low), 0.0, 1.0);
        }
        case RopeScaling::yarn: {    // by pair index, from rope_high to rope_low rotations
            const double first = std::max(std::floor(yarn_correction_dim(c.rope_high, c, context)), 0.0);
            double last = std::min(std::ceil(yarn_correction_dim(c.rope_low, c, context)), double(c.rope_dims - 1));
            if (first == last) last += 0.001;
            return 1 - std::clamp((i - first) / (last - first), 0.0, 1.0);
        }
        default: return 1;
    }
}

std::vector<float> rope_cos_sin(const Config& c, int l, int positions, int first, bool delta) {
    const int pairs = c.rope_dims / 2;
    const bool local = c.windowed(l) && c.rope_local_theta > 0;
    const double theta = local ? c.rope_local_theta : rope_base(c);
    const bool yarn = !local && c.rope_scaling == RopeScaling::yarn;
    const double direction = c.rope_backwards ? -1 : 1;
    const double magnitude = !yarn || delta      ? 1
                             : c.rope_magnitude  ? c.rope_magnitude
                             : c.rope_factor > 1 ? 1 + 0.1 * std::log(double(c.rope_factor))
                                                 : 1;
    std::vector<float> cos_sin(size_t(positions) * 2 * size_t(pairs));
    for (int i = 0; i < pairs; i++) {
        const double f = std::pow(theta, -2.0 * i / c.rope_dims), part = local ? 1 : rope_ramp(c, i, f);
        const float frequency = float(part * f + (1 - part) * f / c.rope_factor);
        for (int p = 0; p < positions; p++) {
            const bool exact = delta || first + p >= c.T;
            const double angle = exact ? double(first + p) * double(frequency) : double(float(first + p) * frequency);
            cos_sin[size_t(2 * p) * size_t(pairs) + size_t(i)] = float(magnitude * std::cos(angle));
            cos_sin[size_t(2 * p + 1) * size_t(pairs) + size_t(i)] = float(magnitude * std::sin(direction * angle));
        }
    }
    return cos_sin;
}

int64_t cos_sin_bytes(const Config& c, int positions) {
    const int tables = (c.layer_of_rope_table(0) >= 0) + (c.layer_of_rope_table(1) >= 0);
    return tables * int64_t(positions) * c.rope_dims * int64_t(sizeof(float));
}

void split_cos_sin(const Config& c, float* (&tables)[2], float* at, int positions) {
    for (int table : {0, 1})
        if (c.layer_of_rope_table(table) >= 0) tables[table] = at, at += int64_t(positions) * c.rope_dims;
}
void fill_cos_sin(const Table& op, const Config& c, float* (&tables)[2], float* at, const std::vector<int>& starts,
                  int positions) {
    split_cos_sin(c, tables, at, positions);
    for (int table : {0, 1})
        if (const int l = c.layer_of_rope_table(table); l >= 0)
            upload_cos_sin(op, c, tables[table], l, starts, positions / int(starts.size()), false);
}
void upload_cos_sin(const Table& op, const Config& c, float* to, int l, const std::vector<int>& positions, int count,
                    bool delta) {
    std::vector<float> host, last;
    for (size_t i = 0; i < positions.size(); i++) {
        if (i == 0 || positions[i] != positions[i - 1]) last = rope_cos_sin(c, l, count, positions[i], delta);
        host.insert(host.end(), last.begin(), last.end());
    }
    op.upload(to, host.data(), int64_t(sizeof(float) * host.size()));
}

// ---- positions without rotation -----------------------------------------------------------------

std::vector<float> sinusoids(const Config& c, int positions) {
    std::vector<float> table(size_t(positions) * size_t(c.C));
    for (int i = 0; i < c.C; i++) {
        const int half = (c.C + 1) / 2, pair = c.sinusoid_halves ? i % half : i / 2;
        const bool cosine = c.sinusoid_halves ? i >= half : i % 2;
        const double frequency = std::pow(1e4, -2.0 * pair / c.C);
        for (int p = 0; p < positions; p++) {
            const double angle = p * frequency;
            table[size_t(p) * size_t(c.C) + size_t(i)] =
                float((cosine ? std::cos(angle) : std::sin(angle)) / double(c.embed_scale));
        }
    }
    return table;
}

std::vector<int> relative_buckets(bool both_sides) {
    const int buckets = both_sides ? RELATIVE_BUCKETS / 2 : RELATIVE_BUCKETS, exact = buckets / 2;
    std::vector<int> all;
    for (int d = -RELATIVE_MAX_DISTANCE; d <= RELATIVE_MAX_DISTANCE; d++) {
        const int n = both_sides ? std::abs(d) : std::max(-d, 0), first = both_sides && d > 0 ? buckets : 0;
        // 1e-9 keeps rounding from moving a bucket's first distance into the bucket below.
        const double part = n < exact ? 0
                                      : std::log(double(n) / exact) / std::log(double(RELATIVE_MAX_DISTANCE) / exact);
        const int far = exact + int(part * (buckets - exact) + 1e-9);
        all.push_back(first + (n < exact ? n : std::min(far, buckets - 1)));
    }
    return all;
}
