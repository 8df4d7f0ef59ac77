#include "heads.h"
#include "ops.h"

#include "tools/selftest/cached.h"

namespace {
const Element TYPES[] = {Element::bf16, Element::fp8, Element::int8};

struct Call {
    int B, S, pos, maxT;
    Heads h;
};
void cached(std::vector<Call> calls, Element type = Element::f64) {
    each_table([&](auto& op) {
        for (const Call& c : calls) EXPECT(check_attention_cached(op, c.B, c.S, c.pos, c.maxT, c.h, 1, type));
    });
}
// Rows from..to of each of B sequences of S rows.
Numbers rows(const Numbers& x, int B, int S, int from, int to) {
    const int64_t row = int64_t(x.size()) / (int64_t(B) * S);
    Numbers out;
    for (int b = 0; b < B; b++)
        out.insert(out.end(), x.begin() + (int64_t(b) * S + from) * row, x.begin() + (int64_t(b) * S + to) * row);
    return out;
}
// A sequence fed in calls of these lengths equals one call; nothing after it is written.
template <class T, class P> void in_calls(const Ops<T, P>& op, int B, Heads h, std::vector<int> calls, int spare) {
    int S = 0, pos = 0;
    for (int n : calls) S += n;
    CAPTURE(B);
    CAPTURE(S);
    CAPTURE(h.NH);
    CAPTURE(h.NKV);
    CAPTURE(h.HS);
    CAPTURE(h.window);
    const Numbers qkv = rounded<T>(random_normal(int64_t(B) * S * h.qkv_width(), 1));
    const Numbers whole = ReferenceAttention(qkv, B, S, h).y;
    CacheArrays<T> cache(op, element_of<T>, h.NKV, h.HS, int(ceil_div(S + spare, Pages::SIZE)),
                         std::vector<int>(size_t(B), 0));
    for (int n : calls) {
        std::vector<int> positions;
        for (int i = 0; i < B * n; i++) positions.push_back(pos + i % n);
        Dual<T> in(op, rows(qkv, B, S, pos, pos + n));
        Dual<InputType<T, P>> y(op, int64_t(B) * n * h.width());
        Integers p(op, positions);
        both(op, [&](auto& table, auto at) { table.attention_cached(at(y), at(in), at(cache), B, n, at(p), h); });
        Check check("attention_cached", {}, "y at " + std::to_string(pos));
        check.expect("y", y, rows(whole, B, S, pos, pos + n), ATTENTION_LIMIT<InputType<T, P>>);
        EXPECT(check);
        pos += n;
    }
    CHECK(cache.same());
    CHECK(cache.intact());
}
}    // namespace

// On a GPU, a head of 64 elements reads 64 keys per round, and a single head is split into one part
// per round: these positions lie around the ends of rounds.
TEST_CASE("attention cached: one position, wherever the splits end") {
    std::vector<Call> calls;
    for (int pos : {0, 1, 62, 63, 64, 65, 127, 128, 190, 191, 192, 200}) calls.push_back({1, 1, pos, 201, {1, 1, 64}});
    for (int pos : {63, 64, 130, 299}) calls.push_back({1, 1, pos, 300, {2, 2, 64, 65}});
    for (int pos : {15, 16, 17, 32, 60}) calls.push_back({2, 1, pos, 61, {2, 1, 256}});
    calls.push_back({1, 1, 1500, 1537, {1, 1, 64}});    // more rounds than splits
    calls.push_back({40, 1, 70, 71, {1, 1, 64}});       // no splits
    calls.push_back({60, 1, 290, 291, {1, 1, 64}});     // unequal lengths: some split, some not
    cached(calls);
}

TEST_CASE("attention cached: head sizes, groups, windows") {
    cached({{2, 1, 40, 50, {2, 2, 1}},
            {1, 1, 700, 701, {3, 1, 3, 600}},
            {3, 1, 9, 10, {4, 2, 7, 1}},
            {1, 1, 520, 530, {6, 2, 8}},
            {1, 1, 300, 301, {4, 2, 20}},
            {2, 1, 140, 150, {5, 1, 32, 130}},
            {1, 1, 97, 98, {8, 1, 80}},
            {1, 1, 97, 98, {6, 3, 96, 40}},
            {2, 1, 60, 77, {4, 1, 128}},
            {1, 1, 40, 41, {4, 2, 257}},
            {1, 1, 20, 21, {2, 1, 1024}},
            {1, 1, 5, 6, {1, 1, 1032}},
            {1, 1, 140, 141, {70, 2, 8}},
            {2, 1, 150, 151, {40, 40, 16}}});
}

