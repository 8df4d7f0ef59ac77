// weights.cpp - each rank's part of the flat buffers, and its exchange with other ranks.
#include "base/philox.h"
#include "base/pool.h"
#include "layers/optimizer/muon.h"
#include "model/adapter.h"
#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <numeric>

// ---- partitions ---------------------------------------------------------------------------------

void ParamStore::set_layout(const Config& c, const Plan& plan) {
    optimizer = plan.optimizer;
    rank = plan.rank;
    ranks = plan.ranks;
    zero = plan.zero;
    comm_dtype = plan.comm_dtype;
    mup_base = plan.mup_base;
    buckets = config_buckets(c, ranks);
    owners = config_owners(c, ranks);
    flat = config_flat_size(c, ranks);
    frozen = config_frozen_size(c, ranks);
    params_ready.assign(buckets.size(), 0);
    cleared = {{0, 0}};
    const std::vector<Tensor> tensors = config_tensors(c, ranks);
    state_rows = optimizer ? optimizer->states : std::vector<OptimizerState>();
    if (optimizer && plan.average) state_rows.push_back(AVERAGE);
    states.assign(state_rows.size(), {});
    for (size_t i = 0; optimizer && i < optimizer->states.size(); i++)
        if (state_rows[i].size != StateSize::row) states[i].type = plan.state_types[i];
    clipped.clear();
    for (const Tensor& t : tensors)
        if (plan.clip_groups && !t.frozen) clipped.push_back(t);
    matrices.clear();
    if (optimizer && optimizer->orthogonalizes) matrices = block_matrices(tensors, ranks, zero == 2);
    if (optimizer) set_ranges(tensors);
    for (const Tensor& t : tensors) {
        if (!t.product || t.frozen) continue;
        cleared.back().size = t.offset - cleared.back().first;
        cleared.push_back({t.offset + t.size(), 0});
    }
    cleared.back().size = flat - cleared.back().first;
}
void ParamStore::set_ranges(const std::vector<Tensor>& tensors) {
    struct Run {
        int64_t first;
        bool matrices;
    };
    std::vector<Run> runs = {{0, false}};
    for (const Tensor& t : tensors) {
        if (t.frozen) continue;
        const bool matrix = optimizer->orthogonalizes && is_block_matrix(t);
        if (matrix != runs.back().matrices) runs.push_back({t.offset, matrix});
    }
    update_ranges.clear();
    int64_t elementwise = 0;
    for (const Partition& s : updates())
        for (size_t i = 0; i < runs.size(); i++) {
            const int64_t first = std::max(s.first, runs[i].first);
            const int64_t end = std::min(s.first + s.size, i + 1 < runs.size() ? runs[i + 1].first : flat);
            if (first >= end) continue;
            update_ranges.push_back(
                {first, end - first, s.local_first + first - s.first, elementwise, runs[i].matrices});
            if (!runs[i].matrices) elementwise += end - first;
        }
}
bool ParamStore::has_matrices(int bucket) const {
    return std::ranges::find(matrices, bucket, &BlockMatrix::bucket) != matrices.end();
}
template <class F> void ParamStore::each_update_range(const Partition& s, F f) const {
    for (const UpdateRange& range : update_ranges)
        if (range.first >= s.first && range.first < s.first + s.size) f(range);
}

int64_t ParamStore::state_elements(size_t i) const {
    switch (state_rows[i].size) {
        case StateSize::parameter: return zero ? flat / ranks : flat;
        case StateSize::elementwise:
            return update_ranges.back().elementwise + (update_ranges.back().matrices ? 0 : update_ranges.back().size);
        case StateSize::row:
            return matrices.empty() ? 0 : round_up(matrices.back().first_row + matrices.back().rows, 64);
    }
    return 0;
}
int64_t ParamStore::matrix_work_elements() const {
    int64_t most = 0;
    for (const BlockMatrix& m : matrices)
        if (m.owner == rank) most = std::max(most, orthogonalize_work(m.rows, m.cols));
    return most;
}
Partition ParamStore::partition(int k) const {
    const Bucket& b = buckets[size_t(k)];
    const int64_t size = b.size / ranks;
    return {k, b.offset + rank * size, size, b.offset / ranks};
}
std::vector<Partition> ParamStore::updates() const {
    if (!zero) return {{-1, 0, flat, 0}};
    std::vector<Partition> all;
    for (int k = 0; k < int(buckets.size()); k++)
        if (buckets[size_t(k)].size) all.push_back(partition(k));
    return all;
}
Gradient* ParamStore::gradients(int k) const {
    return zero < 2 ? op.at(grads, buckets[size_t(k)].offset) : work[work_buffer(k)];
}
Gradient* ParamStore::partition_gradients(const Partition& s) const {
    return op.at(grads, zero < 2 ? s.first : s.local_first);
}

