// test_inspect.cpp - attention maps against the reference's; scores of maps, summed by hand.
#include "tools/heads/attention_maps.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "base/countdown.h"
#include "base/pool.h"
#include "model/spans.h"
#include "test.h"
#include "toy_model.h"

namespace {
constexpr int S = 11;
const Config SMALL = {.V = 20, .T = 16, .L = 2, .NH = 4, .C = 32, .F = 32};

// Every kind of model, and more masks: window with stride and global tokens, prefix, none (mlm).
std::vector<Kind> seeing_configs() {
    std::vector<Kind> all = kind_configs(SMALL);
    auto add = [&](const char* name, auto change) {
        all.push_back({name, all[0].c});
        change(all.back().c);
    };
    add("grouped, pattern", [](Config& k) { k.NKV = 2, k.window = 3, k.stride = 4, k.global_tokens = 2; });
    add("prefix", [](Config& k) { k.mask_kind = MaskKind::prefix; });
    add("mlm", [](Config& k) { k.mask_kind = MaskKind::all, k.mask = 1; });
    return all;
}
// A head's attention probabilities (S,S) by attention_forward: with one-hot values its output is
// the probabilities of HS keys at a time.
std::vector<double> probabilities_by_values(std::vector<double> qkv, const Heads& h, int head) {
    std::vector<double> p(S * S), y(size_t(S * h.width()));
    std::vector<float> lse(size_t(h.NH * S));
    for (int first = 0; first < S; first += h.HS) {
        for (int s = 0; s < S; s++)
            for (int i = 0; i < h.NKV * h.HS; i++)
                qkv[size_t(s * h.qkv_width() + (h.NH + h.NKV) * h.HS + i)] = s == first + i % h.HS;
        reference_ops().attention_forward(y.data(), lse.data(), qkv.data(), 1, S, h);
        for (int s = 0; s < S; s++)
            for (int d = 0; d < h.HS && first + d < S; d++)
                p[size_t(s * S + first + d)] = y[size_t((s * h.NH + head) * h.HS + d)];
    }
    return p;
}
// The head's output (S,HS): values, weighted by the probabilities.
std::vector<double> sums_of_values(const std::vector<double>& p, const double* qkv, const Heads& h, int head) {
    std::vector<double> y(size_t(S * h.HS));
    const int v = (h.NH + h.NKV + head / (h.NH / h.NKV)) * h.HS;
    for (int s = 0; s < S; s++)
        for (int j = 0; j < S; j++)
            for (int d = 0; d < h.HS; d++)
                y[size_t(s * h.HS + d)] += p[size_t(s * S + j)] * qkv[j * h.qkv_width() + v + d];
    return y;
}
std::vector<std::vector<double>> all_maps(Model& g, const std::vector<int>& tokens, int prefix) {
    std::vector<HeadIndex> heads;
    for (int l = 0; l < g.c.L; l++)
        for (int h = 0; h < g.c.NH; h++) heads.push_back({l, h});
    std::vector<std::vector<double>> maps(heads.size());
    attention_maps(g, tokens, prefix, heads,
                   [&](size_t i, const double* p, const int*) { maps[i].assign(p, p + S * S); });
    return maps;
}
}    // namespace

