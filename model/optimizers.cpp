// optimizers.cpp - the optimizers' rows, the shapes of their states, and groups of tensors.
#include "model/optimizers.h"

#include "layers/optimizer/muon.h"

#include <algorithm>
#include <cmath>
#include <numeric>

// ---- rows ---------------------------------------------------------------------------------------

const OptimizerState AVERAGE = {"average"};
const Optimizer ADAMW = {
    .name = "adamw",
    .help = "AdamW",
    .rule = UpdateRule::adamw,
    .states = {{"m"}, {"v"}},
    .defaults = {.lr = 6e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f},
};
// Its update's root mean square is 0.2, as AdamW's usually is, so that AdamW's rate and decay carry
// over (Liu et al. 2025, Muon is scalable for LLM training).
const Optimizer MUON = {
    .name = "muon",
    .help = "Muon for the blocks' matrices, AdamW for the rest",
    .rule = UpdateRule::adamw,
    .states = {{"m"}, {"v", StateSize::elementwise}},
    .defaults = {.lr = 6e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .momentum = 0.95f},
    .orthogonalizes = true,
};
const Optimizer NORMUON = {
    .name = "normuon",
    .help = "Muon whose rows are divided by their root mean square over time",
    .rule = UpdateRule::adamw,
    .states = {{"m"}, {"v", StateSize::elementwise}, {"row_square", StateSize::row}},
    .defaults = MUON.defaults,
    .orthogonalizes = true,
    .normalizes_rows = true,
};
// A sign moves every weight by the whole rate, so the rate is lower and the decay higher than
// AdamW's; their product is equal (Chen et al. 2023, section 5).
const Optimizer LION = {
    .name = "lion",
    .help = "Lion",
    .rule = UpdateRule::lion,
    .states = {{"m"}},
    .defaults = {.lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.99f, .eps = 0, .weight_decay = 0.6f},
};
const Optimizer SIGNUM = {
    .name = "signum",
    .help = "the sign of the gradients' running mean",
    .rule = UpdateRule::signum,
    .states = {{"m"}},
    .defaults = {.lr = 1e-4f, .beta1 = 0.95f, .beta2 = 0, .eps = 0, .weight_decay = 0.6f},
};
const std::vector<const Optimizer*>& optimizers() {
    static const std::vector<const Optimizer*> all = {&ADAMW, &MUON, &NORMUON, &LION, &SIGNUM};
    return all;
}
std::vector<std::string> optimizer_names() {
    std::vector<std::string> names;
    for (const Optimizer* o : optimizers()) names.push_back(o->name);
    return names;
}
const Optimizer& optimizer_named(const std::string& name) {
    const auto& all = optimizers();
    const auto found = std::ranges::find(all, name, &Optimizer::name);
    CHECK(found != all.end(), "no optimizer %s", name.c_str());
    return **found;
}

// ---- matrices and states ------------------------------------------------------------------------

bool is_block_matrix(const Tensor& t) {
    return !t.frozen && !t.adapter && !t.lookup && !t.of_positions && t.bucket > 0 && t.rows / t.experts > 1 &&
           t.cols > 1;
}

std::vector<Tensor> state_tensors(const std::vector<Tensor>& tensors, const Optimizer& o, StateSize size) {
    std::vector<Tensor> all;
    for (Tensor t : tensors) {
        const bool matrix = o.orthogonalizes && is_block_matrix(t);
        if (t.frozen || (size == StateSize::row && !matrix) || (size == StateSize::elementwise && matrix)) continue;
        if (size == StateSize::row) {
            t.offset = all.empty() ? 0 : round_up(all.back().offset + all.back().rows, 64);
            t.cols = 1;
            t.vector = true;
        }
        all.push_back(t);
    }
    return all;
}
std::vector<Tensor> scale_tensors(std::vector<Tensor> state) {
    for (Tensor& t : state) {
        t.offset /= 64;
        t.rows = t.file_rows = ceil_div(t.size(), 64);
        t.cols = 1;
        t.vector = true;
        t.layout = FileLayout::straight;
        t.pieces = {{t.name, 0, t.rows}};
    }
    return state;
}