// ---- a step -------------------------------------------------------------------------------------

void ParamStore::clear_gradients() {
    first_batch = true;
    if (zero == 2) return op.zero(grads, op.bytes(grads, flat / ranks));
    for (const Elements& e : cleared)
        if (e.size) op.zero(op.at(grads, e.first), op.bytes(grads, e.size));
}

// With zero 2, gradients are computed in a cleared work buffer. This rank first copies its
// partition's sum so far into the buffer, so that the next sum over the ranks includes it.
void ParamStore::gradients_begin(int k) {
    if (zero < 2) return;
    if (comm) comm->join(work_mark[work_buffer(k)]);
    const Partition s = partition(k);
    op.zero(gradients(k), op.bytes(grads, buckets[size_t(k)].size));
    op.copy(op.at(gradients(k), rank * s.size), partition_gradients(s), op.bytes(grads, s.size));
}

void ParamStore::gradients_done(int k, bool last) {
    const int64_t size = buckets[size_t(k)].size;
    if (first_batch && first_squares && size) op.sum_of_squares(first_squares + k, gradients(k), size);
    if (k == 0) first_batch = false;    // bucket 0, the embeddings, is the last
    if (!comm || !(last || zero == 2) || !size) return;
    const Partition s = partition(k);
    if (zero) comm->reduce_scatter(partition_gradients(s), gradients(k), s.size, op.gradient, comm_dtype);
    else comm->all_reduce(gradients(k), size, op.gradient, comm_dtype);
    work_mark[work_buffer(k)] = comm->mark();
}

// Every rank squares its own partitions alone, even if it has all gradients, so sums are equal with
// and without ZeRO. All ranks get equal totals and so reach the same verdict.
int ParamStore::sum(const StepTotals& totals, int signal) {
    if (!comm && clipped.empty()) {
        op.sum_of_squares(totals.squares, grads, flat);
        return 1;
    }
    const int n = int(squares_count());
    if (comm) await();
    if (!clipped.empty()) sum_squares_by_tensor(totals.squares);
    if (!comm) return n;
    for (int k = 0; k < n && clipped.empty(); k++)
        if (const Partition s = partition(k); s.size)
            op.sum_of_squares(totals.squares + k, partition_gradients(s), s.size);
        else op.zero(totals.squares + k, int64_t(sizeof(double)));
    const double value = signal;
    op.zero(totals.reports, ranks * int64_t(sizeof(RankReport)));
    op.copy(&totals.reports[rank].loss, totals.loss, int64_t(sizeof(double)));
    op.upload(&totals.reports[rank].signal, &value, int64_t(sizeof(double)));
    comm->all_reduce(totals.loss, 1 + n + 2 * ranks + totals.more(), Element::f64, Element::f64);
    await();
    return n;
}

void ParamStore::sum_squares_by_tensor(double* squares) {
    for (const Tensor& t : clipped) {
        const Partition s = comm ? partition(t.bucket) : Partition{-1, 0, flat, 0};
        const int64_t begin = std::max(t.offset, s.first), end = std::min(t.offset + t.size(), s.first + s.size);
        if (begin < end) op.sum_of_squares(squares, op.at(partition_gradients(s), begin - s.first), end - begin);
        else op.zero(squares, int64_t(sizeof(double)));
        squares++;
    }
}

// First element of a range in a state, or in its scales.
int64_t ParamStore::state_first(StateKind part, const UpdateRange& s) const {
    const bool own = part > StateKind::weights && state_rows[state_index(part)].size == StateSize::elementwise;
    return (own ? s.elementwise : s.local_first) / (is_scales(part) ? 64 : 1);
}
// Part of a state that belongs to a range; null pointers if the range has none.
StateArray ParamStore::state_of(size_t i, const UpdateRange& s) const {
    if (state_rows[i].size == StateSize::row) return {};
    const StateArray& all = states[i];
    const int64_t first = state_first(optimizer_state(i), s);
    return {static_cast<char*>(all.p) + first * element_bytes(all.type), all.scales ? all.scales + first / 64 : nullptr,
            all.type};
}