// 1, 2 and 4 heads that share keys; head sizes of both vector kernels; with and without caps.
TEST_CASE("attention cached: each kernel on a GPU") {
    for (Element type : {Element::f64, Element::bf16, Element::fp8, Element::int8})
        for (int NH : {1, 2, 4})
            for (int HS : {64, 264})
                cached({{1, 1, 70, 71, {NH, 1, HS}},
                        {1, 1, 70, 71, shaped({NH, 1, HS}, 0.3f, 1)},
                        {1, 3, 70, 73, {NH, 1, HS}},
                        {1, 3, 70, 73, shaped({NH, 1, HS}, 0.3f, 1)}},
                       type);
}

TEST_CASE("attention cached: a scale, soft caps and ALiBi") {
    cached({{2, 1, 40, 50, shaped({2, 2, 64}, 0.3f, 0)},
            {1, 1, 700, 701, shaped({3, 1, 16, 600}, 0, 1)},
            {2, 1, 300, 301, shaped({6, 2, 20}, 0.2f, 2)},
            {1, 1, 600, 601, shaped({4, 4, 64}, 0, 0, true)},
            {1, 1, 97, 98, shaped({5, 1, 80}, 0, 0, true)},
            {1, 1, 20, 21, shaped({2, 1, 1032}, 0.1f, 2, true)},
            {2, 33, 40, 80, shaped({4, 2, 40, 20}, 0, 2)},
            {1, 70, 60, 133, shaped({3, 1, 8}, 0, 0, true)}});
    each_table([](auto& op) {
        in_calls(op, 2, shaped({4, 2, 20, 100}, 0.3f, 1), {7, 1, 1, 150, 1}, 0);
        in_calls(op, 1, shaped({6, 2, 64}, 0, 0, true), {255, 1, 1, 1, 300, 1}, 5);
    });
}

TEST_CASE("attention cached: several positions at once, of sequences of different lengths") {
    cached({{2, 2, 0, 9, {2, 2, 7}},
            {1, 64, 0, 64, {2, 1, 64}},
            {3, 33, 40, 80, {4, 2, 40, 20}},
            {1, 70, 60, 133, {3, 1, 8, 65}},
            {40, 70, 60, 133, {1, 1, 8}},
            {1, 3, 127, 131, {2, 2, 128}},
            {2, 20, 300, 400, {2, 1, 6, 10}}});
}

// Several pairs of position and head share a block: pairs of different positions, heads and
// lengths, some of them padding; blocks of padding only; windows and patterns that end between two
// pairs. Also several splits, and 17 positions, one more than these kernels take.
TEST_CASE("attention cached: a few positions of each sequence") {
    std::vector<Call> calls;
    for (int S : {2, 3, 5, 8, 16, 17})
        for (Heads h : {Heads{2, 2, 32}, {4, 1, 64}, {8, 1, 80, 20}, {3, 1, 128}})
            calls.push_back({2, S, 70 + S, 100, h});
    for (int S : {3, 8})
        for (Heads h : {shaped({2, 2, 64, 33}, 0.3f, 1), shaped({8, 2, 32}, 0, 0, true), Heads{2, 1, 256},
                        patterned({2, 2, 32, 8}, 4, 0), patterned({4, 1, 64, 30}, 16, 4),
                        Heads{.NH = 4, .NKV = 2, .HS = 32, .max_distance = 40}})
            calls.push_back({2, S, 150, 170, h});
    calls.push_back({5, 9, 64, 80, {2, 1, 64}});        // the last sequences are nearly all padding
    calls.push_back({1, 8, 1500, 1537, {1, 1, 64}});    // more rounds than splits
    calls.push_back({20, 4, 200, 210, {2, 2, 64}});     // no splits
    calls.push_back({2, 6, 40, 60, {2, 1, 24}});        // HS 24: a lane without elements
    cached(calls);
    for (Element type : TYPES)
        cached({{2, 8, 150, 170, {4, 2, 64}}, {2, 5, 90, 100, shaped({8, 1, 80, 40}, 0.2f, 2)}}, type);
}

TEST_CASE("attention cached: narrow types hold what the reference's do") {
    for (Element type : TYPES)
        cached({{1, 1, 0, 1, {1, 1, 64}},
                {3, 1, 40, 50, {2, 2, 20}},
                {1, 1, 700, 701, {3, 1, 3, 600}},
                {2, 1, 300, 301, shaped({6, 2, 64}, 0.2f, 2)},
                {1, 1, 40, 41, {4, 1, 257}},
                {2, 1, 97, 98, shaped({8, 1, 80}, 0, 0, true)},
                {1, 1, 5, 6, {1, 1, 1032}},
                {2, 33, 40, 80, {4, 2, 40, 20}},
                {2, 70, 0, 70, {2, 1, 7}},
                {1, 66, 300, 366, {2, 2, 64}}},
               type);
}

