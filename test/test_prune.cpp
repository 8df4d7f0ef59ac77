// test_prune.cpp - pruned heads: importance against central differences, cut against whole models.
#include "tools/heads/heads.h"
#include "tools/heads/importance.h"

#include "toy_run.h"
#include "model_checks.h"

namespace {
// Four heads, each with keys and values of its own; and two groups of two.
const Config WHOLE = {.V = 13, .T = 8, .L = 2, .NH = 4, .C = 12, .F = 24, .HS = 5};
const Config GROUPS = {.V = 13, .T = 8, .L = 2, .NH = 4, .C = 12, .F = 24, .NKV = 2, .HS = 5};

// Calls visit(config) for each kind of model whose heads can be cut.
template <class Visit> void each_kind(Visit visit) {
    for (const Config& base : {WHOLE, GROUPS})
        for (const Kind& kind : kind_configs(base)) {
            if (kind.c.qk_norm == QkNormRope::QkNorm::all) continue;
            CAPTURE(std::string(kind.name));
            CAPTURE(base.NKV);
            visit(kind.c);
        }
}
std::vector<float> tensor(const Model& g, const Tensor& t) {
    std::vector<float> x(size_t(t.size()));
    g.read(StateKind::weights, t.offset, t.size(), x.data());
    return x;
}
const Tensor& row(const Model& g, const std::string& name) {
    for (const Tensor& t : g.tensors)
        if (t.name == name) return t;
    FAIL(name);
    return g.tensors[0];
}
// Calls change(weights, layer) for each tensor whose name ends in `ending`, and writes the result.
template <class Change> void change_each(Model& g, const std::string& ending, Change change) {
    for (const Tensor& t : g.tensors) {
        if (!t.name.ends_with(ending)) continue;
        std::vector<float> x = tensor(g, t);
        change(x, size_t(t.bucket - 1));
        g.write(StateKind::weights, t.offset, t.size(), x.data());
    }
}
std::vector<double> losses(Model& g) {
    const Posed asked(g.c, 2, 7);
    std::vector<float> x(14);
    losses_of(g, asked.in, asked.out, asked.B, asked.S, x.data());
    return {x.begin(), x.end()};
}
// Models whose decays or embeddings of values belong to key/value heads: none can be removed or
// merged.
bool refused(const Config& c) {
    return c.linear == LinearAttention::retention || c.linear == LinearAttention::gated || c.value_embeddings;
}
void make_cut(Model& cut, const Model& whole, const HeadSelection& how) {
    const Result<Config> c = cut_config(whole.c, int(how.kept[0].size()), how.kv_heads);
    REQUIRE_MESSAGE(c.ok(), c.status.message);
    REQUIRE(cut.allocate(c.value, {RunMode::infer, 2, 7}).ok());
    cut_heads(cut, whole, how);
}
}    // namespace

TEST_CASE("prune: a head's importance is the loss's derivative by a factor on its output, in every kind of model") {
    const int S = 7;
    auto check = [&](const Config& c, const Objective& objective) {
        Model g(reference_ops());
        const bool spans = !objective.is_plain_causal();
        toy_model(g, c, {.mode = RunMode::train, .B = 1, .S = S, .optimizer = nullptr, .spans = spans});
        CHECK(g.store.states.empty());
        const Posed asked(c, 1, S, objective);
        train_pass(g, asked.in, asked.out, 1, S, asked.spans);
        std::vector<double> found(size_t(c.L * c.NH)), numeric;
        add_importance(g, found);
        double* weights = typed<double>(g, g.store.params);
        for (int l = 0; l < c.L; l++)
            for (int h = 0; h < c.NH; h++) {
                const Tensor& t = row(g, std::to_string(l) + ".projw");
                const std::vector<double> saved(weights + t.offset, weights + t.offset + t.size());
                auto loss_with = [&](double factor) {
                    for (int64_t i = 0; i < t.size(); i++)
                        weights[t.offset + i] = saved[size_t(i)] * (i % t.cols / c.HS == h ? factor : 1);
                    return loss_in_double(g, asked);
                };
                numeric.push_back(std::fabs((loss_with(1 + 2e-5) - loss_with(1 - 2e-5)) / 4e-5));
                (void)loss_with(1);
            }
        CHECK(relative_error(found.data(), numeric.data(), int64_t(found.size())) < 1e-5);
    };
    for (const Config& base : {TOY, GROUPED})
        for (const Kind& kind : kind_configs(base)) {
            CAPTURE(std::string(kind.name));
            check(kind.c, {});
        }
    for (MaskKind mask_kind : {MaskKind::prefix, MaskKind::all})
        check(seeing(GROUPED, mask_kind), toy_objective(mask_kind));
}