void ParamStore::update(const Step* step, OptimizerParams settings, uint64_t seed) {
    version++;
    settings.groups = group_factors.factors;
    const StepArguments to = {step, settings, seed};
    const std::vector<Partition> all = updates();
    if (!matrices.empty() && zero < 2) {
        for (const Partition& s : all) {
            momentum(s, to);
            if (zero && has_matrices(s.bucket)) comm->all_gather(gradients(s.bucket), s.size, op.gradient);
        }
        await();
        transform_matrices(-1, grads, 0, to);
    }
    for (const Partition& s : all) {
        if (!matrices.empty() && zero == 2) transform_bucket(s, to);
        apply(s, to);
    }
}
// Replaces the gradients of the blocks' matrices by directions.
void ParamStore::momentum(const Partition& s, const StepArguments& to) {
    each_update_range(s, [&](const UpdateRange& part) {
        if (!part.matrices) return;
        op.nesterov_momentum(op.at(partition_gradients(s), part.first - s.first), state_of(0, part),
                             groups + part.first / 64, part.size, to.step, to.settings, to.seed + uint64_t(part.first));
    });
}
void ParamStore::orthogonalize(const BlockMatrix& m, Gradient* direction, const StepArguments& to) {
    const int rows = int(m.rows), cols = int(m.cols);
    // The root mean square of an orthogonal matrix is 1 / sqrt(longer side).
    const float rms = 0.2f, scale = rms * std::sqrt(float(std::max(rows, cols)));
    op.orthogonalize(direction, matrix_work, scale, rows, cols);
    if (!optimizer->normalizes_rows) return;
    float* row_squares = static_cast<float*>(states[optimizer->states.size() - 1].p) + m.first_row;
    op.normalize_rows(direction, row_squares, rms, to.step, to.settings, rows, cols);
}
// Orthogonalizes the update directions of a bucket's matrices (-1: all buckets) in place. whole[0]
// is the model's element `begin`, and `whole` holds all ranks' directions. Each rank orthogonalizes
// the matrices that it owns, and sends the results to the others.
void ParamStore::transform_matrices(int bucket, Gradient* whole, int64_t begin, const StepArguments& to) {
    auto each = [&](auto f) {
        for (const BlockMatrix& m : matrices)
            if (bucket < 0 || m.bucket == bucket) f(m, op.at(whole, m.offset - begin));
    };
    each([&](const BlockMatrix& m, Gradient* direction) {
        if (m.owner == rank) orthogonalize(m, direction, to);
    });
    if (!comm) return;
    each([&](const BlockMatrix& m, Gradient* p) { comm->broadcast(p, m.rows * m.cols, op.gradient, m.owner); });
    await();
}
// With zero 2, the bucket's directions are gathered in the buffer in which its gradients were
// computed.
void ParamStore::transform_bucket(const Partition& s, const StepArguments& to) {
    momentum(s, to);
    if (!has_matrices(s.bucket)) return;
    Gradient* whole = gradients(s.bucket);
    op.copy(op.at(whole, rank * s.size), partition_gradients(s), op.bytes(grads, s.size));
    comm->all_gather(whole, s.size, op.gradient);
    await();
    transform_matrices(s.bucket, whole, buckets[size_t(s.bucket)].offset, to);
    op.copy(partition_gradients(s), op.at(whole, rank * s.size), op.bytes(grads, s.size));
}
void ParamStore::apply(const Partition& s, const StepArguments& to) {
    // The operation numbers the elements of its range from 0. So each range needs a seed of its
    // own; otherwise all would be rounded with the same random numbers.
    each_update_range(s, [&](const UpdateRange& part) {
        Parameter* w = params ? op.at(params, part.first) : nullptr;
        float* copy = master ? master + part.local_first : nullptr;
        const Gradient* dw = op.at(partition_gradients(s), part.first - s.first);
        auto state = [&](size_t i) {
            return part.matrices || i >= optimizer->states.size() ? StateArray{} : state_of(i, part);
        };
        op.update_weights(w, copy, state(0), state(1), dw, groups + part.first / 64, part.size, to.step,
                          part.matrices ? UpdateRule::given : optimizer->rule, to.settings,
                          to.seed + uint64_t(part.first));
        if (average() && to.settings.average_rate > 0)
            op.average_weights(average() + part.local_first, w, copy, to.settings.average_rate, part.size, to.step);
    });
    gather_parameters(s);
}
void ParamStore::gather_parameters(const Partition& s) {
    if (!zero) return;
    comm->all_gather(op.at(params, buckets[size_t(s.bucket)].offset), s.size, op.parameter);
    params_ready[size_t(s.bucket)] = comm->mark();
}
// Calls f(weights, copy, kept, partition) for each partition of what is trained: the parameters or,
// if packed weights are frozen, the fp32 adapters. copy is the fp32 master of weights, or null;
// kept is memory for a backup of weights. With ZeRO, all ranks' parameters are gathered after each
// call.
template <class F> void ParamStore::replace_parameters(F f) {
    version++;
    for (const Partition& s : updates()) {
        Parameter* weights = params ? op.at(params, s.first) : reinterpret_cast<Parameter*>(master + s.local_first);
        f(weights, params && master ? master + s.local_first : nullptr, partition_gradients(s), s);
        gather_parameters(s);
    }
}
void ParamStore::use_average() {
    CHECK(average(), "there is no average");
    replace_parameters([&](Parameter* weights, const float* copy, Gradient* kept, const Partition& s) {
        if (!copy) op.copy(kept, weights, weight_bytes(s.size));
        if (params) op.from_floats(weights, average() + s.local_first, s.size);
        else op.copy(weights, average() + s.local_first, weight_bytes(s.size));
    });
}
void ParamStore::restore() {
    replace_parameters([&](Parameter* weights, const float* copy, Gradient* kept, const Partition& s) {
        if (copy) op.from_floats(weights, copy, s.size);
        else op.copy(weights, kept, weight_bytes(s.size));
    });
}
void ParamStore::await_parameters(int k) {
    if (comm && zero) comm->join(params_ready[size_t(k)]);
}

