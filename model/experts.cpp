// experts.cpp - layers with experts, in the model's passes: forward, backward.
#include "gpt.h"

void Model::expert_outputs(int l) {
    const Block<Parameter>& p = w.block[size_t(l)];
    const Activations& t = a[size_t(l)];
    const Router r = c.router_of();
    const int C = c.C, F = c.expert_ffn, N = B * S;
    CHECK(B <= plan.B || plan.use == Use::infer, "B=%d: room for the counts of %d sequences", B, plan.B);
    double* to = counting ? totals.router_totals + l * (r.E + 2) : nullptr;
    op.linear_forward(t.router_logits, t.ln2, p.routerw, nullptr, nullptr, N, C, r.E, {});
    op.router_forward(t.factors, t.routes, to, t.router_logits, r, B, S);
    op.experts_gather(gathered, t.ln2, t.routes, r, N, C);
    op.experts_forward(t.expert_up, gathered, p.expert_upw, t.routes, r, N, C, c.expert_up_width());
    op.activation_forward(t.expert_act, t.expert_up, c.activation, c.gated, N * r.K, F);
    op.experts_forward(t.expert_out, t.expert_act, p.expert_downw, t.routes, r, N, F, C);
}

void Model::experts_again(int l) {
    const Activations& t = a[size_t(l)];
    op.activation_forward(t.expert_act, t.expert_up, c.activation, c.gated, B * S * c.experts_used, c.expert_ffn);
}

// to: the gradient of the ffn's input. Assigned; added to where dense_backward has filled it for a shared expert.
void Model::experts_backward(int l, Activation* to, const Activation* dy) {
    const Block<Parameter>& p = w.block[size_t(l)];
    const Block<Gradient>& d = dw.block[size_t(l)];
    const Activations& t = a[size_t(l)];
    const Router r = c.router_of();
    const int C = c.C, F = c.expert_ffn, N = B * S;
    op.experts_combine_backward(dgathered, dfactors, dy, t.expert_out, t.factors, t.routes, r, N, C);
    op.experts_backward(dactivated, shards.into(d.expert_downw), dgathered, t.expert_act, p.expert_downw, t.routes, r,
                        N, F, C);
    op.activation_backward(dwide, dactivated, t.expert_up, c.activation, c.gated, N * r.K, F);
    op.experts_gather(gathered, t.ln2, t.routes, r, N, C);
    op.experts_backward(dgathered, shards.into(d.expert_upw), dwide, gathered, p.expert_upw, t.routes, r, N, C,
                        c.expert_up_width());
    const float per_position = 1 / float(all_positions ? all_positions : int64_t(N) * plan.ranks);
    op.router_backward(drouter_logits, dfactors, t.routes, t.router_logits, r, plan.balance * per_position,
                       plan.router_z * per_position, B, S);
    op.experts_combine(to, c.ffn_width(l) ? to : nullptr, dgathered, nullptr, t.routes, r, N, C);
    // The router's part: dgathered has been read.
    op.linear_backward(dgathered, shards.into(d.routerw), nullptr, drouter_logits, t.ln2, p.routerw, N, C, r.E, {});
    op.add_scaled(to, to, dgathered, 1, int64_t(N) * C, {});
}
