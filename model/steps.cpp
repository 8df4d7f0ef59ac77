// steps.cpp - the operands of gpt.cpp's steps: weights, activations, gradients, dropout and
// precision of each step of a layer.
#include "base/philox.h"
#include "gpt.h"
#include "model/kv_cache.h"
#include "model/weights.h"

// If the table has fp8 products, training uses them in all blocks but the first and the last, where
// rounding errors cost the most. The embeddings and the head are not rounded to 8 bits either.
Precision Gpt::precision_of(int l) const {
    const bool fp8 = op.fp8 && pass.training && l > 0 && l + 1 < c.L;
    return fp8 ? Precision::fp8 : pass.precision;
}

Dropout Gpt::site_dropout(float rate, int site, int64_t first) const {
    // Sites from 4096 on, as adapters of encoder-decoders have them, have streams of their own.
    constexpr uint64_t STREAM = 0x64726F70, SITES_PER_STEP = 1 << 12;    // "drop"
    const uint64_t beyond = uint64_t(site) / SITES_PER_STEP, within = uint64_t(site) % SITES_PER_STEP;
    const Philox4 seed = philox(step.seed, STREAM | beyond << 32, uint64_t(step.number) * SITES_PER_STEP + within);
    return {rate, seed.v[0] | uint64_t(seed.v[1]) << 32, first};
}
Dropout Gpt::dropout(DropoutSite where, int l) const {
    const bool in_attention = where == DropoutSite::probabilities || where == DropoutSite::cross_probabilities;
    const float rate = in_attention ? plan.attention_dropout : plan.dropout;
    const int64_t first = in_attention ? pass.first_sequence : pass.first_sequence * pass.S * c.C;
    // A site's number gives its random numbers. First come an encoder's sites, then its decoder's,
    // then those of cross-attention, so that models without an encoder keep their numbers.
    const int block = first_bucket > 1 ? first_bucket + l : l, beyond = int(where) - int(DropoutSite::ffn);
    const int site = beyond > 0 ? 3 * (first_bucket + c.L + 1) + 2 * l + beyond : 3 * block + int(where);
    return pass.training && rate > 0 ? site_dropout(rate, site, first) : Dropout{};
}

Heads Gpt::heads(int l) const {
    Heads h = c.heads(l);
    h.keys = pass.spans ? batch.keys() : nullptr;
    h.queries = pass.spans ? batch.queries() : nullptr;
    h.bias = reinterpret_cast<const float*>(bias);
    h.features = features;
    h.dropout = dropout(DropoutSite::probabilities, l);
    return h;
}

