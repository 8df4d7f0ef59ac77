// gpt.cpp - the model, once: forward, backward. (Generation: model/cache.cpp; the step: model/step.cpp.)
#include "gpt.h"

#include <algorithm>

#include "model/rope.h"

// ---- forward --------------------------------------------------------------------------------------------------------

void Model::batch(const int* from_tok, const int* from_target, int batch_B, int batch_S, const Spans* spans) {
    const int64_t N = int64_t(batch_B) * batch_S;
    CHECK(N > 0 && N <= most() && batch_S <= plan.S, "B=%d S=%d", batch_B, batch_S);
    Spans whole;
    for (int b = 0; b < batch_B && !spans && c.sees == Sees::all; b++) whole.add({Text{}}, batch_S, c.sees);
    if (!spans && !whole.keys.empty()) spans = &whole;
    CHECK(!spans || (may_span() && int64_t(spans->keys.size()) == N), "spans of %zu", spans->keys.size());
    next_B = batch_B, next_S = batch_S, next = {N, spans != nullptr};
    const int64_t ints = spans ? input_ints() : from_target || !from_tok ? most() + N : N;
    if (from_tok || spans) {
        host_input.resize(size_t(input_ints()));
        const auto to = host_input.begin();
        if (from_tok) std::copy_n(from_tok, N, to);
        if (from_target) std::copy_n(from_target, N, to + most());
        if (from_target) next.targets = std::count_if(from_target, from_target + N, [](int t) { return t >= 0; });
        if (spans) {
            std::copy_n(spans->keys.begin(), N, reinterpret_cast<Span*>(&to[2 * most()]));
            std::copy_n(spans->queries.begin(), N, reinterpret_cast<Span*>(&to[4 * most()]));
        }
    }
    op.upload_ahead(staged, host_input.data(), input_bytes(ints));
}

void Model::forward(bool drops) {
    CHECK(next_B > 0, "no batch was handed over");
    B = next_B, S = next_S, next_B = 0, now = next;
    training = drops;
    if (drops) first_sequence = sequences + int64_t(plan.rank) * B, sequences += int64_t(plan.ranks) * B;
    ends.assign(size_t(B), S), prompt_sums = true, unfinished = false;
    op.take(input, staged, input_bytes(now.spans ? input_ints() : 2 * most()));
    counting = drops && totals.router_totals;
    blocks(nullptr);
    counting = false;
}

Dropout Model::dropout(Dropped where, int l) const {
    const float rate = where == Dropped::probabilities ? plan.attention_dropout : plan.dropout;
    if (!training || rate == 0) return {};
    constexpr uint64_t STREAM = 0x64726F70, PLACES = 1 << 12;    // no other stream of the seed; more than a step has
    const Philox4 seed = philox(step_seed, STREAM, uint64_t(step_number) * PLACES + uint64_t(3 * l + int(where)));
    const int64_t first = where == Dropped::probabilities ? first_sequence : first_sequence * S * c.C;
    return {rate, seed.v[0] | uint64_t(seed.v[1]) << 32, first};
}
Heads Model::heads(int l) const {
    Heads h = c.heads(l);
    if (now.spans) h.keys = keys(), h.queries = queries();
    h.bias = reinterpret_cast<const float*>(bias);
    h.dropout = dropout(Dropped::probabilities, l);
    return h;
}

void Model::blocks(Cache* cache) {
    if (!cache) shards.await_parameters(0);
    embed(cache);
    if (bias) op.bias_rows_forward(bias, w.relw, bucket, RELATIVE_BUCKETS, c.NH, 2 * RELATIVE_REACH + 1);
    for (int l = 0; l < c.L; l++) {
        if (!cache) shards.await_parameters(1 + l);
        to_attention(l, cache);
        if (l + 1 < c.L) from_attention(l, a[size_t(l) + 1].x, cache);
    }
    if (!unfinished) end_blocks(cache);
}
void Model::end_blocks(bool cached) {
    from_attention(c.L - 1, x_last, cached);
    if (c.sum_norm()) op.round_inputs(lnf, x_last, int64_t(B) * S * c.C);
    else op.norm_forward(lnf, mean_f, rstd_f, x_last, w.lnfw, w.lnfb, c.norm_of(), B * S, c.C);
}

