// model.cpp - a model's memory: its layout, and what it holds before weights are loaded.
#include "model/model.h"

#include <algorithm>

#include "layers/attention/random_features.h"
#include "model/position_tables.h"

char* HostBuffer::at_least(int64_t bytes) {
    if (bytes > pinned_bytes) {
        release();
        pinned = static_cast<char*>(allocate_host(bytes));
        pinned_bytes = pinned ? bytes : 0;
    }
    if (pinned) return pinned;
    pageable.resize(size_t(bytes));
    return pageable.data();
}
void HostBuffer::release() {
    if (pinned) release_host(pinned, pinned_bytes);
    pinned = nullptr;
    pinned_bytes = 0;
}

Model::Model(const Table& table) : Gpt(table, parameters), host_logits(op) {
    if (op.parameter == Element::packed) return;    // frozen: operations that fuse gradients are missing
    const char* missing = missing_operation(op);
    CHECK(!missing, "%s has no %s", op.name, missing);
    CHECK(!op.linear_gelu_forward == !op.linear_gelu_backward, "%s has one half of linear_gelu", op.name);
}
Model::~Model() {
    if (arena) op.release(arena, arena_bytes);
}

static void lay_out_training(Layout& at, ParamStore& s, TrainStep& step, const Plan& plan, bool bf16) {
    at.purpose("gradients");
    const int64_t held = s.flat / (s.zero ? s.ranks : 1);
    at.reserve(s.grads, s.zero == 2 ? held : s.flat);
    for (int i = 0; i < 3 && s.zero == 2; i++) {
        int64_t most = 0;
        for (int k = 0; k < int(s.buckets.size()); k++)
            if (s.work_buffer(k) == i) most = std::max(most, s.buckets[size_t(k)].size);
        at.reserve(s.work[i], most);
    }
    at.purpose("optimizer state");
    if (plan.optimizer) {
        for (size_t i = 0; i < s.states.size(); i++) {
            if (i) at.used += 64 * 17;    // see Layout::purpose
            StateArray& state = s.states[i];
            char* numbers = nullptr;
            at.reserve(numbers, s.state_elements(i) * element_bytes(state.type));
            state.p = numbers;
            if (state.type == Element::uint8) at.reserve(state.scales, s.state_elements(i) / 64);
        }
        at.reserve(s.matrix_work, s.matrix_work_elements());
        at.reserve(s.square_groups, int64_t(s.clipped.size()));
        if (bf16 && plan.master) at.reserve(s.master, held);
        at.reserve(s.groups, s.flat / 64);
    }
    step.lay_out(at);
}

void Model::lay_out(Layout& at, const Config& config, Plan asked) {
    if (asked.ranks == 1 && !store.comm) asked.zero = 0;    // one rank alone has nothing to partition
    if (!asked.source) asked.source = asked.S;
    if (!asked.sources) asked.sources = asked.B;
    c = config;
    plan = asked;
    tensors = config_tensors(c, plan.ranks);
    batch.configure(plan, c);
    store.set_layout(c, plan);
    at.purpose("parameters");
    if (op.parameter == Element::packed) {
        char* weights = nullptr;
        const bool trains = plan.mode == RunMode::train;
        store.packed.lay_out(tensors, plan.stored, c.position == Position::sinusoidal ? c.T : 0, c.C, trains);
        at.reserve(weights, store.packed.bytes);
        if (trains) at.reserve(store.master, store.flat);
        if (weights) store.packed.assign(weights, store.master);
    } else {
        at.reserve(store.params, store.flat + store.frozen);
    }
    if (plan.mode == RunMode::train) lay_out_training(at, store, train, plan, op.parameter == Element::bf16);
    lay_out_encoder(at);
    lay_out_activations(at, *this);
    lay_out_activation_gradients(at, *this);
    lay_out_logits(at, *this);
    ring.lay_out(at, c, plan);
    attention.lay_out(at, c, plan);
    global_attention.lay_out(at, c, plan);
    at.finish();
}

// The encoder is a second Gpt over the same parameters.
void Model::lay_out_encoder(Layout& at) {
    if (!c.encoder_layers) return;
    if (!encoder_stack) encoder_stack = std::make_unique<Gpt>(op, parameters);
    encoder = encoder_stack.get();
    first_bucket = 1 + c.encoder_layers;
    encoder->c = c.encoder();
    encoder->plan = plan;
    encoder->plan.B = plan.sources;
    encoder->plan.S = plan.source;
    encoder->plan.weighted = false;
    encoder->batch.configure(encoder->plan, encoder->c);
    lay_out_activations(at, *encoder);
    lay_out_activation_gradients(at, *encoder);
}

