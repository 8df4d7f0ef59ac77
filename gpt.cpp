// gpt.cpp - the model, written once: forward, loss, backward. model/decoder.cpp generates with it.
#include "gpt.h"

#include <algorithm>

#include "model/kv_cache.h"
#include "model/weights.h"

// ---- forward ------------------------------------------------------------------------------------

void Gpt::forward(bool training) {
    if (encoder) {
        encoder->step = step;
        encoder->forward(training);
    }
    static_cast<Batch::Sizes&>(pass) = batch.use_uploaded();
    pass.training = training;
    pass.precision = Precision::prefill;
    pass.first_sequence = step.sequences + int64_t(plan.ring()) * pass.B;
    step.sequences += training ? int64_t(plan.rings()) * pass.B : 0;
    store.await_parameters(0);
    embed_forward(nullptr);
    for (int l = 0; l < c.L; l++) {
        store.await_parameters(first_bucket + l);
        block_forward(l, l + 1 < c.L ? a[size_t(l) + 1].in : x_last, nullptr);
    }
    final_norm();
    pool_forward(op, lnf, pool_step(), pass.B, pass.S);
}

// to = norm(scale * (wte[token] + positions + segments)); most models have no norm here. With
// embeddings of another width, a product follows the norm. x_last serves as scratch.
void Gpt::embed_tokens(Activation* to, const int* tok, const int* pos) {
    const int B = pass.B, S = pass.S, E = c.embed_width(), N = B * S;
    Activation* x = c.embed_norm ? embedded : to;
    op.embedding_forward(x, tok, w.wte, positions, B, S, E, pos);
    segments_forward(op, x, x_last, batch.segment(), w.segw, B, S, E);
    scale_and_drop(op, x, c.embed_scale, int64_t(N) * E, {});
    norm_project(op, to, embedded_normed, x, norm_of_embeddings(), {w.embed_projw, w.embed_projb}, N, E, c.C);
}

void Gpt::embed_forward(const KvCache* cache) {
    const int B = pass.B, S = pass.S, C = c.C;
    const int *tok = cache ? cache->tok : batch.tok(), *pos = cache ? cache->pos : text_positions();
    embed_tokens(unsmeared, tok, pos);
    smear_forward(op, x0, unsmeared, cache ? previous : nullptr, w.smearw, w.smear_lambda, B, S, C, pos);
    scale_and_drop(op, x0, 1, int64_t(B) * S * C, dropout(DropoutSite::embeddings));
    // T5's position bias, which all blocks share.
    relative_bias_forward(op, bias, w.relw, bucket, RELATIVE_BUCKETS, c.NH, 2 * RELATIVE_MAX_DISTANCE + 1);
}

void Gpt::block_forward(int l, Activation* out, KvCache* cache, BlockPart part) {
    count_progress();
    pass.layer = l;
    refresh_row_norms(l);
    const auto [p, t] = layer(l);
    const Precision precision = precision_of(l);
    const int C = c.C, N = pass.B * pass.S;
    // Generation has no backward pass: fused operations may leave out intermediate results.
    const bool generates = cache || part == BlockPart::after_attention;
    const bool keep = !generates || c.parallel == Parallel::one;

    // Attention branch: norm, qkv projection, attention.
    if (part != BlockPart::after_attention) {
        residual_mix_forward(op, t.x, t.in, x0, w.residw, w.x0w, l, 1, int64_t(N) * C);
        norm_linear(op, t.qkv, t.ln1, t.x, norm1(l), product(Adapter::qkv, l), N, C, c.qkv_width(), precision,
                    keep || p.decayw || p.value_gatew);
        value_embedding_forward(op, t.qkv, t.ln1, p.value_embedw, p.value_gatew, cache ? cache->tok : batch.tok(), N, C,
                                heads(l));
        if (c.recurrent(l)) linear_attention(l, cache);
        else softmax_attention(l, cache);
    }
    if (part == BlockPart::attention) return;
    // Output projection and residual.
    branch_add(op, t.x2, t.x, attention_branch(l), N, C);

    // Cross-attention branch, with its output projection and residual: attention to an encoder.
    cross_attention_forward(op, cross_step(l, encoder ? cache : nullptr));
    branch_add(op, encoder ? t.x3 : nullptr, t.x2, cross_branch(l), N, C);

    // Feed-forward branch: norm, then a dense ffn, experts, or both.
    const Activation* x = c.parallel == Parallel::none ? t.x3 : t.x;
    norm_ffn_forward(op, t.ln2, x, norm2(l), ffn(l), N, keep || c.has_experts(l));
    if (c.has_experts(l)) experts_forward(l, part != BlockPart::recomputed);
    // Down projection and residual.
    branch_add(op, out, t.x3, ffn_branch(l), N, C);
    keep_copy(op, x_middle, out, int64_t(N) * C, l == c.backout_layer() && part != BlockPart::recomputed);
}

