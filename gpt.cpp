// gpt.cpp - the model, once: forward, backward, the step, generation.
#include "gpt.h"

#include <algorithm>
#include <cstring>

// ---- forward --------------------------------------------------------------------------------------------------------

void Model::batch(const int* from_tok, const int* from_target, int batch_B, int batch_S) {
    const int64_t N = int64_t(batch_B) * batch_S, most = int64_t(plan.B) * plan.S;
    CHECK(N > 0 && N <= most && batch_S <= c.T, "B=%d S=%d", batch_B, batch_S);
    next_B = batch_B, next_S = batch_S;
    if (from_tok) {
        host_input.resize(size_t(INPUT_HEAD + 2 * most));
        std::copy_n(from_tok, N, host_input.begin() + INPUT_HEAD);
        if (from_target) std::copy_n(from_target, N, host_input.begin() + INPUT_HEAD + most);
        host_input[0] = 0;
    }
    op.upload_ahead(staged, host_input.data(), input_bytes(from_target || !from_tok ? most + N : N));
}

void Model::forward() {
    CHECK(next_B > 0, "no batch was handed over");
    B = next_B, S = next_S, next_B = 0;
    op.take(input, staged, input_bytes(2 * int64_t(plan.B) * plan.S));
    blocks(nullptr);
}

void Model::blocks(Cache* cache) {
    if (!cache) shards.await_parameters(0);
    op.embedding_forward(a[0].x, tok(), w.wte, w.wpe, B, S, c.C, input);
    for (int l = 0; l < c.L; l++) {
        if (!cache) shards.await_parameters(1 + l);
        block_forward(l, l + 1 < c.L ? a[size_t(l) + 1].x : x_last, cache);
    }
    op.layernorm_forward(lnf, mean_f, rstd_f, x_last, w.lnfw, w.lnfb, c.norm_eps, B * S, c.C);
}

void Model::block_forward(int l, Activation* out, Cache* cache) {
    heartbeat();
    const Block<Parameter>& p = w.block[size_t(l)];
    const Activations& t = a[size_t(l)];
    const Heads h = c.heads();
    const int C = c.C, F = c.F, N = B * S;
    op.layernorm_forward(t.ln1, t.mean1, t.rstd1, t.x, p.ln1w, p.ln1b, c.norm_eps, N, C);
    op.linear_forward(t.qkv, t.ln1, p.qkvw, p.qkvb, nullptr, N, C, h.qkv_width());
    if (cache) {
        const int64_t layer = int64_t(l) * cache->B * h.NKV * cache->maxT * h.HS;
        op.attention_cached(t.atty, op.at(cache->k, layer), op.at(cache->v, layer), t.qkv, B, S, input, cache->maxT, h);
    } else {
        op.attention_forward(t.atty, t.lse, t.qkv, B, S, h);
    }
    op.linear_forward(t.x2, t.atty, p.projw, p.projb, t.x, N, h.width(), C);
    op.layernorm_forward(t.ln2, t.mean2, t.rstd2, t.x2, p.ln2w, p.ln2b, c.norm_eps, N, C);
    if (op.linear_gelu_forward) {
        op.linear_gelu_forward(t.fcg, t.fch, t.ln2, p.fcw, p.fcb, N, C, F);
    } else {
        op.linear_forward(t.fch, t.ln2, p.fcw, p.fcb, nullptr, N, C, F);
        op.gelu_forward(t.fcg, t.fch, int64_t(N) * F);
    }
    if (out) op.linear_forward(out, t.fcg, p.fc2w, p.fc2b, t.x2, N, F, C);
}

void Model::loss(bool train, float scale) {
    const int C = c.C, V = c.V, Vp = c.Vp(), N = B * S;
    if (train) shards.gradients_begin(0);
    for (int n = 0; n < N; n += head_rows) {
        const int rows = std::min(head_rows, N - n);
        const int64_t at = int64_t(n) * C;
        op.linear_forward(head, op.at(lnf, at), w.wte, nullptr, nullptr, rows, C, Vp);
        op.cross_entropy(losses + n, train ? head : nullptr, head, target() + n, scale, rows, V, Vp);
        if (train) op.linear_backward(op.at(dt, at), dw.wte, nullptr, head, op.at(lnf, at), w.wte, rows, C, Vp);
    }
    if (!train) return;
    op.add_losses(totals.loss, losses, N);
    step_tokens += N;
}

