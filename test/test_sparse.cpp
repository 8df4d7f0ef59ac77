// test_sparse.cpp - dilated windows and random blocks of encoders (model/sparse).
#include <algorithm>
#include <numeric>

#include "base/philox.h"
#include "model/cost_table.h"
#include "model/sparse/key_parts.h"
#include "toy_run.h"

#include "model_checks.h"

namespace {
constexpr int B = 2, S = 50;
// Two texts in the second sequence, and a mask in both directions.
Spans texts() {
    Spans spans;
    spans.add({Text{}}, S, MaskKind::all);
    spans.add({{0}, {21}}, S, MaskKind::all);
    return spans;
}
const KeyParts BLOCKS = {.window = 5, .global_tokens = 2, .random_blocks = 3, .block = 4};

Config encoder(int window, int dilation, int blocks, int block, int global_tokens = 0) {
    Config c = seeing({.V = 13, .T = S, .L = 2, .NH = 4, .C = 12, .F = 24, .NKV = 2, .HS = 5, .window = window},
                      MaskKind::all);
    c.dilation = dilation, c.random_blocks = blocks, c.random_block = block, c.global_tokens = global_tokens;
    return c;
}
// Whether query i of a text attends to key j of this text, by the papers' definitions.
bool sees(const Config& c, int l, int i, int j) {
    const int distance = std::abs(i - j);
    if (c.dilation > 1 && l >= c.L / 2) return distance % c.dilation == 0 && distance / c.dilation < c.window;
    if (distance < c.window || j < c.global_tokens || i < c.global_tokens) return true;
    for (const std::vector<int>& part : KeyParts::of(c).chosen_blocks(S))
        if (i / c.random_block < int(part.size()) && part[size_t(i / c.random_block)] == j / c.random_block)
            return true;
    return false;
}
}    // namespace

TEST_CASE("sparse: random blocks are never near, never twice for a query, once in a part") {
    for (int window : {1, 5, 9})
        for (int n : {0, 3, 4, 47, 200}) {
            KeyParts parts = BLOCKS;
            parts.window = window;
            const auto chosen = parts.chosen_blocks(n);
            REQUIRE(chosen.size() == 3);
            int found = 0;
            for (size_t k = 0; k < chosen.size(); k++) {
                REQUIRE(chosen[k].size() == size_t(n / 4));
                for (int j = 0; j < n / 4; j++) {
                    const int m = chosen[k][size_t(j)];
                    if (m < 0) continue;
                    found++;
                    CHECK((m >= 1 && m < n / 4));    // the first block has the global tokens
                    CHECK(std::abs(m - j) * 4 - 3 >= window);
                    CHECK(std::ranges::count(chosen[k], m) == 1);
                    for (size_t other = 0; other < k; other++) CHECK(chosen[other][size_t(j)] != m);
                }
            }
            if (n == 200) CHECK(found > 120);    // there are 150
            CHECK(parts.chosen_blocks(n) == chosen);
        }
}

TEST_CASE("sparse: masks of keys and of queries agree, and the order of a dilated window is a permutation") {
    const Spans spans = texts();
    for (const KeyParts& parts :
         {BLOCKS, KeyParts{.window = 3, .dilation = 3}, KeyParts{.window = 3, .dilation = 70}}) {
        std::vector<int> buffer(size_t(parts.count() * KeyParts::INTS * B * S), -7);
        parts.fill(buffer.data(), B * S, spans, B, S);
        int pairs = 0;
        for (int k = 0; k < parts.count(); k++) {
            const KeyParts::Part p = KeyParts::at(buffer.data(), k, B * S);
            for (int n = 0; n < B * S; n++) {
                CHECK(p.rows[n] / S == n / S);
                if (p.back[n] >= 0) CHECK(p.rows[p.back[n]] == n);
                if (parts.dilation > 1) CHECK(p.back[p.rows[n]] == n);
                if (n % S) CHECK((p.keys[n].from >= p.keys[n - 1].from && p.keys[n].to >= p.keys[n - 1].to));
                for (int j = 0; j < S; j++) {
                    const int key = n / S * S + j;
                    const bool by_keys = j >= p.keys[n].from && j < p.keys[n].to;
                    const bool by_queries = n % S >= p.queries[key].from && n % S < p.queries[key].to;
                    if (by_keys != by_queries) CHECK(n == -1);
                    pairs += by_keys;
                }
            }
        }
        CHECK(pairs >= B * S);
    }
}

