#include "heads.h"

#include "tools/selftest/attention.h"

namespace {
template <class T, class P> void expect_rounded(const Ops<T, P>& op, int B, int S, Heads h) {
    const int64_t N = int64_t(B) * S;
    Dual<T> qkv(op, attention_input(op, N * h.qkv_width(), 1)), dqkv(op, qkv.size());
    Dual<T> dy(op, attention_input(op, N * h.width(), 2));
    const ReferenceAttention exact(qkv.numbers, B, S, h);
    Dual<InputType<T, P>> y(op, exact.y), y_out(op, y.size());
    Statistics lse(op, exact.lse), lse_out(op, lse.size());
    op.attention_forward(y_out, lse_out, qkv, B, S, h);
    both(op,
         [&](auto& table, auto at) { table.attention_backward(at(dqkv), at(dy), at(y), at(qkv), at(lse), B, S, h); });
    CAPTURE(B);
    CAPTURE(S);
    CAPTURE(h.NH);
    CAPTURE(h.NKV);
    CAPTURE(h.HS);
    CAPTURE(h.window);
    CAPTURE(h.stride);
    CHECK(of_largest(y_out.read(), exact.y, 0x1p-8) < 0x1p-9 * 1.5);
    CHECK(of_largest(lse_out.read(), exact.lse) < 2e-6);    // float, not rounded to bf16
    CHECK(of_largest(dqkv.read(), dqkv.numbers) < 0x1p-9 * 2);
    CHECK((y_out.intact() && lse_out.intact() && dqkv.intact()));
}

Heads dropping(Heads h, float rate, int64_t first = 0) {
    h.dropout = {rate, 42, first};
    return h;
}

// only_rounded: skips tables that do not round to bf16
void both_ways(const std::vector<AttentionShape>& shapes, bool only_rounded = false) {
    each_table(TablePart::attention, [&]<class T, class P>(const Ops<T, P>& op) {
        const bool rounds = op.attention_rounds_to_bf16;
        if (sizeof(T) > sizeof(P) && !rounds) return;    // fp32's kernels, other y: test_cpu.cpp
        if (only_rounded && !rounds) return;
        for (const AttentionShape& shape : shapes)
            shape.call([&](int B, int S, Heads h) {
                if (rounds) return expect_rounded(op, B, S, h);
                EXPECT(check_attention_forward(op, B, S, h));
                EXPECT(check_attention_backward(op, B, S, h));
            });
    });
}
// Groups and head sizes in every combination.
Heads heads_of(int k, int window = 0) {
    const Heads kinds[] = {{2, 2, 0}, {4, 2, 0}, {3, 1, 0}};
    const int sizes[] = {8, 20, 33, 64};
    Heads h = kinds[k % 3];
    h.HS = sizes[(k + k / 9) % 4], h.window = window;
    return h;
}
}    // namespace

// Each pair of values of S, head size, heads per group, window and documents is in some row.
TEST_CASE("attention: every mask, group and head size against the reference") {
    both_ways({{2, 1, {2, 2, 1}},          {1, 2, {4, 2, 64, 2}, 1},     {2, 7, {6, 1, 3, 1}, 3},
               {1, 31, {2, 2, 7, 65}},     {2, 33, {4, 2, 8, 7}, 3},     {1, 63, {6, 1, 32, 2}},
               {1, 64, {2, 2, 40, 1}, 40}, {1, 64, {6, 1, 64}, 1},       {2, 65, {2, 1, 64, 63}, 40},
               {1, 65, {2, 2, 96, 2}, 3},  {1, 127, {1, 1, 128, 65}, 3}, {1, 128, {3, 1, 8, 128}, 40},
               {1, 129, {2, 1, 7}, 40},    {1, 129, {1, 1, 96, 1}},      {1, 130, {2, 2, 64, 64}, 1},
               {1, 200, {2, 1, 40, 65}},   {1, 200, {1, 1, 64}, 130},    {1, 130, {1, 1, 16, 2}},
               {1, 33, {1, 1, 257}},       {1, 65, {2, 1, 256, 7}, 40}});
}

