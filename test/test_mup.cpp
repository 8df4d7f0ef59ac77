// test_mup.cpp - the coordinate check of muP (Yang et al. 2022, appendix D): activations of models
// of all widths are alike, also after some steps with one learning rate.
#include "test.h"
#include "toy_model.h"

namespace {
constexpr int S = 32, B = 4, STEPS = 6, V = 61, BASE = 64;

double root_mean_square(const Activation* x, int64_t n) {
    const auto* numbers = reinterpret_cast<const float*>(x);
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += double(numbers[i]) * double(numbers[i]);
    return std::sqrt(sum / double(n));
}

// Root mean squares of the second block's input, its queries, keys and values, and its ffn before
// the activation function, in a model of this width after STEPS steps.
std::vector<double> after_steps(int width, const Optimizer& o, int base) {
    Config c = {.V = V, .T = S, .L = 2, .NH = width / 32, .C = width, .F = 4 * width};
    c.tied = false;
    Plan plan = {.mode = RunMode::train, .B = B, .S = S, .optimizer = &o, .mup_base = base};
    Model g(cpu_ops<float>());
    REQUIRE(g.allocate(c, plan).ok());
    g.init(11);
    OptimizerParams params = o.defaults;
    params.lr *= 4, params.weight_decay = 0;
    for (int step = 0; step <= STEPS; step++) {
        const auto in = toy_tokens(B * S, V, uint64_t(step)), out = toy_tokens(B * S, V, uint64_t(100 + step));
        g.train.begin(0, 1, step);
        g.batch.upload(in.data(), out.data(), B, S);
        g.forward(true);
        if (step == STEPS) break;
        g.loss(true, 1.0f / (B * S));
        g.backward();
        g.train.update(params, {}, 1);
        (void)g.train.finish();
    }
    const Activations& a = g.a[1];
    return {root_mean_square(a.x, int64_t(B) * S * c.C), root_mean_square(a.qkv, int64_t(B) * S * 3 * c.C),
            root_mean_square(a.fch, int64_t(B) * S * c.F)};
}
}    // namespace

TEST_CASE("mup: activations have the same size from width 64 to 512, after steps with one learning rate") {
    for (const Optimizer* o : {&ADAMW, &MUON, &LION}) {
        CAPTURE(std::string(o->name));
        const std::vector<double> narrow = after_steps(BASE, *o, BASE);
        for (int width : {128, 256, 512}) {
            const std::vector<double> wide = after_steps(width, *o, BASE);
            for (size_t i = 0; i < wide.size(); i++) {
                CAPTURE(width);
                CAPTURE(i);
                CHECK(wide[i] == doctest::Approx(narrow[i]).epsilon(0.1));
            }
        }
        // Without muP they grow with the width.
        const std::vector<double> plain = after_steps(512, *o, 0);
        CHECK(plain[2] > 1.3 * narrow[2]);
    }
}