TEST_CASE("prune: importance is the mean over the windows of the shards; the cpu tables agree") {
    const Config c = {.V = 257, .T = 16, .L = 2, .NH = 4, .C = 32, .NKV = 2, .HS = 8};
    Toy toy;
    const Result<Loader> opened = Loader::open(
        {.pattern = toy.dir + "/val.bin", .B = 1, .S = 16, .vocab = 257, .shuffle = false, .max_tokens = 80});
    REQUIRE(opened.ok());
    Loader loader = opened.value;
    const Plan plan = {.mode = RunMode::train, .B = 1, .S = 16, .optimizer = nullptr};
    Model r(reference_ops());
    toy_model(r, c, plan);
    std::vector<double> sums(8);
    std::vector<int> in(16), out(16);
    for (int i = 0; i < 5; i++) {
        REQUIRE(loader.next(in.data(), out.data()).ok());
        train_pass(r, in, out, 1, 16);
        add_importance(r, sums);
    }
    for (double& sum : sums) sum /= 5;
    int64_t told = 0;
    const auto found = head_importance(r, loader, 16, {}, [&](int64_t done, int64_t all) { told = done * 100 + all; });
    REQUIRE(found.ok());
    CHECK(told == 505);
    CHECK(relative_error(found.value.data(), sums.data(), 8) < 1e-12);
    each_cpu_model([&](auto model, double tolerance) {
        auto g = model();
        toy_model(*g, c, plan);
        const auto theirs = head_importance(*g, loader, 16, {});
        REQUIRE(theirs.ok());
        CHECK(relative_error(theirs.value.data(), sums.data(), 8) < 10 * tolerance);
    });
}

TEST_CASE("prune: importance that is not a number is refused, with its place") {
    Toy toy;
    Loader loader =
        Loader::open(
            {.pattern = toy.dir + "/val.bin", .B = 1, .S = 8, .vocab = 257, .shuffle = false, .max_tokens = 40})
            .take();
    Model g(cpu_ops<float>());
    // Activations for 16 positions, more than a window of 8.
    toy_model(g, {.V = 257, .T = 16, .L = 2, .NH = 4, .C = 32, .HS = 8},
              {.mode = RunMode::train, .B = 1, .S = 16, .optimizer = nullptr});
    REQUIRE(head_importance(g, loader, 8, {}).ok());
    change_each(g, "1.projw", [](std::vector<float>& x, size_t) { x[2 * 8] = NAN; });    // head 2
    const Status s = head_importance(g, loader, 8, {}).status;
    CHECK(s.code == Exit::run);
    CHECK_MESSAGE(s.message.starts_with("the importance of layer 0, head 0 in window 1 of 5 is not a number: the model "
                                        "has diverged or overflowed; take an earlier"),
                  s.message);
}

TEST_CASE("prune: a cut model computes what the whole one does without these heads' columns of the projection") {
    each_kind([](const Config& c) {
        if (c.position == Position::alibi || refused(c)) return;    // prune refuses these
        Model whole(reference_ops()), cut(reference_ops());
        toy_model(whole, c, {RunMode::infer, 2, 7});
        const int leaves = c.NKV == 4 ? 2 : 1, shared = c.NH / c.NKV, groups = c.NKV - leaves;
        const bool alike = c.position == Position::t5;
        // Each layer keeps other heads, except with t5, whose bias all layers share.
        const HeadSelection how = {
            c.NKV == 4 ? std::vector<std::vector<int>>{{1, 2}, alike ? std::vector{1, 2} : std::vector{0, 3}}
                       : std::vector<std::vector<int>>{{1}, {alike ? 1 : 0}},
            groups};
        const std::vector<double> before = losses(whole);
        make_cut(cut, whole, how);
        CHECK(cut.c.NH == groups * shared);
        CHECK(cut.c.HS == c.HS);
        change_each(whole, ".projw", [&](std::vector<float>& x, size_t l) {
            for (size_t i = 0; i < x.size(); i++) {
                const int group = int(i) % c.attention_width() / c.HS / shared;
                const auto& kept = how.kept[l];
                if (std::find(kept.begin(), kept.end(), group) == kept.end()) x[i] = 0;
            }
        });
        const std::vector<double> expected = losses(whole), found = losses(cut);
        CHECK(relative_error(found.data(), expected.data(), 14) < 1e-5);
        CHECK(relative_error(before.data(), expected.data(), 14) > 1e-3);
        CHECK(config_parameters(cut.c) < config_parameters(c));
    });
}

