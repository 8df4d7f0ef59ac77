#include "heads.h"
#include "ops.h"

#include "tools/selftest/attention.h"

namespace {
int64_t packed(int B, int S, Heads h) { return int64_t(B) * S * (h.NH + 2 * h.NKV) * h.HS; }
int64_t heads(int B, int S, Heads h) { return int64_t(B) * S * h.NH * h.HS; }

template <class F> void each_attention(F f) {
    each_table(TablePart::attention, [&](auto& op, const TestTable&) { f(op); });
}
// Error against the largest of a float table that rounds to bf16 what it multiplies (attention_rounds_to_bf16), of
// inputs that are bf16 already: each probability p, and each ds, is off by 2^-8 of itself at most, by less than half of
// that in the mean. y then is by 2^-9 max |v| or so, and max |y| is not much less than that: position 0 copies v. A
// gradient's terms are off as much each, and it is less than their sum where they cancel. Only a CPU has such a table:
// h may point to the host's memory. stored: what storing a number may take of it
double of_largest(const Numbers& got, const std::vector<double>& expected, double stored = 0) {
    double worst = 0, largest = 0;
    for (size_t i = 0; i < got.size(); i++) {
        const double error = std::fabs(got[i] - expected[i]), size = std::fabs(expected[i]);
        worst = worse(worst, error - stored * size);
        largest = std::fmax(largest, size);
    }
    return worst / largest;
}
template <class T, class P> void expect_rounded(const Ops<T, P>& op, int B, int S, Heads h) {
    const Memory m(op);
    const Numbers qkv = rounded<bf16>(random_normal(packed(B, S, h), 1));
    const Numbers dy = rounded<bf16>(random_normal(heads(B, S, h), 2));
    Numbers exact(dy.size()), dqkv(qkv.size());
    std::vector<float> lse(size_t(B) * size_t(h.NH) * size_t(S));
    reference_ops().attention_forward(exact.data(), lse.data(), qkv.data(), B, S, h);
    const Numbers y = rounded<InputType<T, P>>(exact);
    reference_ops().attention_backward(dqkv.data(), dy.data(), y.data(), qkv.data(), lse.data(), B, S, h);
    const Numbers saved_lse(lse.begin(), lse.end());
    Array<T> in(m, qkv), dy_in(m, dy), gradient(m, int64_t(qkv.size()));
    Array<InputType<T, P>> out(m, int64_t(y.size())), y_in(m, y);
    Array<float> statistics(m, saved_lse), lse_out(m, int64_t(lse.size()));
    op.attention_forward(out, lse_out, in, B, S, h);
    op.attention_backward(gradient, dy_in, y_in, in, statistics, B, S, h);
    CAPTURE(B);
    CAPTURE(S);
    CAPTURE(h.NH);
    CAPTURE(h.NKV);
    CAPTURE(h.HS);
    CAPTURE(h.window);
    CAPTURE(h.stride);
    CHECK(of_largest(out.read(), exact, 0x1p-8) < 0x1p-9 * 1.5);
    CHECK(of_largest(lse_out.read(), saved_lse) < 2e-6);    // float throughout
    CHECK(of_largest(gradient.read(), dqkv) < 0x1p-9 * 2);
    CHECK((out.intact() && lse_out.intact() && gradient.intact()));
}

Heads dropping(Heads h, float rate, int64_t first = 0) {
    h.dropout = {rate, 42, first};
    return h;
}

// document: sequences are cut into some of about so many, of this kind. only_rounded: for tables that round
struct Shape {
    int B, S;
    Heads h;
    int document = 0;
    bool only_rounded = false;
    TrueSpans::Kind kind = TrueSpans::causal;
};
void both_ways(const std::vector<Shape>& shapes) {
    each_attention([&]<class T, class P>(const Ops<T, P>& op) {
        if (sizeof(T) > sizeof(P) && !op.attention_rounds_to_bf16)
            return;    // as fp32's, but for y's type: test_cpu.cpp
        for (const Shape& s : shapes) {
            if (s.only_rounded && !op.attention_rounds_to_bf16) continue;
            const TrueSpans spans(s.B, s.document ? s.S : 1, std::max(s.document, 1), s.kind);
            const Heads h = s.document ? spans.in(s.h) : s.h;
            if (op.attention_rounds_to_bf16) {
                expect_rounded(op, s.B, s.S, h);
                continue;
            }
            EXPECT(check_attention_forward(op, s.B, s.S, h));
            EXPECT(check_attention_backward(op, s.B, s.S, h));
        }
    });
}
}    // namespace

