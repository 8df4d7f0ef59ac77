// heads.cpp - see heads.h.
#include "base/philox.h"
#include "heads.h"

#include <algorithm>
#include <charconv>

Result<int> groups_to_remove(const std::string& heads, int NH, int NKV) {
    double x = 0;
    const char* end = heads.data() + heads.size();
    const auto [rest, error] = std::from_chars(heads.data(), end, x);
    const bool percent = std::string_view(rest, size_t(end - rest)) == "%", part = heads.find('.') != heads.npos;
    const double most = percent ? 100 : part ? 1 : 1 << 20;
    if (error != std::errc() || (rest != end && !percent) || !(x > 0 && x <= most))
        return fail(Exit::usage,
                    "--heads: expected a percentage such as 30%%, a part such as 0.3 or a number of "
                    "heads, found \"%s\"",
                    heads.c_str());
    if (NKV == 1)
        return fail(Exit::usage,
                    "--heads %s: each layer has one key/value head, which all its heads share; one must "
                    "stay",
                    heads.c_str());
    const int shared = NH / NKV;
    const std::string grouped = shared == 1 ? "" : formatted(" in groups of %d that share keys and values", shared);
    if (!percent && !part) {
        if (x < NH && std::fmod(x, shared) == 0) return int(x) / shared;
        std::string sizes = std::to_string(shared);
        if (NKV == 3) sizes += formatted(" or %d", 2 * shared);
        if (NKV > 3)
            sizes += shared == 1 ? formatted(" to %d", NH - 1) : formatted(", %d, ..., %d", 2 * shared, NH - shared);
        return fail(Exit::usage, "--heads %s: each layer has %d heads%s, and one%s must stay; expected %s",
                    heads.c_str(), NH, grouped.c_str(), shared == 1 ? "" : " group", sizes.c_str());
    }
    const int n = int(std::min<long>(std::lround(x / most * NKV), NKV - 1));
    if (n == 0)
        return fail(Exit::usage, "--heads %s: that is none of each layer's %d heads%s; --heads %d removes the fewest",
                    heads.c_str(), NH, grouped.c_str(), shared);
    return n;
}

Result<Config> cut_config(const Config& c, int groups, int kv_heads) {
    if (c.qk_norm == QkNormRope::QkNorm::all)
        return fail(Exit::usage,
                    "the model has --qk-norm all, a norm over all heads at once: each head's "
                    "result depends on the others, so none can be removed");
    if (c.position == Position::alibi && groups < c.NKV)
        return fail(Exit::usage,
                    "--heads: the model has --position alibi, whose slopes depend on the number of "
                    "heads and would change with fewer; --kv-heads keeps them");
    if (c.linear == LinearAttention::retention || c.linear == LinearAttention::gated)
        return fail(Exit::usage,
                    "the model has --linear-attention %s, whose decays belong to its key/value heads: "
                    "none can be removed or merged",
                    c.linear == LinearAttention::gated ? "gated" : "retention");
    if (c.value_embeddings)
        return fail(Exit::usage,
                    "the model has --value-embeddings, whose gates and rows belong to its key/value heads: none can be "
                    "removed or merged");
    if (c.global_projections)
        return fail(Exit::usage,
                    "the model has --global-projections, whose rows belong to its heads: none can be removed or "
                    "merged");
    if (kv_heads > groups || groups % kv_heads)
        return fail(Exit::usage, "--kv-heads %d: expected a divisor of %d, the key/value heads%s in each layer",
                    kv_heads, groups, groups < c.NKV ? " that --heads leaves" : "");
    Config cut = c;
    cut.NH = c.NH / c.NKV * groups, cut.NKV = kv_heads;
    TRY(config_check(cut));
    return cut;
}