// ---- for files ----------------------------------------------------------------------------------

bool ParamStore::sharded(StateKind part) const {
    if (part == StateKind::gradients) return zero == 2;
    if (part == StateKind::weights) return zero && master;
    return zero && by_ranges(part);
}
bool ParamStore::by_ranges(StateKind part) const {
    if (part == StateKind::gradients) return false;
    return part == StateKind::weights || state_rows[state_index(part)].size != StateSize::row;
}
// Calls f(first element, number of elements, first one in the buffer) for each part of elements
// offset to offset + n - 1 that this rank has.
template <class F> void ParamStore::each_piece(StateKind part, int64_t offset, int64_t n, F f) const {
    const int64_t unit = is_scales(part) ? 64 : 1;
    const bool no_matrices = part > StateKind::weights && state_rows[state_index(part)].size == StateSize::elementwise;
    for (const UpdateRange& s : update_ranges) {
        if (no_matrices && s.matrices) continue;
        const int64_t first = s.first / unit;
        const int64_t begin = std::max(offset, first), end = std::min(offset + n, first + s.size / unit);
        if (begin < end) f(begin, end - begin, state_first(part, s) + begin - first);
    }
}
bool ParamStore::holds(StateKind part, int64_t offset, int64_t n) const {
    if (!sharded(part) || part == StateKind::weights) return true;
    bool any = false;
    each_piece(part, offset, n, [&](int64_t, int64_t, int64_t) { any = true; });
    return any;
}
ParamStore::Buffer ParamStore::buffer(StateKind part) const {
    if (part == StateKind::gradients) return {grads, op.gradient};
    if (part == StateKind::weights && !master) return {params, op.parameter};
    if (part == StateKind::weights) return {master, Element::f32};
    const StateArray& state = states[state_index(part)];
    if (is_scales(part)) return {state.scales, Element::f32};
    return {state.p, state.type};
}

void ParamStore::read(StateKind part, int64_t offset, int64_t n, float* to) const {
    count_progress();
    if (packed.any() && part == StateKind::weights) return packed.read(offset, n, to);
    if (is_frozen(part, offset)) return get(to, {params, op.parameter}, offset, n);
    if (sharded(part)) {
        const int64_t unit = is_scales(part) ? 64 : 1;
        int k = int(buckets.size());
        while (buckets[size_t(--k)].offset > offset * unit) {}
        auto bucket = collected.find({part, k});
        CHECK(bucket != collected.end(), "bucket %d was not collected", k);
        std::copy_n(bucket->second.begin() + (offset - buckets[size_t(k)].offset / unit), n, to);
        return;
    }
    if (part <= StateKind::weights || !by_ranges(part)) return get(to, buffer(part), offset, n);
    each_piece(part, offset, n,
               [&](int64_t at, int64_t count, int64_t local) { get(to + (at - offset), buffer(part), local, count); });
}

