// decoder.cpp - generation: prefill and decode steps over the cache, sampling, logits.
#include "model/decoder.h"

#include <algorithm>

#include "base/pool.h"

namespace {
// Whether extend runs the last block to its end for all S positions. Otherwise it stops after that
// block's attention, and finish_rows runs the rest for the few positions whose logits are wanted.
// finish_rows has no cache, so it cannot compute cross-attention, which follows in the block.
bool runs_whole_blocks(const Model& g, int S) { return S == 1 || g.encoder; }
void blocks(Model& g, KvCache* cache, bool last_whole) {
    // Smear reads the embedding of the token before. A call's first token finds it in history.
    if (g.c.smear) {
        g.op.previous_tokens(cache->previous, cache->history, cache->tok, cache->sequences, cache->cache_pos, g.pass.B,
                             g.pass.S, cache->positions);
        g.embed_tokens(g.previous, cache->previous, cache->pos);
    }
    g.embed_forward(cache);
    for (int l = 0; l + 1 < g.c.L; l++) g.block_forward(l, g.a[size_t(l) + 1].in, cache);
    const Gpt::BlockPart part = last_whole ? Gpt::BlockPart::whole : Gpt::BlockPart::attention;
    g.block_forward(g.c.L - 1, g.x_last, cache, part);
    if (last_whole) g.final_norm();
}

void draw(Model& g, KvCache& cache, const SampleArgs& d) {
    CHECK(g.pass.S == 1, "S=%d", g.pass.S);
    for (int n = 0; n < g.pass.B; n += g.head_rows) {
        const int rows = std::min(g.head_rows, g.pass.B - n);
        g.head_forward(g.head, g.op.at(g.lnf, int64_t(n) * g.c.C), rows);
        g.op.sample(cache.tok + n, d.counts, d.at + n, cache.cache_pos + n, cache.kind.evicts ? nullptr : cache.pos + n,
                    g.head, d.bias, d.params, g.c.logits_of(), rows, d.V, g.c.Vp());
    }
}

// Runs the blocks and samples. Decode steps are captured as CUDA graphs, one for each number of
// sequences, with and without sampling. A graph can serve any sequences, because it reads their
// indices from device memory. The first of consecutive decode steps runs without capture, because
// it may allocate scratch.
void run(Model& g, KvCache& cache, bool as_before, const SampleArgs* sample_args) {
    const int B = g.pass.B, S = g.pass.S;
    if (sample_args && *sample_args != cache.sample_args) {
        cache.sample_args = *sample_args;
        as_before = false;
        cache.release_graphs();
    }
    cache.steps = as_before && cache.sampled == (sample_args != nullptr) ? cache.steps + 1 : S == 1;
    cache.sampled = sample_args != nullptr;
    if (const int64_t rows = int64_t(B) * S; rows > cache.max_rows) {
        cache.max_rows = rows;    // scratch may move; graphs hold its old address
        cache.release_graphs();
    }
    auto step = [&] {
        blocks(g, &cache, runs_whole_blocks(g, S));
        if (sample_args) draw(g, cache, *sample_args);
    };
    // Keeps on_device equal to the positions on the device, where operation sample increments
    // cache_pos. It also increments pos, unless the cache evicts, because pos is then a row of this
    // call's cos_sin table.
    for (int i = 0; sample_args && i < (cache.kind.evicts ? B : 2 * B); i++) cache.on_device[size_t(i)]++;
    if (!g.op.begin_capture || S > 1 || g.pass.spans || g.after_attention) return step();
    auto graph = cache.graphs.find({B, cache.sampled});
    if (graph == cache.graphs.end()) {
        if (cache.steps < 2) return step();
        g.op.begin_capture();
        step();
        graph = cache.graphs.emplace(std::pair(B, cache.sampled), g.op.end_capture()).first;
    }
    g.op.launch_graph(graph->second);
}

// Uploads spans that make each prompt one prefix with bidirectional attention.
void upload_prefixes(Model& g, const std::vector<int>& lengths) {
    const int S = g.pass.S;
    Spans prompts;
    for (int length : lengths) {
        std::vector<Text> texts = {{0, length}};
        if (length < S) texts.push_back({length, length});
        prompts.add(texts, S, g.c.mask_kind);
    }
    const int64_t bytes = int64_t(sizeof(Span) * prompts.keys.size());
    g.op.upload(g.batch.keys(), prompts.keys.data(), bytes);
    g.op.upload(g.batch.queries(), prompts.queries.data(), bytes);
}

// Moves the given rows of x to its front. Rows ascend, so none is overwritten before it is read.
template <class X> void to_front(const Table& op, X* x, int width, const std::vector<int>& rows) {
    for (int i = 0; i < int(rows.size()); i++)
        if (rows[size_t(i)] != i)
            op.copy(op.at(x, int64_t(i) * width), op.at(x, int64_t(rows[size_t(i)]) * width), op.bytes(x, width));
}
// Runs the rest of the pass on these rows, which ascend. Their normed outputs become the first rows
// of lnf.
void finish_rows(Model& g, const PendingHead& pending, const std::vector<int>& rows) {
    const Table& op = g.op;
    const int C = g.c.C;
    g.pass = {};
    g.pass.B = 1;
    g.pass.S = int(rows.size());
    g.pass.precision = pending.pass.precision;
    if (!pending.last_block) return to_front(op, g.lnf, C, rows);
    const Activations& t = g.a.back();
    to_front(op, t.atty, g.c.attention_width(), rows);
    to_front(op, t.x, C, rows);
    if (g.c.backout) to_front(op, g.x_middle, C, rows);
    if (g.c.parallel == Parallel::one) to_front(op, t.ln2, C, rows);
    g.block_forward(g.c.L - 1, g.x_last, nullptr, Gpt::BlockPart::after_attention);
    g.final_norm();
}

float shaped(const Logits& z, float x) { return z.cap != 0 ? z.cap * std::tanh(z.scale * x / z.cap) : z.scale * x; }

// The first of the largest numbers. Sixteen running maxima let the compiler use vectors.
int first_largest(const float* x, int n) {
    constexpr int W = 16;
    float most[W];
    std::fill_n(most, W, -INFINITY);
    int i = 0;
    for (; i + W <= n; i += W)
        for (int k = 0; k < W; k++) most[k] = x[i + k] > most[k] ? x[i + k] : most[k];
    for (; i < n; i++) most[0] = std::max(most[0], x[i]);
    return int(std::find(x, x + n, *std::max_element(most, most + W)) - x);
}
}    // namespace