std::vector<std::vector<int>> most_important(const Config& c, const std::vector<double>& importance, int groups) {
    const int shared = c.NH / c.NKV;
    const bool alike = c.position == Position::t5;
    std::vector<std::vector<int>> kept;
    for (int l = 0; l < c.L; l++) {
        std::vector<std::pair<double, int>> order;
        for (int k = 0; k < c.NKV; k++) {
            double sum = 0;
            for (int i = alike ? 0 : l; i < (alike ? c.L : l + 1); i++)    // layers that decide for layer l
                for (int h = k * shared; h < (k + 1) * shared; h++) sum += importance[size_t(i * c.NH + h)];
            order.push_back({-sum, k});
        }
        std::sort(order.begin(), order.end());
        kept.emplace_back();
        for (int i = 0; i < groups; i++) kept.back().push_back(order[size_t(i)].second);
        std::sort(kept.back().begin(), kept.back().end());
    }
    return kept;
}

std::vector<std::vector<int>> random_groups(const Config& c, int groups, uint64_t seed) {
    constexpr uint64_t STREAM = 0x48454144;
    Config alone = c;    // one head per group: each draw stays uniform
    alone.NH = c.NKV;
    std::vector<double> drawn(size_t(c.L) * size_t(c.NKV));
    for (size_t i = 0; i < drawn.size(); i++) drawn[i] = double(philox_uniform(philox(seed, STREAM, i).v[0]));
    return most_important(alone, drawn, groups);
}

namespace {
// Computes the mean of several rows of n elements.
void mean_of(float* to, const float* from, const std::vector<int64_t>& rows, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t row : rows) sum += double(from[row * n + i]);
        to[i] = float(sum / double(rows.size()));
    }
}
// Copies the columns of some heads, `size` columns each, from `from` (rows,cols) to `to`.
void take_columns(float* to, const float* from, int64_t rows, const std::vector<int64_t>& heads, int64_t size,
                  int64_t cols) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t head : heads) to = std::copy_n(from + r * cols + head * size, size, to);
}
}    // namespace

void cut_heads(Model& to, const Model& from, const HeadSelection& cut) {
    const Config &c = to.c, &old = from.c;
    const int shared = old.NH / old.NKV, merged = int(cut.kept[0].size()) / c.NKV;
    // blocks[l][i] lists blocks of HS rows in layer l's old queries, keys and values. Their mean
    // becomes the new block i.
    std::vector<std::vector<std::vector<int64_t>>> blocks;
    std::vector<std::vector<int64_t>> queries;
    for (const std::vector<int>& kept : cut.kept) {
        queries.emplace_back(), blocks.emplace_back();
        for (int64_t k : kept)
            for (int64_t i = 0; i < shared; i++) queries.back().push_back(k * shared + i);
        for (int64_t h : queries.back()) blocks.back().push_back({h});
        for (int64_t first : {old.NH, old.NH + old.NKV})
            for (size_t i = 0; i < kept.size(); i++) {
                if (i % size_t(merged) == 0) blocks.back().emplace_back();
                blocks.back().back().push_back(first + kept[i]);
            }
    }
    CHECK(to.tensors.size() == from.tensors.size() && cut.kept.size() == size_t(c.L));
    for (size_t i = 0; i < to.tensors.size(); i++) {
        const Tensor &t = to.tensors[i], &f = from.tensors[i];
        const size_t l = size_t(std::max(0, t.bucket - 1));
        std::vector<float> x(size_t(f.size())), y(size_t(t.size()));
        from.read(StateKind::weights, f.offset, f.size(), x.data());
        if (t.name.ends_with(".qkvw") || t.name.ends_with(".qkvb")) {
            const int64_t n = c.HS * t.cols;
            for (size_t b = 0; b < blocks[l].size(); b++) mean_of(&y[b * size_t(n)], x.data(), blocks[l][b], n);
        } else if (t.name.ends_with(".projw")) {
            take_columns(y.data(), x.data(), t.rows, queries[l], c.HS, f.cols);
        } else if (t.name == "relw") {    // T5's biases: one table for all layers
            for (const std::vector<int64_t>& layer : queries) CHECK(layer == queries[0], "one table of biases");
            take_columns(y.data(), x.data(), t.rows, queries[0], 1, f.cols);
        } else {
            CHECK(t.rows == f.rows && t.cols == f.cols, "%s", t.name.c_str());
            y = x;
        }
        to.write(StateKind::weights, t.offset, t.size(), y.data());
    }
}