void ParamStore::read_own(StateKind part, const Partition& s, int64_t first, int64_t n, float* to) const {
    const bool divided = part == StateKind::gradients ? zero == 2 : zero && master;
    get(to, buffer(part), divided ? s.local_first + first - s.first : first, n);
}
void ParamStore::get(float* to, const Buffer& from, int64_t at, int64_t n) const {
    const int64_t bytes = n * element_bytes(from.type);
    if (from.type == Element::f32) return op.download(to, from.at(at), bytes);
    std::vector<char> host(static_cast<size_t>(bytes));
    op.download(host.data(), from.at(at), bytes);
    to_floats(to, host.data(), from.type, n);
}
void ParamStore::put(const Buffer& to, int64_t at, const float* from, int64_t n) {
    const int64_t bytes = n * element_bytes(to.type);
    if (to.type == Element::f32) return op.upload(to.at(at), from, bytes);
    if (op.on_host()) return from_floats(to.at(at), to.type, from, n);
    std::vector<char> host(static_cast<size_t>(bytes));
    from_floats(host.data(), to.type, from, n);
    op.upload(to.at(at), host.data(), bytes);
}
void ParamStore::write(StateKind part, int64_t offset, int64_t n, const float* from) {
    count_progress();
    version++;
    if (packed.any() && part == StateKind::weights) return packed.write(offset, n, block_format(BlockType::f32), from);
    if (part == StateKind::weights) put({params, op.parameter}, offset, from, n);
    if (part == StateKind::weights && (!master || is_frozen(part, offset))) return;
    CHECK(part != StateKind::gradients || !sharded(part), "nobody writes gradients that are sharded");
    if (!by_ranges(part)) return put(buffer(part), offset, from, n);
    each_piece(part, offset, n, [&](int64_t at, int64_t count, int64_t local) {
        put(buffer(part), local, from + (at - offset), count);
    });
}

// Gathers one bucket after the other, in the buffer in which its gradients are computed.
void ParamStore::collect() {
    std::vector<StateKind> parts = {StateKind::weights};
    for (size_t i = 0; i < states.size(); i++) {
        parts.push_back(optimizer_state(i));
        if (states[i].scales) parts.push_back(state_scales(i));
        if (comm && !by_ranges(optimizer_state(i))) collect_row_state(i);
    }
    for (StateKind part : parts) {
        if (!sharded(part)) continue;
        await();
        const Buffer mine = buffer(part);
        const int64_t unit = is_scales(part) ? 64 : 1;
        for (const Partition& s : updates()) {
            const Buffer whole = {gradients(s.bucket), mine.type};
            const int64_t size = s.size / unit, words = size * element_bytes(mine.type) / 4;
            each_piece(part, s.first / unit, size, [&](int64_t at, int64_t n, int64_t local) {
                op.copy(whole.at(rank * size + at - s.first / unit), mine.at(local), n * element_bytes(mine.type));
            });
            comm->all_gather(whole.data, words, Element::f32);
            await();
            if (owners[size_t(s.bucket)] != rank) continue;
            std::vector<float>& to = collected[{part, s.bucket}];
            to.resize(size_t(size * ranks));
            get(to.data(), whole, 0, size * ranks);
        }
    }
}
// Completes an optimizer state with one value per row of a matrix: a matrix's owner has its rows'
// values, and the other ranks set zeros, so the sum over ranks is the complete state.
void ParamStore::collect_row_state(size_t i) {
    auto* values = static_cast<float*>(states[i].p);
    for (const BlockMatrix& m : matrices)
        if (m.owner != rank) op.zero(values + m.first_row, m.rows * int64_t(sizeof(float)));
    comm->all_reduce(values, state_elements(i), Element::f32, Element::f32);
    await();
}