TEST_CASE("attention cached: copied pages are turned") {
    each_table([](auto& op) {
        for (Element type : {Element::f64, Element::bf16, Element::fp8, Element::int8})
            for (QkNormRope t : {QkNormRope{16}, QkNormRope{8, true}, QkNormRope{0}, QkNormRope{20, true}})
                EXPECT(check_cache_rotate(op, 3, {4, 2, 20}, t.dims > 20 ? QkNormRope{} : t, type));
    });
}

TEST_CASE("attention cached: what is no number stays none") {
    each_table([]<class T, class P>(const Ops<T, P>& op) {
        const Heads h = {2, 2, 24};
        for (Element type : {element_of<T>, Element::fp8, Element::int8})
            for (double bad : {double(NAN), double(INFINITY)}) {
                if (std::isinf(bad) && type == element_of<T>) continue;    // infinite score: a weight of 0 or 1
                Numbers qkv = random_normal(h.qkv_width(), 1);
                qkv[size_t(2 * h.HS + 7)] = bad;    // a key of head 0
                CacheArrays<T> cache(op, type, 2, h.HS, 1, {5});
                Array<T> in(op, qkv);
                Array<InputType<T, P>> y(op, h.width());
                Array<int> pos(op, Numbers{5});
                op.attention_cached(y, in, cache.device(), 1, 1, pos, h);
                const Numbers got = y.read();
                CHECK(std::isnan(got[3]));
                CHECK(std::isfinite(got[size_t(h.HS) + 3]));
            }
    });
}

TEST_CASE("attention cached: a sequence in calls of any length equals the whole") {
    each_table([](auto& op) {
        in_calls(op, 1, {2, 2, 64}, {1, 1, 1, 61, 1, 1, 70, 1}, 3);
        in_calls(op, 1, {2, 2, 16}, {1, 1, 1, 5, 1, 60, 1, 64, 2}, 3);
        in_calls(op, 2, {4, 2, 20, 30}, {7, 1, 1, 50, 1}, 0);
        in_calls(op, 2, {3, 1, 64}, {65, 1, 1}, 10);
        in_calls(op, 2, {4, 2, 64, 30}, {5, 3, 16, 2, 17, 8, 1, 70, 4, 1}, 3);
        in_calls(op, 1, {3, 1, 136}, {1, 16, 1}, 10);
        in_calls(op, 1, {2, 1, 80}, {255, 1, 1, 1, 300, 1}, 5);    // more than one split of a CPU
        in_calls(op, 1, {2, 1, 16, 300}, {600, 1, 1}, 3);          // more than one split within the window
        int k = 0;
        for (int window : {1, 2, 31, 64, 65, 256, 1000})
            in_calls(op, 2, {4, 2, k++ % 2 ? 20 : 64, window}, {1, 1, 70, 1, 130, 1, 1, 66, 1}, 3);
    });
}

TEST_CASE("attention cached: the same bits in any order") {
    each_table([]<class T, class P>(const Ops<T, P>& op) {
        const int B = 2;
        // Heads {9, 3}: a thread with two of three kv heads prefetches other rows than a thread
        // with all.
        for (Heads h : {Heads{2, 2, 64}, Heads{6, 2, 64}, Heads{4, 2, 24}, Heads{9, 3, 64}})
            for (int at : {200, 599})
                for (int S : {1, 5}) {
                    Array<T> qkv(op, random_normal(B * S * h.qkv_width(), 1));
                    CacheArrays<T> cache(op, element_of<T>, h.NKV, h.HS, 40, {at, at - 300});
                    Numbers numbers;
                    for (int first : {at, at - 300})
                        for (int s = 0; s < S; s++) numbers.push_back(first < 0 ? -1 : first + s);
                    Array<int> pos(op, numbers);
                    expect_same_bits([&] {
                        Array<InputType<T, P>> y(op, B * S * h.width());
                        op.attention_cached(y, qkv, cache.device(), B, S, pos, h);
                        return y.bits();
                    });
                }
    });
}

// A pattern's keys are strided or global ones before the window, and those of the window.
TEST_CASE("attention cached: strides and global keys, one position") {
    cached({{1, 1, 40, 50, patterned({2, 2, 16, 8}, 4, 0)},
            {2, 1, 300, 301, patterned({4, 2, 64, 50}, 16, 4)},
            {1, 1, 5, 6, patterned({2, 1, 8, 10}, 3, 2)},
            {1, 1, 700, 701, patterned({2, 2, 20, 1}, 1, 0)},
            {2, 1, 600, 601, patterned({2, 1, 64, 100}, 0, 70)},
            {1, 1, 90, 91, patterned({2, 2, 16, 8}, 128, 1)}});
}