TEST_CASE("attention: lengths and head sizes against the reference") {
    const Heads kinds[] = {{2, 2, 0}, {4, 2, 0}, {3, 1, 0}};
    const int lengths[] = {1, 2, 33, 63, 64, 65, 95, 97, 129, 257, 300};
    const int sizes[] = {4, 8, 9, 16, 20, 31, 32, 33, 64, 80, 96, 127, 128};
    std::vector<AttentionShape> shapes, only_rounded;
    int k = 0;
    for (int S : lengths)
        for (int HS : sizes) {
            Heads h = kinds[k % 3];
            h.HS = HS;
            (k++ % std::max(EVERY, 2) ? only_rounded : shapes).push_back({S < 100 ? 2 : 1, S, h});
        }
    both_ways(only_rounded, true);
    shapes.push_back({8, 100, {4, 4, 32}});    // many heads: the CPU does not split dQ
    shapes.push_back({1, 600, {2, 1, 16}});    // several tiles of keys: maxima grow
    shapes.push_back({1, 600, {2, 1, 33}});
    shapes.push_back({2, 130, {2, 2, 1}});
    both_ways(shapes);
}

TEST_CASE("attention: values of another size than keys against the reference") {
    both_ways({{2, 130, {.NH = 4, .NKV = 2, .HS = 64, .HV = 32}},
               {2, 130, {.NH = 3, .NKV = 1, .HS = 8, .window = 9, .HV = 40}},
               {1, 65, {.NH = 2, .NKV = 2, .HS = 33, .HV = 7}, 20},
               {1, 129, {.NH = 2, .NKV = 1, .HS = 40, .HV = 136}}});
}

TEST_CASE("attention: windows and documents against the reference") {
    const int lengths[] = {66, 130, 200, 290};
    std::vector<AttentionShape> shapes;
    int k = 0;
    for (int window : {0, 1, 2, 31, 64, 65, 129, 1000})
        for (int document : {0, 1, 5, 40, 200}) {
            const Heads h = heads_of(k, window);
            if (k++ % EVERY == 0) shapes.push_back({2, lengths[k / 3 % 4], h, document});
        }
    both_ways(shapes);
}

// The two sequences have different documents, which begin and end at edges of key tiles and query
// strips.
TEST_CASE("attention: documents at the edges of tiles") {
    const int S = 290;
    const std::vector<int> edges = {0, 1, 63, 64, 65, 95, 127, 129, 257}, halves = {S / 2}, none;
    std::vector<int> each(S);
    for (int s = 0; s < S; s++) each[size_t(s)] = s;
    const std::vector<std::vector<int>> places[] = {{edges, halves}, {halves, each}, {none, edges}, {each, edges}};
    int k = 0;
    for (const auto& begin : places)
        for (Heads h : {Heads{2, 2, 8}, Heads{4, 2, 64, 31}, Heads{3, 1, 20, 64}})
            for (TrueSpans::Kind kind : {TrueSpans::causal, TrueSpans::prefix, TrueSpans::all}) {
                if (kind == TrueSpans::prefix && h.window) continue;
                if (kind != TrueSpans::causal && k++ % EVERY) continue;
                const TrueSpans spans(S, begin, kind);
                both_ways({{2, S, spans.in(h)}});
            }
}

TEST_CASE("attention: prefixes and bidirectional attention against the reference") {
    const int lengths[] = {1, 2, 65, 96, 129, 200, 290};
    std::vector<AttentionShape> shapes;
    int k = 0;
    for (TrueSpans::Kind kind : {TrueSpans::prefix, TrueSpans::all})
        for (int document : {3, 40, 200, 100000})
            for (int i = 0; i < 3; i++, k++) shapes.push_back({2, lengths[k % 7], heads_of(k), document, kind});
    for (int window : {1, 2, 31, 64, 65, 129, 1000})    // in both directions
        for (int document : {40, 200, 100000}) shapes.push_back({1, 290, {4, 2, 24, window}, document, TrueSpans::all});
    shapes.push_back({1, 600, {2, 1, 16}, 100000, TrueSpans::all});    // several tiles of keys
    shapes.push_back({1, 600, {1, 1, 33}, 300, TrueSpans::prefix});
    shapes.push_back({1, 200, shaped({4, 2, 40}, 0.3f, 2, true), 60, TrueSpans::all});
    both_ways(shapes);
}

