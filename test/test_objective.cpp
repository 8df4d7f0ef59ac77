// test_objective.cpp - documents, prefixes, masked tokens: spans, draws, gradients, whole models.
#include "data/objective.h"
#include "base/philox.h"

#include <set>

#include "infer/eval/text_loss.h"
#include "model/cost_table.h"
#include "test.h"
#include "model_checks.h"

namespace {
// An objective for which token 2 begins a document.
Objective documents(MaskKind mask_kind = MaskKind::causal) {
    Objective o = toy_objective(mask_kind);
    o.begin = 2;
    return o;
}
}    // namespace

TEST_CASE("objective: spans say what the definition says, of keys and of queries") {
    for (uint64_t seed = 0; seed < 300; seed++) {
        auto draw = [&](uint64_t i, int n) { return int(philox(1, seed, i).v[0] % uint32_t(n)); };
        const int S = 1 + draw(0, 20);
        std::vector<Text> texts = {Text{0, draw(1, S + 3)}};
        for (int s = 1; s < S; s++)
            if (draw(uint64_t(10 + s), 4) == 0) texts.push_back({s, s + draw(uint64_t(50 + s), 6)});
        auto text_of = [&](int s) {
            size_t t = 0;
            while (t + 1 < texts.size() && texts[t + 1].from <= s) t++;
            return t;
        };
        for (MaskKind mask_kind : {MaskKind::causal, MaskKind::prefix, MaskKind::all}) {
            auto visible = [&](int query, int key) {
                if (text_of(query) != text_of(key)) return false;
                return key <= query || mask_kind == MaskKind::all ||
                       (mask_kind == MaskKind::prefix && key < texts[text_of(key)].prefix);
            };
            Spans spans;
            spans.add({Text{}}, 3, MaskKind::causal);    // another sequence in front
            spans.add(texts, S, mask_kind);
            REQUIRE(spans.keys.size() == size_t(3 + S));
            REQUIRE(spans.queries.size() == size_t(3 + S));
            for (int i = 0; i < S; i++) {
                const Span keys = spans.keys[size_t(3 + i)], queries = spans.queries[size_t(3 + i)];
                for (int j = 0; j < S; j++) {
                    REQUIRE((j >= keys.from && j < keys.to) == visible(i, j));
                    REQUIRE((j >= queries.from && j < queries.to) == visible(j, i));
                }
                if (i == 0) continue;
                for (auto& all : {spans.keys, spans.queries}) {    // monotonic, as kernels assume
                    REQUIRE(all[size_t(3 + i)].from >= all[size_t(2 + i)].from);
                    REQUIRE(all[size_t(3 + i)].to >= all[size_t(2 + i)].to);
                }
            }
        }
    }
}

TEST_CASE("objective: what is drawn follows from the seed and the sequence's number; the targets are as many as said") {
    const int S = 40, n = 500;
    for (Objective o :
         {toy_objective(MaskKind::prefix), toy_objective(MaskKind::all), documents(), documents(MaskKind::all)}) {
        std::vector<int> lengths(S + 1);
        int64_t all = 0, masked = 0, same = 0;
        for (int number = 0; number < n; number++) {
            const std::vector<int> text = toy_tokens(S, 12, uint64_t(number)), next = toy_tokens(S, 12, 1000);
            auto in = text, out = next;
            Spans spans, again;
            o.apply(number, in.data(), out.data(), S, S, &spans);
            REQUIRE(counting(out) == o.targets(number, 1, S, S));
            all += counting(out);
            auto in2 = text, out2 = next;
            o.apply(number, in2.data(), out2.data(), S, S, &again);
            REQUIRE(in == in2);
            REQUIRE(out == out2);
            if (o.mask_kind == MaskKind::prefix) {
                const int prefix = spans.keys[0].to;
                lengths[size_t(prefix)]++;
                for (int s = 0; s < S; s++) REQUIRE(out[size_t(s)] == (s < prefix - 1 ? -1 : next[size_t(s)]));
                REQUIRE(in == text);
            }
            for (int s = 0; s < S && o.mask_kind == MaskKind::all; s++) {
                if (out[size_t(s)] < 0) REQUIRE(in[size_t(s)] == text[size_t(s)]);
                else REQUIRE(out[size_t(s)] == text[size_t(s)]);
                if (out[size_t(s)] >= 0) masked += in[size_t(s)] == 12, same += in[size_t(s)] == text[size_t(s)];
            }
        }
        CHECK(all == o.targets(0, n, S, int64_t(n) * S));
        if (o.mask_kind == MaskKind::all) {
            CHECK(all == n * 12);    // round(0.3 * 40)
            CHECK(std::fabs(double(masked) / double(all) - 0.8) < 0.03);
            CHECK(std::fabs(double(same) / double(all) - (0.1 + 0.1 / 12)) < 0.03);
        }
        if (o.mask_kind == MaskKind::prefix) {
            CHECK(lengths[0] + lengths[S] == 0);
            for (int p = 1; p < S; p++) CHECK(lengths[size_t(p)] > 1);    // expected mean: 12.8
        }
        Objective other = o;
        other.seed = 7;
        auto in = toy_tokens(S, 12, 0), out = in, in2 = in, out2 = in;
        Spans spans;
        o.apply(0, in.data(), out.data(), S, S, &spans), other.apply(0, in2.data(), out2.data(), S, S, &spans);
        CHECK((out == out2) == (o.mask_kind == MaskKind::causal));
    }
}