TEST_CASE("inspect: maps are the probabilities of the reference's attention, of every kind, also of the CPU's model") {
    for (const Kind& kind : seeing_configs()) {
        CAPTURE(kind.name);
        const int prefix = kind.c.mask_kind == MaskKind::prefix ? 4 : 0;
        const std::vector<int> tokens = toy_tokens(S, kind.c.V, 3);
        Model exact(reference_ops()), g(cpu_ops<float>());
        toy_model(exact, kind.c, {RunMode::infer, 1, S});
        toy_model(g, kind.c, {RunMode::infer, 1, S});
        const auto maps = all_maps(exact, tokens, prefix), of_cpu = all_maps(g, tokens, prefix);

        Spans spans;
        spans.add({Text{0, prefix}}, S, kind.c.mask_kind);
        int layers = 0;
        exact.after_attention = [&](int l) {
            layers++;
            Heads h = kind.c.heads(l);
            const double* qkv_rot = typed<double>(exact, exact.a[size_t(l)].qkv_rot);
            h.bias = reinterpret_cast<const float*>(exact.bias);
            if (kind.c.mask_kind != MaskKind::causal) h.keys = spans.keys.data(), h.queries = spans.queries.data();
            for (int head = 0; head < h.NH; head++) {
                const auto expected = probabilities_by_values({qkv_rot, qkv_rot + S * h.qkv_width()}, h, head);
                const size_t i = size_t(l * h.NH + head);
                CHECK(relative_error(maps[i].data(), expected.data(), S * S) < 1e-12);
                CHECK(relative_error(of_cpu[i].data(), expected.data(), S * S) < 2e-5);
                const auto y = sums_of_values(maps[i], qkv_rot, h, head);
                for (int s = 0; s < S; s++)
                    CHECK(relative_error(typed<double>(exact, exact.a[size_t(l)].atty) + (s * h.NH + head) * h.HS,
                                         &y[size_t(s * h.HS)], h.HS) < 1e-10);
            }
        };
        exact.batch.upload(tokens.data(), nullptr, 1, S, kind.c.mask_kind == MaskKind::causal ? nullptr : &spans);
        exact.forward();
        exact.after_attention = nullptr;
        CHECK(layers == layers_with_map(kind.c));
    }
}

TEST_CASE("inspect: so many maps are computed at once as their memory's limit allows") {
    CHECK(maps_that_fit(1024, 8) == 8);
    CHECK(maps_that_fit(16384, 8) == 2);
    CHECK(maps_that_fit(23170, 8) == 1);
    CHECK(maps_that_fit(23171, 8) == 0);
    CHECK(maps_that_fit(1 << 20, 8) == 0);
    CHECK(maps_that_fit(1024, 8, -MAP_BYTES) == 0);    // kept memory exceeds the limit already

    Config c = SMALL;
    c.NH = 16;
    Model g(cpu_ops<float>());
    toy_model(g, c, {RunMode::infer, 1, S});
    std::vector<HeadIndex> heads;
    for (int h = 0; h < c.NH; h++) heads.push_back({0, h});
    const int threads = pool_threads();
    pool_set_threads(4);
    for (int limit : {1, 2}) {
        std::atomic<int> now = 0, most = 0, calls = 0;
        attention_maps(
            g, toy_tokens(S, c.V, 3), 0, heads,
            [&](size_t, const double*, const int*) {
                const int here = ++now;
                for (int seen = most; seen < here && !most.compare_exchange_weak(seen, here);) {}
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
                now--, calls++;
            },
            {}, limit * int64_t(sizeof(double)) * S * S);
        CHECK(calls == 16);
        CHECK(most == limit);
    }
    pool_set_threads(threads);
}

TEST_CASE("inspect: progress counts the layers that have maps, up to 100 %") {
    Config c = SMALL;
    c.L = 5, c.linear = LinearAttention::gated, c.softmax_every = 2;
    Model g(cpu_ops<float>());
    toy_model(g, c, {RunMode::infer, 1, S});
    int done = 0;
    attention_maps(
        g, toy_tokens(S, c.V, 3), 0, {{1, 0}}, [](size_t, const double*, const int*) {}, [&] { done++; });
    CHECK(done == 2);
    CHECK(layers_with_map(c) == 2);
    CHECK(countdown_text("inspect", "", done, layers_with_map(c), 7) == "inspect: 100 %  ETA 0.0 s");
    CHECK(countdown_text("inspect", "", 1, 4, 20) == "inspect: 25 %  ETA 1:00");
    CHECK(countdown_text("eval", "windows", 3, 12, 3) == "eval: 3 of 12 windows  ETA 9.0 s");
}