Status allocate_cache(Model& g, KvCache& cache, int sequences, int positions, const CacheOptions& kind) {
    return cache.allocate(g.op, g.c, int(g.plan.max_tokens()), sequences, positions, kind);
}

void encode_source(Model& g, KvCache& cache, int seq, const int* tok, int n) {
    g.encoder->batch.upload(tok, nullptr, 1, n);
    g.encoder->forward();
    g.pass = {};
    const Heads h = g.c.cross_heads(n);
    cache.begin_source(seq, n);
    for (int l = 0; l < g.c.L; l++) {
        g.refresh_row_norms(l);
        cross_keys(g.op, g.cross_step(l, nullptr));
        g.op.cache_append(cache.source.layers[size_t(l)], g.a[size_t(l)].cross_kv, 1, n, cache.source.pos, h);
    }
}

PendingHead extend(Model& g, KvCache& cache, const int* tok, int S, const std::vector<int>& which,
                   const std::vector<int>& asked_lengths, Pages::SumOrder sum_order, const SampleArgs* sample_args) {
    std::vector<int> running = which, lengths = asked_lengths;
    for (int b = 0; which.empty() && b < cache.table.sequences(); b++) running.push_back(b);
    const int B = int(running.size());
    CHECK(int64_t(B) * S <= g.plan.max_tokens(), "B=%d S=%d", B, S);
    lengths.resize(size_t(B), S);
    const bool as_before = S == 1 && B == int(cache.running.size());
    cache.sum_order = sum_order;
    const std::vector<int> first = cache.grow(tok, S, std::move(running), lengths);

    g.pass = {};
    g.pass.B = B;
    g.pass.S = S;
    g.pass.precision = Pages::decode(sum_order, S) ? Precision::normal : Precision::prefill;
    const bool prefill = (S > 1 || sum_order == Pages::SumOrder::prefill) &&
                         std::all_of(first.begin(), first.end(), [](int pos) { return pos == 0; });
    cache.from_start = S > 1 && prefill && g.pass.precision == Precision::prefill;
    g.pass.spans = g.c.mask_kind == MaskKind::prefix && prefill;
    if (g.pass.spans) upload_prefixes(g, lengths);
    g.store.await();                                           // may wait, which graph capture forbids
    for (int l = 0; l < g.c.L; l++) g.refresh_row_norms(l);    // a graph that is launched again has no such check
    run(g, cache, as_before, sample_args);
    return {g.pass, lengths, !runs_whole_blocks(g, S)};
}