namespace {
// Attention of head `head` of the query at row n, pair by pair: its y, and its terms of dqkv.
struct PairByPair {
    const Config& c;
    const Spans& spans;
    const double* qkv;
    int l;
    void add(double* y, double* dqkv, const double* dy, int n, int head) const {
        const int HS = c.HS, row = (c.NH + 2 * c.NKV) * HS, kv = (c.NH + head / (c.NH / c.NKV)) * HS, v = c.NKV * HS;
        const double* q = qkv + int64_t(n) * row + head * HS;
        const Span text = spans.keys[size_t(n)];
        auto dot = [&](const double* a, const double* b) { return std::inner_product(a, a + HS, b, 0.0); };
        std::vector<std::pair<int64_t, double>> keys;    // offset of a key in qkv, probability
        double total = 0;
        for (int j = text.from; j < text.to; j++) {
            if (!sees(c, l, n % S, j)) continue;
            const int64_t k = int64_t(n / S * S + j) * row + kv;
            keys.push_back({k, std::exp(dot(q, qkv + k) / std::sqrt(HS))});
            total += keys.back().second;
        }
        double delta = 0;
        for (auto& [k, p] : keys) {
            p /= total;
            delta += p * dot(dy, qkv + k + v);
            for (int d = 0; d < HS; d++) y[d] += p * qkv[k + v + d];
        }
        for (const auto& [k, p] : keys) {
            const double ds = p * (dot(dy, qkv + k + v) - delta) / std::sqrt(HS);
            for (int d = 0; d < HS; d++) {
                dqkv[int64_t(n) * row + head * HS + d] += ds * qkv[k + d];
                dqkv[k + d] += ds * q[d];
                dqkv[k + v + d] += p * dy[d];
            }
        }
    }
};
}    // namespace

TEST_CASE("sparse: attention and its gradients equal the definition, pair by pair") {
    for (const Config& c : {encoder(3, 0, 2, 4), encoder(5, 0, 3, 4, 2), encoder(4, 3, 0, 1), encoder(2, 60, 0, 1)}) {
        CAPTURE(c.dilation);
        Model g(reference_ops());
        toy_model(g, c, {.mode = RunMode::train, .B = B, .S = S});
        const Spans spans = texts();
        g.batch.upload(toy_tokens(B * S, c.V, 1).data(), toy_tokens(B * S, c.V, 2).data(), B, S, &spans);
        g.forward(true);
        const int width = c.NH * c.HS, row = width + 2 * c.NKV * c.HS;
        std::vector<double> dy(size_t(B * S * width));
        for (size_t i = 0; i < dy.size(); i++) dy[i] = philox_normal(5, 0, i);
        for (int l = 0; l < c.L; l++) {
            std::vector<double> y(dy.size()), dqkv(size_t(B * S * row)), found(dqkv.size());
            const PairByPair pairs = {c, spans, typed<double>(g, g.a[size_t(l)].qkv_rot), l};
            for (int n = 0; n < B * S; n++)
                for (int head = 0; head < c.NH; head++) {
                    const int at = n * width + head * c.HS;
                    pairs.add(&y[size_t(at)], dqkv.data(), &dy[size_t(at)], n, head);
                }
            Heads h = c.heads(l);
            h.keys = spans.keys.data(), h.queries = spans.queries.data();
            const Activations& t = g.a[size_t(l)];
            g.attention.backward(c.has_key_parts(l), reinterpret_cast<Activation*>(found.data()),
                                 reinterpret_cast<const Activation*>(dy.data()), t.atty, t.qkv_rot, t.lse, B, S, h);
            const double* got = typed<double>(g, t.atty);
            // lse is float in the reference, too.
            for (size_t i = 0; i < y.size(); i++)
                if (std::fabs(got[i] - y[i]) > 1e-6) CHECK(got[i] == y[i]);
            for (size_t i = 0; i < dqkv.size(); i++)
                if (std::fabs(found[i] - dqkv[i]) > 3e-6) CHECK(found[i] == dqkv[i]);
        }
    }
}