Status Model::allocate(const Config& config, const Plan& asked) {
    TRY(config_check(config));
    TRY(Ring::check(config, asked));
    CHECK(op.parameter != Element::packed || asked.mode == RunMode::infer || (config.adapter.any() && !asked.zero),
          "packed weights are only read");
    CHECK(!arena && asked.B > 0 && asked.S > 0 && asked.S <= config.T, "B=%d S=%d context=%d", asked.B, asked.S,
          config.T);
    // Indices of rows are int, also among the rows of experts, of which each token has
    // experts_used. The factor 4 leaves room for int expressions such as 2 * N.
    const int most = INT32_MAX / 4 / std::max(1, config.experts_used);
    if (int64_t(asked.B) * asked.S > most)
        return fail(Exit::usage, "batch x seq-len = %lld tokens at once, %d at most", (long long)asked.B * asked.S,
                    most);
    Layout count{op};
    lay_out(count, config, asked);
    arena_bytes = count.used;
    memory = count.purposes;
    arena = op.allocate(arena_bytes);
    if (!arena || !train.allocate())
        return fail(Exit::device,
                    "out of memory: the model needs %.2f GiB in one piece, %.2f GiB are free; a smaller --batch%s "
                    "needs less",
                    double(arena_bytes) / (1 << 30), double(op.free_bytes()) / (1 << 30),
                    asked.mode == RunMode::train ? ", or --recompute blocks," : " or --seq-len");
    Layout layout{op, static_cast<char*>(arena)};
    lay_out(layout, config, asked);
    PackedWeights& packed = store.packed;
    w = bind<Parameter>(c, plan.ranks, [&](const Tensor& t) {
        return packed.any() ? packed.at(t.offset) : op.at(store.params, t.offset);
    });
    fill_positions(*this);
    if (encoder) encoder->w = w.encoder[0], fill_positions(*encoder);
    if (plan.mode == RunMode::infer) return {};
    dw = bind<Gradient>(c, plan.ranks, [&](const Tensor& t) -> Gradient* {
        if (t.frozen) return nullptr;
        return op.at(store.gradients(t.bucket), t.offset - store.buckets[size_t(t.bucket)].offset);
    });
    if (bucket && !dw.relw) dbias = nullptr;
    if (encoder) encoder->dw = dw.encoder[0];
    if (encoder && encoder->bucket && !encoder->dw.relw) encoder->dbias = nullptr;
    if (!plan.optimizer) return {};
    store.group_factors = TRY(param_groups(c, tensors, plan.groups, plan.mup_base, *plan.optimizer));
    for (size_t i = 0; i < tensors.size(); i++) {    // allocated memory is zero
        const Tensor& t = tensors[i];
        const int64_t first = t.offset / 64, end = ceil_div(t.offset + t.size(), 64);
        const std::vector<uint8_t> groups(size_t(end - first), store.group_factors.of_tensor[i]);
        if (!t.frozen) op.upload(store.groups + first, groups.data(), end - first);
    }
    std::vector<uint8_t> clipped;
    for (size_t i = 0; i < tensors.size(); i++)
        if (!tensors[i].frozen && plan.clip_groups) clipped.push_back(store.group_factors.of_tensor[i]);
    op.upload(store.square_groups, clipped.data(), int64_t(clipped.size()));
    return {};
}

// Fills a stack's tables that are computed, not learned: of positions, performer's features, and
// constants of the means of texts.
void Model::fill_positions(Gpt& g) {
    PackedWeights& packed = store.packed;
    fill_cos_sin(op, g.c, g.cos_sin, g.cos_sin[0], g.batch.zigzag().starts(), g.plan.S);
    if (g.bucket) {
        const std::vector<int> buckets = relative_buckets(g.c.mask_kind != MaskKind::causal);
        op.upload(g.bucket, buckets.data(), int64_t(buckets.size() * sizeof(int)));
    }
    if (g.features) {
        const std::vector<float> matrix = random_features(g.c.HS);
        op.upload(g.features, matrix.data(), int64_t(matrix.size() * sizeof(float)));
    }
    if (g.pooled) op.zero(g.pool_qkv, op.bytes(g.pool_qkv, 3 * int64_t(g.plan.max_tokens()) * c.C));
    if (g.pooled && !copies_values(op)) {
        std::vector<float> values(size_t(3 * c.C) * size_t(c.C));
        for (int k = 0; k < c.C; k++) values[size_t(2 * c.C + k) * size_t(c.C) + size_t(k)] = 1;
        std::vector<char> host(size_t(op.bytes(g.pool_values, int64_t(values.size()))));
        from_floats(host.data(), op.parameter, values.data(), int64_t(values.size()));
        op.upload(g.pool_values, host.data(), int64_t(host.size()));
    }
    if (packed.any()) g.positions = packed.positions(g.w.wpe, c.position_offset);
    else g.positions = g.w.wpe ? op.at(g.w.wpe, int64_t(c.position_offset) * c.embed_width()) : g.sinusoids;
    if (c.position != Position::sinusoidal) return;
    const std::vector<float> exact = ::sinusoids(c, c.T);
    if (packed.any()) return op.upload(packed.position_table(), exact.data(), 4 * int64_t(exact.size()));
    std::vector<char> host(size_t(op.bytes(g.sinusoids, int64_t(exact.size()))));
    from_floats(host.data(), op.parameter, exact.data(), int64_t(exact.size()));
    op.upload(g.sinusoids, host.data(), int64_t(host.size()));
}