static double work(const BlockMatrix& m) { return newton_schulz_flops(double(m.rows), double(m.cols)); }
std::vector<BlockMatrix> block_matrices(const std::vector<Tensor>& tensors, int ranks, bool by_bucket) {
    std::vector<BlockMatrix> all;
    int64_t next_row = 0;
    for (const Tensor& t : tensors) {
        if (!is_block_matrix(t)) continue;
        int64_t row = 0;
        for (int e = 0; e < t.experts; e++)
            for (const int64_t rows : t.parts) {
                all.push_back({t.bucket, t.offset + row * t.cols, rows, t.cols, next_row + row});
                row += rows;
            }
        next_row = round_up(next_row + t.rows, 64);
    }
    // The largest matrix first, each to the rank with the least work so far.
    std::vector<size_t> order(all.size());
    std::iota(order.begin(), order.end(), size_t(0));
    std::ranges::stable_sort(order, [&](size_t a, size_t b) {
        if (by_bucket && all[a].bucket != all[b].bucket) return all[a].bucket < all[b].bucket;
        return work(all[a]) > work(all[b]);
    });
    std::vector<double> load(static_cast<size_t>(ranks));
    for (const size_t i : order) {
        const auto least = std::ranges::min_element(load);
        *least += work(all[i]);
        all[i].owner = int(least - load.begin());
    }
    return all;
}

// ---- widths -------------------------------------------------------------------------------------

// A matrix of a transformer block sums over its n inputs. Terms of random sign sum to about
// sqrt(n), so initial weights shrink with 1/sqrt(n). A step's changes agree in sign with the
// inputs, and sum to about n: AdamW, Lion and Signum change each weight by about the learning rate,
// which therefore shrinks with 1/n. Muon changes a matrix by rate * 0.2 sqrt(longer side) in
// spectral norm, and all sides grow alike, so its rate shrinks with 1/sqrt(n). An untied output
// head is initialized with 1/n, because changes of its input line up with its rows, and its rate
// shrinks with 1/n too. Embeddings, norms and biases do not sum over inputs, so both stay. All
// factors are relative to width `base`.
MupScale mup_scale(const Config& c, int base, const Optimizer& o, const Tensor& t) {
    if (!base) return {};
    const float narrower = float(base) / float(c.C);
    if (t.name == "headw") return {narrower, narrower};
    if (!t.product || t.bucket == 0 || t.adapter) return {};
    return {std::sqrt(narrower), o.orthogonalizes && is_block_matrix(t) ? std::sqrt(narrower) : narrower};
}

// ---- groups -------------------------------------------------------------------------------------

static bool chosen(const GroupRule& rule, const Config& c, const Tensor& t) {
    switch (rule.which) {
        case GroupRule::Which::named: return tensor_named(rule.pattern, t);
        case GroupRule::Which::embeddings: return t.lookup || t.of_positions;
        case GroupRule::Which::head: return t.name == (c.reads_wte() ? "wte" : "headw");
        case GroupRule::Which::scalars: return t.vector || t.gate;
    }
    return false;
}

Result<ParamGroups> param_groups(const Config& c, const std::vector<Tensor>& tensors,
                                 const std::vector<GroupRule>& rules, int mup_base, const Optimizer& o) {
    ParamGroups to;
    std::vector<ParamGroup> wanted;
    for (const Tensor& t : tensors) wanted.push_back({1, t.decay ? 1.0f : 0.0f});
    for (const GroupRule& rule : rules) {
        bool any = false;
        for (size_t i = 0; i < tensors.size(); i++) {
            if (tensors[i].frozen || !chosen(rule, c, tensors[i])) continue;
            any = true;
            if (rule.which == GroupRule::Which::named) TRY(named_whole(rule.pattern, tensors[i], "--param-group"));
            if (rule.lr) wanted[i].lr = *rule.lr;
            if (rule.decay) wanted[i].decay = *rule.decay;
        }
        if (!any && rule.which == GroupRule::Which::named)
            return fail(Exit::usage, "--param-group %s: the model trains no such tensor; it has %s, %s and so on",
                        rule.pattern.c_str(), tensors[0].name.c_str(), tensors.back().name.c_str());
    }
    for (size_t i = 0; i < tensors.size(); i++) {
        const float scale = mup_scale(c, mup_base, o, tensors[i]).lr;
        wanted[i].lr *= scale, wanted[i].decay /= scale;
        ParamGroup* const first = to.factors.of;
        ParamGroup* const end = first + to.count;
        ParamGroup* const found = std::find(first, end, wanted[i]);
        if (found == first + GroupFactors::MOST)
            return fail(Exit::usage, "--param-group: more than %d different pairs of factors", GroupFactors::MOST);
        if (found == end) first[to.count++] = wanted[i];
        to.of_tensor.push_back(uint8_t(found - first));
    }
    return to;
}