TEST_CASE("objective: gradients with documents, prefixes and masked tokens equal central differences") {
    auto cut = [](MaskKind mask_kind = MaskKind::causal) {
        Objective o = documents(mask_kind);
        o.begin = 0;    // the toy tokens have some, and no 2
        return o;
    };
    const Config windowed = {.V = 13, .T = 8, .L = 2, .NH = 4, .C = 12, .F = 24, .NKV = 2, .HS = 5, .window = 3};
    check_gradients(windowed, cut());
    for (Config base : {TOY, windowed}) {
        check_gradients(seeing(base, MaskKind::causal), cut());
        check_gradients(seeing(base, MaskKind::prefix), toy_objective(MaskKind::prefix));
        check_gradients(seeing(base, MaskKind::all), toy_objective(MaskKind::all));
        check_gradients(seeing(base, MaskKind::all), cut(MaskKind::all));
    }
    Config pattern = windowed;
    pattern.window = 2, pattern.stride = 5, pattern.global_tokens = 1;
    check_gradients(seeing(pattern, MaskKind::all), toy_objective(MaskKind::all));
}

TEST_CASE("objective: the cpu tables agree with the reference") {
    const Config base = {.V = 101, .T = 40, .L = 2, .NH = 4, .C = 48, .NKV = 2, .HS = 24};
    for (Objective o :
         {documents(), toy_objective(MaskKind::prefix), toy_objective(MaskKind::all), documents(MaskKind::all)}) {
        CAPTURE(int(o.mask_kind));
        CAPTURE(o.begin);
        check_cpu_model(seeing(base, o.mask_kind), 2, o);
    }
    Config windowed = base;
    windowed.window = 9;
    check_cpu_model(windowed, 2, documents());
    windowed.stride = 7, windowed.global_tokens = 3;
    check_cpu_model(seeing(windowed, MaskKind::all), 2, toy_objective(MaskKind::all));
}

TEST_CASE("objective: documents in one sequence have the losses that each has alone") {
    const int S = 24;
    for (const Kind& kind : kind_configs({.V = 13, .T = S, .L = 2, .NH = 2, .C = 16, .F = 24})) {
        for (MaskKind mask_kind : {MaskKind::causal, MaskKind::all}) {
            const Config c = mask_kind == MaskKind::all ? seeing(kind.c, mask_kind) : kind.c;
            if (mask_kind == MaskKind::all && (c.position == Position::alibi || c.linear != LinearAttention::none))
                continue;
            CAPTURE(std::string(kind.name));
            Model g(reference_ops());
            toy_model(g, c, {.B = 1, .S = S, .spans = true});
            auto in = toy_tokens(S, 13, 1), out = toy_tokens(S, 13, 2);
            for (size_t s : {0, 5, 6, 17}) in[s] = 2;
            Spans spans;
            Objective o = documents();
            o.apply(0, in.data(), out.data(), S, S, &spans);
            spans = {};
            std::vector<Text> texts;
            for (int s = 0; s < S; s++)
                if (in[size_t(s)] == 2) texts.push_back({s});
            REQUIRE(texts.size() > 1);
            spans.add(texts, S, mask_kind);
            std::vector<float> packed(S), alone(S);
            losses_of(g, in, out, 1, S, packed.data(), &spans);
            for (size_t i = 0; i < texts.size(); i++) {
                const int from = texts[i].from, to = i + 1 < texts.size() ? texts[i + 1].from : S;
                const std::vector<int> part(in.begin() + from, in.begin() + to);
                losses_of(g, part, {out.begin() + from, out.begin() + to}, 1, to - from, alone.data() + from);
            }
            for (size_t s = 0; s < S; s++) CHECK(packed[s] == doctest::Approx(alone[s]).epsilon(1e-6));
        }
    }
}

