// weights.cpp - each rank's part of the flat buffers, and its exchange with other ranks.
#include "base/philox.h"
#include "model/weights.h"

#include <algorithm>
#include <cmath>

// ---- partitions ----------------------------------------------------------------------------------------------------

void ParamStore::set_layout(const Config& c, int its_rank, int its_ranks, int its_zero, Element its_comm_dtype) {
    rank = its_rank, ranks = its_ranks, zero = its_zero, comm_dtype = its_comm_dtype;
    buckets = config_buckets(c, ranks);
    owners = config_owners(c, ranks);
    flat = config_flat_size(c, ranks);
    params_ready.assign(buckets.size(), 0);
    cleared = {{0, 0}};
    for (const Tensor& t : config_tensors(c, ranks)) {
        if (!t.product) continue;
        cleared.back().size = t.offset - cleared.back().first;
        cleared.push_back({t.offset + t.size(), 0});
    }
    cleared.back().size = flat - cleared.back().first;
}

Partition ParamStore::partition(int k) const {
    const Bucket& b = buckets[size_t(k)];
    const int64_t size = b.size / ranks;
    return {k, b.offset + rank * size, size, b.offset / ranks};
}
std::vector<Partition> ParamStore::updates() const {
    if (!zero) return {{-1, 0, flat, 0}};
    std::vector<Partition> all;
    for (int k = 0; k < int(buckets.size()); k++) all.push_back(partition(k));
    return all;
}
Gradient* ParamStore::gradients(int k) const {
    return zero < 2 ? op.at(grads, buckets[size_t(k)].offset) : work[work_buffer(k)];
}
Gradient* ParamStore::partition_gradients(const Partition& s) const {
    return op.at(grads, zero < 2 ? s.first : s.local_first);
}

// ---- a step ---------------------------------------------------------------------------------------------------------

void ParamStore::clear_gradients() {
    first_batch = true;
    if (zero == 2) return op.zero(grads, op.bytes(grads, flat / ranks));
    for (const Elements& e : cleared)
        if (e.size) op.zero(op.at(grads, e.first), op.bytes(grads, e.size));
}

// Zero 2 computes in a cleared work buffer. This rank first copies its partition's sum so far into
// it, so that the next sum over the ranks includes it.
void ParamStore::gradients_begin(int k) {
    if (zero < 2) return;
    if (comm) comm->join(work_mark[work_buffer(k)]);
    const Partition s = partition(k);
    op.zero(gradients(k), op.bytes(grads, buckets[size_t(k)].size));
    op.copy(op.at(gradients(k), rank * s.size), partition_gradients(s), op.bytes(grads, s.size));
}

void ParamStore::gradients_done(int k, bool last) {
    if (k == 0) first_batch = false;    // bucket 0, the embeddings, is the last
    if (!comm || !(last || zero == 2)) return;
    const Partition s = partition(k);
    if (zero) comm->reduce_scatter(partition_gradients(s), gradients(k), s.size, op.gradient, comm_dtype);
    else comm->all_reduce(gradients(k), buckets[size_t(k)].size, op.gradient, comm_dtype);
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
        op.sum_of_squares(totals.squares + k, partition_gradients(partition(k)), partition(k).size);
    const double value = signal;
    op.zero(totals.reports, ranks * int64_t(sizeof(RankReport)));
    op.copy(&totals.reports[rank].loss, totals.loss, int64_t(sizeof(double)));
    op.upload(&totals.reports[rank].signal, &value, int64_t(sizeof(double)));
    comm->all_reduce(totals.loss, 1 + n + 2 * ranks + totals.router_totals_count, Element::f64, Element::f64);
    await();
    return n;
}

void ParamStore::update_done(const Partition& s) {
    if (!zero) return;
    comm->all_gather(op.at(params, buckets[size_t(s.bucket)].offset), s.size, op.parameter);
    params_ready[size_t(s.bucket)] = comm->mark();
}
void ParamStore::await_parameters(int k) {
    if (comm && zero) comm->join(params_ready[size_t(k)]);
}

// ---- for files ------------------------------------------------------------------------------------------------------

bool ParamStore::sharded(StateKind part) const {
    return part == StateKind::gradients ? zero == 2 : zero && (part != StateKind::weights || master);
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
    return {part == StateKind::m ? m : part == StateKind::v ? v : master, Element::f32};
}

