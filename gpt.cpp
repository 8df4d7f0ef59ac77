// gpt.cpp - the model, once: forward, backward, update, generation. It calls operations through Ops<T, P> alone.
#include "gpt.h"

#include <algorithm>
#include <cstring>

// ---- forward --------------------------------------------------------------------------------------------------------

template <class T, class P>
void Gpt<T, P>::batch(const int* from_tok, const int* from_target, int batch_B, int batch_S) {
    const int64_t N = int64_t(batch_B) * batch_S, room = int64_t(plan.B) * plan.S;
    CHECK(N > 0 && N <= room && batch_S <= c.T, "B=%d S=%d", batch_B, batch_S);
    std::copy_n(from_tok, N, host_in.begin() + IN_HEAD);
    if (from_target) std::copy_n(from_target, N, host_in.begin() + IN_HEAD + room);
    host_in[0] = 0;
    op.upload_ahead(staged, host_in.data(), int64_t(sizeof(int)) * (IN_HEAD + room + (from_target ? N : 0)));
    next_B = batch_B, next_S = batch_S;
}

template <class T, class P> void Gpt<T, P>::forward() {
    CHECK(next_B > 0, "no batch was handed over");
    B = next_B, S = next_S, next_B = 0;
    op.take(in, staged, int64_t(sizeof(int)) * int64_t(host_in.size()));
    stack(nullptr);
}

template <class T, class P> void Gpt<T, P>::stack(Cache* cache) {
    if (!cache) await(0);
    op.embedding_forward(a[0].x, tok(), w.wte, w.wpe, B, S, c.C, in);
    for (int l = 0; l < c.L; l++) {
        if (!cache) await(1 + l);
        block_forward(l, l + 1 < c.L ? a[size_t(l) + 1].x : x_last, cache);
    }
    op.layernorm_forward(lnf, mean_f, rstd_f, x_last, w.lnfw, w.lnfb, c.norm_eps, B * S, c.C);
}

