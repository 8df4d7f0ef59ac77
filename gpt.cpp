// gpt.cpp - the model, once: rows, memory, init, forward, backward, update. It calls operations through Ops<T> alone.
#include "gpt.h"

#include <algorithm>
#include <cstring>

// ---- configuration -------------------------------------------------------------------------------------------------

Status config_check(const Config& c) {
    struct {
        const char* name;
        int64_t value, min, max;
    } sizes[] = {{"vocabulary", c.V, 2, 1 << 24}, {"context", c.T, 1, 1 << 20},  {"layers", c.L, 1, 1024},
                 {"heads", c.NH, 1, 1024},        {"channels", c.C, 1, 1 << 16}, {"ffn width", c.F, 1, 1 << 18}};
    for (auto& s : sizes)
        if (s.value < s.min || s.value > s.max)
            return fail(Exit::usage, "%s: expected %lld to %lld, found %lld", s.name, (long long)s.min,
                        (long long)s.max, (long long)s.value);
    if (c.C % c.NH) return fail(Exit::usage, "channels (%d) are not a multiple of heads (%d)", c.C, c.NH);
    if (!(c.norm_eps > 0 && c.norm_eps < 1))
        return fail(Exit::usage, "norm epsilon: expected 0 to 1, found %g", double(c.norm_eps));
    return {};
}

Result<Config> config_named(const std::string& name) {
    struct {
        const char* name;
        int L, NH, C;
    } known[] = {
        {"gpt2", 12, 12, 768}, {"gpt2-medium", 24, 16, 1024}, {"gpt2-large", 36, 20, 1280}, {"gpt2-xl", 48, 25, 1600}};
    Config c;
    for (auto& k : known)
        if (name == k.name) {
            c.L = k.L, c.NH = k.NH, c.C = k.C, c.F = 4 * k.C;
            return c;
        }
    char* end = nullptr;
    long depth = name.size() > 1 && name[0] == 'd' ? strtol(name.c_str() + 1, &end, 10) : 0;
    if (depth < 1 || depth > 1024 || *end || name[1] < '0' || name[1] > '9')
        return fail(Exit::usage,
                    "model '%s': expected gpt2, gpt2-medium, gpt2-large, gpt2-xl, or d and a depth such as d6",
                    name.c_str());
    c.L = c.NH = int(depth), c.C = 64 * c.L, c.F = 4 * c.C;
    return c;
}

// ---- parameters ----------------------------------------------------------------------------------------------------

namespace {
template <class S, class T> struct Row {
    T* S::*field;
    Tensor tensor;
};

Tensor matrix(const char* name, int64_t rows, int64_t cols, int64_t file_rows, Init init, bool transposed) {
    return {name, 0, rows, cols, file_rows, init, true, transposed, -1, false};
}
Tensor vector_of(const char* name, int64_t n, Init init) { return {name, 0, 1, n, 1, init, false, false, -1, true}; }

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

// Visits every row in memory order: visit(tensor with its full name, layer and offset; pointer-to-member; its struct).
template <class T, class Visit> int64_t walk(const Config& c, Params<T>* p, Visit visit) {
    int64_t offset = 0;
    auto step = [&](auto& row, auto* owner, const std::string& prefix, int layer) {
        row.tensor.name = prefix + row.tensor.name;
        row.tensor.layer = layer;
        row.tensor.offset = offset;
        offset += round_up(row.tensor.size(), 64);
        visit(row.tensor, row.field, owner);
    };
    for (auto& row : first_rows<T>(c)) step(row, p, "transformer.", -1);
    for (int l = 0; l < c.L; l++)
        for (auto& row : block_rows<T>(c))
            step(row, p ? &p->block[size_t(l)] : nullptr, "transformer.h." + std::to_string(l) + ".", l);
    for (auto& row : last_rows<T>(c)) step(row, p, "transformer.", -1);
    return offset;
}

// Named pointers into a flat buffer.
template <class T> Params<T> bind(const Config& c, T* flat) {
    Params<T> p;
    p.block.resize(size_t(c.L));
    walk<T>(c, &p, [&](const Tensor& t, auto field, auto* owner) { owner->*field = flat + t.offset; });
    return p;
}
}    // namespace

