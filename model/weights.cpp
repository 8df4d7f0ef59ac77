// weights.cpp - each rank's part of the flat buffers, and its exchange with other ranks.
#include "base/philox.h"
#include "base/pool.h"
#include "model/adapter.h"
#include "model/weights.h"

#include <algorithm>
#include <cmath>
#include <numeric>

// ---- partitions ---------------------------------------------------------------------------------

void ParamStore::set_layout(const Config& c, const Optimizer* optimizer_row, int own_rank, int rank_count,
                            int zero_stage, Element comm_element) {
    optimizer = optimizer_row;
    rank = own_rank;
    ranks = rank_count;
    zero = zero_stage;
    comm_dtype = comm_element;
    buckets = config_buckets(c, ranks);
    owners = config_owners(c, ranks);
    flat = config_flat_size(c, ranks);
    frozen = config_frozen_size(c, ranks);
    params_ready.assign(buckets.size(), 0);
    cleared = {{0, 0}};
    const std::vector<Tensor> tensors = config_tensors(c, ranks);
    states.assign(optimizer ? optimizer->states.size() : 0, nullptr);
    if (optimizer && optimizer->matrix) matrices = block_matrices(tensors);
    for (const Tensor& t : tensors) {
        if (!t.product || t.frozen) continue;
        cleared.back().size = t.offset - cleared.back().first;
        cleared.push_back({t.offset + t.size(), 0});
    }
    cleared.back().size = flat - cleared.back().first;
}

int64_t ParamStore::state_elements(size_t i) const {
    if (optimizer->states[i].size == StateSize::parameter) return zero ? flat / ranks : flat;
    return matrices.empty() ? 0 : round_up(matrices.back().first_row + matrices.back().rows, 64);
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
    if (!comm) {
        op.sum_of_squares(totals.squares, grads, flat);
        return 1;
    }
    const int n = int(buckets.size());
    await();
    for (int k = 0; k < n; k++)
        if (const Partition s = partition(k); s.size)
            op.sum_of_squares(totals.squares + k, partition_gradients(s), s.size);
        else op.zero(totals.squares + k, int64_t(sizeof(double)));
    const double value = signal;
    op.zero(totals.reports, ranks * int64_t(sizeof(RankReport)));
    op.copy(&totals.reports[rank].loss, totals.loss, int64_t(sizeof(double)));
    op.upload(&totals.reports[rank].signal, &value, int64_t(sizeof(double)));
    comm->all_reduce(totals.loss, 1 + n + 2 * ranks + totals.router_totals_count, Element::f64, Element::f64);
    await();
    return n;
}

// For each optimizer state, the address of its element `first`; null if its size is not `size`.
std::vector<void*> ParamStore::states_at(StateSize size, int64_t first) const {
    std::vector<void*> at;
    for (size_t i = 0; i < states.size(); i++) {
        const OptimizerState& s = optimizer->states[i];
        at.push_back(s.size == size ? states[i] + first * element_bytes(s.type) : nullptr);
    }
    return at;
}
void ParamStore::update(const Partition& s, const Step* step, const OptimizerParams& settings, uint64_t seed) {
    version++;
    // An optimizer's operation numbers the elements of its range from 0. So each partition needs a
    // seed of its own; otherwise all would be rounded with the same random numbers.
    const OptimizerRange range = {.op = op,
                                  .n = s.size,
                                  .w = params ? op.at(params, s.first) : nullptr,
                                  .master = master ? master + s.local_first : nullptr,
                                  .dw = partition_gradients(s),
                                  .states = states_at(StateSize::parameter, s.local_first),
                                  .groups = groups + s.first / 64,
                                  .step = step,
                                  .params = settings,
                                  .seed = seed + uint64_t(s.first)};
    if (optimizer->matrix) {
        optimizer->direction(range);
        transform_matrices(s, step, settings);
    }
    optimizer->update(range);
    if (!zero) return;
    comm->all_gather(op.at(params, buckets[size_t(s.bucket)].offset), s.size, op.parameter);
    params_ready[size_t(s.bucket)] = comm->mark();
}
// Replaces the directions of a partition's elements (OptimizerRange::dw) by those that the
// optimizer's `matrix` computes. With ZeRO, the whole bucket is first gathered in the buffer in
// which its gradients were computed.
void ParamStore::transform_matrices(const Partition& s, const Step* step, const OptimizerParams& settings) {
    Gradient *whole = grads, *mine = partition_gradients(s);
    int64_t begin = 0;
    if (zero) {
        begin = buckets[size_t(s.bucket)].offset;
        whole = gradients(s.bucket);
        if (zero == 2) op.copy(op.at(whole, rank * s.size), mine, op.bytes(grads, s.size));
        comm->all_gather(whole, s.size, op.gradient);
        await();
    }
    for (const BlockMatrix& m : matrices) {
        if (m.offset >= s.first + s.size || m.offset + m.rows * m.cols <= s.first) continue;
        optimizer->matrix({.op = op,
                           .rows = m.rows,
                           .cols = m.cols,
                           .direction = op.at(whole, m.offset - begin),
                           .states = states_at(StateSize::row, m.first_row),
                           .step = step,
                           .params = settings});
    }
    if (zero == 2) op.copy(mine, op.at(whole, rank * s.size), op.bytes(grads, s.size));
}
void ParamStore::await_parameters(int k) {
    if (comm && zero) comm->join(params_ready[size_t(k)]);
}