PendingHead whole_batch(const Model& g) { return {g.pass, std::vector<int>(size_t(g.pass.B), g.pass.S), false}; }

void compute_logits(Model& g, const PendingHead& pending, float* out, const std::vector<int>& asked) {
    const Table& op = g.op;
    const int C = g.c.C, V = g.c.V, Vp = g.c.Vp(), S = pending.pass.S;
    std::vector<int> rows = asked;
    for (int b = 0; b < pending.pass.B && asked.empty(); b++) rows.push_back(b * S + pending.lengths[size_t(b)] - 1);
    const int N = int(rows.size());
    finish_rows(g, pending, rows);
    char* const host = g.host_logits.at_least(op.bytes(g.head, int64_t(std::min(g.head_rows, N)) * Vp));
    const Logits z = g.c.logits_of();
    for (int n = 0; n < N; n += g.head_rows) {
        const int chunk = std::min(g.head_rows, N - n);
        g.head_forward(g.head, op.at(g.lnf, int64_t(n) * C), chunk);
        op.download(host, g.head, op.bytes(g.head, int64_t(chunk) * Vp));
        for (int i = 0; i < chunk; i++, out += V) {
            to_floats(out, host + op.bytes(g.head, int64_t(i) * Vp), op.activation, V);
            for (int v = 0; v < V && (z.scale != 1 || z.cap != 0); v++) out[v] = shaped(z, out[v]);
        }
    }
}

void score_tokens(Model& g, const PendingHead& pending, const std::vector<RowTarget>& wanted, bool ranked,
                  TokenScore* out) {
    const Table& op = g.op;
    const int C = g.c.C, V = g.c.V, Vp = g.c.Vp();
    std::vector<int> rows, firsts;
    std::vector<size_t> begins;    // index in `wanted` of each row's first token; at the end, its size
    for (size_t i = 0; i < wanted.size(); i++)
        if (rows.empty() || rows.back() != wanted[i].row) {
            rows.push_back(wanted[i].row);
            firsts.push_back(wanted[i].token);
            begins.push_back(i);
        }
    begins.push_back(wanted.size());
    finish_rows(g, pending, rows);
    const Logits z = g.c.logits_of();
    const int64_t row_bytes = op.bytes(g.head, Vp);
    std::vector<float> losses(size_t(g.head_rows));
    for (int n = 0; n < int(rows.size()); n += g.head_rows) {
        const int chunk = std::min(g.head_rows, int(rows.size()) - n);
        g.head_forward(g.head, op.at(g.lnf, int64_t(n) * C), chunk);
        op.upload(g.batch.target(), &firsts[size_t(n)], int64_t(sizeof(int)) * chunk);
        op.cross_entropy(g.losses, nullptr, g.head, g.batch.target(), nullptr, 1, {}, z, chunk, V, Vp);
        op.download(losses.data(), g.losses, int64_t(sizeof(float)) * chunk);
        char* const host = g.host_logits.at_least(row_bytes * chunk);
        auto several = [&](int i) { return begins[size_t(n + i) + 1] - begins[size_t(n + i)] > 1; };
        if (ranked) op.download(host, g.head, row_bytes * chunk);
        for (int i = 0; i < chunk && !ranked; i++)
            if (several(i)) op.download(host + row_bytes * i, op.at(g.head, int64_t(i) * Vp), row_bytes);
        each_chunk(chunk, [&](int64_t i, int) {
            const size_t first = begins[size_t(n + i)];
            out[first] = {-losses[size_t(i)]};
            if (!ranked && !several(int(i))) return;
            auto logit = [&](size_t k) {
                float x = 0;
                to_floats(&x, host + row_bytes * i + op.bytes(g.head, wanted[k].token), op.activation, 1);
                return shaped(z, x);
            };
            int best = -1;
            if (ranked) {
                std::vector<float> x(static_cast<size_t>(V));
                to_floats(x.data(), host + row_bytes * i, op.activation, V);
                best = first_largest(x.data(), V);
            }
            const float base = logit(first);
            for (size_t k = first; k < begins[size_t(n + i) + 1]; k++)
                out[k] = {logit(k) - base - losses[size_t(i)], wanted[k].token == best};
        });
    }
}