std::vector<Tensor> config_tensors(const Config& c) {
    std::vector<Tensor> all;
    walk<float>(c, nullptr, [&](const Tensor& t, auto, auto*) { all.push_back(t); });
    return all;
}
int64_t config_flat_size(const Config& c) {
    return walk<float>(c, nullptr, [](const Tensor&, auto, auto*) {});
}
int64_t config_parameters(const Config& c) {
    int64_t n = 0;
    for (const Tensor& t : config_tensors(c)) n += t.file_rows * t.cols;
    return n;
}
double config_flops_per_token(const Config& c, int S) {
    return 6.0 * double(config_parameters(c)) + 12.0 * c.L * double(c.C) * S;
}

// ---- memory --------------------------------------------------------------------------------------------------------

namespace {
// Rows of logits that exist at a time: a quarter of all, 64 MiB in float at most; from 256 rows on GEMMs are at speed.
int head_rows_for(const Config& c, int64_t N) {
    const int64_t most = std::max<int64_t>(64, std::min((16 << 20) / int64_t(c.Vp()), ceil_div(N, 4)));
    return int(std::min(N, round_up(most, 16)));
}

template <class T> struct ActivationRow {
    T* Activations<T>::*field;
    int64_t per_token;
};
template <class T> struct StatisticRow {
    float* Activations<T>::*field;
    int64_t per_token;
};

// What a block keeps for its backward, per token.
template <class T> std::vector<ActivationRow<T>> activation_rows(const Config& c) {
    using A = Activations<T>;
    return {{&A::x, c.C},  {&A::ln1, c.C}, {&A::qkv, 3 * c.C}, {&A::atty, c.C},
            {&A::x2, c.C}, {&A::ln2, c.C}, {&A::fch, c.F},     {&A::fcg, c.F}};
}
template <class T> std::vector<StatisticRow<T>> statistic_rows(const Config& c) {
    using A = Activations<T>;
    return {{&A::mean1, 1}, {&A::rstd1, 1}, {&A::mean2, 1}, {&A::rstd2, 1}, {&A::lse, c.NH}};
}

// Lays everything out; called twice: with base null to count, then to place.
struct Layout {
    char* base = nullptr;
    int64_t used = 0;
    std::vector<MemoryRow> purposes;

    void purpose(const char* name) {
        // Arrays a power of two apart share cache sets: each purpose starts 17 more cache lines into its page.
        used = round_up(used, 4096) + 64 * 17 * int64_t(purposes.size());
        purposes.push_back({name, used});
    }
    template <class P> void take(P*& p, int64_t n) {
        used = round_up(used, 64);
        p = base ? reinterpret_cast<P*>(base + used) : nullptr;
        used += n * int64_t(sizeof(P));
    }
    void finish() {
        for (size_t i = 0; i < purposes.size(); i++)
            purposes[i].bytes = (i + 1 < purposes.size() ? purposes[i + 1].bytes : used) - purposes[i].bytes;
    }
};

template <class T> void place(Layout& at, Gpt<T>& g) {
    const Config& c = g.c;
    const int64_t N = int64_t(g.B) * g.S, flat = config_flat_size(c);
    g.flat = flat;
    const bool train = g.use == Use::train;
    at.purpose("parameters");
    at.take(g.params, flat);
    if (train) {
        at.purpose("gradients");
        at.take(g.grads, flat);
        at.purpose("optimizer state");
        at.take(g.m, flat);
        at.used += 64 * 17;
        at.take(g.v, flat);
    }
    at.purpose("activations");
    g.a.resize(size_t(c.L));
    for (int l = 0; l < c.L; l++) {
        Activations<T>& a = g.a[size_t(l)];
        if (l && !train) a = g.a[0];    // nobody reads a block's activations again
        if (l && !train) continue;
        for (auto& row : activation_rows<T>(c)) at.take(a.*row.field, N * row.per_token);
        for (auto& row : statistic_rows<T>(c)) at.take(a.*row.field, N * row.per_token);
    }
    for (T** p : {&g.x_last, &g.lnf}) at.take(*p, N * c.C);
    for (float** p : {&g.mean_f, &g.rstd_f, &g.loss}) at.take(*p, N);
    at.take(g.tok, N);
    at.take(g.target, N);
    at.purpose("activation gradients");
    g.dx = g.dt = g.dwide = nullptr;
    if (train)
        for (T** p : {&g.dx, &g.dt}) at.take(*p, N * c.C);
    if (train) at.take(g.dwide, N * std::max(c.F, 3 * c.C));
    at.take(g.norm, int64_t(g.tensors.size()));
    at.purpose("logits");
    g.head_rows = head_rows_for(c, N);
    at.take(g.logits, int64_t(g.head_rows) * c.Vp());
    at.finish();
}
}    // namespace