// S, head size, heads a group, window and documents: each pair of values in some line.
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
    std::vector<Shape> shapes;
    int k = 0;
    for (int S : lengths)
        for (int HS : sizes) {
            Heads h = kinds[k % 3];
            h.HS = HS;
            shapes.push_back({S < 100 ? 2 : 1, S, h, 0, k++ % std::max(EVERY, 2) != 0});
        }
    shapes.push_back({8, 100, {4, 4, 32}});    // many heads: the CPU does not split dQ
    shapes.push_back({1, 600, {2, 1, 16}});    // several tiles of keys: sums are brought to new maxima
    shapes.push_back({1, 600, {2, 1, 33}});
    shapes.push_back({2, 130, {2, 2, 1}});
    both_ways(shapes);
}

TEST_CASE("attention: windows and documents against the reference") {
    const Heads kinds[] = {{2, 2, 0}, {4, 2, 0}, {3, 1, 0}};
    const int lengths[] = {66, 130, 200, 290}, sizes[] = {8, 20, 33, 64};
    std::vector<Shape> shapes;
    int k = 0;
    for (int window : {0, 1, 2, 31, 64, 65, 129, 1000})
        for (int document : {0, 1, 5, 40, 200}) {
            Heads h = kinds[k % 3];
            h.HS = sizes[(k + k / 9) % 4], h.window = window;
            if (k++ % EVERY == 0) shapes.push_back({2, lengths[k / 3 % 4], h, document});
        }
    both_ways(shapes);
}

// Sequences that differ, and documents that begin and end where tiles of keys and strips of queries do.
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
                if (kind != TrueSpans::causal && (h.window || k++ % EVERY)) continue;
                const TrueSpans spans(S, begin, kind);
                both_ways({{2, S, spans.in(h)}});
            }
}

TEST_CASE("attention: prefixes and bidirectional attention against the reference") {
    const Heads kinds[] = {{2, 2, 0}, {4, 2, 0}, {3, 1, 0}};
    const int lengths[] = {1, 2, 65, 96, 129, 200, 290}, sizes[] = {8, 20, 33, 64};
    std::vector<Shape> shapes;
    int k = 0;
    for (TrueSpans::Kind kind : {TrueSpans::prefix, TrueSpans::all})
        for (int document : {3, 40, 200, 100000})
            for (int i = 0; i < 3; i++) {
                Heads h = kinds[k % 3];
                h.HS = sizes[(k + k / 9) % 4];
                shapes.push_back({2, lengths[k++ % 7], h, document, false, kind});
            }
    shapes.push_back({1, 600, {2, 1, 16}, 100000, false, TrueSpans::all});    // several tiles of keys
    shapes.push_back({1, 600, {1, 1, 33}, 300, false, TrueSpans::prefix});
    shapes.push_back({1, 200, shaped({4, 2, 40}, 0.3f, 2, true), 60, false, TrueSpans::all});
    both_ways(shapes);
}