template <class T, class P> void Gpt<T, P>::block_forward(int l, T* out, Cache* cache) {
    heartbeat();
    const Block<P>& p = w.block[size_t(l)];
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

template <class T, class P> void Gpt<T, P>::loss(bool train, float scale) {
    const int C = c.C, V = c.V, Vp = c.Vp(), N = B * S;
    if (train) prepare(0);
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

template <class T, class P> double Gpt<T, P>::mean_loss(float* losses) {
    const int N = B * S;
    float* host = losses ? losses : host_loss.data();
    op.download(host, loss_of, int64_t(sizeof(float)) * N);
    double sum = 0;
    for (int n = 0; n < N; n++) sum += double(host[n]);
    return sum / N;
}

// ---- backward: the forward read from the bottom up ------------------------------------------------------------------

template <class T, class P> void Gpt<T, P>::backward(bool last) {
    const int N = B * S;
    prepare(c.L);
    op.zero(dx, int64_t(sizeof(T)) * N * c.C);
    op.layernorm_backward(dx, dw.lnfw, dw.lnfb, dt, x_last, w.lnfw, mean_f, rstd_f, N, c.C);
    for (int l = c.L - 1; l >= 0; l--) {
        if (l + 1 < c.L) prepare(1 + l);
        block_again(l);
        block_backward(l);
        send(1 + l, last);
    }
    op.embedding_backward(dw.wte, dw.wpe, dx, tok(), B, S, c.C, c.V);
    send(0, last);
}

template <class T, class P> void Gpt<T, P>::block_again(int l) {
    const Block<P>& p = w.block[size_t(l)];
    const Activations<T>& t = a[size_t(l)];
    if (plan.recompute == Recompute::blocks) block_forward(l, nullptr, nullptr);
    if (plan.recompute != Recompute::cheap) return;
    op.layernorm_forward(t.ln1, t.mean1, t.rstd1, t.x, p.ln1w, p.ln1b, c.norm_eps, B * S, c.C);
    op.layernorm_forward(t.ln2, t.mean2, t.rstd2, t.x2, p.ln2w, p.ln2b, c.norm_eps, B * S, c.C);
    op.gelu_forward(t.fcg, t.fch, int64_t(B) * S * c.F);
}

template <class T, class P> void Gpt<T, P>::block_backward(int l) {
    heartbeat();
    const Block<P>& p = w.block[size_t(l)];
    const Block<Grad<P>>& d = dw.block[size_t(l)];
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

// ---- the step -------------------------------------------------------------------------------------------------------

// Where gradients are made for one bucket after the other, the sum so far comes back as this rank's share of the next.
template <class T, class P> void Gpt<T, P>::prepare(int k) {
    if (plan.zero < 2) return;
    if (comm) comm->join(work_mark[work_of(k)]);
    op.zero(made(k), buckets[size_t(k)].size * int64_t(sizeof(Grad<P>)));
    op.copy(made(k) + plan.rank * part_of(k), reduced(k), part_of(k) * int64_t(sizeof(Grad<P>)));
}

template <class T, class P> void Gpt<T, P>::send(int k, bool last) {
    if (!comm || !(last || plan.zero == 2)) return;
    if (plan.zero) comm->reduce_scatter(reduced(k), made(k), part_of(k), element_of<Grad<P>>, plan.wire);
    else comm->all_reduce(made(k), buckets[size_t(k)].size, element_of<Grad<P>>, plan.wire);
    work_mark[work_of(k)] = comm->mark();
}

template <class T, class P> void Gpt<T, P>::begin_step() {
    op.zero(grads, (plan.zero == 2 ? flat / plan.ranks : flat) * int64_t(sizeof(Grad<P>)));
    op.zero(loss_total, int64_t(sizeof(double)));
    step_tokens = 0;
}

template <class T, class P> double Gpt<T, P>::grad_norm() {
    double square;
    op.sum_of_squares(squares, grads, flat);
    op.download(&square, squares, int64_t(sizeof square));
    return std::sqrt(square);
}

// Every rank takes the squares of its own parts, whether they are all that it holds or not: the same sum either way.
// With the loss and what each rank has to say they are added in one piece, which is then the same everywhere; so is the
// verdict.
template <class T, class P> int Gpt<T, P>::sum_over_ranks(int signal) {
    if (!comm) {
        op.sum_of_squares(squares, grads, flat);
        return 1;
    }
    const int n = int(buckets.size());
    comm->join(comm->mark());
    for (int k = 0; k < n; k++) op.sum_of_squares(squares + k, reduced(k), part_of(k));
    const double loud = signal;
    op.zero(said, plan.ranks * int64_t(sizeof(Said)));
    op.copy(said + 2 * plan.rank, loss_total, int64_t(sizeof(double)));
    op.upload(said + 2 * plan.rank + 1, &loud, int64_t(sizeof(double)));
    comm->all_reduce(loss_total, 1 + n + 2 * plan.ranks, Element::f64, Element::f64);
    comm->join(comm->mark());
    return n;
}

template <class T, class P> void Gpt<T, P>::update(const AdamW& adam, const Limits& limits, uint64_t seed, int signal) {
    CHECK(updates - finished < 2, "two updates are pending");
    const int sums = sum_over_ranks(signal);
    op.gate(step, loss_total, 1 / (double(std::max<int64_t>(1, step_tokens)) * plan.ranks), squares, sums, adam,
            limits);
    if (!plan.zero) op.adamw(params, master, m, v, grads, decays, flat, step, adam, seed);
    for (int k = 0; k < int(buckets.size()) && plan.zero; k++) {
        const int64_t at = mine(k), held = shard(k);
        // Another seed for each part: their elements are counted from 0.
        op.adamw(params + at, master ? master + held : nullptr, m + held, v + held, reduced(k), decays + at / 64,
                 part_of(k), step, adam, seed + uint64_t(at));
        comm->all_gather(params + buckets[size_t(k)].offset, part_of(k), element_of<P>);
        here[size_t(k)] = comm->mark();
    }
    char* to = results + updates % 2 * result_bytes();
    op.download_later(to, step, int64_t(sizeof(Step)));
    op.download_later(to + sizeof(Step), said, plan.ranks * int64_t(sizeof(Said)));
    marks[updates++ % 2] = op.mark();
}

template <class T, class P> Step Gpt<T, P>::finish(std::vector<Said>* heard) {
    CHECK(finished < updates, "no update is pending");
    {
        Waiting waiting(comm ? comm->pulse : nullptr);
        op.wait(marks[finished % 2]);
    }
    const char* from = results + finished++ % 2 * result_bytes();
    Step s;
    memcpy(&s, from, sizeof s);
    if (heard) heard->resize(size_t(plan.ranks)), memcpy(heard->data(), from + sizeof s, heard->size() * sizeof(Said));
    return s;
}

template <class T, class P> void Gpt<T, P>::set_updates(int64_t done) {
    Step s = {};
    s.updates = done;
    op.upload(step, &s, int64_t(sizeof s));
}

// ---- generation -----------------------------------------------------------------------------------------------------

template <class T, class P> Status Gpt<T, P>::cache_allocate(Cache& cache, int cache_B, int maxT) {
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
template <class T, class P> void Gpt<T, P>::cache_free(Cache& cache) {
    if (cache.graph) op.release_graph(cache.graph);
    if (cache.k) op.release(cache.k, cache.bytes);
    cache = {};
}
template <class T, class P> void Gpt<T, P>::cache_spread(const Cache& from, Cache& to) {
    CHECK(from.B == 1 && from.maxT == to.maxT, "B=%d", from.B);
    const int64_t row = from.bytes / 2 / c.L;
    for (int l = 0; l < c.L; l++)
        for (int b = 0; b < to.B; b++)
            for (auto [source, destination] : {std::pair{from.k, to.k}, std::pair{from.v, to.v}})
                op.copy(static_cast<char*>(destination) + (int64_t(l) * to.B + b) * row,
                        static_cast<char*>(source) + l * row, row);
    to.pos = from.pos;
}

template <class T, class P> void Gpt<T, P>::extend(Cache& cache, const int* from_tok, int more) {
    B = cache.B, S = more;
    CHECK(int64_t(B) * S <= int64_t(plan.B) * plan.S && cache.pos + S <= cache.maxT, "B=%d S=%d pos=%d max=%d", B, S,
          cache.pos, cache.maxT);
    host_in[0] = cache.pos;
    std::copy_n(from_tok, B * S, host_in.begin() + IN_HEAD);
    op.upload(in, host_in.data(), int64_t(sizeof(int)) * (IN_HEAD + B * S));
    if (comm) comm->join(comm->mark());    // not within a recording
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

template <class T, class P> void Gpt<T, P>::logits(float* out) {
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
        if constexpr (std::is_same_v<T, float>) {
            for (int i = 0; i < rows; i++, out += V) op.download(out, head + int64_t(i) * Vp, int64_t(sizeof(T)) * V);
            continue;
        }
        op.download(host_logits.data(), head, int64_t(sizeof(T)) * rows * Vp);
        for (int i = 0; i < rows; i++, out += V)
            std::transform(&host_logits[size_t(i) * size_t(Vp)], &host_logits[size_t(i) * size_t(Vp)] + V, out,
                           [](T x) { return to_float(x); });
    }
}

template struct Gpt<float>;
template struct Gpt<double>;
template struct Gpt<bf16>;
template struct Gpt<float, bf16>;