NormStep Gpt::norm_step(bool exists, const Parameter* nw, const Parameter* nb, float* mean, float* rstd) const {
    return {exists ? NormStep::Kind::norm : NormStep::Kind::none, c.norm_of(), nw, nb, mean, rstd};
}
NormStep Gpt::norm1(int l) const {
    const auto [p, t] = layer(l);
    return norm_step(c.pre_norm() && (l > 0 || c.first_norm), p.ln1w, p.ln1b, t.mean1, t.rstd1);
}
NormStep Gpt::norm2(int l) const {
    const auto [p, t] = layer(l);
    NormStep n = norm_step(c.pre_norm(), p.ln2w, p.ln2b, t.mean2, t.rstd2);
    if (c.parallel == Parallel::one) n.kind = NormStep::Kind::shared;
    return n;
}
FfnStep Gpt::ffn(int l) const {
    const auto [p, t] = layer(l);
    return {.first = product(Adapter::fc, l),
            .second = product(Adapter::fc2, l),
            .act = c.activation,
            .gated = c.gated,
            .C = c.C,
            .F = c.ffn_width(l),
            .precision = precision_of(l),
            .pre = t.fch,
            .y = t.fcg,
            .row_gate_w = p.shared_gatew,
            .row_gate = t.shared_gate,
            .gated_y = p.shared_gatew ? t.shared_act : t.fcg};
}
// The end of a branch: the product `which` of `in` (N,width), and the norm of models with post-norm
// or sandwich norms.
Branch Gpt::branch(int l, Adapter::Product which, const Input* in, int width, DropoutSite site, Activation* out,
                   NormStep norm) const {
    return {.in = in,
            .width = width,
            .p = product(which, l),
            .precision = precision_of(l),
            .product = out,
            .norm = norm,
            .norm_of_sum = c.sum_norm(),
            .scale = c.branch_scale,
            .dropout = dropout(site, l)};
}
Branch Gpt::attention_branch(int l) const {
    const auto [p, t] = layer(l);
    return branch(l, Adapter::proj, t.atty, c.attention_width(), DropoutSite::attention, t.out1,
                  norm_step(c.post_norm(), p.post1w, p.post1b, t.post_mean1, t.post_rstd1));
}
Branch Gpt::cross_branch(int l) const {
    const auto [p, t] = layer(l);
    return branch(l, Adapter::cross_proj, t.cross_y, c.attention_width(), DropoutSite::cross_attention, t.outc,
                  norm_step(c.post_norm(), p.postcw, p.postcb, t.post_meanc, t.post_rstdc));
}
Branch Gpt::ffn_branch(int l) const {
    const auto [p, t] = layer(l);
    Branch b = branch(l, Adapter::fc2, ffn(l).gated_y, c.ffn_width(l), DropoutSite::ffn, t.out2,
                      norm_step(c.post_norm(), p.post2w, p.post2b, t.post_mean2, t.post_rstd2));
    b.expert_out = t.expert_out;
    b.factors = t.factors;
    b.routes = t.routes;
    b.router = c.router_of();
    return b;
}
CrossStep Gpt::cross_step(int l, const KvCache* cache) const {
    const auto [p, t] = layer(l);
    Heads h = c.cross_heads(!encoder ? 0 : cache ? cache->source.positions : encoder->pass.S);
    h.keys = cache ? nullptr : batch.source_keys();
    h.queries = cache ? nullptr : batch.source_queries();
    h.dropout = dropout(DropoutSite::cross_probabilities, l);
    NormStep norm = norm_step(c.pre_norm(), p.lncw, p.lncb, t.meanc, t.rstdc);
    if (!encoder) norm.kind = NormStep::Kind::shared;
    return {.exists = encoder != nullptr,
            .norm = norm,
            .q = product(Adapter::cross_q, l),
            .kv = product(Adapter::cross_kv, l),
            .precision = precision_of(l),
            .h = h,
            .B = pass.B,
            .S = pass.S,
            .C = c.C,
            .x = t.x2,
            .normed = t.lnc,
            .queries = t.cross_q,
            .source = encoder ? encoder->lnf : nullptr,
            .sources = encoder ? encoder->pass.B * encoder->pass.S : 0,
            .keys = t.cross_kv,
            .y = t.cross_y,
            .lse = t.cross_lse,
            .cache = cache ? &cache->source.layers[size_t(l)] : nullptr,
            .last = cache ? cache->source.last : nullptr};
}
GlobalStep Gpt::global_step(int l) const {
    const auto [p, t] = layer(l);
    return {.q = {p.global_qw, p.global_qb},
            .kv = {p.global_kvw, p.global_kvb},
            .precision = precision_of(l),
            .h = heads(l),
            .B = pass.B,
            .S = pass.S,
            .C = c.C,
            .x = t.ln1,
            .keys = t.global_kv,
            .lse = t.global_lse,
            .y = t.atty};
}
NormStep Gpt::norm_of_embeddings() const { return norm_step(c.embed_norm, w.lnew, w.lneb, mean_e, rstd_e); }
HeadStep Gpt::transform_step(ProductWeights p, Act act, NormStep norm, int H) const {
    return {p, act, norm, c.C, H, transform_pre, transform_activated, transformed};
}
HeadStep Gpt::head_step() const {
    const NormStep norm = norm_step(c.transform == HeadTransform::norm, w.head_normw, w.head_normb, mean_h, rstd_h);
    return transform_step({w.transformw, w.transformb}, c.transform_act, norm, c.head_width());
}
// BERT's pooler: the transform of the head for next sentences.
HeadStep Gpt::pooler() const {
    return transform_step({w.poolw, w.poolb}, Act::tanh, norm_step(false, nullptr, nullptr, nullptr, nullptr), c.C);
}
PoolStep Gpt::pool_step() const {
    const Heads h = {.NH = c.NH, .NKV = c.NH, .HS = c.HS, .keys = batch.keys(), .queries = batch.queries()};
    return {.qkv = pool_qkv, .lse = pool_lse, .y = pooled, .values = pool_values, .heads = h};
}

// ---- gradients ----------------------------------------------------------------------------------

GlobalGradients Gpt::global_gradients(int l) const {
    const Block<Gradient>& d = dw.block[size_t(l)];
    return {store.into(d.global_qw), store.into(d.global_kvw), d.global_qb, d.global_kvb, dqkv_or_dup, dbranch};
}
CrossGradients Gpt::cross_gradients(int l) const {
    const Block<Gradient>& d = dw.block[size_t(l)];
    return {.q = gradients(Adapter::cross_q, l),
            .kv = gradients(Adapter::cross_kv, l),
            .proj = gradients(Adapter::cross_proj, l),
            .norm_w = d.lncw,
            .norm_b = d.lncb,
            .post_w = d.postcw,
            .post_b = d.postcb,
            .dqueries = dqkv_or_dup,
            .dkeys = dcross_kv,
            .dy = dt,
            .dsource_part = encoder ? encoder->dx : nullptr,
            .dsource = encoder ? encoder->dt : nullptr};
}