void Gpt::softmax_attention(int l, KvCache* cache) {
    const auto [p, t] = layer(l);
    const int B = pass.B, S = pass.S;
    const Heads h = heads(l);
    relative_keys_forward(op, bias, t.qkv, p.relative_keyw, B * S, h);
    // RoPE. In generation, this call's keys and values are also appended to the cache, and
    // attention runs over the cache.
    if (cache) {
        Heads past = h;
        past.keys = past.queries = nullptr;
        rope_attention_cached(op, t.atty, t.qkv_rot, t.qk_rstd, t.qkv, p.qw, p.kw, cache->cos_sin[c.rope_table_of(l)],
                              cache->layer(l), B, S, cache->pos, cache->cache_pos, past, c.rope(l),
                              h.keys || after_attention);
    } else {
        rope_forward(op, t.qkv_rot, t.qk_rstd, t.qkv, p.qw, p.kw, cos_sin[c.rope_table_of(l)], B, S, nullptr, h,
                     c.rope(l));
    }
    // Attention among the call's own positions. In generation it runs only for a bidirectional
    // prefix, and replaces the cache's causal result.
    if (!cache || h.keys) attention.forward(c.has_key_parts(l), t.atty, t.lse, t.qkv_rot, B, S, h);
    global_attention.forward(global_step(l));
    if (after_attention) after_attention(l);
}
// Linear attention: y_t = q_t S_t with S_t = a_t S_(t-1) + k_t v_t^T (layers/ops.h).
void Gpt::linear_attention(int l, KvCache* cache) {
    const auto [p, t] = layer(l);
    const int B = pass.B, S = pass.S;
    const Heads h = heads(l);
    const float* table = (cache ? cache->cos_sin : cos_sin)[c.rope_table_of(l)];
    rope_forward(op, t.qkv_rot, t.qk_rstd, t.qkv, p.qw, p.kw, table, B, S, cache ? cache->pos : nullptr, h, c.rope(l));
    optional_linear(op, t.decay_gates, t.ln1, {p.decayw, p.decayb}, B * S, c.C, h.gates());
    if (cache)
        op.linear_attention_cached(t.atty, cache->states(l), t.qkv_rot, t.decay_gates, B, S, cache->cache_pos, h);
    else op.linear_attention_forward(t.atty, t.lse, t.qkv_rot, t.decay_gates, B, S, h);
}

// Computes the experts' outputs, one row per token and chosen expert; branch_add combines them.
void Gpt::experts_forward(int l, bool counts) {
    const auto [p, t] = layer(l);
    const Router r = c.router_of();
    const int B = pass.B, S = pass.S, C = c.C, F = c.expert_ffn, N = B * S;
    CHECK(B <= plan.B || plan.mode == RunMode::infer, "B=%d: room for the counts of %d sequences", B, plan.B);
    counts &= pass.training && step.router_totals;
    double* totals = counts ? step.router_totals + l * (r.E + 2) : nullptr;
    // Router: chooses K experts for each token and computes the factors of their outputs.
    op.linear_forward(t.router_logits, t.ln2, p.routerw, nullptr, nullptr, N, C, r.E, {});
    op.router_forward(t.factors, t.routes, totals, t.router_logits, r, B, S);
    // The experts' ffn, on rows ordered by expert.
    op.experts_gather(gathered, t.ln2, t.routes, r, N, C);
    op.experts_forward(t.expert_up, gathered, p.expert_upw, t.routes, r, N, C, c.expert_up_width());
    op.activation_forward(t.expert_act, t.expert_up, c.activation, c.gated, N * r.K, F);
    op.experts_forward(t.expert_out, t.expert_act, p.expert_downw, t.routes, r, N, F, C);
}

void Gpt::final_norm() {
    pass.layer = -1;
    residual_mix_forward(op, x_last, x_last, x_middle, nullptr, w.backoutw, 0, -1, int64_t(pass.B) * pass.S * c.C);
    // With post-norm, the last block's norm is already the final one.
    norm_forward(op, lnf, x_last, norm_step(!c.sum_norm(), w.lnfw, w.lnfb, mean_f, rstd_f), pass.B * pass.S, c.C);
}

