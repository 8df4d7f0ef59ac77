// gpt.cpp - the model, once: memory, forward, backward, update, generation. It calls operations through Ops<T> alone.
#include "gpt.h"

#include <algorithm>
#include <type_traits>

// ---- memory --------------------------------------------------------------------------------------------------------

namespace {
template <class T, class X = T> struct ActivationRow {
    X* Activations<T>::*field;
    int64_t per_token;
    Recompute kept_up_to;    // the strongest recomputation that still keeps it
};

// What a block keeps for its backward, per token.
template <class T> std::vector<ActivationRow<T>> activation_rows(const Config& c) {
    using A = Activations<T>;
    const Recompute never = Recompute::blocks, cheap = Recompute::cheap, none = Recompute::none;
    return {{&A::x, c.C, never},  {&A::ln1, c.C, none}, {&A::qkv, 3 * c.C, cheap}, {&A::atty, c.C, cheap},
            {&A::x2, c.C, cheap}, {&A::ln2, c.C, none}, {&A::fch, c.F, cheap},     {&A::fcg, c.F, none}};
}
template <class T> std::vector<ActivationRow<T, float>> statistic_rows(const Config& c) {
    using A = Activations<T>;
    const Recompute cheap = Recompute::cheap;
    return {{&A::mean1, 1, cheap}, {&A::rstd1, 1, cheap}, {&A::mean2, 1, cheap}, {&A::rstd2, 1, cheap},
            {&A::lse, c.NH, cheap}};
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

template <class T> void place_activations(Layout& at, Gpt<T>& g, int64_t N) {
    const Config& c = g.c;
    at.purpose("activations");
    g.a.resize(size_t(c.L));
    for (int l = 0; l < c.L; l++) {
        Activations<T>& a = g.a[size_t(l)];
        const bool train = g.plan.use == Use::train;    // else nobody reads a block's activations again
        auto place = [&](const auto& rows) {
            for (const auto& row : rows)
                if (l == 0 || (train && g.plan.recompute <= row.kept_up_to)) at.take(a.*row.field, N * row.per_token);
                else a.*row.field = g.a[0].*row.field;
        };
        place(activation_rows<T>(c));
        place(statistic_rows<T>(c));
    }
    for (T** p : {&g.x_last, &g.lnf}) at.take(*p, N * c.C);
    for (float** p : {&g.mean_f, &g.rstd_f, &g.loss_of}) at.take(*p, N);
    for (int** p : {&g.in, &g.staged}) at.take(*p, 16 + 2 * N);
}

template <class T> void lay_out(Layout& at, Gpt<T>& g, const Config& c, const Plan& plan) {
    g.c = c, g.plan = plan, g.tensors = config_tensors(c), g.flat = config_flat_size(c);
    const int64_t N = int64_t(plan.B) * plan.S;
    const bool train = plan.use == Use::train;
    at.purpose("parameters");
    at.take(g.params, g.flat);
    g.master = nullptr;
    if (train) {
        at.purpose("gradients");
        at.take(g.grads, g.flat);
        at.purpose("optimizer state");
        at.take(g.m, g.flat);
        at.used += 64 * 17;
        at.take(g.v, g.flat);
        if (std::is_same_v<T, bf16> && plan.master) at.take(g.master, g.flat);
        at.take(g.decays, g.flat / 64);
        at.take(g.squares, 1);
        at.take(g.loss_total, 1);
        at.take(g.step, 1);
    }
    place_activations(at, g, N);
    at.purpose("activation gradients");
    g.dx = g.dt = g.dwide = nullptr;
    if (train)
        for (T** p : {&g.dx, &g.dt}) at.take(*p, N * c.C);
    if (train) at.take(g.dwide, N * std::max(c.F, 3 * c.C));
    at.purpose("logits");
    // A quarter of all rows at a time, as many as logits_bytes hold at most; from 256 rows on products are at speed.
    const int64_t most = std::min(g.op.logits_bytes / (int64_t(sizeof(T)) * c.Vp()), ceil_div(N, 4));
    g.head_rows = int(std::min(N, round_up(std::max<int64_t>(64, most), 16)));
    at.take(g.head, int64_t(g.head_rows) * c.Vp());
    at.finish();
}
}    // namespace

template <class T> std::vector<MemoryRow> Gpt<T>::memory(const Config& config, const Plan& what) const {
    Gpt<T> g(op);
    Layout count;
    lay_out(count, g, config, what);
    count.purposes.push_back({"scratch of the operations", op.scratch_bytes(what.B, what.S, config.C, config.F,
                                                                             config.Vp(), g.head_rows,
                                                                             config.heads())});
    return count.purposes;
}

template <class T> Status Gpt<T>::allocate(const Config& config, const Plan& what) {
    TRY(config_check(config));
    CHECK(!arena && what.B > 0 && what.S > 0 && what.S <= config.T, "B=%d S=%d context=%d", what.B, what.S, config.T);
    if (int64_t(what.B) * what.S > INT32_MAX / 4)
        return fail(Exit::usage, "batch x seq-len = %lld tokens at once, %d at most", (long long)what.B * what.S,
                    INT32_MAX / 4);
    Layout count, layout;
    lay_out(count, *this, config, what);
    arena_bytes = count.used;
    arena = op.allocate(arena_bytes);
    results = static_cast<Step*>(op.allocate_host(2 * int64_t(sizeof(Step))));
    if (!arena || !results)
        return fail(Exit::device,
                    "out of memory: the model needs %.2f GiB in one piece, %.2f GiB are free; a smaller --batch%s "
                    "needs less",
                    double(arena_bytes) / (1 << 30), double(op.free_bytes()) / (1 << 30),
                    what.use == Use::train ? ", or --recompute blocks," : " or --seq-len");
    layout.base = static_cast<char*>(arena);
    lay_out(layout, *this, config, what);
    const int64_t N = int64_t(what.B) * what.S;
    host_in.resize(size_t(IN_HEAD + 2 * N));
    host_loss.resize(size_t(N));
    w = bind(c, params);
    if (what.use == Use::infer) return {};
    dw = bind(c, grads);
    std::vector<uint8_t> rows(size_t(flat / 64));
    for (const Tensor& t : tensors)
        for (int64_t i = t.offset / 64; i < ceil_div(t.offset + t.size(), 64); i++) rows[size_t(i)] = t.decay;
    op.upload(decays, rows.data(), int64_t(rows.size()));
    return {};
}

template <class T> Gpt<T>::~Gpt() {
    if (arena) op.release(arena, arena_bytes);
    if (results) op.release_host(results, 2 * int64_t(sizeof(Step)));
}

template <class T> void Gpt<T>::init(uint64_t seed) {
    const int64_t CHUNK = 1 << 20;
    std::vector<float> host(size_t(std::min(CHUNK, flat)));
    for (size_t i = 0; i < tensors.size(); i++) {
        const Tensor& t = tensors[i];
        const double std = t.init == Init::normal_residual ? 0.02 / std::sqrt(2.0 * c.L) : 0.02;
        const int64_t size = t.size(), held = t.file_rows * t.cols;    // rows that pad the vocabulary stay zero
        for (int64_t from = 0; from < size; from += CHUNK) {
            const int64_t n = std::min(CHUNK, size - from);
#pragma omp parallel for schedule(static)
            for (int64_t k = 0; k < n; k++)
                host[size_t(k)] = from + k >= held       ? 0
                                  : t.init == Init::zero ? 0
                                  : t.init == Init::one
                                      ? 1
                                      : float(std * double(philox_normal(seed, i, uint64_t(from + k))));
            write(Part::weights, t.offset + from, n, host.data());
        }
    }
}

template <class T> void Gpt<T>::read(Part part, int64_t offset, int64_t n, float* to) const {
    auto get = [&](auto* from) {
        using X = std::remove_pointer_t<decltype(from)>;
        if constexpr (std::is_same_v<X, float>) {
            op.download(to, from + offset, n * int64_t(sizeof(float)));
        } else {
            std::vector<X> host(static_cast<size_t>(n));
            op.download(host.data(), from + offset, n * int64_t(sizeof(X)));
            for (int64_t i = 0; i < n; i++) to[i] = to_float(host[size_t(i)]);
        }
    };
    if (part == Part::gradients) get(grads);
    else if (part == Part::m) get(m);
    else if (part == Part::v) get(v);
    else if (master) get(master);
    else get(params);
}

template <class T> void Gpt<T>::write(Part part, int64_t offset, int64_t n, const float* from) {
    auto put = [&](auto* to) {
        using X = std::remove_pointer_t<decltype(to)>;
        if constexpr (std::is_same_v<X, float>) {
            op.upload(to + offset, from, n * int64_t(sizeof(float)));
        } else {
            std::vector<X> host(static_cast<size_t>(n));
            for (int64_t i = 0; i < n; i++) host[size_t(i)] = from_float<X>(from[i]);
            op.upload(to + offset, host.data(), n * int64_t(sizeof(X)));
        }
    };
    if (part == Part::gradients) put(grads);
    else if (part == Part::m) put(m);
    else if (part == Part::v) put(v);
    else if (master) put(master), op.from_floats(params + offset, master + offset, n);
    else put(params);
}

// ---- forward -------------------------------------------------------------------------------------------------------

template <class T> void Gpt<T>::batch(const int* from_tok, const int* from_target, int batch_B, int batch_S) {
    const int64_t N = int64_t(batch_B) * batch_S, room = int64_t(plan.B) * plan.S;
    CHECK(N > 0 && N <= room && batch_S <= c.T, "B=%d S=%d", batch_B, batch_S);
    std::copy_n(from_tok, N, host_in.begin() + IN_HEAD);
    if (from_target) std::copy_n(from_target, N, host_in.begin() + IN_HEAD + room);
    host_in[0] = 0;
    op.upload_ahead(staged, host_in.data(), int64_t(sizeof(int)) * (IN_HEAD + room + (from_target ? N : 0)));
    next_B = batch_B, next_S = batch_S;
}

template <class T> void Gpt<T>::forward() {
    CHECK(next_B > 0, "no batch was handed over");
    B = next_B, S = next_S, next_B = 0;
    op.take(in, staged, int64_t(sizeof(int)) * int64_t(host_in.size()));
    stack(nullptr);
}

template <class T> void Gpt<T>::stack(Cache* cache) {
    op.embedding_forward(a[0].x, tok(), w.wte, w.wpe, B, S, c.C, in);
    for (int l = 0; l < c.L; l++) block_forward(l, l + 1 < c.L ? a[size_t(l) + 1].x : x_last, cache);
    op.layernorm_forward(lnf, mean_f, rstd_f, x_last, w.lnfw, w.lnfb, c.norm_eps, B * S, c.C);
}

template <class T> void Gpt<T>::block_forward(int l, T* out, Cache* cache) {
    const Block<T>& p = w.block[size_t(l)];
    const Activations<T>& t = a[size_t(l)];
    const Heads h = c.heads();
    const int C = c.C, F = c.F, N = B * S;
    op.layernorm_forward(t.ln1, t.mean1, t.rstd1, t.x, p.ln1w, p.ln1b, c.norm_eps, N, C);
    op.linear_forward(t.qkv, t.ln1, p.qkvw, p.qkvb, nullptr, N, C, 3 * C);
    if (cache) {
        const int64_t layer = int64_t(l) * cache->B * h.NKV * cache->maxT * h.HS;
        op.attention_cached(t.atty, static_cast<T*>(cache->k) + layer, static_cast<T*>(cache->v) + layer, t.qkv, B, S,
                            in, cache->maxT, h);
    } else {
        op.attention_forward(t.atty, t.lse, t.qkv, B, S, h);
    }
    op.linear_forward(t.x2, t.atty, p.projw, p.projb, t.x, N, C, C);
    op.layernorm_forward(t.ln2, t.mean2, t.rstd2, t.x2, p.ln2w, p.ln2b, c.norm_eps, N, C);
    if (op.linear_gelu_forward) {
        op.linear_gelu_forward(t.fcg, t.fch, t.ln2, p.fcw, p.fcb, N, C, F);
    } else {
        op.linear_forward(t.fch, t.ln2, p.fcw, p.fcb, nullptr, N, C, F);
        op.gelu_forward(t.fcg, t.fch, int64_t(N) * F);
    }
    if (out) op.linear_forward(out, t.fcg, p.fc2w, p.fc2b, t.x2, N, F, C);
}

template <class T> void Gpt<T>::loss(bool train, float scale) {
    const int C = c.C, V = c.V, Vp = c.Vp(), N = B * S;
    for (int n = 0; n < N; n += head_rows) {
        const int rows = std::min(head_rows, N - n);
        const T* x = lnf + int64_t(n) * C;
        op.linear_forward(head, x, w.wte, nullptr, nullptr, rows, C, Vp);
        op.cross_entropy(loss_of + n, train ? head : nullptr, head, target() + n, scale, rows, V, Vp);
        if (train) op.linear_backward(dt + int64_t(n) * C, dw.wte, nullptr, head, x, w.wte, rows, C, Vp);
    }
    if (!train) return;
    op.add_losses(loss_total, loss_of, N);
    step_tokens += N;
}

template <class T> double Gpt<T>::mean_loss(float* losses) {
    const int N = B * S;
    float* host = losses ? losses : host_loss.data();
    op.download(host, loss_of, int64_t(sizeof(float)) * N);
    double sum = 0;
    for (int n = 0; n < N; n++) sum += double(host[n]);
    return sum / N;
}

// ---- backward: the forward read from the bottom up -----------------------------------------------------------------

template <class T> void Gpt<T>::backward() {
    const int N = B * S;
    op.zero(dx, int64_t(sizeof(T)) * N * c.C);
    op.layernorm_backward(dx, dw.lnfw, dw.lnfb, dt, x_last, w.lnfw, mean_f, rstd_f, N, c.C);
    for (int l = c.L - 1; l >= 0; l--) {
        block_again(l);
        block_backward(l);
    }
    op.embedding_backward(dw.wte, dw.wpe, dx, tok(), B, S, c.C, c.V);
}

template <class T> void Gpt<T>::block_again(int l) {
    const Block<T>& p = w.block[size_t(l)];
    const Activations<T>& t = a[size_t(l)];
    if (plan.recompute == Recompute::blocks) block_forward(l, nullptr, nullptr);
    if (plan.recompute != Recompute::cheap) return;
    op.layernorm_forward(t.ln1, t.mean1, t.rstd1, t.x, p.ln1w, p.ln1b, c.norm_eps, B * S, c.C);
    op.layernorm_forward(t.ln2, t.mean2, t.rstd2, t.x2, p.ln2w, p.ln2b, c.norm_eps, B * S, c.C);
    op.gelu_forward(t.fcg, t.fch, int64_t(B) * S * c.F);
}

template <class T> void Gpt<T>::block_backward(int l) {
    const Block<T>& p = w.block[size_t(l)];
    const Block<Grad<T>>& d = dw.block[size_t(l)];
    const Activations<T>& t = a[size_t(l)];
    const int C = c.C, F = c.F, N = B * S;
    if (op.linear_gelu_backward) {
        op.linear_gelu_backward(dwide, d.fc2w, d.fc2b, d.fcb, dx, t.fcg, p.fc2w, t.fch, N, F, C);
        op.linear_backward(dt, d.fcw, nullptr, dwide, t.ln2, p.fcw, N, C, F);
    } else {
        op.linear_backward(dwide, d.fc2w, d.fc2b, dx, t.fcg, p.fc2w, N, F, C);
        op.gelu_backward(dwide, dwide, t.fch, int64_t(N) * F);
        op.linear_backward(dt, d.fcw, d.fcb, dwide, t.ln2, p.fcw, N, C, F);
    }
    op.layernorm_backward(dx, d.ln2w, d.ln2b, dt, t.x2, p.ln2w, t.mean2, t.rstd2, N, C);
    op.linear_backward(dt, d.projw, d.projb, dx, t.atty, p.projw, N, C, C);
    op.attention_backward(dwide, dt, t.atty, t.qkv, t.lse, B, S, c.heads());
    op.linear_backward(dt, d.qkvw, d.qkvb, dwide, t.ln1, p.qkvw, N, C, 3 * C);
    op.layernorm_backward(dx, d.ln1w, d.ln1b, dt, t.x, p.ln1w, t.mean1, t.rstd1, N, C);
}

// ---- the step ------------------------------------------------------------------------------------------------------

template <class T> void Gpt<T>::begin_step() {
    op.zero(grads, flat * int64_t(sizeof(Grad<T>)));
    op.zero(loss_total, int64_t(sizeof(double)));
    step_tokens = 0;
}

template <class T> double Gpt<T>::grad_norm() {
    double square;
    op.sum_of_squares(squares, grads, flat);
    op.download(&square, squares, int64_t(sizeof square));
    return std::sqrt(square);
}

template <class T> void Gpt<T>::update(const AdamW& adam, const Limits& limits, uint64_t seed) {
    CHECK(updates - finished < 2, "two updates are pending");
    op.sum_of_squares(squares, grads, flat);
    op.gate(step, loss_total, 1 / double(std::max<int64_t>(1, step_tokens)), squares, 1, adam, limits);
    op.adamw(params, master, m, v, grads, decays, flat, step, adam, seed);
    op.download_later(results + updates % 2, step, int64_t(sizeof(Step)));
    marks[updates++ % 2] = op.mark();
}

template <class T> Step Gpt<T>::finish() {
    CHECK(finished < updates, "no update is pending");
    op.wait(marks[finished % 2]);
    return results[finished++ % 2];
}

template <class T> void Gpt<T>::set_updates(int64_t done) {
    Step s = {};
    s.updates = done;
    op.upload(step, &s, int64_t(sizeof s));
}

// ---- generation ----------------------------------------------------------------------------------------------------

template <class T> Status Gpt<T>::cache_allocate(Cache& cache, int cache_B, int maxT) {
    const Heads h = c.heads();
    cache = {};
    cache.B = cache_B, cache.maxT = maxT;
    cache.bytes = 2 * int64_t(sizeof(T)) * c.L * cache_B * h.NKV * maxT * h.HS;
    cache.k = op.allocate(cache.bytes);
    if (!cache.k)
        return fail(Exit::device,
                    "out of memory: the key/value cache of %d sequences of %d tokens needs %.2f GiB; a smaller --num "
                    "needs less",
                    cache_B, maxT, double(cache.bytes) / (1 << 30));
    cache.v = static_cast<char*>(cache.k) + cache.bytes / 2;
    return {};
}
template <class T> void Gpt<T>::cache_free(Cache& cache) {
    if (cache.graph) op.release_graph(cache.graph);
    if (cache.k) op.release(cache.k, cache.bytes);
    cache = {};
}
template <class T> void Gpt<T>::cache_spread(const Cache& from, Cache& to) {
    CHECK(from.B == 1 && from.maxT == to.maxT, "B=%d", from.B);
    const int64_t row = from.bytes / 2 / c.L;
    for (int l = 0; l < c.L; l++)
        for (int b = 0; b < to.B; b++)
            for (auto [source, destination] : {std::pair{from.k, to.k}, std::pair{from.v, to.v}})
                op.copy(static_cast<char*>(destination) + (int64_t(l) * to.B + b) * row,
                        static_cast<char*>(source) + l * row, row);
    to.pos = from.pos;
}

template <class T> void Gpt<T>::extend(Cache& cache, const int* from_tok, int more) {
    B = cache.B, S = more;
    CHECK(int64_t(B) * S <= int64_t(plan.B) * plan.S && cache.pos + S <= cache.maxT, "B=%d S=%d pos=%d max=%d", B, S,
          cache.pos, cache.maxT);
    host_in[0] = cache.pos;
    std::copy_n(from_tok, B * S, host_in.begin() + IN_HEAD);
    op.upload(in, host_in.data(), int64_t(sizeof(int)) * (IN_HEAD + B * S));
    cache.steps = S == 1 ? cache.steps + 1 : 0;
    if (cache.graph && S > 1) op.release_graph(cache.graph), cache.graph = nullptr;    // scratch may move
    if (op.record && cache.steps >= 2) {    // the first one has allocated what it needs
        if (!cache.graph) {
            op.record();
            stack(&cache);
            cache.graph = op.recorded();
        }
        op.replay(cache.graph);
    } else {
        stack(&cache);
    }
    cache.pos += S;
}

template <class T> void Gpt<T>::logits(float* out) {
    const int C = c.C, V = c.V, Vp = c.Vp();
    host_logits.resize(size_t(std::min(head_rows, B)) * size_t(Vp));
    for (int b = 0; b < B; b += head_rows) {
        const int rows = std::min(head_rows, B - b);
        const T* x = lnf + int64_t(b) * C;
        if (S > 1) {    // x_last has been read: its first rows hold the last positions now
            for (int i = 0; i < rows; i++)
                op.copy(x_last + int64_t(i) * C, lnf + (int64_t(b + i) * S + S - 1) * C, int64_t(sizeof(T)) * C);
            x = x_last;
        }
        op.linear_forward(head, x, w.wte, nullptr, nullptr, rows, C, Vp);
        op.download(host_logits.data(), head, int64_t(sizeof(T)) * rows * Vp);
        for (int i = 0; i < rows; i++, out += V)
            std::transform(&host_logits[size_t(i) * size_t(Vp)], &host_logits[size_t(i) * size_t(Vp)] + V, out,
                           [](T x) { return to_float(x); });
    }
}

template struct Gpt<float>;
template struct Gpt<double>;
template struct Gpt<bf16>;
