// test_inspect.cpp - `flatgpt inspect`: maps against the reference's attention, scores by hand, files and refusals.
#include "tools/attention_maps.h"

#include <dlfcn.h>
#include <omp.h>

#include <atomic>

#include "base/countdown.h"
#include "files/json.h"
#include "model/spans.h"
#include "toy_run.h"
#include "toy_model.h"

using Strings = std::vector<std::string>;

namespace {
constexpr int S = 11;
const Config SMALL = {.V = 20, .T = 16, .L = 2, .NH = 4, .C = 32, .F = 32};

// Every kind, and what attention has besides them.
std::vector<Kind> seeing_configs() {
    std::vector<Kind> all = kind_configs(SMALL);
    auto add = [&](const char* name, auto change) {
        all.push_back({name, all[0].c});
        change(all.back().c);
    };
    add("grouped, pattern", [](Config& k) { k.NKV = 2, k.window = 3, k.stride = 4, k.global_tokens = 2; });
    add("prefix", [](Config& k) { k.sees = Sees::prefix; });
    add("mlm", [](Config& k) { k.sees = Sees::all, k.mask = 1; });
    return all;
}
// The probabilities that attention_forward sums values with: it is given values that are one for a key and zero for the
// others, HS keys at a time.
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
std::vector<std::vector<double>> all_maps(Model& g, const std::vector<int>& tokens, int prefix) {
    std::vector<HeadPlace> heads;
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
        const int prefix = kind.c.sees == Sees::prefix ? 4 : 0;
        const std::vector<int> tokens = toy_tokens(S, kind.c.V, 3);
        Model exact(reference_ops()), g(cpu_ops<float>());
        toy_model(exact, kind.c, {Use::infer, 1, S});
        toy_model(g, kind.c, {Use::infer, 1, S});
        const auto maps = all_maps(exact, tokens, prefix), of_cpu = all_maps(g, tokens, prefix);

        Spans spans;
        spans.add({Text{0, prefix}}, S, kind.c.sees);
        exact.after_attention = [&](int l) {
            Heads h = kind.c.heads(l);
            const double* turned = typed<double>(exact, exact.a[size_t(l)].turned);
            h.bias = reinterpret_cast<const float*>(exact.bias);
            if (kind.c.sees != Sees::causal) h.keys = spans.keys.data(), h.queries = spans.queries.data();
            for (int head = 0; head < h.NH; head++) {
                const auto expected = probabilities_by_values({turned, turned + S * h.qkv_width()}, h, head);
                const size_t i = size_t(l * h.NH + head);
                CHECK(relative_error(maps[i].data(), expected.data(), S * S) < 1e-12);
                CHECK(relative_error(of_cpu[i].data(), expected.data(), S * S) < 2e-5);
            }
        };
        exact.batch(tokens.data(), nullptr, 1, S, kind.c.sees == Sees::causal ? nullptr : &spans);
        exact.forward();
        exact.after_attention = nullptr;
    }
}

TEST_CASE("inspect: so many maps are computed at once as their memory's limit allows") {
    CHECK(maps_that_fit(1024, 8) == 8);
    CHECK(maps_that_fit(16384, 8) == 2);
    CHECK(maps_that_fit(23170, 8) == 1);
    CHECK(maps_that_fit(23171, 8) == 0);
    CHECK(maps_that_fit(1 << 20, 8) == 0);

    Config c = SMALL;
    c.NH = 16;
    Model g(cpu_ops<float>());
    toy_model(g, c, {Use::infer, 1, S});
    std::vector<HeadPlace> heads;
    for (int h = 0; h < c.NH; h++) heads.push_back({0, h});
    const int threads = omp_get_max_threads();
    omp_set_num_threads(4);
    for (int limit : {1, 2}) {
        std::atomic<int> now = 0, most = 0, calls = 0;
        attention_maps(g, toy_tokens(S, c.V, 3), 0, heads, [&](size_t, const double*, const int*) {
            const int here = ++now;
            for (int seen = most; seen < here && !most.compare_exchange_weak(seen, here);) {}
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            now--, calls++;
        }, {}, limit * int64_t(sizeof(double)) * S * S);
        CHECK(calls == 16);
        CHECK(most == limit);
    }
    omp_set_num_threads(threads);
}