void Model::upload_pairs(const int* sources, const int* lengths, int source_S, const int* tok, const int* target, int B,
                         int S) {
    Spans spans;
    for (int b = 0; b < B; b++) {
        const int length = lengths ? lengths[b] : source_S;
        std::vector<Text> texts = {{}};
        if (length < source_S) texts.push_back({length, length});
        spans.add(texts, source_S, MaskKind::all);
    }
    encoder->batch.upload(sources, nullptr, B, source_S, &spans);
    batch.upload(tok, target, B, S, nullptr, lengths, source_S);
}

double Model::mean_loss(float* to) {
    std::vector<float> host(size_t(pass.B) * size_t(pass.S));
    op.download(host.data(), losses, int64_t(sizeof(float) * host.size()));
    if (to) std::copy(host.begin(), host.end(), to);
    double sum = 0;
    for (float loss : host) sum += double(loss);
    return sum / double(std::max<int64_t>(1, pass.targets));
}

std::vector<float> Model::pair_losses() {
    if (!c.predicts_next()) return {};
    std::vector<float> all(size_t(pass.B) * size_t(pass.S)), first;
    op.download(all.data(), next_losses, int64_t(sizeof(float) * all.size()));
    for (int b = 0; b < pass.B; b++) first.push_back(all[size_t(b) * size_t(pass.S)]);
    return first;
}

void Model::weighted_loss(const float* factors, const float* terms, int count, float scale) {
    CHECK(plan.weighted && count > 0 && count <= plan.B, "%d terms of %d sequences", count, plan.B);
    op.upload(position_weights, factors, int64_t(sizeof(float)) * pass.B * pass.S);
    op.upload(term_losses, terms, int64_t(sizeof(float)) * count);
    loss(true, scale, count);
}

// ---- pairs of texts -----------------------------------------------------------------------------

// The loss of the texts' labels, two classes (Devlin et al. 2019, section 3.1): B follows A, or it
// is another text. Its gradients are added to those of the other head, which has run before. All
// positions run, as in other classifiers, but only first ones have a target.
void Gpt::next_sentence_loss(bool train, float scale) {
    if (!c.predicts_next()) return;
    const int N = pass.B * pass.S, C = c.C, OC = Config::NEXT_PADDED;
    for (int n = 0; n < N; n += head_rows) {
        const int rows = std::min(head_rows, N - n);
        const int64_t at = int64_t(n) * C;
        const Input* y = head_transform(op, op.at(lnf, at), pooler(), rows, pass.precision);
        op.linear_forward(head, y, w.nextw, w.nextb, nullptr, rows, C, OC, pass.precision);
        op.cross_entropy(next_losses + n, train ? dhead : nullptr, head, batch.label() + n, nullptr, scale, {}, {},
                         rows, Config::NEXT_CLASSES, OC);
        if (!train) continue;
        GradTarget<Gradient> into = store.into(dw.nextw), of_pooler = store.into(dw.poolw);
        into.add |= n > 0, of_pooler.add |= n > 0;
        op.lm_head_backward(dtransform[0], into, dw.nextb, dhead, y, w.nextw, rows, C, OC, {});
        head_transform_backward(op, op.at(dx, at), {of_pooler, dw.poolb, nullptr, nullptr, dtransform[0], nullptr},
                                op.at(lnf, at), pooler(), rows);
        add_gradient(op, op.at(dt, at), op.at(dx, at), int64_t(rows) * C);
    }
    if (train) op.add_losses(step.next_loss, next_losses, N);
}