TEST_CASE("attention: strides and global keys beside a window against the reference") {
    const Heads kinds[] = {{2, 2, 0}, {4, 2, 0}, {3, 1, 0}};
    const int lengths[] = {7, 64, 130, 290}, sizes[] = {8, 20, 33, 64};
    std::vector<Shape> shapes;
    int k = 0;
    for (int window : {1, 5, 64, 100})
        for (const auto& [stride, global_tokens] : {std::pair{0, 3}, {1, 0}, {2, 0}, {7, 1}, {64, 70}, {3, 9}}) {
            Heads h = kinds[k % 3];
            h.HS = sizes[(k + k / 9) % 4], h.window = window;
            if (k++ % EVERY == 0 || k % 2)
                shapes.push_back({2, lengths[k / 3 % 4], patterned(h, stride, global_tokens)});
        }
    shapes.push_back({1, 600, patterned({2, 1, 16, 40}, 2, 0)});    // several tiles of a stream
    shapes.push_back({1, 600, patterned({2, 2, 64, 40}, 130, 300)});
    shapes.push_back({1, 130, patterned(shaped({4, 2, 20, 20}, 0.3f, 2, true), 5, 3)});
    shapes.push_back({8, 130, patterned({4, 4, 32, 20}, 3, 2)});    // many heads: the CPU does not split dQ
    both_ways(shapes);
}

// A cap of 1 or 2 shows in every score; one of 30 only rounds. ALiBi's heads: a power of two, and not.
TEST_CASE("attention: a scale, soft caps and ALiBi against the reference") {
    const Heads kinds[] = {{2, 2, 20}, {4, 2, 64, 31}, {3, 1, 33}, {6, 2, 8, 65}, {1, 1, 128}, {5, 5, 16}};
    const std::tuple<float, float, bool> scores[] = {{0.3f, 0, false}, {0, 1, false}, {0.2f, 2, false},
                                                     {0, 30, false},   {0, 0, true},  {0.1f, 2, true}};
    const int lengths[] = {1, 33, 64, 97, 130, 290};
    std::vector<Shape> shapes;
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
    std::vector<Shape> shapes;
    for (int k = 0; k < 14; k++)
        if (k % std::min(EVERY, 2) == 0)
            shapes.push_back({k % 3 ? 1 : 2, lengths[k * 3 % 7], dropping(kinds[k % 7], k % 2 ? 0.1f : 0.6f, k * k),
                              k % 5 == 4 ? 40 : 0});
    for (TrueSpans::Kind kind : {TrueSpans::prefix, TrueSpans::all})
        shapes.push_back({1, 200, dropping({2, 1, 64}, 0.3f), 70, false, kind});
    shapes.push_back({1, 600, dropping({2, 1, 16}, 0.3f, int64_t(1) << 40)});    // several tiles of keys
    shapes.push_back({1, 600, dropping(patterned({2, 2, 64, 40}, 2, 0), 0.3f)});
    shapes.push_back({2, 130, dropping(patterned({2, 1, 20, 7}, 3, 9), 0.3f)});
    shapes.push_back({1, 290, dropping(patterned({1, 1, 64, 20}, 1, 5), 0.3f)});
    shapes.push_back({1, 130, dropping(shaped({4, 2, 40}, 0.3f, 2, true), 0.3f)});
    shapes.push_back({8, 100, dropping({4, 4, 32}, 0.5f)});
    both_ways(shapes);
}