void Model::embed(const Cache* cache) {
    Activation* x = c.embed_norm ? embedded : a[0].x;
    op.embedding_forward(x, cache ? cache->tok : tok(), w.wte, positions, B, S, c.C, cache ? cache->place : nullptr);
    if (c.embed_scale != 1) op.add_scaled(x, nullptr, x, c.embed_scale, int64_t(B) * S * c.C, {});
    if (c.embed_norm) op.stream_norm_forward(a[0].x, mean_e, rstd_e, x, w.lnew, w.lneb, c.norm_of(), B * S, c.C);
    if (const Dropout drop = dropout(Dropped::embeddings); drop.rate > 0)
        op.add_scaled(a[0].x, nullptr, a[0].x, 1, int64_t(B) * S * c.C, drop);
}

void Model::to_attention(int l, Cache* cache) {
    heartbeat();
    const Block<Parameter>& p = w.block[size_t(l)];
    const Activations& t = a[size_t(l)];
    const Heads h = heads(l);
    const int C = c.C, N = B * S;
    if (op.norm_linear_forward && norms_in_product(cache) && !p.decayw) {
        op.norm_linear_forward(t.qkv, t.ln1, t.mean1, t.rstd1, t.x, p.ln1w, p.ln1b, c.norm_of(), p.qkvw, p.qkvb, N, C,
                               h.qkv_width());
    } else {
        attention_input(l);
        op.linear_forward(t.qkv, t.ln1, p.qkvw, p.qkvb, nullptr, N, C, h.qkv_width(), precision(l));
    }
    if (!turns_in_attention(l, cache)) turn(l, cache);
    attend(l, cache);
}
void Model::from_attention(int l, Activation* out, bool cached) {
    const Activations& t = a[size_t(l)];
    add_branch(t.x2, t.x, attention_end(l));
    ffn_forward(l, cached);
    if (out) add_branch(out, t.x2, ffn_end(l));
    else if (c.post_norm()) add_branch(dt, t.x2, ffn_end(l));    // for the product; dt is free here
}

bool Model::norms_in_product(bool cached) const {
    return cached && c.pre_norm() && c.parallel != Parallel::one;
}
bool Model::turns_in_attention(int l, const Cache* cache) const {
    const bool turns = !c.recurrent(l) && (c.turn(l).dims || w.block[size_t(l)].qw);
    return op.rope_attention_cached && cache && turns && !now.spans && !after_attention;
}

void Model::attention_input(int l) {
    const Block<Parameter>& p = w.block[size_t(l)];
    const Activations& t = a[size_t(l)];
    if (c.pre_norm()) op.norm_forward(t.ln1, t.mean1, t.rstd1, t.x, p.ln1w, p.ln1b, c.norm_of(), B * S, c.C);
    else op.round_inputs(t.ln1, t.x, int64_t(B) * S * c.C);
}
void Model::ffn_input(int l) {
    if (c.parallel == Parallel::one) return;    // it is attention's
    const Block<Parameter>& p = w.block[size_t(l)];
    const Activations& t = a[size_t(l)];
    const Activation* x = c.parallel == Parallel::none ? t.x2 : t.x;
    if (c.pre_norm()) op.norm_forward(t.ln2, t.mean2, t.rstd2, x, p.ln2w, p.ln2b, c.norm_of(), B * S, c.C);
    else op.round_inputs(t.ln2, x, int64_t(B) * S * c.C);
}

void Model::turn(int l, const Cache* cache) {
    const Block<Parameter>& p = w.block[size_t(l)];
    const Activations& t = a[size_t(l)];
    const Turn turn = c.turn(l);
    const float* table = (cache ? cache->angles : angles)[c.table_of(l)];
    if (turn.dims || p.qw)
        op.rope_forward(t.turned, t.qk_rstd, t.qkv, p.qw, p.kw, table, B, S, cache ? cache->place : nullptr, c.heads(l),
                        turn);
}

