// tensors.cpp - one row per tensor: where it lies, how it begins, what files call it.
#include "tensors.h"

#include <algorithm>

namespace {
template <class S, class T> struct Row {
    T* S::*field;
    Tensor tensor;
};

Tensor matrix(const char* name, int64_t rows, int64_t cols, int64_t file_rows, Init init, bool transposed) {
    return {name, 0, rows, cols, file_rows, init, true, transposed, 0, false};
}
Tensor vector_of(const char* name, int64_t n, Init init) { return {name, 0, 1, n, 1, init, false, false, 0, true}; }

template <class T> std::vector<Row<Params<T>, T>> first_rows(const Config& c) {
    using P = Params<T>;
    return {{&P::wte, matrix("wte.weight", c.Vp(), c.C, c.V, Init::normal, false)},
            {&P::wpe, matrix("wpe.weight", c.T, c.C, c.T, Init::normal, false)}};
}
template <class T> std::vector<Row<Block<T>, T>> block_rows(const Config& c) {
    using B = Block<T>;
    const int C = c.C, F = c.F;
    return {{&B::ln1w, vector_of("ln_1.weight", C, Init::one)},
            {&B::ln1b, vector_of("ln_1.bias", C, Init::zero)},
            {&B::qkvw, matrix("attn.c_attn.weight", 3 * C, C, 3 * C, Init::normal, true)},
            {&B::qkvb, vector_of("attn.c_attn.bias", 3 * C, Init::zero)},
            {&B::projw, matrix("attn.c_proj.weight", C, C, C, Init::normal_residual, true)},
            {&B::projb, vector_of("attn.c_proj.bias", C, Init::zero)},
            {&B::ln2w, vector_of("ln_2.weight", C, Init::one)},
            {&B::ln2b, vector_of("ln_2.bias", C, Init::zero)},
            {&B::fcw, matrix("mlp.c_fc.weight", F, C, F, Init::normal, true)},
            {&B::fcb, vector_of("mlp.c_fc.bias", F, Init::zero)},
            {&B::fc2w, matrix("mlp.c_proj.weight", C, F, C, Init::normal_residual, true)},
            {&B::fc2b, vector_of("mlp.c_proj.bias", C, Init::zero)}};
}
template <class T> std::vector<Row<Params<T>, T>> last_rows(const Config& c) {
    using P = Params<T>;
    return {{&P::lnfw, vector_of("ln_f.weight", c.C, Init::one)}, {&P::lnfb, vector_of("ln_f.bias", c.C, Init::zero)}};
}

// Visits every row in memory order: visit(tensor with its full name, bucket and offset; pointer-to-member; its struct).
template <class T, class Visit> int64_t walk(const Config& c, int ranks, Params<T>* p, Visit visit) {
    int64_t offset = 0;
    auto step = [&](auto& row, auto* owner, const std::string& prefix, int bucket) {
        row.tensor.name = prefix + row.tensor.name;
        row.tensor.bucket = bucket;
        row.tensor.offset = offset;
        offset += round_up(row.tensor.size(), 64);
        visit(row.tensor, row.field, owner);
    };
    for (auto& row : first_rows<T>(c)) step(row, p, "transformer.", 0);
    for (int l = 0; l < c.L; l++) {
        offset = round_up(offset, 64 * int64_t(ranks));
        for (auto& row : block_rows<T>(c))
            step(row, p ? &p->block[size_t(l)] : nullptr, "transformer.h." + std::to_string(l) + ".", 1 + l);
    }
    for (auto& row : last_rows<T>(c)) step(row, p, "transformer.", c.L);
    return round_up(offset, 64 * int64_t(ranks));
}

}    // namespace

template <class T> Params<T> bind(const Config& c, int ranks, const std::function<T*(const Tensor&)>& place) {
    Params<T> p;
    p.block.resize(size_t(c.L));
    walk<T>(c, ranks, &p, [&](const Tensor& t, auto field, auto* owner) { owner->*field = t.size() ? place(t) : nullptr; });
    return p;
}
template Params<Parameter> bind(const Config&, int, const std::function<Parameter*(const Tensor&)>&);
template Params<Gradient> bind(const Config&, int, const std::function<Gradient*(const Tensor&)>&);

std::vector<Tensor> config_tensors(const Config& c, int ranks) {
    std::vector<Tensor> all;
    walk<Parameter>(c, ranks, nullptr, [&](const Tensor& t, auto, auto*) { all.push_back(t); });
    return all;
}
int64_t config_flat_size(const Config& c, int ranks) {
    return walk<Parameter>(c, ranks, nullptr, [](const Tensor&, auto, auto*) {});
}
std::vector<Bucket> config_buckets(const Config& c, int ranks) {
    std::vector<Bucket> all;
    int64_t end = walk<Parameter>(c, ranks, nullptr, [&](const Tensor& t, auto, auto*) {
        if (t.bucket == int(all.size())) all.push_back({t.offset, 0});
    });
    for (size_t k = all.size(); k-- > 0; end = all[k].offset) all[k].size = end - all[k].offset;
    return all;
}
std::vector<int> config_owners(const Config& c, int ranks) {
    std::vector<int64_t> load(static_cast<size_t>(ranks));
    std::vector<int> owners;
    for (const Bucket& k : config_buckets(c, ranks)) {
        const auto least = std::min_element(load.begin(), load.end());
        *least += k.size;
        owners.push_back(int(least - load.begin()));
    }
    return owners;
}
int64_t config_parameters(const Config& c) {
    int64_t n = 0;
    for (const Tensor& t : config_tensors(c)) n += t.file_rows * t.cols;
    return n;
}
double config_flops_per_token(const Config& c, int S) {
    return 6.0 * double(config_parameters(c)) + 12.0 * c.L * double(c.C) * S;
}
