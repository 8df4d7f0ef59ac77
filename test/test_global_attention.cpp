// test_global_attention.cpp - global tokens with projections of their own (Longformer;
// model/sparse/global_attention.h): by definition, gradients, options, runs. Their files:
// test_encoders.cpp.
#include <algorithm>
#include <numeric>

#include "base/philox.h"
#include "files/json.h"
#include "model/cost_table.h"
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
Config encoder(int window, int global_tokens) {
    Config c = seeing({.V = 13, .T = S, .L = 2, .NH = 4, .C = 12, .F = 24, .NKV = 2, .HS = 5, .window = window},
                      MaskKind::all);
    c.global_tokens = global_tokens, c.global_projections = true;
    return c;
}
typedef std::vector<double> Row;

// Queries, keys and values of one kind, for all rows: (B*S,NH*HS), (B*S,NKV*HS) twice.
struct Projected {
    Row q, k, v;
    explicit Projected(const Config& c) : q(size_t(B * S * c.NH * c.HS)), k(size_t(B * S * c.NKV * c.HS)), v(k) {}
};
// Adds to y (B*S,NH*HS) and to the gradients d, given dy, the attention of the query at row n, head
// by head, to the keys of its sequence for which sees(j).
template <class Sees>
void attend(const Config& c, int n, const Projected& p, Row& y, Projected& d, const Row& dy, Sees sees) {
    const int HS = c.HS;
    auto dot = [&](const double* a, const double* b) { return std::inner_product(a, a + HS, b, 0.0); };
    for (int head = 0; head < c.NH; head++) {
        const size_t q = size_t(n * c.NH + head) * size_t(HS);
        std::vector<std::pair<size_t, double>> keys;    // offset, probability
        double total = 0, delta = 0;
        for (int j = 0; j < S; j++) {
            if (!sees(j)) continue;
            const size_t k = size_t((n / S * S + j) * c.NKV + head / (c.NH / c.NKV)) * size_t(HS);
            keys.push_back({k, std::exp(dot(&p.q[q], &p.k[k]) / std::sqrt(HS))});
            total += keys.back().second;
        }
        for (auto& [k, probability] : keys) {
            probability /= total;
            delta += probability * dot(&dy[q], &p.v[k]);
        }
        for (const auto& [k, probability] : keys) {
            const double ds = probability * (dot(&dy[q], &p.v[k]) - delta) / std::sqrt(HS);
            for (size_t i = 0; i < size_t(HS); i++) {
                y[q + i] += probability * p.v[k + i];
                d.q[q + i] += ds * p.k[k + i], d.k[k + i] += ds * p.q[q + i], d.v[k + i] += probability * dy[q + i];
            }
        }
    }
}
// to (B*S,width) = x w^T + b     w (width,C)
void project(Row& to, const double* x, const double* w, const double* b, int C) {
    const int width = int(to.size()) / (B * S);
    for (int i = 0; i < int(to.size()); i++)
        to[size_t(i)] = std::inner_product(x + i / width * C, x + (i / width + 1) * C, w + i % width * C, b[i % width]);
}
// Backward pass of project: adds to dx, dw and db.
void project_backward(double* dx, double* dw, double* db, const Row& d, const double* x, const double* w, int C) {
    const int width = int(d.size()) / (B * S);
    for (int i = 0; i < int(d.size()); i++) {
        const double g = d[size_t(i)];
        db[i % width] += g;
        for (int k = 0; k < C; k++) {
            dx[i / width * C + k] += g * w[i % width * C + k];
            dw[i % width * C + k] += g * x[i / width * C + k];
        }
    }
}
void check_close(const double* found, const Row& expected, double tolerance) {
    for (size_t i = 0; i < expected.size(); i++)
        if (!(std::fabs(found[i] - expected[i]) <= tolerance)) CHECK(found[i] == expected[i]);
}