TEST_CASE("prune: merged keys and values are the mean of neighbours; where these are alike, nothing changes") {
    each_kind([](const Config& c) {
        if (refused(c)) return;
        Model whole(reference_ops()), cut(reference_ops()), alike(reference_ops()), again(reference_ops());
        toy_model(whole, c, {RunMode::infer, 2, 7});
        std::vector<std::vector<int>> all(2);
        for (int k = 0; k < c.NKV; k++) all[0].push_back(k), all[1].push_back(k);
        const int into = c.NKV / 2;
        make_cut(cut, whole, {all, into});
        CHECK(cut.c.NH == 4);
        CHECK(cut.c.NKV == into);
        // Element 3 of row d of a head of qkvw. part 0: keys, 1: values.
        const std::vector<float> x = tensor(whole, row(whole, "1.qkvw")), y = tensor(cut, row(cut, "1.qkvw"));
        auto at = [&](const std::vector<float>& w, int head, int d) { return w[size_t((head * c.HS + d) * c.C + 3)]; };
        for (int part : {0, 1})
            for (int k = 0; k < into; k++)
                for (int d = 0; d < c.HS; d++) {
                    const int first = c.NH + part * c.NKV + 2 * k;
                    CHECK(at(y, c.NH + part * into + k, d) ==
                          doctest::Approx((at(x, first, d) + at(x, first + 1, d)) / 2).epsilon(1e-6));
                }
        // Queries are unchanged.
        CHECK(std::equal(x.begin(), x.begin() + c.NH * c.HS * c.C, y.begin()));
        // Where neighbouring keys and values are equal, merging them must change nothing.
        toy_model(alike, c, {RunMode::infer, 2, 7});
        for (const char* name : {".qkvw", ".qkvb"})
            change_each(alike, name, [&](std::vector<float>& w, size_t) {
                const size_t head = w.size() / size_t(c.NH + 2 * c.NKV);
                for (size_t h = size_t(c.NH); h < size_t(c.NH + 2 * c.NKV); h += 2)
                    std::copy_n(w.begin() + long(h * head), head, w.begin() + long((h + 1) * head));
            });
        make_cut(again, alike, {all, into});
        const std::vector<double> expected = losses(alike), found = losses(again);
        CHECK(relative_error(found.data(), expected.data(), 14) < 1e-5);
    });
    // Removal and merging together: heads leave first, then the rest is merged.
    Model whole(reference_ops()), cut(reference_ops());
    toy_model(whole, WHOLE, {RunMode::infer, 2, 7});
    make_cut(cut, whole, {{{0, 3}, {1, 2}}, 1});
    const std::vector<float> x = tensor(whole, row(whole, "0.qkvb")), y = tensor(cut, row(cut, "0.qkvb"));
    CHECK(y.size() == 4 * 5);
    CHECK(y[5] == x[15]);
    CHECK(y[10] == doctest::Approx((x[20] + x[35]) / 2));
}

TEST_CASE("prune: which heads leave, and how many") {
    for (auto& [text, groups, leave] : {std::tuple{"30%", 12, 4},
                                        {"0.3", 10, 3},
                                        {"3", 4, 3},
                                        {"100%", 4, 3},
                                        {"50%", 3, 2},
                                        {"1.0", 2, 1},
                                        {"12.5%", 8, 1},
                                        {"30%", 4, 1}}) {
        CAPTURE(text);
        const bool part = strpbrk(text, "%.");
        for (int shared : {1, 4}) {    // numbers count query heads
            const std::string asked = part ? text : std::to_string(shared * std::stoi(text));
            const Result<int> found = groups_to_remove(asked, shared * groups, groups);
            REQUIRE(found.ok());
            CHECK(found.value == leave);
        }
    }
    const struct {
        const char* text;
        int NH, NKV;
        const char* says;
    } refused[] = {{"3", 32, 8,
                    "each layer has 32 heads in groups of 4 that share keys and values, and one group must stay; "
                    "expected 4, 8, ..., 28"},
                   {"32", 32, 8, "expected 4, 8, ..., 28"},
                   {"2", 12, 3, "expected 4 or 8"},
                   {"1", 8, 2, "expected 4"},
                   {"4", 4, 4, "each layer has 4 heads, and one must stay; expected 1 to 3"},
                   {"2", 2, 2, "expected 1"},
                   {"5%", 8, 2,
                    "that is none of each layer's 8 heads in groups of 4 that share keys and values; --heads 4 "
                    "removes the fewest"}};
    for (auto& row : refused) {
        const Status s = groups_to_remove(row.text, row.NH, row.NKV).status;
        CHECK(s.code == Exit::usage);
        CHECK_MESSAGE(s.message.ends_with(row.says), s.message);
    }
    for (const char* text : {"", "%", "x", "-1", "0", "0%", "1.5", "101%", "4", "1e9", "3 %", "30%%", "nan", "5%"}) {
        CAPTURE(text);
        CHECK(groups_to_remove(text, 4, 4).status.code == Exit::usage);
    }
    CHECK(groups_to_remove("50%", 4, 1).status.code == Exit::usage);

    const std::vector<double> each = {3, 1, 2, 4, 1, 1, 9, 0};
    using Groups = std::vector<std::vector<int>>;
    CHECK(most_important(WHOLE, each, 2) == Groups{{0, 3}, {0, 2}});
    CHECK(most_important(GROUPS, each, 1) == Groups{{1}, {1}});
    Config t5 = WHOLE;
    t5.position = Position::t5;
    CHECK(most_important(t5, each, 2) == Groups{{0, 2}, {0, 2}});
    // Every pair is drawn about as often as any other.
    std::map<std::vector<int>, int> seen;
    for (uint64_t seed = 0; seed < 300; seed++)
        for (const std::vector<int>& kept : random_groups(WHOLE, 2, seed)) seen[kept]++;
    CHECK(seen.size() == 6);
    for (auto& [kept, times] : seen) CHECK((times > 60 && times < 140));
}