template <class T> std::vector<MemoryRow> gpt_memory(const Config& c, const Ops<T>& op, Use use, int B, int S) {
    Gpt<T> g;
    g.c = c, g.use = use, g.B = B, g.S = S, g.tensors = config_tensors(c);
    Layout count;
    place(count, g);
    count.purposes.push_back(
        {"scratch of the operations", op.scratch_bytes(B, S, c.C, c.F, c.Vp(), g.head_rows, c.heads())});
    return count.purposes;
}

template <class T> Status gpt_allocate(Gpt<T>& g, const Config& c, const Ops<T>& op, Use use, int B, int S) {
    TRY(config_check(c));
    CHECK(B > 0 && S > 0 && S <= c.T, "B=%d S=%d context=%d", B, S, c.T);
    if (int64_t(B) * S > INT32_MAX / 4)
        return fail(Exit::usage, "batch x seq-len = %lld tokens at once, %d at most", (long long)B * S, INT32_MAX / 4);
    g.c = c, g.op = &op, g.use = use, g.B = B, g.S = S, g.tensors = config_tensors(c);
    Layout count, layout;
    place(count, g);
    g.arena_bytes = count.used;
    g.arena = op.allocate(count.used);
    if (!g.arena)
        return fail(Exit::device,
                    "out of memory: the model needs %.2f GiB in one piece; a smaller --batch or --seq-len needs less",
                    double(count.used) / (1 << 30));
    layout.base = static_cast<char*>(g.arena);
    place(layout, g);
    g.host_loss.resize(size_t(B) * size_t(S));
    g.host_norm.resize(g.tensors.size());
    g.w = bind(c, g.params);
    if (use == Use::train) g.dw = bind(c, g.grads);
    return {};
}

template <class T> void gpt_free(Gpt<T>& g) {
    if (g.arena) g.op->release(g.arena, g.arena_bytes);
    g = {};
}

template <class T> void gpt_init(Gpt<T>& g, uint64_t seed) {
    const int64_t CHUNK = 1 << 20;
    std::vector<T> host(size_t(std::min(CHUNK, g.flat)));
    for (size_t i = 0; i < g.tensors.size(); i++) {
        const Tensor& t = g.tensors[i];
        const double std = t.init == Init::normal_residual ? 0.02 / std::sqrt(2.0 * g.c.L) : 0.02;
        const int64_t size = t.size(), held = t.file_rows * t.cols;    // rows that pad the vocabulary stay zero
        for (int64_t from = 0; from < size; from += CHUNK) {
            const int64_t n = std::min(CHUNK, size - from);
#pragma omp parallel for schedule(static)
            for (int64_t k = 0; k < n; k++)
                host[size_t(k)] = from + k >= held       ? T(0)
                                  : t.init == Init::zero ? T(0)
                                  : t.init == Init::one
                                      ? T(1)
                                      : T(float(std * double(philox_normal(seed, i, uint64_t(from + k)))));
            g.op->upload(g.params + t.offset + from, host.data(), n * int64_t(sizeof(T)));
        }
    }
}

// ---- forward -------------------------------------------------------------------------------------------------------

template <class T> void gpt_forward(Gpt<T>& g, const int* tok, int B, int S, Cache<T>* cache) {
    const Ops<T>& o = *g.op;
    const Config& c = g.c;
    const int C = c.C, F = c.F, N = B * S, pos = cache ? cache->pos : 0;
    const Heads h = c.heads();
    CHECK(int64_t(B) * S <= int64_t(g.B) * g.S && pos + S <= c.T, "B=%d S=%d pos=%d", B, S, pos);
    CHECK(!cache || (cache->B == B && pos + S <= cache->maxT), "cache B=%d pos=%d max=%d", cache->B, pos, cache->maxT);

    o.upload(g.tok, tok, int64_t(sizeof(int)) * N);
    o.embedding_forward(g.a[0].x, g.tok, g.w.wte, g.w.wpe, B, S, C, pos);
    for (int l = 0; l < c.L; l++) {
        const Block<T>& w = g.w.block[size_t(l)];
        Activations<T>& a = g.a[size_t(l)];
        T* out = l + 1 < c.L ? g.a[size_t(l) + 1].x : g.x_last;
        o.layernorm_forward(a.ln1, a.mean1, a.rstd1, a.x, w.ln1w, w.ln1b, c.norm_eps, N, C);
        o.linear_forward(a.qkv, a.ln1, w.qkvw, w.qkvb, nullptr, N, C, 3 * C);
        if (cache) {
            int64_t layer = int64_t(l) * cache->B * h.NKV * cache->maxT * h.HS;
            o.attention_cached(a.atty, cache->k + layer, cache->v + layer, a.qkv, B, S, pos, cache->maxT, h);
        } else {
            o.attention_forward(a.atty, a.lse, a.qkv, B, S, h);
        }
        o.linear_forward(a.x2, a.atty, w.projw, w.projb, a.x, N, C, C);
        o.layernorm_forward(a.ln2, a.mean2, a.rstd2, a.x2, w.ln2w, w.ln2b, c.norm_eps, N, C);
        o.linear_forward(a.fch, a.ln2, w.fcw, w.fcb, nullptr, N, C, F);
        o.gelu_forward(a.fcg, a.fch, int64_t(N) * F);
        o.linear_forward(out, a.fcg, w.fc2w, w.fc2b, a.x2, N, F, C);
    }
    o.layernorm_forward(g.lnf, g.mean_f, g.rstd_f, g.x_last, g.w.lnfw, g.w.lnfb, c.norm_eps, N, C);
    if (cache) cache->pos += S;
}