TEST_CASE("attention: strides and global keys beside a window against the reference") {
    const int lengths[] = {7, 64, 130, 290};
    std::vector<AttentionShape> shapes;
    int k = 0;
    for (int window : {1, 5, 64, 100})
        for (const auto& [stride, global_tokens] : {std::pair{0, 3}, {1, 0}, {2, 0}, {7, 1}, {64, 70}, {3, 9}}) {
            const Heads h = patterned(heads_of(k, window), stride, global_tokens);
            if (k++ % EVERY == 0 || k % 2) shapes.push_back({2, lengths[k / 3 % 4], h});
        }
    shapes.push_back({1, 600, patterned({2, 1, 16, 40}, 2, 0)});    // several tiles of strided keys
    shapes.push_back({1, 600, patterned({2, 2, 64, 40}, 130, 300)});
    shapes.push_back({1, 130, patterned(shaped({4, 2, 20, 20}, 0.3f, 2, true), 5, 3)});
    shapes.push_back({8, 130, patterned({4, 4, 32, 20}, 3, 2)});    // many heads: the CPU does not split dQ
    both_ways(shapes);
}

// Windows, strides and global tokens in both directions; the latter's queries attend to all keys of
// their documents. Some documents begin behind the global tokens, some among them.
TEST_CASE("attention: patterns within spans against the reference") {
    const int lengths[] = {7, 64, 130, 290};
    std::vector<AttentionShape> shapes;
    int k = 0;
    for (int window : {1, 5, 64, 100})
        for (const auto& [stride, global_tokens] : {std::pair{0, 3}, {1, 0}, {7, 1}, {64, 70}, {3, 9}, {0, 100}}) {
            const Heads h = patterned(heads_of(k, window), stride, global_tokens);
            const TrueSpans::Kind kind = k % 5 == 4 ? TrueSpans::causal : TrueSpans::all;
            if (k++ % EVERY == 0 || k % 2) shapes.push_back({2, lengths[k / 3 % 4], h, k % 3 ? 100000 : 60, kind});
        }
    const int whole = 100000;    // one document
    shapes.push_back({1, 600, patterned({2, 1, 16, 40}, 2, 0), whole, TrueSpans::all});
    shapes.push_back({1, 600, patterned({2, 2, 64, 40}, 130, 300), whole, TrueSpans::all});
    shapes.push_back({1, 600, patterned({2, 1, 20, 40}, 0, 1), whole, TrueSpans::all});
    shapes.push_back({1, 600, patterned({1, 1, 16, 30}, 9, 40), 200, TrueSpans::all});
    shapes.push_back({1, 130, patterned(shaped({4, 2, 20, 20}, 0.3f, 2, true), 5, 3), whole, TrueSpans::all});
    shapes.push_back({8, 130, patterned({4, 4, 32, 20}, 3, 2), whole, TrueSpans::all});
    shapes.push_back({1, 130, patterned({2, 1, 128, 20}, 5, 3), whole, TrueSpans::all});
    shapes.push_back({2, 130, dropping(patterned({2, 1, 20, 7}, 3, 9), 0.3f), whole, TrueSpans::all});
    shapes.push_back({1, 290, dropping(patterned({1, 1, 64, 20}, 1, 5), 0.3f), 70, TrueSpans::all});
    both_ways(shapes);
}

