// Attention in parts of the keys, merged by the log-sum-exps; copies of columns.
#include "heads.h"
#include "ops.h"

#include "tools/selftest/attention.h"

namespace {
// Two sequences of 6 queries. Some have no keys in the source of 4: at the beginning, in the middle
// and at the end.
const std::vector<Span> KEYS = {{0, 0}, {0, 0}, {0, 1}, {0, 3}, {2, 4}, {4, 4},
                                {0, 2}, {1, 1}, {1, 1}, {1, 4}, {4, 4}, {4, 4}};
const std::vector<Span> QUERIES = {{2, 4}, {3, 4}, {3, 5}, {4, 5}, {0, 1}, {0, 4}, {3, 4}, {3, 4}};
}    // namespace

TEST_CASE("merge: of two parts against the reference") {
    each_order([] {
        each_table([](auto& op) {
            for (auto [B, S] : {std::pair{1, 1}, {2, 31}, {3, 65}})
                for (Heads h : {Heads{1, 1, 1}, Heads{4, 2, 8}, Heads{3, 1, 33}, Heads{2, 2, 264}})
                    for (bool add : {true, false}) EXPECT(check_attention_merge(op, add, B, S, h));
            Heads h = {3, 3, 20};
            h.keys = KEYS.data(), h.queries = QUERIES.data();
            for (bool add : {true, false}) EXPECT(check_attention_merge(op, add, 2, 6, h));
        });
    });
}

TEST_CASE("merge: copies of columns against the reference") {
    each_order([] {
        each_table([](auto& op) {
            for (int N : {1, 3, 130})
                for (auto [C, width, from] : {std::array{1, 1, 0}, {7, 9, 1}, {64, 192, 64}, {33, 100, 67}})
                    for (bool add : {true, false}) EXPECT(check_copy_columns(op, N, C, width, from, add));
        });
    });
}

TEST_CASE("merge: the same bits in any order") {
    each_table([](auto& op) {
        expect_same_bits([&] {
            return bits_of(
                {check_attention_merge(op, true, 3, 300, {4, 2, 40}), check_copy_columns(op, 3000, 40, 120, 40, true)});
        });
    });
}

// Scores of one part that exceed the other's by far would overflow without the larger sum's factor.
TEST_CASE("merge: parts of very different sums") {
    each_table([]<class T, class P>(const Ops<T, P>& op) {
        const float far[] = {0, 500, -500, 3e4f, -3e4f};
        Array<T> y(op, Numbers{1, 1, 1, 1, 1});
        Array<InputType<T, P>> part(op, Numbers{3, 3, 3, 3, 3});
        Array<float> lse(op, Numbers(5, 0)), part_lse(op, Numbers(far, far + 5));
        op.attention_merge(y, lse, part, part_lse, true, 1, 5, {1, 1, 1});
        CHECK(y.read() == Numbers{2, 3, 1, 3, 1});
        const Numbers l = lse.read();
        CHECK(l[0] == doctest::Approx(std::log(2)));
        CHECK((l[1] == 500 && l[2] == 0 && l[3] == 3e4 && l[4] == 0));
    });
}

// A query without keys in a source may have any y and lse there, and adds nothing to gradients.
TEST_CASE("merge: attention to two halves of the keys, some of them hidden, is attention to all") {
    const int B = 2, S = 70, H = 45, W = S - H;    // H keys in the first source, W in the second
    each_table([&]<class T, class P>(const Ops<T, P>& op) {
        if (op.attention_rounds_to_bf16 || sizeof(T) == 2) return;
        const Heads h = {4, 2, 24};
        const TrueSpans causal(B, S, 20);    // documents of about 20
        const int64_t N = int64_t(B) * S, row = h.qkv_width(), q_row = h.NH * h.HS, kv_row = row - q_row;
        const Numbers packed = random_normal(N * row, 1);
        Dual<T> qkv(op, packed), q(op, columns(packed, int(row), 0, int(q_row))), dy(op, random_normal(N * q_row, 2));
        Dual<T> dqkv(op, qkv.size()), merged(op, q.size()), dq_sum(op, Numbers(size_t(q.size()), 0)), dq(op, q.size());
        Dual<InputType<T, P>> y(op, q.size()), part(op, q.size());
        Statistics lse(op, N * h.NH), merged_lse(op, N * h.NH), part_lse(op, N * h.NH);
        DualHeads whole(op, N, causal.in(h));
        op.attention_forward(y, lse, qkv, B, S, whole.device());
        op.attention_backward(dqkv, dy, y, qkv, lse, B, S, whole.device());
        const Numbers expected = dqkv.read();
        bool add = false;
        for (auto [first, n] : {std::pair{H, W}, {0, H}}) {
            std::vector<Span> keys, queries;
            Numbers source;
            for (int b = 0; b < B; b++) {
                for (int s = 0; s < S; s++) {
                    const Span span = causal.keys[size_t(b * S + s)];
                    keys.push_back({std::clamp(span.from - first, 0, n), std::clamp(span.to - first, 0, n)});
                }
                for (int j = first; j < first + n; j++) {
                    queries.push_back(causal.queries[size_t(b * S + j)]);
                    const auto at = packed.begin() + (b * S + j) * row + q_row;
                    source.insert(source.end(), at, at + kv_row);
                }
            }
            Heads other = h;
            other.source = n;
            other.keys = keys.data();
            other.queries = queries.data();
            DualHeads some(op, N, int64_t(B) * n, other);
            Dual<T> kv(op, source), dkv(op, int64_t(source.size()));
            op.cross_attention_forward(part, part_lse, q, kv, B, S, some.device());
            if (!add) {    // the first part is merged into sums that no query lacks
                op.zero(merged, int64_t(sizeof(T)) * merged.size());
                const Numbers least(size_t(N * h.NH), -1e30);
                op.upload(merged_lse, std::vector<float>(least.begin(), least.end()).data(), 4 * N * h.NH);
            }
            add = true;
            op.attention_merge(merged, merged_lse, part, part_lse, true, B, S, some.device());
            op.cross_attention_backward(dq, dkv, dy, y, q, kv, lse, B, S, some.device());
            op.copy_columns(dq_sum, int(q_row), dq, int(q_row), nullptr, true, int(N), int(q_row));
            for (int b = 0; b < B; b++) {
                const Numbers got = dkv.read();
                for (int64_t j = 0; j < n; j++)
                    for (int64_t c = 0; c < kv_row; c++)
                        CHECK(got[size_t((b * n + j) * kv_row + c)] ==
                              doctest::Approx(expected[size_t((b * S + first + j) * row + q_row + c)]).epsilon(2e-4));
            }
        }
        CHECK(Check::error_over_limit(merged.read(), y.read(), sizeof(InputType<T, P>) == 2 ? 5e-3 : 1e-5) < 1);
        CHECK(Check::error_over_limit(merged_lse.read(), lse.read(), 1e-6) < 1);
        CHECK(Check::error_over_limit(dq_sum.read(), columns(expected, int(row), 0, int(q_row)), 1e-4) < 1);
    });
}