TEST_CASE("inspect: progress counts the layers that have maps, up to 100 %") {
    Config c = SMALL;
    c.L = 5, c.linear = Linear::gated, c.softmax_every = 2;
    Model g(cpu_ops<float>());
    toy_model(g, c, {Use::infer, 1, S});
    int done = 0;
    attention_maps(g, toy_tokens(S, c.V, 3), 0, {{1, 0}}, [](size_t, const double*, const int*) {}, [&] { done++; });
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
    CHECK(s.entropy == doctest::Approx(entropy / 3));
    CHECK(s.relative == doctest::Approx(entropy / (std::log(2.0) + std::log(3.0))));
    CHECK(s.distance == doctest::Approx((0.25 * 1 + 0.5 * 2) / 3));
    CHECK(s.previous == doctest::Approx((0.25 + 0) / 2));
    CHECK(s.first == doctest::Approx((0.25 + 0.5) / 2));
    CHECK(s.induction == 0);

    const SmallMap small = small_map(p, 3, 2);    // cells of two
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
    std::vector<double> p(size_t(n * n)), off = p;    // off: a key later
    for (int i = 11; i < n; i++) {
        CHECK(r.tokens[size_t(i)] == r.tokens[size_t(i - 9)]);
        CHECK(std::count(r.tokens.begin(), r.tokens.end(), r.tokens[size_t(i)]) == 2);
        CHECK((r.tokens[size_t(i)] >= 5 && r.tokens[size_t(i)] < 30));
        for (int j = 0; j < i; j++)    // by the tokens alone
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

TEST_CASE("inspect: what is printed and written says the same; pictures are pictures") {
    const Toy toy;
    must(toy.args("run", {"--steps", "2"}));
    const std::string run = toy.dir + "/run", csv = toy.dir + "/maps.csv", text = "a b\n,\"c";
    const Strings text_args = {"inspect", run, "--text", text};
    auto with = [](Strings a, const Strings& more) { return a.insert(a.end(), more.begin(), more.end()), a; };

    const ProcessResult json = must(with(text_args, {"--layer", "1", "--head", "0,1", "--json", "--csv", csv}));
    const nlohmann::json found = nlohmann::json::parse(json.out);
    const size_t n = found["tokens"].size();
    REQUIRE(n == text.size());
    REQUIRE(found["heads"].size() == 2);
    CHECK(found["layers"].size() == 1);
    std::string expected = "layer,head,query,key,query_token,key_token,probability\n";
    const Strings names = {"\"a\"", "\"\u00B7\"", "\"b\"", "\"\\n\"", "\",\"", "\"\"\"\"", "\"c\""};
    for (auto& head : found["heads"]) {
        CHECK(head["layer"] == 1);
        for (size_t q = 0; q < n; q++) {
            double sum = 0;
            for (size_t k = 0; k < n; k++) {
                const double p = head["map"][q][k];
                sum += p;
                CHECK((k <= q || p == 0));
                if (k <= q)
                    expected += formatted("1,%d,%zu,%zu,%s,%s,%.6g\n", head["head"].get<int>(), q, k, names[q].c_str(),
                                          names[k].c_str(), p);
            }
            CHECK(sum == doctest::Approx(1));
        }
    }
    CHECK(read_file(csv) == expected);

    const ProcessResult map = must(with(text_args, {"--layer", "1", "--head", "1"}));
    CHECK(contains(map.out, "layer 1, head 1: rows are queries"));
    CHECK(contains(map.out, "\n0 a  @@\n"));    // no terminal: the first token sees itself alone
    CHECK_FALSE(contains(map.out, "\x1b"));
    CHECK(contains(map.out, formatted("    1    1  %7.3f", found["heads"][1]["entropy"].get<double>())));
    CHECK(contains(must({"inspect", run}).out, "\n    1 mean "));    // random tokens
    must(with({"inspect", run, "--data", toy.dir + "/val.bin"}, {"--sequences", "3", "--csv", csv}));
    CHECK(contains(read_file(csv), "layer,head,entropy,relative_entropy,distance,previous,first,induction\n0,0,"));

    if (!dlopen("libcairo.so.2", RTLD_NOW)) SKIP("no libcairo.so.2");
    const std::string png = toy.dir + "/maps.png", svg = toy.dir + "/head.svg";
    must(with(text_args, {"--picture", png}));
    CHECK(read_file(png).starts_with("\x89PNG\r\n"));
    must(with(text_args, {"--layer", "0", "--head", "0", "--picture", svg}));
    CHECK(contains(read_file(svg), "<svg "));
    must({"inspect", run, "--picture", svg});
    must(with(text_args, {"--picture", "/nonexistent/a.png"}), 4);
}

TEST_CASE("inspect: --json without --layer and --head holds no maps, as it prints none") {
    const Toy toy;
    must(toy.args("run", {"--steps", "1", "--position", "rope"}));
    const std::string text = toy.dir + "/text.txt";
    write_file(text, std::string(1500, 'a'));
    auto peak = [&](const char* more) {
        Strings args = {flatgpt_binary(), "inspect", toy.dir + "/run", "--context", "2048", "--text-file", text};
        if (*more) args.push_back(more);
        Process running(args);
        const double bytes = peak_memory(running);
        CHECK(running.wait().exit_code == 0);
        return bytes;
    };
    const double maps = 4 * 8 * 1500.0 * 1500;      // bytes; two layers have two heads each
    CHECK(peak("--json") < peak("") - maps / 2);    // without --json all four maps are drawn
}

TEST_CASE("inspect: what cannot be is refused") {
    const Toy toy;
    must(toy.args("run", {"--steps", "1"}));
    const std::string run = toy.dir + "/run", val = toy.dir + "/val.bin";
    const struct {
        Strings args;
        int code;
        const char* says;
    } rows[] = {{{"--text", "a", "--data", val}, 2, "--text, --data: expected at most one of them"},
                {{"--text", "a", "--text-file", val}, 2, "--text, --text-file"},
                {{"--seq-len", "8"}, 2, "--seq-len needs --data"},
                {{"--text", "a", "--raw-u16"}, 2, "--raw-u16 needs --data"},
                {{"--prefix", "2"}, 2, "--prefix needs --text"},
                {{"--text", "a", "--prefix", "1"}, 2, "--prefix needs a model with --objective prefix"},
                {{"--text-file", "/dev/null"}, 3, "/dev/null"},
                {{"--layer", "2"}, 2, "--layer '2': expected a number from 0 to 1"},
                {{"--head", "x"}, 2, "--head 'x': expected a number from 0 to 1"},
                {{"--picture", "a.jpg"}, 2, "--picture a.jpg: expected a file's name that ends in .png or .svg"},
                {{"--data", val, "--seq-len", "64"}, 2, "--seq-len 64: the model's context has 32 positions"},
                {{"--data", "/nonexistent"}, 3, "/nonexistent"},
                {{"--text-file", "/nonexistent"}, 3, "/nonexistent"},
                {{"--text", "a", "--csv", "/nonexistent/a.csv"}, 4, "/nonexistent/a.csv"}};
    for (auto& row : rows) {
        Strings args = {"inspect", run};
        args.insert(args.end(), row.args.begin(), row.args.end());
        must(args, row.code, row.says);
    }
    must({"inspect", "/nonexistent"}, 3, "/nonexistent");

    // A map that takes more than 4 GiB.
    must(toy.args("far", {"--steps", "1", "--position", "rope"}));
    const std::string far = toy.dir + "/far", text = toy.dir + "/long.txt";
    write_file(text, std::string(24000, 'a'));
    const std::string says = "a head's map of 24000 tokens takes 4.29 GiB, more than the limit of 4.00 GiB; ";
    must({"inspect", far, "--context", "24000", "--text-file", text}, 2, says + "give a shorter text");
    must({"inspect", far, "--context", "24000", "--seq-len", "24000", "--data", val}, 2,
         says + "choose a shorter --seq-len");
}