void Model::attend(int l, Cache* cache) {
    const Block<Parameter>& p = w.block[size_t(l)];
    const Activations& t = a[size_t(l)];
    const Heads h = heads(l);
    if (c.recurrent(l)) {
        if (p.decayw) op.linear_forward(t.decay_gates, t.ln1, p.decayw, p.decayb, nullptr, B * S, c.C, h.gates(), {});
        if (!cache) return op.linear_attention_forward(t.atty, t.lse, t.turned, t.decay_gates, B, S, h);
        return op.linear_attention_cached(t.atty, cache->states(c, l), t.turned, t.decay_gates, B, S, cache->slot, h);
    }
    if (cache) {
        Heads past = h;
        past.keys = past.queries = nullptr;
        if (turns_in_attention(l, cache))
            op.rope_attention_cached(t.atty, t.turned, t.qk_rstd, t.qkv, p.qw, p.kw, cache->angles[c.table_of(l)],
                                     cache->layer(c, l), B, S, cache->place, cache->slot, past, c.turn(l));
        else op.attention_cached(t.atty, t.turned, cache->layer(c, l), B, S, cache->slot, past);
    }
    // Positions of a prefix see each other: what attention_cached did for them is done again.
    if (!cache || h.keys) op.attention_forward(t.atty, t.lse, t.turned, B, S, h);
    if (after_attention) after_attention(l);
}

void Model::ffn_forward(int l, bool cached) {
    const Block<Parameter>& p = w.block[size_t(l)];
    const Activations& t = a[size_t(l)];
    if (op.norm_ffn_forward && norms_in_product(cached) && !c.routed(l) && !p.shared_gatew)
        return op.norm_ffn_forward(t.fcg, t.fch, t.ln2, t.mean2, t.rstd2, c.parallel == Parallel::none ? t.x2 : t.x,
                                   p.ln2w, p.ln2b, c.norm_of(), p.fcw, p.fcb, c.activation, c.gated, B * S, c.C,
                                   c.ffn_width(l));
    ffn_input(l);
    if (c.ffn_width(l)) dense_forward(l);
    if (c.routed(l)) expert_outputs(l);
}
void Model::dense_forward(int l) {
    const Block<Parameter>& p = w.block[size_t(l)];
    const Activations& t = a[size_t(l)];
    const int C = c.C, F = c.ffn_width(l), N = B * S;
    if (fused_gelu(l)) return op.linear_gelu_forward(t.fcg, t.fch, t.ln2, p.fcw, p.fcb, N, C, F, precision(l));
    op.linear_forward(t.fch, t.ln2, p.fcw, p.fcb, nullptr, N, C, c.up_width(l), precision(l));
    op.activation_forward(t.fcg, t.fch, c.activation, c.gated, N, F);
    if (!p.shared_gatew) return;
    op.linear_forward(t.shared_gate, t.ln2, p.shared_gatew, nullptr, nullptr, N, C, 1, {});
    op.row_gate_forward(t.shared_act, t.fcg, t.shared_gate, N, F);
}