// A cap of 1 or 2 changes every score, a cap of 30 hardly any. ALiBi's slopes differ between
// numbers of heads that are powers of two and others.
TEST_CASE("attention: a scale, soft caps and ALiBi against the reference") {
    const Heads kinds[] = {{2, 2, 20}, {4, 2, 64, 31}, {3, 1, 33}, {6, 2, 8, 65}, {1, 1, 128}, {5, 5, 16}};
    const std::tuple<float, float, bool> scores[] = {{0.3f, 0, false}, {0, 1, false}, {0.2f, 2, false},
                                                     {0, 30, false},   {0, 0, true},  {0.1f, 2, true}};
    const int lengths[] = {1, 33, 64, 97, 130, 290};
    std::vector<AttentionShape> shapes;
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 6; j++) {
            const auto [scale, softcap, alibi] = scores[j];
            const Heads h = shaped(kinds[(i + j) % 6], scale, softcap, alibi);
            if (i % std::min(EVERY, 3) == 0) shapes.push_back({i < 3 ? 2 : 1, lengths[i], h, j % 3 == 1 ? 40 : 0});
        }
    shapes.push_back({1, 600, shaped({4, 1, 16}, 0, 0, true)});    // several tiles of keys
    shapes.push_back({1, 600, shaped({2, 1, 16}, 0.5f, 3)});
    both_ways(shapes);
}

TEST_CASE("attention: dropout against the reference") {
    const Heads kinds[] = {{2, 2, 20}, {4, 2, 64, 31}, {3, 1, 33}, {2, 1, 8}, {1, 1, 128}, {2, 2, 40}, {1, 1, 64}};
    const int lengths[] = {1, 2, 33, 64, 97, 130, 290};
    std::vector<AttentionShape> shapes;
    for (int k = 0; k < 14; k++)
        if (k % std::min(EVERY, 2) == 0)
            shapes.push_back({k % 3 ? 1 : 2, lengths[k * 3 % 7], dropping(kinds[k % 7], k % 2 ? 0.1f : 0.6f, k * k),
                              k % 5 == 4 ? 40 : 0});
    for (TrueSpans::Kind kind : {TrueSpans::prefix, TrueSpans::all})
        shapes.push_back({1, 200, dropping({2, 1, 64}, 0.3f), 70, kind});
    shapes.push_back({1, 600, dropping({2, 1, 16}, 0.3f, int64_t(1) << 40)});    // several tiles of keys
    shapes.push_back({1, 600, dropping(patterned({2, 2, 64, 40}, 2, 0), 0.3f)});
    shapes.push_back({2, 130, dropping(patterned({2, 1, 20, 7}, 3, 9), 0.3f)});
    shapes.push_back({1, 290, dropping(patterned({1, 1, 64, 20}, 1, 5), 0.3f)});
    shapes.push_back({1, 130, dropping(shaped({4, 2, 40}, 0.3f, 2, true), 0.3f)});
    shapes.push_back({8, 100, dropping({4, 4, 32}, 0.5f)});
    both_ways(shapes);
}

TEST_CASE("attention: large scores") {
    each_table(TablePart::attention, []<class T, class P>(const Ops<T, P>& op) {
        // float: rounding scores of some hundreds costs 1e-5 of a probability, of some 1e4 1e-3
        const bool half = sizeof(InputType<T, P>) == 2;
        for (const double scale : {6.0, 30.0}) {
            const double limit = half ? 1 : scale < 10 ? 10 : 100;
            const Check check = check_attention_forward(op, 1, 100, {2, 1, 32}, scale);
            CAPTURE(scale);
            CAPTURE(check.worst);
            CHECK(check.worst < limit);
        }
        const Check backward = check_attention_backward(op, 1, 100, {2, 1, 64}, 3);
        if (op.attention_rounds_to_bf16) CHECK(backward.ok());
        else EXPECT(backward);
    });
}

TEST_CASE("attention: the same bits in any order") {
    const int S = 130;
    const std::vector<std::vector<int>> places(9, {50, 64, 100});
    const TrueSpans causal(S, places), prefix(S, places, TrueSpans::prefix);
    each_table(TablePart::attention, [&](auto& op) {
        auto same = [&](int B, Heads h) {
            expect_same_bits([&] {
                return bits_of({check_attention_forward(op, B, S, h), check_attention_backward(op, B, S, h)});
            });
        };
        same(1, {4, 2, 20}), same(1, {4, 2, 20, 40});
        same(9, {4, 2, 20}), same(9, causal.in({4, 2, 20, 70})), same(9, prefix.in({4, 2, 20}));
        same(1, patterned({4, 2, 20, 40}, 3, 5)), same(1, prefix.in({2, 1, 64}));
        same(2, {2, 1, 40}), same(2, {2, 1, 36, 70}), same(2, {1, 1, 132});
        same(2, shaped({4, 2, 20, 40}, 0.3f, 1, true)), same(3, dropping({4, 2, 40}, 0.2f));
    });
}