// Checks layer l's attention and its gradients, pair by pair.
void check_by_pairs(Model& g, int l) {
    const Config& c = g.c;
    const Spans spans = texts();
    const Activations& t = g.a[size_t(l)];
    const Block<Parameter>& w = g.w.block[size_t(l)];
    const Block<Gradient>& dw = g.dw.block[size_t(l)];
    const int width = c.NH * c.HS, kv = c.NKV * c.HS, row = width + 2 * kv, C = c.C;
    const double *x = typed<double>(g, t.ln1), *qkv = typed<double>(g, t.qkv_rot);
    Projected local(c), global(c), dlocal(c), dglobal(c);
    for (int n = 0; n < B * S; n++) {
        std::copy_n(qkv + n * row, width, &local.q[size_t(n * width)]);
        std::copy_n(qkv + n * row + width, kv, &local.k[size_t(n * kv)]);
        std::copy_n(qkv + n * row + width + kv, kv, &local.v[size_t(n * kv)]);
    }
    const double *kvw = typed<double>(g, w.global_kvw), *kvb = typed<double>(g, w.global_kvb);
    project(global.q, x, typed<double>(g, w.global_qw), typed<double>(g, w.global_qb), C);
    project(global.k, x, kvw, kvb, C);
    project(global.v, x, kvw + kv * C, kvb + kv, C);
    Row y(size_t(B * S * width)), dy(y.size());
    for (size_t i = 0; i < dy.size(); i++) dy[i] = philox_normal(5, uint64_t(l), i);
    for (int n = 0; n < B * S; n++) {
        const int i = n % S;
        const Span text = spans.keys[size_t(n)];
        auto in_text = [&](int j) { return j >= text.from && j < text.to; };
        if (i < c.global_tokens) attend(c, n, global, y, dglobal, dy, in_text);
        else
            attend(c, n, local, y, dlocal, dy,
                   [&](int j) { return in_text(j) && (std::abs(i - j) < c.window || j < c.global_tokens); });
    }
    check_close(typed<double>(g, t.atty), y, 1e-6);

    Row dx(size_t(B * S * C)), dqw(size_t(width * C)), dqb(static_cast<size_t>(width)), dkvw(size_t(2 * kv * C)),
        dkvb(size_t(2 * kv));
    project_backward(dx.data(), dqw.data(), dqb.data(), dglobal.q, x, typed<double>(g, w.global_qw), C);
    project_backward(dx.data(), dkvw.data(), dkvb.data(), dglobal.k, x, kvw, C);
    project_backward(dx.data(), &dkvw[size_t(kv * C)], &dkvb[size_t(kv)], dglobal.v, x, kvw + kv * C, C);
    Row found(size_t(B * S * row)), found_dx(dx.size());
    std::fill_n(typed<double>(g, dw.global_qb), width, 0.0), std::fill_n(typed<double>(g, dw.global_kvb), 2 * kv, 0.0);
    Heads h = c.heads(l);
    h.keys = spans.keys.data(), h.queries = spans.queries.data();
    const GlobalStep step = {.q = {w.global_qw, w.global_qb},
                             .kv = {w.global_kvw, w.global_kvb},
                             .precision = Precision::prefill,
                             .h = h,
                             .B = B,
                             .S = S,
                             .C = C,
                             .x = t.ln1,
                             .keys = t.global_kv,
                             .lse = t.global_lse,
                             .y = t.atty};
    const GlobalGradients into = {{dw.global_qw, false}, {dw.global_kvw, false}, dw.global_qb,
                                  dw.global_kvb,         g.dqkv_or_dup,          g.dx};
    g.global_attention.take(reinterpret_cast<Activation*>(dy.data()), step);
    g.attention.backward(false, reinterpret_cast<Activation*>(found.data()),
                         reinterpret_cast<const Activation*>(dy.data()), t.atty, t.qkv_rot, t.lse, B, S, h);
    g.global_attention.backward(reinterpret_cast<Activation*>(found_dx.data()), into, step);
    for (int n = 0; n < B * S; n++) {
        const double* at = &found[size_t(n * row)];
        auto part = [](const Row& from, int first, int size) {
            return Row(&from[size_t(first)], &from[size_t(first)] + size);
        };
        check_close(at, part(dlocal.q, n * width, width), 3e-6);
        check_close(at + width, part(dlocal.k, n * kv, kv), 3e-6);
        check_close(at + width + kv, part(dlocal.v, n * kv, kv), 3e-6);
    }
    check_close(found_dx.data(), dx, 1e-5);
    check_close(typed<double>(g, dw.global_qw), dqw, 1e-5), check_close(typed<double>(g, dw.global_qb), dqb, 1e-5);
    check_close(typed<double>(g, dw.global_kvw), dkvw, 1e-5), check_close(typed<double>(g, dw.global_kvb), dkvb, 1e-5);
}
}    // namespace

TEST_CASE("global attention: y and gradients equal the definition, pair by pair") {
    // 30: more than the first text of the second sequence has; 70: more than there are positions.
    for (const Config& c : {encoder(3, 1), encoder(4, 3), encoder(2, 30), encoder(9, 70)}) {
        CAPTURE(c.global_tokens);
        Model g(reference_ops());
        toy_model(g, c, {.mode = RunMode::train, .B = B, .S = S});
        const Spans spans = texts();
        g.train.begin();
        g.batch.upload(toy_tokens(B * S, c.V, 1).data(), toy_tokens(B * S, c.V, 2).data(), B, S, &spans);
        g.forward(true);
        for (int l = 0; l < c.L; l++) check_by_pairs(g, l);
    }
}

TEST_CASE("global attention: gradients equal central differences, and the cpu tables the reference") {
    Config post = encoder(2, 2);
    post.norm_placement = NormPlacement::post, post.embed_norm = true;
    Config blocks = encoder(2, 1);
    blocks.random_blocks = 1, blocks.random_block = 2;
    Config few = encoder(3, 1);
    few.global_every = 2, few.qkv_bias = false;
    for (Config c : {encoder(2, 2), post, few, encoder(2, 9), blocks}) {
        CAPTURE(c.global_tokens);
        c.T = 12;
        // The reference's lse of random blocks is a float, too coarse for differences.
        if (!c.random_blocks) check_gradients(c, toy_objective(MaskKind::all));
        c.C = 48, c.HS = 24, c.T = 40, c.V = 101;
        check_cpu_model(c, 3, toy_objective(MaskKind::all));    // 2.3e-2 seen
    }
    post.T = 12;
    check_gradients(post, toy_objective(MaskKind::all), 0.1f);
}

