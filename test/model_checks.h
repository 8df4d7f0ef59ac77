// model_checks.h - checks that every kind of model must pass. Include it after doctest.
#pragma once
#include "base/philox.h"
#include "data/objective.h"
#include "toy_model.h"

inline const Config TOY = {13, 8, 2, 3, 12, 24, 1e-5f};
// Grouped heads of a size that makes NH * HS > C and the width of q, k, v > F; a window.
inline const Config GROUPED = {.V = 13, .T = 8, .L = 2, .NH = 4, .C = 12, .F = 24, .NKV = 2, .HS = 5, .window = 3};

// An objective for `mask_kind` whose mask token is 12.
inline Objective toy_objective(MaskKind mask_kind) {
    return {.mask_kind = mask_kind, .mask = 12, .choices = 12, .fraction = 0.3};
}
inline Config seeing(Config c, MaskKind mask_kind) {
    c.mask_kind = mask_kind;
    if (mask_kind == MaskKind::prefix) c.window = 0;
    if (mask_kind == MaskKind::all) c.mask = 12;
    return c;
}

// A batch of random tokens to which an objective has been applied.
struct Posed {
    int B, S;
    std::vector<int> in, out;
    Spans all = {};
    const Spans* spans;    // null for plain causal attention
    Posed(const Config& c, int B, int S, const Objective& objective = {})
        : B(B), S(S), in(toy_tokens(B * S, c.V, 1)), out(toy_tokens(B * S, c.V, 2)),
          spans(objective.is_plain_causal() ? nullptr : &all) {
        for (int b = 0; b < B; b++) objective.apply(b, &in[size_t(b * S)], &out[size_t(b * S)], S, S, &all);
    }
    Posed(const Posed&) = delete;
};

// The routers' part of the loss (balance and z-loss), per position, in a step of one batch.
inline double routing_loss(Model& g) {
    double sum = 0;
    for (int l = 0; l < g.c.L && g.train.totals.router_totals; l++) {
        const double* totals = g.train.totals.router_totals + l * (g.c.experts + 2) + g.c.experts;
        sum += double(g.plan.balance) * g.pass.S * totals[0] + double(g.plan.router_z_loss) * totals[1];
    }
    return sum / double(g.pass.B * g.pass.S);
}
// Mean loss in double from the logits, with its penalties: the model's own losses are too coarse
// for differences.
inline double loss_in_double(Model& g, const Posed& asked) {
    g.train.begin();
    upload_toy(g, asked.in, asked.out, asked.B, asked.S, asked.spans);
    g.forward(true);
    g.loss(false, 0);
    double sum = 0;
    const Logits how = g.c.logits_of();
    for (int n = 0; n < asked.B * asked.S; n++) {
        const int target = asked.out[size_t(n)];
        if (target < 0) continue;
        const double* l = typed<double>(g, g.head) + n * g.c.Vp();
        auto logit = [&](int v) {
            const double x = double(how.scale) * l[v], cap = double(how.cap);
            return cap != 0 ? cap * std::tanh(x / cap) : x;
        };
        double z = 0, even = 0;
        for (int v = 0; v < g.c.V; v++) z += std::exp(logit(v)), even += logit(v) / g.c.V;
        const double lse = std::log(z), e = double(g.plan.penalties.label_smoothing);
        sum += lse - (1 - e) * logit(target) - e * even + double(g.plan.penalties.z_loss) * lse * lse;
    }
    return sum / double(counting(asked.out)) + routing_loss(g);
}