void Gpt::head_forward(Activation* logits, const Input* x, int rows) {
    const Input* y = head_transform(op, x, head_step(), rows, pass.precision);
    op.linear_forward(logits, y, head_weights(), w.headb, nullptr, rows, c.head_width(), c.padded_outputs(),
                      pass.precision);
}

// The loss of a chunk of logits: on tokens or classes, on numbers, or on a teacher's probabilities,
// too.
void Gpt::head_loss(int n, int rows, bool train, float scale, bool weighted) {
    CHECK(!teacher || !weighted, "a teacher beside weights of positions");
    if (c.predicts_values())
        return op.value_loss(losses + n, train ? dhead : nullptr, head, batch.target() + n, scale,
                             c.head == HeadKind::replaced, rows, c.padded_outputs());
    Input* to = train ? dhead : nullptr;
    auto by_tokens = [&] {
        op.cross_entropy(losses + n, to, head, batch.target() + n, weighted ? position_weights + n : nullptr, scale,
                         plan.penalties, c.logits_of(), rows, c.outputs(), c.padded_outputs());
    };
    auto by_teacher = [&](Gpt& from) {
        from.head_forward(from.head, from.op.at(from.lnf, int64_t(n) * from.c.C), rows);
        op.distill_loss(losses + n, to, head, from.head, batch.target() + n, scale, distillation, c.logits_of(),
                        from.c.logits_of(), rows, c.V, c.Vp());
    };
    teacher ? by_teacher(*teacher) : by_tokens();
}

void Gpt::loss(bool train, float scale, int terms, float next_scale) {
    CHECK(c.outputs() > 0, "a model without a head has no loss");
    const int C = c.C, H = c.head_width(), N = pass.B * pass.S;
    const HeadStep step_of_head = head_step();
    Gradient* head_dw = c.reads_wte() ? dw.wte : dw.headw;
    if (train) store.gradients_begin(0);
    const int most = teacher ? std::min(head_rows, teacher->head_rows) : head_rows;
    for (int n = 0; n < N; n += most) {
        const int rows = std::min(most, N - n);
        const int64_t at = int64_t(n) * C;
        head_forward(head, op.at(head_input(), at), rows);
        head_loss(n, rows, train, scale, terms > 0);
        if (!train) continue;
        GradTarget<Gradient> into = store.into(head_dw), of_transform = store.into(dw.transformw);
        into.add |= n > 0, of_transform.add |= n > 0;
        const bool transforms = c.transform != HeadTransform::none;
        op.lm_head_backward(transforms ? dtransform[0] : op.at(dt, at), into, dw.headb, dhead,
                            transforms ? transformed : op.at(head_input(), at), head_weights(), rows, H,
                            c.padded_outputs(), {});
        head_transform_backward(
            op, op.at(dt, at),
            {of_transform, dw.transformb, dw.head_normw, dw.head_normb, dtransform[0], dtransform[1]},
            op.at(head_input(), at), step_of_head, rows);
    }
    next_sentence_loss(train, next_scale);
    if (!train) return;
    op.add_losses(step.loss, terms ? term_losses : losses, terms ? terms : N);
    step.targets += pass.targets;
}

// ---- backward: the forward's steps in reverse order ---------------------------------------------

void Gpt::backward(bool last) {
    const int64_t n = int64_t(pass.B) * pass.S * c.C;
    store.gradients_begin(first_bucket + c.L - 1);
    pool_backward(op, dt, dqkv_or_dup, pool_step(), lnf, pass.B, pass.S);
    clear_gradient(op, encoder ? encoder->dt : nullptr, encoder ? int64_t(encoder->pass.B) * encoder->pass.S * c.C : 0);
    relative_bias_clear(op, dbias, c.heads(0));
    if (c.sum_norm()) {
        op.copy(dx, dt, op.bytes(dx, n));
    } else {
        op.zero(dx, op.bytes(dx, n));
        op.norm_backward(dx, dw.lnfw, dw.lnfb, dt, x_last, w.lnfw, mean_f, rstd_f, c.norm_of(), pass.B * pass.S, c.C);
    }
    clear_gradient(op, dx_middle, n);
    residual_mix_backward(op, dx, dx_middle, nullptr, dw.backoutw, nullptr, x_middle, nullptr, w.backoutw, 0, -1, n);
    clear_gradient(op, dx0, n);
    // Blocks below the lowest trained tensor need no gradients.
    const int lowest = lowest_trained_block();
    for (int l = c.L - 1; l >= std::max(lowest, 0); l--) {
        pass.layer = l;
        if (l + 1 < c.L) store.gradients_begin(first_bucket + l);
        add_gradient(op, dx, l == c.backout_layer() ? dx_middle : nullptr, n);
        recompute(l);
        block_backward(l);
        store.gradients_done(first_bucket + l, last);
    }
    if (lowest < 0) embed_backward();
    encoder ? encoder->backward(last) : store.gradients_done(0, last);    // the embeddings are common
}