Model::Branch Model::attention_end(int l) const {
    const Block<Parameter>& p = w.block[size_t(l)];
    const Activations& t = a[size_t(l)];
    return {l, t.atty, c.attention_width(), p.projw, p.projb, nullptr, t.out1, t.post_mean1, t.post_rstd1, p.post1w,
            p.post1b, dropout(Dropped::attention, l)};
}
Model::Branch Model::ffn_end(int l) const {
    const Block<Parameter>& p = w.block[size_t(l)];
    const Activations& t = a[size_t(l)];
    return {l, p.shared_gatew ? t.shared_act : t.fcg, c.ffn_width(l), p.fc2w, p.fc2b, c.routed(l) ? &t : nullptr,
            t.out2, t.post_mean2, t.post_rstd2, p.post2w, p.post2b, dropout(Dropped::ffn, l)};
}
// out = x + branch_scale * drop(norm(in w^T + b + experts)); with sum_norm norm(x + drop(in w^T + b + experts))
void Model::add_branch(Activation* out, const Activation* x, const Branch& end) {
    const int C = c.C, N = B * S;
    Activation* product = c.post_norm() ? end.product : out;
    const bool in_product = c.branch_scale == 1 && end.dropout.rate == 0 && (!c.post_norm() || c.sum_norm());
    auto add = [&](Activation* to) {
        if (!in_product) op.add_scaled(to, x, to, c.branch_scale, int64_t(N) * C, end.dropout);
    };
    const Activation* before = in_product ? x : nullptr;
    if (end.width) op.linear_forward(product, end.in, end.w, end.b, before, N, end.width, C, precision(end.layer));
    if (const Activations* t = end.experts)
        op.experts_combine(product, end.width ? product : before, t->expert_out, t->factors, t->routes, c.router_of(),
                           N, C);
    if (c.sum_norm()) add(product);
    if (c.post_norm())
        op.stream_norm_forward(out, end.mean, end.rstd, end.product, end.norm_w, end.norm_b, c.norm_of(), N, C);
    if (!c.sum_norm()) add(out);
}

void Model::loss(bool train, float scale) {
    const int C = c.C, V = c.V, Vp = c.Vp(), N = B * S;
    const Parameter* head_w = c.tied ? w.wte : w.headw;
    Gradient* head_dw = c.tied ? dw.wte : dw.headw;
    if (train) shards.gradients_begin(0);
    for (int n = 0; n < N; n += head_rows) {
        const int rows = std::min(head_rows, N - n);
        const int64_t at = int64_t(n) * C;
        op.linear_forward(head, op.at(lnf, at), head_w, w.headb, nullptr, rows, C, Vp, precision());
        op.cross_entropy(losses + n, train ? head : nullptr, head, target() + n, scale, c.logits_of(), rows, V, Vp);
        if (!train) continue;
        Into<Gradient> into = shards.into(head_dw);
        into.add |= n > 0;
        op.linear_backward(op.at(dt, at), into, dw.headb, head, op.at(lnf, at), head_w, rows, C, Vp, {});
    }
    if (!train) return;
    op.add_losses(totals.loss, losses, N);
    step_targets += now.targets;
}

double Model::mean_loss(float* to) {
    const int N = B * S;
    host_losses.resize(size_t(N));
    op.download(host_losses.data(), losses, int64_t(sizeof(float)) * N);
    if (to) std::copy_n(host_losses.data(), N, to);
    double sum = 0;
    for (float loss : host_losses) sum += double(loss);
    return sum / double(std::max<int64_t>(1, now.targets));
}

// ---- backward: the forward read from the bottom up ------------------------------------------------------------------

void Model::backward(bool last) {
    const int N = B * S;
    shards.gradients_begin(c.L);
    if (dbias) op.zero(dbias, op.bytes(dbias, c.NH * (2 * RELATIVE_REACH + 1)));
    if (c.sum_norm()) {
        op.copy(dx, dt, op.bytes(dx, int64_t(N) * c.C));
    } else {
        op.zero(dx, op.bytes(dx, int64_t(N) * c.C));
        op.norm_backward(dx, dw.lnfw, dw.lnfb, dt, x_last, w.lnfw, mean_f, rstd_f, c.norm_of(), N, c.C);
    }
    for (int l = c.L - 1; l >= 0; l--) {
        if (l + 1 < c.L) shards.gradients_begin(1 + l);
        block_again(l);
        block_backward(l);
        shards.gradients_done(1 + l, last);
    }
    embed_backward();
    shards.gradients_done(0, last);
}