// With random blocks, the reference's lse, a float, limits its y, so that differences of losses are
// too coarse.
TEST_CASE("sparse: gradients equal central differences, and the cpu tables the reference") {
    for (Config c : {encoder(2, 0, 2, 2), encoder(2, 0, 1, 2, 1), encoder(2, 2, 0, 1)}) {
        CAPTURE(c.dilation);
        c.T = 12;
        if (c.dilation) check_gradients(c, toy_objective(MaskKind::all));
        c.C = 48, c.HS = 24, c.T = 40, c.V = 101;
        check_cpu_model(c, 2, toy_objective(MaskKind::all));
    }
    Config c = encoder(2, 2, 0, 1);
    c.T = 12;
    check_gradients(c, toy_objective(MaskKind::all), 0.1f);
}

TEST_CASE("sparse: the cost grows with the visible pairs") {
    auto flops = [](Config c, int length) {
        c.T = length;
        return training_flops(reference_ops(), c, length) * length;
    };
    for (const Config& c : {encoder(64, 0, 2, 64), encoder(64, 4, 0, 1)})
        CHECK(flops(c, 8192) == doctest::Approx(4 * flops(c, 2048)).epsilon(0.1));
    // Two more blocks of 64 keys; a pair has 2 products forward and 4 backward, in 2 layers.
    const double more = flops(encoder(64, 0, 2, 64), 8192) - flops(encoder(64, 0, 0, 64), 8192);
    CHECK(more == doctest::Approx(8192.0 * 128 * 6 * 2 * 20 * 2).epsilon(0.05));
}

TEST_CASE("sparse: train, eval and a checkpoint with random blocks; what excludes them") {
    Toy toy;
    const std::vector<std::string> mlm = {"--objective", "mlm", "--mask-token", "0", "--window", "8"};
    auto run = [&](const std::string& out, const std::vector<std::string>& more) {
        std::vector<std::string> args = toy.args(out, mlm);
        Toy::set(args, "--steps", "4");
        return with(args, more);
    };
    for (const auto& kind :
         {std::vector<std::string>{"--random-blocks", "2", "--random-block", "4"}, {"--dilation", "3"}}) {
        const std::string out = kind[0].substr(2);
        must(run(out, kind));
        const std::string config = read_file(toy.newest(out) + "/config.json");
        CHECK(contains(config, kind[0] == "--dilation" ? "\"flatgpt_dilation\": 3" : "\"flatgpt_random_blocks\": 2"));
        must({"train", "--from", toy.dir + "/" + out, "--data", toy.dir + "/train.bin", "--steps", "2", "--out",
              toy.dir + "/more_" + out});
        write_file(toy.dir + "/texts", "a text\nanother, which is longer\n");
        must({"embed", toy.dir + "/" + out, "--text", toy.dir + "/texts"});
    }
    must(with(toy.args("x"), {"--window", "8", "--dilation", "2"}), 2,
         "--dilation 2 is for encoders: expected --objective mlm beside it");
    must(run("x", {"--dilation", "2", "--random-blocks", "1"}), 2,
         "--dilation, --random-blocks: they exclude each other");
    must(run("x", {"--dilation", "2", "--stride", "4"}), 2, "--dilation, --stride: they exclude each other");
}