template <class T> double gpt_loss(Gpt<T>& g, const int* target, int B, int S, bool train, float scale, float* losses) {
    const Ops<T>& o = *g.op;
    const int C = g.c.C, V = g.c.V, Vp = g.c.Vp(), N = B * S;
    o.upload(g.target, target, int64_t(sizeof(int)) * N);
    for (int n = 0; n < N; n += g.head_rows) {
        const int rows = std::min(g.head_rows, N - n);
        const T* x = g.lnf + int64_t(n) * C;
        o.linear_forward(g.logits, x, g.w.wte, nullptr, nullptr, rows, C, Vp);
        o.cross_entropy(g.loss + n, train ? g.logits : nullptr, g.logits, g.target + n, scale, rows, V, Vp);
        if (train) o.linear_backward(g.dt + int64_t(n) * C, g.dw.wte, nullptr, g.logits, x, g.w.wte, rows, C, Vp);
    }
    float* host = losses ? losses : g.host_loss.data();
    o.download(host, g.loss, int64_t(sizeof(float)) * N);
    double sum = 0;
    for (int n = 0; n < N; n++) sum += double(host[n]);
    return sum / N;
}

template <class T> void gpt_logits(Gpt<T>& g, float* out, int B, int S) {
    const Ops<T>& o = *g.op;
    const int C = g.c.C, V = g.c.V, Vp = g.c.Vp();
    std::vector<T> host(size_t(std::min(g.head_rows, B)) * size_t(Vp));
    for (int b = 0; b < B; b += g.head_rows) {
        const int rows = std::min(g.head_rows, B - b);
        for (int i = 0; i < rows; i++)    // x_last has been read: its first rows hold the last positions now
            o.copy(g.x_last + int64_t(i) * C, g.lnf + (int64_t(b + i) * S + S - 1) * C, int64_t(sizeof(T)) * C);
        o.linear_forward(g.logits, g.x_last, g.w.wte, nullptr, nullptr, rows, C, Vp);
        o.download(host.data(), g.logits, int64_t(sizeof(T)) * rows * Vp);
        for (int i = 0; i < rows; i++)
            for (int v = 0; v < V; v++) out[int64_t(b + i) * V + v] = float(host[size_t(i) * size_t(Vp) + size_t(v)]);
    }
}

// ---- backward: the forward read from the bottom up -----------------------------------------------------------------