double Model::mean_loss(float* to) {
    const int N = B * S;
    host_losses.resize(size_t(N));
    op.download(host_losses.data(), losses, int64_t(sizeof(float)) * N);
    if (to) std::copy_n(host_losses.data(), N, to);
    double sum = 0;
    for (float loss : host_losses) sum += double(loss);
    return sum / N;
}

// ---- backward: the forward read from the bottom up ------------------------------------------------------------------

void Model::backward(bool last) {
    const int N = B * S;
    shards.gradients_begin(c.L);
    op.zero(dx, op.bytes(dx, int64_t(N) * c.C));
    op.layernorm_backward(dx, dw.lnfw, dw.lnfb, dt, x_last, w.lnfw, mean_f, rstd_f, N, c.C);
    for (int l = c.L - 1; l >= 0; l--) {
        if (l + 1 < c.L) shards.gradients_begin(1 + l);
        block_again(l);
        block_backward(l);
        shards.gradients_done(1 + l, last);
    }
    op.embedding_backward(dw.wte, dw.wpe, dx, tok(), B, S, c.C, c.V);
    shards.gradients_done(0, last);
}

void Model::block_again(int l) {
    const Block<Parameter>& p = w.block[size_t(l)];
    const Activations& t = a[size_t(l)];
    if (plan.recompute == Recompute::blocks) block_forward(l, nullptr, nullptr);
    if (plan.recompute != Recompute::cheap) return;
    op.layernorm_forward(t.ln1, t.mean1, t.rstd1, t.x, p.ln1w, p.ln1b, c.norm_eps, B * S, c.C);
    op.layernorm_forward(t.ln2, t.mean2, t.rstd2, t.x2, p.ln2w, p.ln2b, c.norm_eps, B * S, c.C);
    op.gelu_forward(t.fcg, t.fch, int64_t(B) * S * c.F);
}

void Model::block_backward(int l) {
    heartbeat();
    const Block<Parameter>& p = w.block[size_t(l)];
    const Block<Gradient>& d = dw.block[size_t(l)];
    const Activations& t = a[size_t(l)];
    const Heads h = c.heads();
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
    op.linear_backward(dt, d.projw, d.projb, dx, t.atty, p.projw, N, h.width(), C);
    op.attention_backward(dwide, dt, t.atty, t.qkv, t.lse, B, S, h);
    op.linear_backward(dt, d.qkvw, d.qkvb, dwide, t.ln1, p.qkvw, N, C, h.qkv_width());
    op.layernorm_backward(dx, d.ln1w, d.ln1b, dt, t.x, p.ln1w, t.mean1, t.rstd1, N, C);
}

// ---- the step -------------------------------------------------------------------------------------------------------

void Model::begin_step() {
    shards.clear_gradients();
    op.zero(totals.loss, int64_t(sizeof(double)));
    step_tokens = 0;
}

double Model::grad_norm() {
    double square;
    op.sum_of_squares(totals.squares, shards.grads, shards.flat);
    op.download(&square, totals.squares, int64_t(sizeof square));
    return std::sqrt(square);
}

void Model::update(const AdamW& adam, const Limits& limits, uint64_t seed, int signal) {
    CHECK(updates - finished < 2, "two updates are pending");
    const int squares = shards.sum(totals, signal);
    op.gate(step, totals.loss, 1 / (double(std::max<int64_t>(1, step_tokens)) * plan.ranks), totals.squares, squares,
            adam, limits);
    for (const Share& s : shards.updates()) {
        float* master = shards.master ? shards.master + s.held : nullptr;
        // Each share has a seed of its own, as elements are counted from 0.
        op.adamw(op.at(shards.params, s.first), master, shards.m + s.held, shards.v + s.held,
                 shards.share_gradients(s), shards.decays + s.first / 64, s.size, step, adam,
                 seed + uint64_t(s.first));
        shards.update_done(s);
    }
    char* to = results + updates % 2 * result_bytes();
    op.download_later(to, step, int64_t(sizeof(Step)));
    op.download_later(to + sizeof(Step), totals.reports, plan.ranks * int64_t(sizeof(RankReport)));
    marks[updates++ % 2] = op.mark();
}

Step Model::finish(std::vector<RankReport>* reports) {
    CHECK(finished < updates, "no update is pending");
    {
        Waiting waiting(shards.comm ? shards.comm->pulse : nullptr);
        op.wait(marks[finished % 2]);
    }
    const char* from = results + finished++ % 2 * result_bytes();
    Step s;
    memcpy(&s, from, sizeof s);
    if (reports) {
        reports->resize(size_t(plan.ranks));
        memcpy(reports->data(), from + sizeof s, reports->size() * sizeof(RankReport));
    }
    return s;
}

