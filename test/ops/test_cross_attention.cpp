// Attention of one sequence to another, values of a size of their own, and cached sources.
#include "heads.h"
#include "ops.h"

#include "tools/selftest/cached.h"

namespace {
struct Cross {
    int B, S;
    Heads h;
    int pairs = 0, pad = 0;    // CrossSpans; pairs 0: every query attends to the whole source
    template <class F> void call(F f) const {
        const CrossSpans spans(B, S, h.source, std::max(pairs, 1), pad);
        f(B, S, pairs ? spans.in(h) : h);
    }
};
// For tables that round factors to bf16 (attention_rounds_to_bf16). h may point to host memory, as
// only a CPU has such a table.
template <class T, class P> void expect_rounded(const Ops<T, P>& op, int B, int S, Heads h) {
    const int64_t N = int64_t(B) * S, keys = int64_t(B) * h.source;
    Dual<T> q(op, attention_input(op, N * h.q_row(), 1)), kv(op, attention_input(op, keys * h.kv_row(), 2));
    Dual<T> dy(op, attention_input(op, N * h.width(), 3)), dq(op, q.size()), dkv(op, kv.size());
    DualHeads heads(op, N, keys, h);
    Dual<InputType<T, P>> y(op, N * h.width());
    Statistics lse(op, N * h.NH);
    both(op, [&](auto& table, auto at) {
        table.cross_attention_forward(at(y), at(lse), at(q), at(kv), B, S, at(heads));
        table.cross_attention_backward(at(dq), at(dkv), at(dy), at(y), at(q), at(kv), at(lse), B, S, at(heads));
    });
    CAPTURE(attention_check("cross_attention", B, S, h).shape);
    CHECK(of_largest(y.read(), y.numbers, 0x1p-8) < 0x1p-9 * 1.5);
    CHECK(of_largest(lse.read(), lse.numbers) < 2e-6);
    // Together, because dq and dk may be 0, where a query has one key.
    auto joined = [](Numbers all, const Numbers& more) {
        all.insert(all.end(), more.begin(), more.end());
        return all;
    };
    CHECK(of_largest(joined(dq.read(), dkv.read()), joined(dq.numbers, dkv.numbers)) < 0x1p-8);
    CHECK((y.intact() && lse.intact() && dq.intact() && dkv.intact()));
}
void check_all(const std::vector<Cross>& shapes) {
    each_table(TablePart::attention, [&]<class T, class P>(const Ops<T, P>& op) {
        for (const Cross& shape : shapes)
            shape.call([&](int B, int S, Heads h) {
                if (op.attention_rounds_to_bf16) return expect_rounded(op, B, S, h);
                EXPECT(check_cross_attention_forward(op, B, S, h));
                EXPECT(check_cross_attention_backward(op, B, S, h));
            });
    });
}
Heads cross(int NH, int NKV, int HS, int source, int HV = 0) {
    return {.NH = NH, .NKV = NKV, .HS = HS, .source = source, .HV = HV};
}
}    // namespace

TEST_CASE("cross-attention: lengths and groups and head sizes against the reference") {
    check_all({{2, 1, cross(2, 2, 1, 1)},
               {1, 1, cross(2, 1, 64, 300)},
               {2, 300, cross(1, 1, 8, 2)},
               {2, 7, cross(6, 1, 3, 65)},
               {1, 65, cross(4, 2, 64, 31)},
               {2, 33, cross(4, 2, 8, 129)},
               {1, 129, cross(2, 2, 40, 257)},
               {1, 257, cross(3, 1, 20, 130)},
               {1, 96, cross(1, 1, 257, 33)},
               {8, 100, cross(4, 4, 32, 48)},
               {2, 127, cross(2, 1, 128, 64)},
               {1, 64, cross(2, 2, 96, 600)},
               {1, 600, cross(2, 1, 33, 64)},
               {3, 5, cross(12, 4, 16, 128)}});
}

TEST_CASE("cross-attention: padded sources and packed pairs against the reference") {
    check_all({{2, 70, cross(2, 2, 32, 90), 1, 1},
               {2, 65, cross(4, 2, 64, 300), 1, 130},
               {2, 130, cross(2, 1, 40, 66), 1, 32},
               {2, 200, cross(2, 2, 20, 260), 3, 40},
               {1, 300, cross(3, 1, 33, 100), 7, 30},
               {2, 64, cross(2, 1, 8, 64), 64, 0},
               {3, 97, cross(2, 2, 64, 257), 2, 85}});
}

TEST_CASE("cross-attention: values of another size than keys") {
    check_all({{2, 33, cross(2, 2, 4, 3, 2)},
               {1, 70, cross(4, 2, 64, 130, 32)},
               {1, 130, cross(2, 1, 32, 70, 64)},
               {2, 40, cross(4, 2, 20, 65, 9), 2, 10},
               {1, 65, cross(2, 2, 7, 96, 96), 1, 3},
               {1, 129, cross(2, 1, 192, 100, 128)}});
}

TEST_CASE("cross-attention: scales and caps and biases and dropout against the reference") {
    Heads biased = cross(3, 3, 16, 90), dropped = cross(4, 2, 32, 150);
    biased.max_distance = 20;
    dropped.dropout = {0.2f, 7, 5};
    check_all({{2, 70, shaped(cross(2, 2, 32, 90), 0.2f, 2)},
               {1, 130, biased, 1, 9},
               {2, 100, dropped, 1, 20},
               {1, 50, shaped(dropped, 1, 3), 2, 0}});
}