// Computes the activations of block l that plan.recompute did not keep.
void Gpt::recompute(int l) {
    const auto [p, t] = layer(l);
    const int B = pass.B, S = pass.S, N = B * S;
    // The block's last product (out2) is computed again only if a norm's backward pass reads it.
    // The block's output, which is not needed, then goes into dt, which is unused here.
    if (plan.recompute == Recompute::blocks)
        return block_forward(l, c.post_norm() ? dt : nullptr, nullptr, BlockPart::recomputed);
    if (plan.recompute == Recompute::none) return;
    norm_forward(op, t.ln1, t.x, norm1(l), N, c.C);
    if (c.rope(l).norms())
        op.rope_forward(t.qkv_rot, t.qk_rstd, t.qkv, p.qw, p.kw, cos_sin[c.rope_table_of(l)], B, S, nullptr, c.heads(l),
                        c.rope(l));
    norm_forward(op, t.lnc, t.x2, cross_step(l, nullptr).norm, N, c.C);
    norm_forward(op, t.ln2, c.parallel == Parallel::none ? t.x3 : t.x, norm2(l), N, c.C);
    ffn_activate(op, ffn(l), N);
    if (c.has_experts(l))
        op.activation_forward(t.expert_act, t.expert_up, c.activation, c.gated, N * c.experts_used, c.expert_ffn);
}

void Gpt::block_backward(int l) {
    count_progress();
    const auto [p, t] = layer(l);
    const Block<Gradient>& d = dw.block[size_t(l)];
    const Heads h = heads(l);
    const Precision precision = precision_of(l);
    const int B = pass.B, S = pass.S, C = c.C, N = B * S;

    // Feed-forward branch: residual and down projection, ffn, experts, norm. Parallel branches both
    // read dx, the gradient of their sum, so dx must not change before both have read it.
    Activation* const dffn_in = c.parallel == Parallel::none ? dt : dffn;
    const Activation* dy = branch_backward(op, {dx, dbranch, dt}, d.post2w, d.post2b, ffn_branch(l), N, C);
    const FfnGradients to = {gradients(Adapter::fc, l),
                             gradients(Adapter::fc2, l),
                             store.into(d.shared_gatew),
                             dqkv_or_dup,
                             dactivated,
                             dshared_gate,
                             dgathered};
    ffn_backward(op, dffn_in, to, dy, t.ln2, ffn(l), N);
    if (c.has_experts(l)) experts_backward(l, dffn_in, dy);
    if (c.parallel == Parallel::none) norm_backward(op, dx, d.ln2w, d.ln2b, dt, t.x3, norm2(l), N, C);
    cross_attention_backward(op, {dx, dbranch, dt}, cross_gradients(l), cross_step(l, nullptr), cross_branch(l));

    // Attention branch: residual and output projection, attention, RoPE, qkv projection.
    dy = branch_backward(op, {dx, dbranch, dt}, d.post1w, d.post1b, attention_branch(l), N, C);
    adapted_linear_backward(op, dt, gradients(Adapter::proj, l), dy, t.atty, product(Adapter::proj, l), N, h.width(), C,
                            precision);
    global_attention.take(dt, global_step(l));
    Activation* const dgates = op.at(dqkv_or_dup, round_up(int64_t(N) * h.qkv_width(), 64));
    relative_keys_forward(op, bias, t.qkv, p.relative_keyw, N, h);    // all blocks share bias
    if (c.recurrent(l))
        op.linear_attention_backward(dqkv_or_dup, dgates, dt, t.atty, t.qkv_rot, t.decay_gates, t.lse, B, S, h);
    else attention.backward(c.has_key_parts(l), dqkv_or_dup, dt, t.atty, t.qkv_rot, t.lse, B, S, h);
    score_bias_backward(op, dqkv_or_dup, d.relative_keyw, dbias, dt, t.atty, t.qkv_rot, t.lse, p.relative_keyw, B, S,
                        h);
    rope_backward(op, dqkv_or_dup, d.qw, d.kw, t.qkv, p.qw, p.kw, cos_sin[c.rope_table_of(l)], t.qk_rstd, B, S, h,
                  c.rope(l));
    adapted_linear_backward(op, dt, gradients(Adapter::qkv, l), dqkv_or_dup, t.ln1, product(Adapter::qkv, l), N, C,
                            h.qkv_width(), precision);
    optional_linear_backward(op, dt, dbranch, store.into(d.decayw), d.decayb, dgates, t.ln1, p.decayw, N, C, h.gates());
    value_embedding_backward(op, dt, dvalues, d.value_embedw, d.value_gatew, dqkv_or_dup, t.ln1, p.value_embedw,
                             p.value_gatew, batch.tok(), B, S, C, c.V, h);
    global_attention.backward(dt, global_gradients(l), global_step(l));

    // Norms of the block's input. With parallel branches, both branches read that input.
    if (c.parallel == Parallel::one) op.add_scaled(dt, dt, dffn, 1, int64_t(N) * C, {});
    if (c.parallel == Parallel::two) norm_backward(op, dx, d.ln2w, d.ln2b, dffn, t.x, norm2(l), N, C);
    norm_backward(op, dx, d.ln1w, d.ln1b, dt, t.x, norm1(l), N, C);
    residual_mix_backward(op, dx, dx0, dw.residw, dw.x0w, t.in, x0, w.residw, w.x0w, l, 1, int64_t(N) * C);
}