// Calls f(function that makes an empty model, tolerance) for each parameter type.
template <class F> void each_cpu_model(F f) {
    f([] { return std::make_unique<Model>(cpu_ops<float>()); }, 1e-5);
    f([] { return std::make_unique<Model>(cpu_ops<bf16>()); }, 1e-2);
}
// Error of a gradient against the central difference along these elements, with random signs.
inline double along(Model& g, const Posed& asked, const std::vector<double>& grad, double size,
                    const std::vector<int64_t>& elements) {
    double* weights = typed<double>(g, g.store.params);
    const std::vector<double> saved(weights, weights + grad.size());
    // Steps of 2e-6: a norm of a single key is far from linear within 1e-5.
    const double h = 2e-6, one = 1 / std::sqrt(double(elements.size()));
    auto sign = [](int64_t k) { return philox(7, 0, uint64_t(k)).v[0] & 1 ? 1.0 : -1.0; };
    auto loss_at = [&](double step) {
        for (int64_t k : elements) weights[k] = saved[size_t(k)] + step * one * sign(k);
        return loss_in_double(g, asked);
    };
    const double up = loss_at(h), numeric = (up - loss_at(-h)) / (2 * h);
    double analytic = 0;
    for (int64_t k : elements) {
        weights[k] = saved[size_t(k)];
        analytic += one * sign(k) * grad[size_t(k)];
    }
    return std::fabs(numeric - analytic) / std::max(1e-2 * size, std::fabs(numeric));
}
inline void check_gradients(const Config& c, const Objective& objective = {}, float dropout = 0,
                            LossPenalties penalties = {}) {
    const int B = 2, S = 7;
    Model g(reference_ops());
    toy_model(g, c,
              {.mode = RunMode::train,
               .B = B,
               .S = S,
               .spans = !objective.is_plain_causal(),
               .dropout = dropout,
               .attention_dropout = dropout,
               .balance = 0.3f,
               .router_z_loss = 0.05f,
               .penalties = penalties});
    const Posed asked(c, B, S, objective);
    double* gradients = typed<double>(g, g.store.grads);
    for (int pass = 0; pass < 2; pass++) {    // twice: no state may survive a pass
        std::fill_n(gradients, g.store.flat, NAN);
        train_pass(g, asked.in, asked.out, B, S, asked.spans);
    }
    const std::vector<double> grad(gradients, gradients + config_flat_size(c));
    double size = 0, worst = 0;
    for (double d : grad) size = std::max(size, std::fabs(d));
    int64_t checked = 0;
    const std::vector<bool> trained = trained_elements(g);
    for (const Tensor& t : g.tensors) {
        if (t.frozen) continue;
        std::vector<int64_t> all;
        for (int64_t k = t.offset; k < t.offset + t.file_rows * t.cols; k++)
            if (trained[size_t(k)]) all.push_back(k);
        checked += int64_t(all.size());
        // A large tensor's elements are checked all at once, with random signs, then every fifth
        // of each row and each column by itself.
        const bool large = all.size() > 40 && !test_long();
        if (large) worst = worse(worst, along(g, asked, grad, size, all));
        for (int64_t k : all)
            if (const int64_t i = k - t.offset; !large || (i / t.cols + i % t.cols) % 5 == 0)
                worst = worse(worst, along(g, asked, grad, size, {k}));
    }
    INFO("worst relative error " << worst << " over " << checked << " parameters");
    CHECK(checked == std::count(trained.begin(), trained.end(), true));
    CHECK(checked > 0);
    CHECK(worst < 1e-4);
}

// slack: factor on the tolerances where rounding counts for more. Errors are relative to the
// largest gradient; a model without fc2b lacks that one and has a larger error: 1.31e-2 seen.
inline void check_cpu_model(const Config& c, double slack = 1, const Objective& objective = {}, float dropout = 0) {
    const int B = 3, S = 33;
    const Posed asked(c, B, S, objective);
    Plan plan = {.mode = RunMode::train,
                 .B = B,
                 .S = S,
                 .spans = asked.spans != nullptr,
                 .dropout = dropout,
                 .attention_dropout = dropout};
    Model r(reference_ops());
    toy_model(r, c, plan);
    copy_weights(r, r, [](float w) { return to_float(to_bf16(w)); });    // exact in every parameter type
    double loss = train_pass(r, asked.in, asked.out, B, S, asked.spans);
    auto expected = flat_grads(r);
    each_cpu_model([&](auto model, double tolerance) {
        for (bool master : {true, false}) {
            auto g = model();
            plan.master = master;
            toy_model(*g, c, plan);
            copy_weights(r, *g);
            CHECK(train_pass(*g, asked.in, asked.out, B, S, asked.spans) ==
                  doctest::Approx(loss).epsilon(slack * tolerance / 5));
            const std::vector<float> grads = flat_grads(*g);
            CHECK(norm_error(grads, expected) < 1.2 * slack * tolerance);
            CHECK(relative_error(grads.data(), expected.data(), int64_t(grads.size())) < slack * tolerance);
            CHECK(g->train.grad_norm() == doctest::Approx(r.train.grad_norm()).epsilon(slack * tolerance));
        }
    });
}

// A bidirectional prefill, then single tokens, must give the logits of the whole sequence.
inline void check_prompt(Model& g, double tolerance) {
    const int B = 2, S = 17, prompt = 9, V = g.c.V;
    auto in = toy_tokens(B * S, V, 1);
    KvCache cache;
    REQUIRE(allocate_cache(g, cache, B, g.c.T).ok());
    std::vector<float> cached(size_t(B * V)), whole(cached);
    for (int s = prompt; s <= S; s++) {
        std::vector<int> part, all;
        Spans spans;
        for (int b = 0; b < B; b++) {
            const auto row = in.begin() + b * S;
            part.insert(part.end(), row + (s == prompt ? 0 : s - 1), row + s);
            all.insert(all.end(), row, row + s);
            spans.add({Text{0, prompt}}, s, MaskKind::prefix);
        }
        compute_logits(g, extend(g, cache, part.data(), s == prompt ? prompt : 1), cached.data());
        g.batch.upload(all.data(), nullptr, B, s, &spans);
        g.forward();
        compute_logits(g, whole_batch(g), whole.data());
        for (size_t i = 0; i < cached.size(); i++) CHECK(cached[i] == doctest::Approx(whole[i]).epsilon(tolerance));
    }
}