template <class T> void gpt_backward(Gpt<T>& g, int B, int S) {
    const Ops<T>& o = *g.op;
    const Config& c = g.c;
    const int C = c.C, F = c.F, N = B * S;
    T *dx = g.dx, *dt = g.dt, *dwide = g.dwide;

    o.zero(dx, int64_t(sizeof(T)) * N * C);
    o.layernorm_backward(dx, g.dw.lnfw, g.dw.lnfb, dt, g.x_last, g.w.lnfw, g.mean_f, g.rstd_f, N, C);
    for (int l = c.L - 1; l >= 0; l--) {
        const Block<T>&w = g.w.block[size_t(l)], &dw = g.dw.block[size_t(l)];
        const Activations<T>& a = g.a[size_t(l)];
        o.linear_backward(dwide, dw.fc2w, dw.fc2b, dx, a.fcg, w.fc2w, N, F, C);
        o.gelu_backward(dwide, dwide, a.fch, int64_t(N) * F);
        o.linear_backward(dt, dw.fcw, dw.fcb, dwide, a.ln2, w.fcw, N, C, F);
        o.layernorm_backward(dx, dw.ln2w, dw.ln2b, dt, a.x2, w.ln2w, a.mean2, a.rstd2, N, C);
        o.linear_backward(dt, dw.projw, dw.projb, dx, a.atty, w.projw, N, C, C);
        o.attention_backward(dwide, dt, a.atty, a.qkv, a.lse, B, S, c.heads());
        o.linear_backward(dt, dw.qkvw, dw.qkvb, dwide, a.ln1, w.qkvw, N, C, 3 * C);
        o.layernorm_backward(dx, dw.ln1w, dw.ln1b, dt, a.x, w.ln1w, a.mean1, a.rstd1, N, C);
    }
    o.embedding_backward(g.dw.wte, g.dw.wpe, dx, g.tok, B, S, C);
}

// ---- update --------------------------------------------------------------------------------------------------------

template <class T> void gpt_zero_grad(Gpt<T>& g) { g.op->zero(g.grads, g.flat * int64_t(sizeof(T))); }

template <class T> double gpt_grad_norm(Gpt<T>& g, std::vector<double>* per_tensor) {
    for (size_t i = 0; i < g.tensors.size(); i++)
        g.op->sum_of_squares(g.norm + i, g.grads + g.tensors[i].offset, g.tensors[i].size());
    std::vector<double>& squares = g.host_norm;
    g.op->download(squares.data(), g.norm, int64_t(sizeof(double) * squares.size()));
    double sum = 0;
    for (double s : squares) sum += s;
    if (per_tensor) {
        *per_tensor = squares;
        for (double& s : *per_tensor) s = std::sqrt(s);
    }
    return std::sqrt(sum);
}

template <class T> void gpt_update(Gpt<T>& g, AdamW a) {
    for (const Tensor& t : g.tensors) {
        AdamW row = a;
        if (!t.decay) row.weight_decay = 0;
        g.op->adamw(g.params + t.offset, g.m + t.offset, g.v + t.offset, g.grads + t.offset, t.size(), row);
    }
}

// ---- generation ----------------------------------------------------------------------------------------------------

template <class T> Status cache_allocate(Gpt<T>& g, Cache<T>& cache, int B, int maxT) {
    const int64_t n = int64_t(g.c.L) * B * g.c.C * maxT;
    cache = {nullptr, nullptr, B, maxT, 0};
    cache.k = static_cast<T*>(g.op->allocate(2 * n * int64_t(sizeof(T))));
    if (!cache.k)
        return fail(Exit::device,
                    "out of memory: the key/value cache of %d sequences of %d tokens needs %.2f GiB; a smaller --num "
                    "needs less",
                    B, maxT, 2.0 * double(n) * sizeof(T) / (1 << 30));
    cache.v = cache.k + n;
    return {};
}
template <class T> void cache_free(Gpt<T>& g, Cache<T>& cache) {
    if (cache.k) g.op->release(cache.k, 2 * int64_t(sizeof(T)) * g.c.L * cache.B * g.c.C * cache.maxT);
    cache = {};
}

#define INSTANTIATE(T)                                                                       \
    template std::vector<MemoryRow> gpt_memory(const Config&, const Ops<T>&, Use, int, int); \
    template Status gpt_allocate(Gpt<T>&, const Config&, const Ops<T>&, Use, int, int);      \
    template void gpt_free(Gpt<T>&);                                                         \
    template void gpt_init(Gpt<T>&, uint64_t);                                               \
    template void gpt_forward(Gpt<T>&, const int*, int, int, Cache<T>*);                     \
    template void gpt_logits(Gpt<T>&, float*, int, int);                                     \
    template double gpt_loss(Gpt<T>&, const int*, int, int, bool, float, float*);            \
    template void gpt_backward(Gpt<T>&, int, int);                                           \
    template void gpt_zero_grad(Gpt<T>&);                                                    \
    template double gpt_grad_norm(Gpt<T>&, std::vector<double>*);                            \
    template void gpt_update(Gpt<T>&, AdamW);                                                \
    template Status cache_allocate(Gpt<T>&, Cache<T>&, int, int);                            \
    template void cache_free(Gpt<T>&, Cache<T>&);
INSTANTIATE(float)
INSTANTIATE(double)