TEST_CASE("objective: padded texts have the losses that each has alone") {
    const Tokenizer none;
    std::vector<std::vector<int>> texts;
    for (int n : {5, 24, 2, 1, 60, 9}) texts.push_back(toy_tokens(n, 12, uint64_t(n)));
    each_cpu_model([&](auto model, double tolerance) {
        for (MaskKind mask_kind : {MaskKind::causal, MaskKind::prefix, MaskKind::all}) {
            const Config c = seeing({.V = 13, .T = 24, .L = 2, .NH = 2, .C = 16, .F = 24}, mask_kind);
            const int64_t expected = mask_kind == MaskKind::all ? 2 + 7 + 1 + 1 + 18 + 3 : 4 + 23 + 1 + 0 + 59 + 8;
            std::vector<Evaluation> alone;    // from batches of one, without padding
            for (int B : {1, 4, 16}) {
                auto g = model();
                toy_model(*g, c, {.B = B, .S = 24});
                int64_t pieces = 0;
                const std::vector<Evaluation> all = evaluate_texts(*g, none, texts, toy_objective(mask_kind), &pieces);
                REQUIRE(all.size() == texts.size());
                if (alone.empty()) alone = all;
                for (size_t i = 0; i < texts.size(); i++) {
                    CHECK(all[i].tokens == alone[i].tokens);
                    if (all[i].tokens) CHECK(all[i].loss == doctest::Approx(alone[i].loss).epsilon(tolerance));
                }
                const Evaluation mean = combined(all);
                CHECK((mask_kind == MaskKind::prefix ? mean.tokens < expected : mean.tokens == expected));
                CHECK(mean.loss == doctest::Approx(combined(alone).loss).epsilon(tolerance));
            }
        }
    });
}

TEST_CASE("objective: the mean is over the targets that count, on however many ranks they are") {
    Model g(reference_ops());
    toy_model(g, TOY, {RunMode::train, 1, 8});
    auto in = toy_tokens(16, 13, 1), out = toy_tokens(16, 13, 2);
    for (size_t i : {0, 3, 4, 5, 9}) out[i] = -1;
    g.train.begin(11);
    double sum = 0;
    for (int b = 0; b < 2; b++) {
        g.batch.upload(in.data() + 8 * b, out.data() + 8 * b, 1, 8);
        g.forward();
        g.loss(true, float(1.0 / 11));
        sum += g.mean_loss() * (b ? 7 : 4);
        g.backward(b == 1);
    }
    const double norm = g.train.grad_norm();
    g.train.update({}, {}, 1);
    const Step step = g.train.finish();
    CHECK(step.loss == doctest::Approx(sum / 11).epsilon(1e-6));
    CHECK(step.norm == doctest::Approx(norm).epsilon(1e-6));
}

TEST_CASE("objective: a prompt whose tokens see each other, then one token after the other: as the whole sequence") {
    for (const Kind& kind : kind_configs({.V = 61, .T = 20, .L = 2, .NH = 2, .C = 32})) {
        if (kind.c.window || kind.c.position == Position::alibi || kind.c.linear != LinearAttention::none) continue;
        CAPTURE(std::string(kind.name));
        Model g(reference_ops());
        toy_model(g, seeing(kind.c, MaskKind::prefix), {.B = 2, .S = 20});
        check_prompt(g, 1e-5);
    }
    each_cpu_model([&](auto model, double tolerance) {
        auto g = model();
        toy_model(*g, seeing({.V = 61, .T = 20, .L = 2, .NH = 2, .C = 32}, MaskKind::prefix), {.B = 2, .S = 20});
        check_prompt(*g, 20 * tolerance);
    });
}

TEST_CASE("objective: FLOPs of a bidirectional model are those of all pairs, of documents those of their own") {
    Config c = {.V = 13, .T = 8, .L = 1, .NH = 2, .C = 12, .F = 24};
    auto attention = [&](MaskKind mask_kind, const Spans* spans, const std::vector<int>* tok) {
        CostTable count(reference_ops());
        Model g(count.table);
        REQUIRE(
            g.allocate(seeing(c, mask_kind), {.mode = RunMode::train, .B = 2, .S = 8, .spans = spans != nullptr}).ok());
        g.batch.upload(tok ? tok->data() : nullptr, tok ? tok->data() : nullptr, 2, 8, spans);
        g.forward();
        g.loss(true, 1);
        g.backward();
        return count.of(Operation::attention_forward).work.flops() +
               count.of(Operation::attention_backward).work.flops();
    };
    const double pair = 12.0 * c.NH * c.HS;
    CHECK(attention(MaskKind::causal, nullptr, nullptr) == pair * 2 * 36);
    CHECK(attention(MaskKind::all, nullptr, nullptr) == pair * 2 * 64);
    Spans spans;
    spans.add({Text{}, Text{3}}, 8, MaskKind::causal);
    spans.add({Text{}}, 8, MaskKind::causal);
    const std::vector<int> tok(16, 1);
    CHECK(attention(MaskKind::causal, &spans, &tok) == pair * (6 + 15 + 36));
}