void Model::embed_backward() {
    Activation* d = dx;
    const int64_t n = int64_t(B) * S * c.C;
    if (const Dropout drop = dropout(Dropped::embeddings); drop.rate > 0) op.add_scaled(dx, nullptr, dx, 1, n, drop);
    if (c.embed_norm) {
        op.zero(dt, op.bytes(dt, n));
        op.norm_backward(dt, dw.lnew, dw.lneb, dx, embedded, w.lnew, mean_e, rstd_e, c.norm_of(), B * S, c.C);
        d = dt;
    }
    if (c.embed_scale != 1) op.add_scaled(d, nullptr, d, c.embed_scale, n, {});
    Gradient* dwpe = dw.wpe ? op.at(dw.wpe, int64_t(c.position_offset) * c.C) : nullptr;
    op.embedding_backward(dw.wte, dwpe, d, tok(), B, S, c.C, c.V);
    if (dbias) op.bias_rows_backward(dw.relw, dbias, bucket, RELATIVE_BUCKETS, c.NH, 2 * RELATIVE_REACH + 1);
}

void Model::block_again(int l) {
    const Block<Parameter>& p = w.block[size_t(l)];
    const Activations& t = a[size_t(l)];
    const int N = B * S;
    if (plan.recompute == Recompute::blocks) to_attention(l, nullptr), from_attention(l, nullptr, false);
    if (plan.recompute != Recompute::cheap) return;
    attention_input(l);
    if (p.qw) turn(l);
    ffn_input(l);
    if (const int F = c.ffn_width(l)) op.activation_forward(t.fcg, t.fch, c.activation, c.gated, N, F);
    if (p.shared_gatew) op.row_gate_forward(t.shared_act, t.fcg, t.shared_gate, N, c.ffn_width(l));
    if (c.routed(l)) experts_again(l);
}

void Model::block_backward(int l) {
    heartbeat();
    const Block<Parameter>& p = w.block[size_t(l)];
    const Block<Gradient>& d = dw.block[size_t(l)];
    const Activations& t = a[size_t(l)];
    const Norm norm = c.norm_of();
    const int C = c.C, N = B * S;
    const int64_t n = int64_t(N) * C;
    // Parallel branches read the same x: nothing may be added to dx before both have read it.
    ffn_backward(l, c.parallel == Parallel::none ? dt : dffn);
    if (c.parallel == Parallel::none) {
        if (c.pre_norm()) op.norm_backward(dx, d.ln2w, d.ln2b, dt, t.x2, p.ln2w, t.mean2, t.rstd2, norm, N, C);
        else op.add_scaled(dx, dx, dt, 1, n, {});
    }
    attention_backward(l);
    if (c.parallel == Parallel::one) op.add_scaled(dt, dt, dffn, 1, n, {});
    if (c.parallel == Parallel::two)
        op.norm_backward(dx, d.ln2w, d.ln2b, dffn, t.x, p.ln2w, t.mean2, t.rstd2, norm, N, C);
    if (c.pre_norm()) op.norm_backward(dx, d.ln1w, d.ln1b, dt, t.x, p.ln1w, t.mean1, t.rstd1, norm, N, C);
    else op.add_scaled(dx, dx, dt, 1, n, {});
}