TEST_CASE("attention: a NaN is seen by the positions after it and by no other") {
    const int S = 140, at = 125, HS = 32;
    // The document after the NaN's begins at the edge of a key tile, but within a strip of queries.
    const TrueSpans places(S, {{at - 3, at + 3}});
    Numbers numbers = random_normal(S * 6 * HS, 1);
    numbers[size_t((at * 6 + 2) * HS + 5)] = NAN;    // k of head 0
    each_table(TablePart::attention, [&]<class T, class P>(const Ops<T, P>& op) {
        TableSpans documents(op, places);
        Array<T> qkv(op, numbers);
        Array<InputType<T, P>> y(op, S * 2 * HS);
        Array<float> lse(op, 2 * S);
        for (Heads h : {Heads{2, 2, HS}, Heads{2, 2, HS, 10}, documents.in({2, 2, HS})}) {
            const int last = h.window ? at + 10 : h.keys ? at + 3 : S;
            op.attention_forward(y, lse, qkv, 1, S, h);
            expect_nan(y.read(), [&](int64_t i) {
                const int64_t s = i / (2 * HS);
                return s >= at && s < last && i % (2 * HS) < HS;
            });
        }
    });
}

// ---- the reference ------------------------------------------------------------------------------

TEST_CASE("attention: documents are as if each were alone; a window of 1 copies v") {
    const int S = 9, HS = 3;
    const Heads h = {2, 1, HS};
    const int row = h.qkv_width(), width = h.width();
    const Numbers qkv = random_normal(S * row, 1), copied = ReferenceAttention(qkv, 1, S, {2, 1, HS, 1}).y;
    const TrueSpans d(S, {{2, 3}});
    Numbers alone;
    for (auto [from, to] : {std::pair{0, 2}, {2, 3}, {3, S}}) {
        const Numbers part(qkv.begin() + from * row, qkv.begin() + to * row);
        for (double y : ReferenceAttention(part, 1, to - from, h).y) alone.push_back(y);
    }
    CHECK(ReferenceAttention(qkv, 1, S, d.in(h)).y == alone);
    for (int i = 0; i < S * width; i++) CHECK(copied[size_t(i)] == qkv[size_t(i / width * row + 3 * HS + i % HS)]);
}

TEST_CASE("attention: gradients of the reference") {
    const int B = 2, S = 5;
    const TrueSpans documents(S, {{2}, {1, 4}}), prefix(S, {{2}, {}}, TrueSpans::prefix);
    const TrueSpans all(S, {{2}, {}}, TrueSpans::all);
    for (Heads h :
         {Heads{2, 2, 3}, Heads{4, 2, 2}, Heads{2, 1, 2, 2}, documents.in({2, 2, 2}), prefix.in({2, 2, 2}),
          all.in({2, 1, 2}), patterned({2, 1, 2, 1}, 2, 0), patterned({2, 2, 2, 2}, 0, 1), shaped({2, 1, 3}, 0.7f, 0),
          shaped({2, 2, 3}, 0, 1), shaped({3, 1, 2, 3}, 0.9f, 2, true), dropping({4, 2, 3}, 0.4f, 3)}) {
        Numbers qkv = random_normal(B * S * h.qkv_width(), 1), d(qkv);
        const Numbers g = random_normal(B * S * h.width(), 2);
        const ReferenceAttention saved(qkv, B, S, h);
        reference_ops().attention_backward(d.data(), g.data(), saved.y.data(), qkv.data(), saved.lse.data(), B, S, h);
        auto loss = [&] { return dot(ReferenceAttention(qkv, B, S, h).y, g); };
        CHECK(gradient_error(qkv, d, loss) < 1e-5);    // lse is float
    }
}