void Model::set_updates(int64_t done) {
    Step s = {};
    s.updates = done;
    op.upload(step, &s, int64_t(sizeof s));
}

// ---- generation -----------------------------------------------------------------------------------------------------

Status Model::cache_allocate(Cache& cache, int cache_B, int maxT) {
    const Heads h = c.heads();
    CHECK(!cache.k, "the cache holds %d sequences", cache.B);
    cache.op = &op, cache.B = cache_B, cache.maxT = maxT;
    const int64_t elements = int64_t(c.L) * cache_B * h.NKV * maxT * h.HS;
    cache.bytes = 2 * op.bytes(cache.k, elements);
    cache.k = static_cast<Activation*>(op.allocate(cache.bytes));
    if (!cache.k)
        return fail(Exit::device,
                    "out of memory: the key/value cache of %d sequences of %d tokens needs %.2f GiB; a smaller --num "
                    "needs less",
                    cache_B, maxT, double(cache.bytes) / (1 << 30));
    cache.v = op.at(cache.k, elements);
    return {};
}
Cache::~Cache() {
    if (graph) op->release_graph(graph);
    if (k) op->release(k, bytes);
}
void Model::cache_spread(const Cache& from, Cache& to) {
    CHECK(from.B == 1 && from.maxT == to.maxT, "B=%d", from.B);
    const Heads h = c.heads();
    const int64_t row = int64_t(h.NKV) * from.maxT * h.HS;    // elements of a sequence in a layer
    for (int64_t l = 0; l < c.L; l++)
        for (int b = 0; b < to.B; b++) {
            op.copy(op.at(to.k, (l * to.B + b) * row), op.at(from.k, l * row), op.bytes(from.k, row));
            op.copy(op.at(to.v, (l * to.B + b) * row), op.at(from.v, l * row), op.bytes(from.v, row));
        }
    to.pos = from.pos;
}

void Model::extend(Cache& cache, const int* from_tok, int more) {
    B = cache.B, S = more;
    CHECK(int64_t(B) * S <= int64_t(plan.B) * plan.S && cache.pos + S <= cache.maxT, "B=%d S=%d pos=%d max=%d", B, S,
          cache.pos, cache.maxT);
    host_input.resize(size_t(INPUT_HEAD + B * S));
    host_input[0] = cache.pos;
    std::copy_n(from_tok, B * S, host_input.begin() + INPUT_HEAD);
    op.upload(input, host_input.data(), input_bytes(B * S));
    shards.await();    // not within a recording
    cache.steps = S == 1 ? cache.steps + 1 : 0;
    if (cache.graph && S > 1) op.release_graph(cache.graph), cache.graph = nullptr;    // scratch may move
    if (op.record && cache.steps >= 2) {    // the first one has allocated what it needs
        if (!cache.graph) {
            op.record();
            blocks(&cache);
            cache.graph = op.recorded();
        }
        op.replay(cache.graph);
    } else {
        blocks(&cache);
    }
    cache.pos += S;
}

void Model::logits(float* out) {
    const int C = c.C, V = c.V, Vp = c.Vp();
    for (int b = 0; b < B; b += head_rows) {
        const int rows = std::min(head_rows, B - b);
        Activation* x = op.at(lnf, int64_t(b) * C);
        if (S > 1) {    // x_last has been read: its first rows hold the last positions now
            for (int i = 0; i < rows; i++)
                op.copy(op.at(x_last, int64_t(i) * C), op.at(lnf, (int64_t(b + i) * S + S - 1) * C), op.bytes(lnf, C));
            x = x_last;
        }
        op.linear_forward(head, x, w.wte, nullptr, nullptr, rows, C, Vp);
        if (op.activation == Element::f32) {
            for (int i = 0; i < rows; i++, out += V) op.download(out, op.at(head, int64_t(i) * Vp), op.bytes(head, V));
            continue;
        }
        host_logits.resize(size_t(op.bytes(head, int64_t(rows) * Vp)));
        op.download(host_logits.data(), head, int64_t(host_logits.size()));
        for (int i = 0; i < rows; i++, out += V)
            to_floats(out, host_logits.data() + op.bytes(head, int64_t(i) * Vp), op.activation, V);
    }
}