TEST_CASE("attention: large scores") {
    each_attention([]<class T, class P>(const Ops<T, P>& op) {
        // float: scores of some hundreds, whose rounding alone is 1e-5 of a probability; of some 1e4, 1e-3
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
    each_attention([&]<class T, class P>(const Ops<T, P>& op) {
        const Memory m(op);
        TableSpans documents(m, causal), prefixes(m, prefix);
        auto same = [&](int B, Heads h) {
            Array<T> qkv(m, random_normal(packed(B, S, h), 1)), dy(m, random_normal(heads(B, S, h), 2));
            expect_same_bits([&] {
                Array<InputType<T, P>> y(m, dy.size());
                Array<T> dqkv(m, qkv.size());
                Array<float> lse(m, int64_t(B) * h.NH * S);
                op.attention_forward(y, lse, qkv, B, S, h);
                op.attention_backward(dqkv, dy, y, qkv, lse, B, S, h);
                return bits_of(y, lse, dqkv);
            });
        };
        same(1, {4, 2, 20}), same(1, {4, 2, 20, 40});
        same(9, {4, 2, 20}), same(9, documents.in({4, 2, 20, 70})), same(9, prefixes.in({4, 2, 20}));
        same(1, patterned({4, 2, 20, 40}, 3, 5)), same(1, prefixes.in({2, 1, 64}));
        same(2, {2, 1, 40}), same(2, {2, 1, 36, 70}), same(2, {1, 1, 132});
        same(2, shaped({4, 2, 20, 40}, 0.3f, 1, true)), same(3, dropping({4, 2, 40}, 0.2f));
    });
}

TEST_CASE("attention: a NaN is seen by the positions after it and by no other") {
    const int S = 140, at = 125, HS = 32;
    // The second document begins with a tile of keys, within a strip of queries.
    const TrueSpans places(S, {{at - 3, at + 3}});
    Numbers numbers = random_normal(S * 6 * HS, 1);
    numbers[size_t((at * 6 + 2) * HS + 5)] = NAN;    // k of head 0
    each_attention([&]<class T, class P>(const Ops<T, P>& op) {
        const Memory m(op);
        TableSpans documents(m, places);
        Array<T> qkv(m, numbers);
        Array<InputType<T, P>> y(m, S * 2 * HS);
        Array<float> lse(m, 2 * S);
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

// ---- the reference --------------------------------------------------------------------------------------------------

TEST_CASE("attention: documents are as if each were alone; a window of 1 copies v") {
    const int S = 9, HS = 3;
    const Heads h = {2, 1, HS};
    const int64_t row = 4 * HS, width = 2 * HS;
    const Numbers qkv = random_normal(packed(1, S, h), 1);
    Numbers y(heads(1, S, h)), alone(y), copied(y);
    std::vector<float> lse(2 * S);
    const TrueSpans d(S, {{2, 3}});
    reference_ops().attention_forward(y.data(), lse.data(), qkv.data(), 1, S, d.in(h));
    for (auto [from, to] : {std::pair{0, 2}, {2, 3}, {3, S}})
        reference_ops().attention_forward(&alone[size_t(from * width)], lse.data(), &qkv[size_t(from * row)], 1,
                                          to - from, h);
    CHECK(y == alone);
    reference_ops().attention_forward(copied.data(), lse.data(), qkv.data(), 1, S, {2, 1, HS, 1});
    for (int i = 0; i < S * width; i++) CHECK(copied[size_t(i)] == qkv[size_t(i / width * row + 3 * HS + i % HS)]);
}

TEST_CASE("attention: gradients of the reference") {
    const Ops<double>& op = reference_ops();
    const int B = 2, S = 5;
    const TrueSpans documents(S, {{2}, {1, 4}}), prefix(S, {{2}, {}}, TrueSpans::prefix);
    const TrueSpans all(S, {{2}, {}}, TrueSpans::all);
    for (Heads h :
         {Heads{2, 2, 3}, Heads{4, 2, 2}, Heads{2, 1, 2, 2}, documents.in({2, 2, 2}), prefix.in({2, 2, 2}),
          all.in({2, 1, 2}), patterned({2, 1, 2, 1}, 2, 0), patterned({2, 2, 2, 2}, 0, 1), shaped({2, 1, 3}, 0.7f, 0),
          shaped({2, 2, 3}, 0, 1), shaped({3, 1, 2, 3}, 0.9f, 2, true), dropping({4, 2, 3}, 0.4f, 3)}) {
        Numbers qkv = random_normal(packed(B, S, h), 1), g = random_normal(heads(B, S, h), 2), y(g), d(qkv);
        std::vector<float> lse(size_t(B) * h.NH * S);
        auto loss = [&] {
            op.attention_forward(y.data(), lse.data(), qkv.data(), B, S, h);
            return dot(y, g);
        };
        loss();
        op.attention_backward(d.data(), g.data(), y.data(), qkv.data(), lse.data(), B, S, h);
        CHECK(gradient_error(qkv, d, loss) < 1e-5);    // lse is float
    }
}