// to: the gradient of the ffn's input
void Model::ffn_backward(int l, Activation* to) {
    const Block<Gradient>& d = dw.block[size_t(l)];
    const Activation* dy = product_gradient(ffn_end(l), d.post2w, d.post2b);
    if (c.ffn_width(l)) dense_backward(l, to, dy);
    if (c.routed(l)) experts_backward(l, to, dy);
}
void Model::dense_backward(int l, Activation* to, const Activation* dy) {
    const Block<Parameter>& p = w.block[size_t(l)];
    const Block<Gradient>& d = dw.block[size_t(l)];
    const Activations& t = a[size_t(l)];
    const int C = c.C, F = c.ffn_width(l), N = B * S;
    if (fused_gelu(l)) {
        op.linear_gelu_backward(dwide, shards.into(d.fc2w), d.fc2b, d.fcb, dy, t.fcg, p.fc2w, t.fch, N, F, C);
        return op.linear_backward(to, shards.into(d.fcw), nullptr, dwide, t.ln2, p.fcw, N, C, F, {});
    }
    const Input* activated = p.shared_gatew ? t.shared_act : t.fcg;
    op.linear_backward(dactivated, shards.into(d.fc2w), d.fc2b, dy, activated, p.fc2w, N, F, C, precision(l));
    if (p.shared_gatew) op.row_gate_backward(dactivated, dshared_gate, dactivated, t.fcg, t.shared_gate, N, F);
    op.activation_backward(dwide, dactivated, t.fch, c.activation, c.gated, N, F);
    op.linear_backward(to, shards.into(d.fcw), d.fcb, dwide, t.ln2, p.fcw, N, C, c.up_width(l), precision(l));
    if (!p.shared_gatew) return;
    op.linear_backward(dgathered, shards.into(d.shared_gatew), nullptr, dshared_gate, t.ln2, p.shared_gatew, N, C, 1, {});
    op.add_scaled(to, to, dgathered, 1, int64_t(N) * C, {});
}

// dt: the gradient of attention's input
void Model::attention_backward(int l) {
    const Block<Parameter>& p = w.block[size_t(l)];
    const Block<Gradient>& d = dw.block[size_t(l)];
    const Activations& t = a[size_t(l)];
    const Heads h = heads(l);
    const int C = c.C, N = B * S;
    const Activation* dy = product_gradient(attention_end(l), d.post1w, d.post1b);
    op.linear_backward(dt, shards.into(d.projw), d.projb, dy, t.atty, p.projw, N, h.width(), C, precision(l));
    Activation* dgates = op.at(dwide, round_up(int64_t(N) * h.qkv_width(), 64));
    if (c.recurrent(l))
        op.linear_attention_backward(dwide, dgates, dt, t.atty, t.turned, t.decay_gates, t.lse, B, S, h);
    else op.attention_backward(dwide, dt, t.atty, t.turned, t.lse, B, S, h);
    if (dbias) op.attention_bias_backward(dbias, dt, t.atty, t.turned, t.lse, B, S, h);
    if (const Turn turn = c.turn(l); turn.dims || p.qw)
        op.rope_backward(dwide, d.qw, d.kw, p.qw ? t.qkv : nullptr, p.qw, p.kw, angles[c.table_of(l)], t.qk_rstd, B, S,
                         h, turn);
    op.linear_backward(dt, shards.into(d.qkvw), d.qkvb, dwide, t.ln1, p.qkvw, N, C, h.qkv_width(), precision(l));
    if (!p.decayw) return;
    op.linear_backward(dbranch, shards.into(d.decayw), d.decayb, dgates, t.ln1, p.decayw, N, C, h.gates(), {});
    op.add_scaled(dt, dt, dbranch, 1, int64_t(N) * C, {});
}

const Activation* Model::product_gradient(const Branch& end, Gradient* dnorm_w, Gradient* dnorm_b) {
    const int C = c.C, N = B * S;
    auto through_norm = [&](const Activation* d) {
        op.zero(dbranch, op.bytes(dbranch, int64_t(N) * C));
        op.norm_backward(dbranch, dnorm_w, dnorm_b, d, end.product, end.norm_w, end.mean, end.rstd, c.norm_of(), N, C);
    };
    if (c.sum_norm()) {
        through_norm(dx);
        std::swap(dx, dbranch);    // the sum's gradient is that of both its parts
    }
    const Activation* dy = dx;
    if (c.branch_scale != 1 || end.dropout.rate > 0) {
        Activation* scaled = c.post_norm() && !c.sum_norm() ? dt : dbranch;    // dt is free here
        op.add_scaled(scaled, nullptr, dx, c.branch_scale, int64_t(N) * C, end.dropout);
        dy = scaled;
    }
    if (!c.post_norm() || c.sum_norm()) return dy;
    through_norm(dy);
    return dbranch;
}