// ---- for files ----------------------------------------------------------------------------------

bool ParamStore::sharded(StateKind part) const {
    if (part == StateKind::gradients) return zero == 2;
    if (part == StateKind::weights) return zero && master;
    return zero && optimizer->states[size_t(part)].size == StateSize::parameter;
}
bool ParamStore::holds(StateKind part, int64_t offset, int64_t n) const {
    if (!sharded(part) || part == StateKind::weights) return true;
    for (const Partition& s : updates())
        if (std::max(offset, s.first) < std::min(offset + n, s.first + s.size)) return true;
    return false;
}
ParamStore::Buffer ParamStore::buffer(StateKind part) const {
    if (part == StateKind::gradients) return {grads, op.gradient};
    if (part == StateKind::weights && !master) return {params, op.parameter};
    if (part == StateKind::weights) return {master, Element::f32};
    return {states[size_t(part)], optimizer->states[size_t(part)].type};
}

void ParamStore::read(StateKind part, int64_t offset, int64_t n, float* to) const {
    count_progress();
    if (packed.any() && part == StateKind::weights) return packed.read(offset, n, to);
    if (is_frozen(part, offset)) return get(to, {params, op.parameter}, offset, n);
    if (sharded(part)) {
        int k = int(buckets.size());
        while (buckets[size_t(--k)].offset > offset) {}
        auto bucket = collected.find({part, k});
        CHECK(bucket != collected.end(), "bucket %d was not collected", k);
        std::copy_n(bucket->second.begin() + (offset - buckets[size_t(k)].offset), n, to);
        return;
    }
    get(to, buffer(part), offset, n);
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
    if (!sharded(part)) return put(buffer(part), offset, from, n);
    CHECK(part != StateKind::gradients, "nobody writes gradients that are sharded");
    for (const Partition& s : updates()) {
        const int64_t begin = std::max(offset, s.first), end = std::min(offset + n, s.first + s.size);
        if (begin < end) put(buffer(part), s.local_first + begin - s.first, from + (begin - offset), end - begin);
    }
}

// Gathers one bucket after the other, in the buffer in which its gradients are computed.
void ParamStore::collect() {
    std::vector<StateKind> parts = {StateKind::weights};
    for (size_t i = 0; i < states.size(); i++) {
        parts.push_back(optimizer_state(i));
        if (zero && !sharded(parts.back())) collect_row_state(i);
    }
    for (StateKind part : parts) {
        if (!sharded(part)) continue;
        await();
        const Element type = buffer(part).type;
        for (const Partition& s : updates()) {
            const Buffer whole = {gradients(s.bucket), type};
            op.copy(whole.at(rank * s.size), buffer(part).at(s.local_first), s.size * element_bytes(type));
            comm->all_gather(whole.data, s.size, type);
            await();
            if (owners[size_t(s.bucket)] != rank) continue;
            std::vector<float>& to = collected[{part, s.bucket}];
            to.resize(size_t(s.size * ranks));
            get(to.data(), whole, 0, s.size * ranks);
        }
    }
}
// Completes an optimizer state with one value per row of a matrix. Each rank whose partition has
// elements of a matrix has the state of all rows of that matrix. The first of these ranks keeps it
// and the others set zeros, so the sum over ranks is the complete state.
void ParamStore::collect_row_state(size_t i) {
    const Element type = optimizer->states[i].type;
    for (const BlockMatrix& m : matrices) {
        const Partition s = partition(m.bucket);
        const int64_t first_rank = (m.offset - buckets[size_t(m.bucket)].offset) / s.size;
        if (first_rank != rank) op.zero(states[i] + m.first_row * element_bytes(type), m.rows * element_bytes(type));
    }
    comm->all_reduce(states[i], state_elements(i), type, type);
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
    switch (t.init) {
        case Init::zero: return 0;
        case Init::one: return 1;
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
        const double std = t.init == Init::normal_residual ? 0.02 / std::sqrt(2.0 * c.L) : 0.02;
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
