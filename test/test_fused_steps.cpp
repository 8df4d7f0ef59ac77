// test_fused_steps.cpp - generation by fused operations: nothing reads arrays that they skip.
#include "test.h"

#include "model_checks.h"

namespace {
// Calls of each fused operation: it runs the CPU's steps, then fills what lies between with NaN.
int calls[3];
void spoil(float* x, int64_t n) {
    if (x) std::fill_n(x, n, NAN);
}
Ops<float> fused() {
    Ops<float> op = cpu_ops<float>();
    op.norm_linear_forward = [](float* y, float* normed, float* mean, float* rstd, const float* x, const float* nw,
                                const float* nb, Norm norm, const float* w, const float* b, int N, int C, int OC) {
        calls[0]++;
        cpu_ops<float>().norm_forward(normed, mean, rstd, x, nw, nb, norm, N, C);
        cpu_ops<float>().linear_forward(y, normed, w, b, nullptr, N, C, OC, {});
        spoil(normed, int64_t(N) * C);
    };
    op.norm_ffn_forward = [](float* y, float* pre, float* normed, float* mean, float* rstd, const float* x,
                             const float* nw, const float* nb, Norm norm, const float* w, const float* b, Act act,
                             bool gated, int N, int C, int F) {
        calls[1]++;
        const Ops<float>& cpu = cpu_ops<float>();
        cpu.norm_forward(normed, mean, rstd, x, nw, nb, norm, N, C);
        if (act == Act::gelu_tanh && !gated && cpu.linear_gelu_forward) {
            cpu.linear_gelu_forward(y, pre, normed, w, b, N, C, F, {});
        } else {
            cpu.linear_forward(pre, normed, w, b, nullptr, N, C, gated ? 2 * F : F, {});
            cpu.activation_forward(y, pre, act, gated, N, F);
        }
        spoil(normed, int64_t(N) * C), spoil(pre, int64_t(N) * (gated ? 2 : 1) * F);
    };
    op.rope_attention_cached = [](float* y, float* qkv_rot, float* rstd, const float* qkv, const float* qw,
                                  const float* kw, const float* cos_sin, Pages cache, int B, int S, const int* rope_pos,
                                  const int* pos, Heads h, QkNormRope t) {
        calls[2]++;
        cpu_ops<float>().rope_forward(qkv_rot, rstd, qkv, qw, kw, cos_sin, B, S, rope_pos, h, t);
        cpu_ops<float>().attention_cached(y, qkv_rot, cache, B, S, pos, h);
        spoil(qkv_rot, int64_t(B) * S * h.qkv_width());
    };
    return op;
}

std::vector<float> generated(const Table& op, Config c, MaskKind mask_kind = MaskKind::causal) {
    const int B = 2, S = 14;
    if (mask_kind != MaskKind::causal) c = seeing(c, mask_kind);
    Model g(op);
    toy_model(g, c, {RunMode::infer, B, c.T});
    KvCache cache;
    REQUIRE(allocate_cache(g, cache, B, c.T).ok());
    std::vector<float> all, last(size_t(B * c.V));
    for (int s = 0; s < S; s += s ? 1 : 6) {
        const int n = s ? 1 : 6;
        compute_logits(g, extend(g, cache, toy_tokens(B * n, c.V, uint64_t(s)).data(), n), last.data());
        append(all, last);
    }
    return all;
}
}    // namespace

TEST_CASE("kinds: generation by fused operations is generation in steps") {
    for (const auto& [name, c] : kind_configs({.V = 61, .T = 40, .L = 2, .NH = 4, .C = 64, .F = 88, .NKV = 2})) {
        CAPTURE(std::string(name));
        CHECK(generated(fused(), c) == generated(cpu_ops<float>(), c));
    }
    for (int n : calls) CHECK(n > 0);
    const Config llama = kind_configs({.V = 61, .T = 40, .L = 2, .NH = 4, .C = 64, .F = 88, .NKV = 2})[0].c;
    CHECK(generated(fused(), llama, MaskKind::prefix) == generated(cpu_ops<float>(), llama, MaskKind::prefix));
    // With an after_attention hook rope is not fused, as the hook reads the rotated q and k.
    Model g(fused());
    toy_model(g, llama, {RunMode::infer, 1, 8});
    KvCache cache;
    REQUIRE(allocate_cache(g, cache, 1, 8).ok());
    int seen = 0;
    g.after_attention = [&](int l) { seen += std::isfinite(typed<float>(g, g.a[size_t(l)].qkv_rot)[0]); };
    extend(g, cache, toy_tokens(5, llama.V, 1).data(), 5);
    CHECK(seen == llama.L);
}

TEST_CASE("kinds: a norm that a later step reads, and an ffn with a gate per row, are not fused") {
    constexpr int N = 3, C = 8, F = 16;
    std::vector<float> x(N * C), w(F * C), gate_w(C), ones(C, 1);
    fill_normal(x.data(), N * C, 1);
    fill_normal(w.data(), F * C, 2);
    fill_normal(gate_w.data(), C, 3);
    const auto computed = [&](const Table& op, const float* row_gate_w, bool keep) {
        std::vector<float> normed(N * C), rstd(N), pre(N * F), y(N * F), gate(N), gated(N * F);
        auto weights = [](const float* p) { return reinterpret_cast<const Parameter*>(p); };
        auto activation = [](float* p) { return reinterpret_cast<Activation*>(p); };
        auto input = [](float* p) { return reinterpret_cast<Input*>(p); };
        const NormStep n = {NormStep::Kind::norm, {.rms = true}, weights(ones.data()), nullptr, nullptr, rstd.data()};
        const FfnStep f = {.first = {weights(w.data()), nullptr},
                           .second = {},
                           .act = Act::silu,
                           .gated = false,
                           .C = C,
                           .F = F,
                           .precision = {},
                           .pre = activation(pre.data()),
                           .y = input(y.data()),
                           .row_gate_w = weights(row_gate_w),
                           .row_gate = activation(gate.data()),
                           .gated_y = input(row_gate_w ? gated.data() : y.data())};
        norm_ffn_forward(op, input(normed.data()), reinterpret_cast<const Activation*>(x.data()), n, f, N, keep);
        return std::pair{normed, row_gate_w ? gated : y};
    };
    const Table one(fused()), steps(cpu_ops<float>());
    CHECK(computed(one, nullptr, true) == computed(steps, nullptr, true));
    CHECK(computed(one, gate_w.data(), false) == computed(steps, gate_w.data(), false));
    // Without later reader and gate the call is fused and leaves the norm out.
    const auto [normed, y] = computed(one, nullptr, false);
    CHECK(std::isnan(normed[0]));
    CHECK(y == computed(steps, nullptr, false).second);
}