// A whole sequence as its own source, with spans of both directions, is self-attention.
TEST_CASE("cross-attention: to itself is bidirectional self-attention bit by bit") {
    const int S = 140, B = 2;
    const Heads h = {.NH = 4, .NKV = 2, .HS = 32};
    const TrueSpans all(S, {{}, {}}, TrueSpans::all);
    const int64_t N = int64_t(B) * S, q_row = h.NH * h.HS, kv_row = 2 * h.NKV * h.HS;
    each_table(TablePart::attention, [&]<class T, class P>(const Ops<T, P>& op) {
        const Numbers packed = random_normal(N * h.qkv_width(), 1);
        Dual<T> qkv(op, packed), q(op, columns(packed, h.qkv_width(), 0, int(q_row)));
        Dual<T> kv(op, columns(packed, h.qkv_width(), int(q_row), int(kv_row)));
        Dual<T> dy(op, random_normal(N * h.width(), 2)), dqkv(op, qkv.size()), dq(op, q.size()), dkv(op, kv.size());
        Dual<InputType<T, P>> y(op, N * h.width()), y_cross(op, y.size());
        Statistics lse(op, N * h.NH), lse_cross(op, N * h.NH);
        DualHeads whole(op, N, all.in(h));
        Heads other = h;
        other.source = S;
        op.attention_forward(y, lse, qkv, B, S, whole.device());
        op.cross_attention_forward(y_cross, lse_cross, q, kv, B, S, other);
        CHECK((y.bits() == y_cross.bits() && lse.bits() == lse_cross.bits()));
        op.attention_backward(dqkv, dy, y, qkv, lse, B, S, whole.device());
        op.cross_attention_backward(dq, dkv, dy, y, q, kv, lse, B, S, other);
        CHECK(columns(dqkv.read(), h.qkv_width(), 0, int(q_row)) == dq.read());
        CHECK(columns(dqkv.read(), h.qkv_width(), int(q_row), int(kv_row)) == dkv.read());
    });
}

TEST_CASE("cross-attention: gradients by central differences") {
    const Ops<double>& op = reference_ops();
    const int B = 2, S = 3;
    Heads h = cross(4, 2, 3, 5, 2);
    const CrossSpans spans(B, S, h.source, 1, 1);
    h = spans.in(shaped(h, 0.7f, 3));
    h.dropout = {0.3f, 3, 1};
    Numbers q = random_normal(B * S * h.q_row(), 1), kv = random_normal(int64_t(B) * h.source * h.kv_row(), 2);
    const Numbers dy = random_normal(B * S * h.width(), 3);
    Numbers y(dy.size()), dq(q.size()), dkv(kv.size());
    std::vector<float> lse(size_t(B * S * h.NH));
    auto loss = [&] {
        op.cross_attention_forward(y.data(), lse.data(), q.data(), kv.data(), B, S, h);
        double sum = 0;
        for (size_t i = 0; i < y.size(); i++) sum += y[i] * dy[i];
        return sum;
    };
    loss();
    op.cross_attention_backward(dq.data(), dkv.data(), dy.data(), y.data(), q.data(), kv.data(), lse.data(), B, S, h);
    for (auto [x, dx] : {std::pair(&q, &dq), std::pair(&kv, &dkv)})
        for (size_t i = 0; i < x->size(); i++) {
            const double at = (*x)[i], step = 1e-5;
            (*x)[i] = at + step;
            const double above = loss();
            (*x)[i] = at - step;
            const double below = loss();
            (*x)[i] = at;
            CHECK((*dx)[i] == doctest::Approx((above - below) / (2 * step)).epsilon(1e-5));
        }
}

TEST_CASE("cross-attention: a cached source equals the whole one") {
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        for (int S : {1, 2, 5, 40})
            for (int source : {1, 16, 33, 200, 700}) {
                EXPECT(check_cross_attention_cached(op, 3, S, source, {4, 2, 32}));
                EXPECT(check_cross_attention_cached(op, 1, S, source, {3, 1, 20}));
            }
        for (const Heads& h : {Heads{2, 2, 64}, {4, 2, 64}, {4, 1, 64}, {2, 2, 264}, {2, 1, 18}}) {
            EXPECT(check_cross_attention_cached(op, 2, 1, 90, h));
            EXPECT(check_cross_attention_cached(op, 2, 1, 90, shaped(h, 0.3f, 2)));
        }
        for (Element type : {Element::bf16, Element::fp8, Element::int8}) {
            EXPECT(check_cross_attention_cached(op, 3, 1, 130, {4, 2, 64}, type));
            EXPECT(check_cross_attention_cached(op, 3, 30, 130, {4, 2, 64}, type));
        }
    });
}

TEST_CASE("cross-attention: bits depend neither on the run nor on the number of threads") {
    const CrossSpans spans(2, 300, 400, 2, 30);
    const Heads h = spans.in(cross(4, 2, 64, 400));
    each_table(TablePart::attention, [&](auto& op) {
        expect_same_bits([&] {
            return bits_of({check_cross_attention_forward(op, 2, 300, h), check_cross_attention_backward(op, 2, 300, h),
                            check_cross_attention_cached(op, 3, 1, 300, {4, 2, 32})});
        });
    });
}