void ParamStore::read(StateKind part, int64_t offset, int64_t n, float* to) const {
    count_progress();
    if (packed.any()) return packed.read(offset, n, to);
    if (sharded(part)) {
        int k = int(buckets.size());
        while (buckets[size_t(--k)].offset > offset) {}
        auto bucket = collected.find({part, k});
        CHECK(bucket != collected.end(), "bucket %d was not collected", k);
        std::copy_n(bucket->second.begin() + (offset - buckets[size_t(k)].offset), n, to);
        return;
    }
    const Buffer from = buffer(part);
    const int64_t bytes = n * element_bytes(from.type);
    if (from.type == Element::f32) return op.download(to, from.at(offset), bytes);
    std::vector<char> host(static_cast<size_t>(bytes));
    op.download(host.data(), from.at(offset), bytes);
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
    if (packed.any()) return packed.write(offset, n, block_format(BlockType::f32), from);
    if (part == StateKind::weights) put({params, op.parameter}, offset, from, n);
    if (part == StateKind::weights && !master) return;
    if (!sharded(part)) return put(buffer(part), offset, from, n);
    CHECK(part != StateKind::gradients, "nobody writes gradients that are sharded");
    for (const Partition& s : updates()) {
        const int64_t begin = std::max(offset, s.first), end = std::min(offset + n, s.first + s.size);
        if (begin < end) put(buffer(part), s.local_first + begin - s.first, from + (begin - offset), end - begin);
    }
}

// Gathers one bucket after the other, in the buffer in which its gradients are computed.
void ParamStore::collect() {
    for (StateKind part : {StateKind::weights, StateKind::m, StateKind::v}) {
        if (!sharded(part)) continue;
        await();
        for (const Partition& s : updates()) {
            float* whole = reinterpret_cast<float*>(gradients(s.bucket));
            op.copy(whole + rank * s.size, buffer(part).at(s.local_first), s.size * int64_t(sizeof(float)));
            comm->all_gather(whole, s.size, Element::f32);
            await();
            if (owners[size_t(s.bucket)] != rank) continue;
            std::vector<float>& to = collected[{part, s.bucket}];
            to.resize(size_t(s.size * ranks));
            op.download(to.data(), whole, int64_t(to.size() * sizeof(float)));
        }
    }
}

uint64_t ParamStore::hash() const {
    await();
    std::vector<char> host(size_t(op.bytes(params, std::min<int64_t>(flat, 1 << 20))));
    const int64_t size = op.bytes(params, flat);
    uint64_t h = FNV_OFFSET_BASIS;
    for (int64_t at = 0; at < size; at += int64_t(host.size())) {
        const int64_t bytes = std::min(int64_t(host.size()), size - at);
        op.download(host.data(), reinterpret_cast<char*>(params) + at, bytes);
        h = fnv1a_words(h, host.data(), bytes);
        count_progress();
    }
    return h;
}

// ---- random weights ------------------------------------------------------------------------------------------------

// The weights depend on the seed alone, not on the number of ranks or threads.
void ParamStore::init(const Config& c, uint64_t seed) {
    const std::vector<Tensor> tensors = config_tensors(c, ranks);
    const int64_t CHUNK = 1 << 20;
    std::vector<float> host(size_t(std::min(CHUNK, flat)));
    for (size_t i = 0; i < tensors.size(); i++) {
        const Tensor& t = tensors[i];
        const double std = t.init == Init::normal_residual ? 0.02 / std::sqrt(2.0 * c.L) : 0.02;
        const int64_t size = t.size(), local_first = t.file_rows * t.cols;    // the vocabulary's padding stays zero
        for (int64_t from = 0; from < size; from += CHUNK) {
            const int64_t n = std::min(CHUNK, size - from);
#pragma omp parallel for schedule(static)
            for (int64_t k = 0; k < n; k++)
                host[size_t(k)] = from + k >= local_first ? 0
                                  : t.init == Init::zero  ? 0
                                  : t.init == Init::one
                                      ? 1
                                      : float(std * double(philox_normal(seed, i, uint64_t(from + k))));
            write(StateKind::weights, t.offset + from, n, host.data());
        }
    }
}