TEST_CASE("global attention: the same bits twice, and with activations that are computed again") {
    Config c = encoder(3, 2);
    c.norm_placement = NormPlacement::post, c.C = 48, c.HS = 24;
    const Posed asked(c, 3, 33, toy_objective(MaskKind::all));
    each_cpu_model([&](auto model, double) {
        std::vector<float> first;
        for (const Recompute recompute : {Recompute::none, Recompute::none, Recompute::cheap, Recompute::blocks}) {
            auto g = model();
            toy_model(*g, c,
                      {.mode = RunMode::train,
                       .B = 3,
                       .S = 33,
                       .recompute = recompute,
                       .dropout = 0.1f,
                       .attention_dropout = 0.2f});
            train_pass(*g, asked.in, asked.out, 3, 33, asked.spans);
            const std::vector<float> grads = flat_grads(*g);
            if (first.empty()) first = grads;
            CHECK(grads == first);
        }
    });
}

TEST_CASE("global attention: parameters and FLOPs are counted") {
    Config with = encoder(8, 2), without = with;
    without.global_projections = false;
    const int width = with.NH * with.HS + 2 * with.NKV * with.HS;
    CHECK(config_parameters(with) - config_parameters(without) == with.L * width * (with.C + 1));
    // The keys and values of all positions, the queries of two, twice (they are computed again in
    // the backward pass), and pairs of 2 queries with all keys, each forward and backward.
    with.T = without.T = 256;
    const double more = 256 *
                        (training_flops(reference_ops(), with, 256) - training_flops(reference_ops(), without, 256));
    const double kv = 2.0 * with.NKV * with.HS, q = with.NH * with.HS;
    CHECK(more == doctest::Approx(2 * (6 * 256 * with.C * kv + 8 * 2 * with.C * q + 2 * 256 * 12 * q)).epsilon(0.01));
}

TEST_CASE("global attention: train, eval, embed and a classifier; what excludes it") {
    Toy toy;
    const std::vector<std::string> globals = {"--objective",     "mlm", "--mask-token",         "0",   "--window", "8",
                                              "--global-tokens", "2",   "--global-projections", "true"};
    auto run = [&](const std::string& out, const std::vector<std::string>& more) {
        std::vector<std::string> args = toy.args(out, more);
        Toy::set(args, "--steps", "4");
        return args;
    };
    must(run("own", globals));
    const std::string config = read_file(toy.newest("own") + "/config.json");
    CHECK(contains(config, "\"flatgpt_global_projections\": true"));
    must({"train", "--from", toy.dir + "/own", "--data", toy.dir + "/train.bin", "--steps", "2", "--out",
          toy.dir + "/more"});
    // A window beyond the context stays: it makes the tokens global.
    const std::vector<std::string> family = {"--model", "longformer:d2", "--objective", "mlm", "--mask-token", "0"};
    must(run("long", family));
    const nlohmann::json written = nlohmann::json::parse(read_file(toy.newest("long") + "/config.json"));
    CHECK(written["model_type"] == "longformer");
    CHECK(written["attention_window"] == nlohmann::json({512, 512}));
    CHECK(written["flatgpt_global_tokens"] == 1);
    must({"eval", toy.dir + "/long", "--data", toy.dir + "/val.bin"});
    write_file(toy.dir + "/texts", "a text\nanother, which is longer\n");
    must({"embed", toy.dir + "/long", "--text", toy.dir + "/texts"});
    std::string lines;
    for (const char* text : {"a b", "c, longer", "d e", "f, much longer than others"})
        lines += formatted("{\"text\": \"%s\", \"label\": \"%s\"}\n", text, strlen(text) > 4 ? "long" : "short");
    write_file(toy.dir + "/labels.jsonl", lines);
    must({"train", "--from", toy.dir + "/long", "--labels", toy.dir + "/labels.jsonl", "--labels-val",
          toy.dir + "/labels.jsonl", "--steps", "2", "--batch", "2", "--out", toy.dir + "/classes"});
    CHECK(contains(read_file(toy.newest("classes") + "/config.json"), "LongformerForSequenceClassification"));

    must(run("x", {"--objective", "mlm", "--mask-token", "0", "--window", "8", "--global-projections", "true"}), 2,
         "--global-projections true needs --global-tokens");
    must(with(toy.args("x"), {"--window", "8", "--global-tokens", "2", "--global-projections", "true"}), 2,
         "--global-projections true is for encoders: expected --objective mlm beside it");
    must(with(run("x", globals), {"--position", "rope"}), 2, "--global-projections true: expected no --position rope");
    must({"prune", toy.dir + "/own", "--heads", "1", "--data", toy.dir + "/val.bin", "--out", toy.dir + "/fewer"}, 2,
         "--global-projections");
}