TEST_CASE("inspect: scores of a map that is small enough to be summed by hand") {
    const double p[9] = {1, 0, 0, 0.25, 0.75, 0, 0.5, 0, 0.5};
    const int visible[3] = {1, 2, 3};
    HeadSums sums;
    sums.add(p, visible, 3);
    const HeadScores s = sums.scores();
    const double entropy = -0.25 * std::log(0.25) - 0.75 * std::log(0.75) + std::log(2.0);
    CHECK(s.entropy.value() == doctest::Approx(entropy / 3));
    CHECK(s.relative.value() == doctest::Approx(entropy / (std::log(2.0) + std::log(3.0))));
    CHECK(s.distance.value() == doctest::Approx((0.25 * 1 + 0.5 * 2) / 3));
    CHECK(s.previous.value() == doctest::Approx((0.25 + 0) / 2));
    CHECK(s.first.value() == doctest::Approx((0.25 + 0.5) / 2));
    CHECK_FALSE((s.induction || s.importance));    // not measured here
    CHECK_FALSE(HeadSums{}.scores().entropy);

    const double broken[9] = {1, 0, 0, NAN, NAN, 0, 0.5, 0, 0.5};    // NaN must not count as certainty
    HeadSums bad, one;
    bad.add(broken, visible, 3);
    CHECK(std::isnan(bad.scores().entropy.value()));
    CHECK(std::isnan(bad.scores().relative.value()));
    one.add(p, visible, 1);
    CHECK((one.scores().entropy == 0 && one.scores().relative == 0));
    CHECK_FALSE((one.scores().previous || one.scores().first));    // no earlier key

    const SmallMap small = small_map(p, 3, 2);    // cells of 2 x 2
    CHECK(small.bin == 2);
    REQUIRE(small.n == 2);
    CHECK(small.values == std::vector<double>{1, 0, 0.5, 0.5});
    CHECK(small_map(p, 3, 3).values == std::vector<double>(p, p + 9));
}

TEST_CASE("inspect: a head that looks at what came after a token's earlier occurrence has the induction score 1") {
    std::vector<int> choices;
    for (int id = 5; id < 30; id++) choices.push_back(id);
    const Repeated r = repeated_tokens(choices, {2, 3}, 21, 7, 0);
    const int n = int(r.tokens.size());
    CHECK(r.before == 2);
    CHECK(r.length == 9);
    REQUIRE(n == 20);
    CHECK((r.tokens[0] == 2 && r.tokens[1] == 3));
    std::vector<double> p(size_t(n * n)), off = p;    // off: one key earlier
    for (int i = 11; i < n; i++) {
        CHECK(r.tokens[size_t(i)] == r.tokens[size_t(i - 9)]);
        CHECK(std::count(r.tokens.begin(), r.tokens.end(), r.tokens[size_t(i)]) == 2);
        CHECK((r.tokens[size_t(i)] >= 5 && r.tokens[size_t(i)] < 30));
        for (int j = 0; j < i; j++)    // finds the earlier occurrence by tokens
            if (r.tokens[size_t(j)] == r.tokens[size_t(i)]) p[size_t(i * n + j + 1)] = 1, off[size_t(i * n + j)] = 1;
    }
    HeadSums right, wrong;
    right.add_induction(p.data(), n, r.before, r.length);
    wrong.add_induction(off.data(), n, r.before, r.length);
    CHECK(right.scores().induction == 1);
    CHECK(wrong.scores().induction == 0);
    CHECK(repeated_tokens(choices, {2, 3}, 21, 7, 0).tokens == r.tokens);
    CHECK(repeated_tokens(choices, {2, 3}, 21, 7, 1).tokens != r.tokens);
    CHECK(repeated_tokens(choices, {2, 3}, 21, 8, 0).tokens != r.tokens);
    CHECK(repeated_tokens(choices, {}, 1000, 8, 0).length == 25);    // each token once
}