uint64_t ParamStore::hash(bool all) const {
    await();
    if (packed.any() && (all || !master)) return packed.hash(FNV_OFFSET_BASIS);
    const char* from = params ? reinterpret_cast<char*>(params) : reinterpret_cast<char*>(master);
    const int64_t size = params ? op.bytes(params, flat + (all ? frozen : 0)) : op.bytes(master, flat);
    std::vector<char> host(size_t(std::min<int64_t>(size, 1 << 22)));
    uint64_t h = FNV_OFFSET_BASIS;
    for (int64_t at = 0; at < size; at += int64_t(host.size())) {
        const int64_t bytes = std::min(int64_t(host.size()), size - at);
        op.download(host.data(), from + at, bytes);
        h = fnv1a_words(h, host.data(), bytes);
        count_progress();
    }
    return h;
}

// ---- random weights -----------------------------------------------------------------------------

static float initial(const Tensor& t, double std, uint64_t seed, uint64_t tensor, uint64_t at) {
    const double depth = double(at) / double(std::max<int64_t>(1, t.rows - 1));    // layer of a factor: 0 to 1
    switch (t.init) {
        case Init::zero: return 0;
        case Init::one: return 1;
        case Init::resid_lambda: return float(1.15 - 0.1 * depth);
        case Init::x0_lambda: return float(0.2 - 0.15 * depth);
        case Init::backout_lambda: return 0.2f;
        case Init::uniform: {
            const double u = (double(philox(seed, tensor, at).v[0]) + 0.5) * 0x1p-31 - 1;    // within -1..1
            return float(u / std::sqrt(double(t.cols)));
        }
        default: return float(std * double(philox_normal(seed, tensor, at)));
    }
}

// Writes magnitudes: the norms of the matrices' rows, once the weights are there. A matrix without
// an adapter has none, and 0 in its place.
void ParamStore::init_magnitudes(const Config& c, const std::vector<Tensor>& tensors) {
    auto tensor = [&](const std::string& name) { return std::ranges::find(tensors, name, &Tensor::name); };
    for (const AdaptedMatrix& m : adapted_matrices(c)) {
        const auto to = tensor(adapter_tensor(m.tensor, 'm')), w = tensor(m.tensor);
        if (to == tensors.end()) continue;
        const int64_t CHUNK = std::max<int64_t>(1, (1 << 20) / m.cols);
        std::vector<float> norms(size_t(m.rows), 0), some;
        for (int64_t first = 0; m.rank && first < m.rows; first += CHUNK) {
            some.resize(size_t(std::min(CHUNK, m.rows - first) * m.cols));
            read(StateKind::weights, w->offset + (m.first + first) * m.cols, int64_t(some.size()), some.data());
            const float *row = some.data(), *end = row + some.size();
            for (float* norm = &norms[size_t(first)]; row < end; row += m.cols)
                *norm++ = float(std::sqrt(std::inner_product(row, row + m.cols, row, 0.0)));
        }
        write(StateKind::weights, to->offset + m.first, m.rows, norms.data());
    }
}
// The weights depend on the seed alone, not on the number of ranks or threads.
void ParamStore::init(const Config& c, uint64_t seed, bool adapters_only) {
    const std::vector<Tensor> tensors = config_tensors(c, ranks);
    const int64_t CHUNK = 1 << 20;
    std::vector<float> host(size_t(std::min(CHUNK, flat + frozen)));
    for (size_t i = 0; i < tensors.size(); i++) {
        const Tensor& t = tensors[i];
        if (adapters_only && !t.adapter) continue;
        if (t.init == Init::row_norms) continue;
        const double scale = optimizer ? double(mup_scale(c, mup_base, *optimizer, t).init) : 1;
        const double std = scale * (t.init == Init::normal_residual ? 0.02 / std::sqrt(2.0 * c.L) : 0.02);
        const int64_t size = t.size(), local_first = t.file_rows * t.cols;    // the vocabulary's padding stays zero
        for (int64_t from = 0; from < size; from += CHUNK) {
            const int64_t n = std::min(CHUNK, size - from);
            constexpr int64_t PIECE = 1 << 14;
            each_chunk(ceil_div(n, PIECE), [&](int64_t chunk, int) {
                for (int64_t k = chunk * PIECE; k < std::min(n, (chunk + 1) * PIECE); k++)
                    host[size_t(k)] = from + k < local_first ? initial(t, std, seed, i, uint64_t(from + k)) : 0;
            });
            write(StateKind::weights, t.offset + from, n, host.data());
        }
    }
    init_magnitudes(c, tensors);
}