// Computes the experts' backward pass. Writes the gradient of the ffn's input to `to`. With a
// shared expert, `to` already has the shared expert's gradient, and the experts' gradient is added.
void Gpt::experts_backward(int l, Activation* to, const Activation* dy) {
    const auto [p, t] = layer(l);
    const Block<Gradient>& d = dw.block[size_t(l)];
    const Router r = c.router_of();
    const int B = pass.B, S = pass.S, C = c.C, F = c.expert_ffn, N = B * S;
    // Backward through the experts' ffn: their sum, the second product, the activation, the first
    // product.
    op.experts_combine_backward(dgathered, dfactors, dy, t.expert_out, t.factors, t.routes, r, N, C);
    op.experts_backward(dactivated, store.into(d.expert_downw), dgathered, t.expert_act, p.expert_downw, t.routes, r, N,
                        F, C);
    op.activation_backward(dqkv_or_dup, dactivated, t.expert_up, c.activation, c.gated, N * r.K, F);
    op.experts_gather(gathered, t.ln2, t.routes, r, N, C);
    op.experts_backward(dgathered, store.into(d.expert_upw), dqkv_or_dup, gathered, p.expert_upw, t.routes, r, N, C,
                        c.expert_up_width());
    // Router: gradients from the factors, the balance loss and the z loss.
    const float per_position = 1 / float(step.positions ? step.positions : int64_t(N) * plan.ranks);
    op.router_backward(drouter_logits, dfactors, t.routes, t.router_logits, r, plan.balance * per_position,
                       plan.router_z_loss * per_position, B, S);
    op.experts_combine(to, c.ffn_width(l) ? to : nullptr, dgathered, nullptr, t.routes, r, N, C);
    // From here on, dgathered only serves as scratch.
    optional_linear_backward(op, to, dgathered, store.into(d.routerw), nullptr, drouter_logits, t.ln2, p.routerw, N, C,
                             r.E);
}

void Gpt::embed_backward() {
    pass.layer = -1;
    const int B = pass.B, S = pass.S, C = c.C, E = c.embed_width(), N = B * S;
    const int64_t n = int64_t(N) * C;
    add_gradient(op, dx, dx0, n);
    scale_and_drop(op, dx, 1, n, dropout(DropoutSite::embeddings));
    Activation* d = smear_backward(op, dt, dw.smearw, dw.smear_lambda, dx, unsmeared, w.smearw, w.smear_lambda, B, S, C,
                                   text_positions());
    const NormProjectGradients to = {store.into(dw.embed_projw), dw.embed_projb, dw.lnew, dw.lneb};
    d = norm_project_backward(op, d, d == dx ? dt : dx, to, embedded, embedded_normed, norm_of_embeddings(),
                              w.embed_projw, N, E, C);
    scale_and_drop(op, d, c.embed_scale, int64_t(N) * E, {});
    Gradient* dwpe = dw.wpe ? op.at(dw.wpe, int64_t(c.position_offset) * E) : nullptr;
    op.embedding_backward(dw.wte, dwpe, d, batch.tok(), B, S, E, c.V, text_positions());
    segments_backward(op, dw.segw, d, batch.segment(), B, S, E, c.segments);
    relative_bias_backward(op, dw.relw, dbias, bucket, RELATIVE_BUCKETS, c.NH, 2 * RELATIVE_MAX_DISTANCE + 1);
}
