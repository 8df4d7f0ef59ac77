#include "cuda_test.h"
#include "tools/selftest/checks.h"

namespace {

void cached(int B, int S, int pos, int maxT, Heads h) {
    EXPECT(check_attention_cached(cuda_ops<float>(Dtype::fp32), B, S, pos, maxT, h));
    EXPECT(check_attention_cached(cuda_ops<bf16>(Dtype::bf16), B, S, pos, maxT, h));
}

// Rows from..to of each of B sequences of S rows.
Numbers rows(const Numbers& x, int B, int S, int from, int to) {
    const int64_t row = int64_t(x.size()) / (int64_t(B) * S);
    Numbers out;
    for (int b = 0; b < B; b++)
        out.insert(out.end(), x.begin() + (int64_t(b) * S + from) * row, x.begin() + (int64_t(b) * S + to) * row);
    return out;
}

// A sequence in calls of these lengths equals the whole at once.
template <class T> void in_calls(const Ops<T>& op, int B, Heads h, std::vector<int> calls, int spare) {
    int S = 0;
    for (int n : calls) S += n;
    const Memory m(op);
    const int maxT = S + spare;
    const Numbers numbers = rounded<T>(random_normal(int64_t(B) * S * (h.NH + 2 * h.NKV) * h.HS, 1));
    Array<T> qkv(m, numbers), whole(m, int64_t(B) * S * h.NH * h.HS);
    Array<T> k(m, int64_t(B) * h.NKV * maxT * h.HS), v(m, k.size());
    Array<float> lse(m, int64_t(B) * h.NH * S);
    op.attention_forward(whole, lse, qkv, B, S, h);
    int pos = 0;
    for (int n : calls) {
        Array<T> part(m, rows(numbers, B, S, pos, pos + n)), y(m, int64_t(B) * n * h.NH * h.HS);
        Array<int> p(m, Numbers{double(pos)});
        op.attention_cached(y, k, v, part, B, n, p, maxT, h);
        Check check;
        check.op = "y at " + std::to_string(pos);
        check.expect("y", y, rows(whole.read(), B, S, pos, pos + n), sizeof(T) == 2 ? 5e-3 : 1e-5);
        EXPECT(check);
        pos += n;
    }
}

// y of one position after 200 others
template <class T> std::vector<unsigned char> bits(const Ops<T>& op, Heads h) {
    const Memory m(op);
    const int B = 2, maxT = 210;
    Array<T> qkv(m, random_normal(int64_t(B) * (h.NH + 2 * h.NKV) * h.HS, 1)), y(m, int64_t(B) * h.NH * h.HS);
    Array<T> k(m, random_normal(int64_t(B) * h.NKV * maxT * h.HS, 2)), v(m, random_normal(k.size(), 3));
    Array<int> pos(m, Numbers{200});
    op.attention_cached(y, k, v, qkv, B, 1, pos, maxT, h);
    return y.bits();
}

}   // namespace

// With 64 elements a head a round is 64 keys, and the only head of a sequence is split into as many parts as rounds.
TEST_CASE("cuda attention cached: one position, wherever the splits end") {
    for (int pos : {0, 1, 62, 63, 64, 65, 127, 128, 190, 191, 192, 200}) cached(1, 1, pos, 201, {1, 1, 64});
    for (int pos : {63, 64, 130, 299}) cached(1, 1, pos, 300, {2, 2, 64, 65});
    for (int pos : {15, 16, 17, 32, 60}) cached(2, 1, pos, 61, {2, 1, 256});
    cached(1, 1, 1500, 1537, {1, 1, 64});     // more rounds than splits
    cached(40, 1, 70, 71, {1, 1, 64});        // no splits
}

TEST_CASE("cuda attention cached: head sizes, groups, windows") {
    cached(2, 1, 40, 50, {2, 2, 1});
    cached(1, 1, 700, 701, {3, 1, 3, 600});
    cached(3, 1, 9, 10, {4, 2, 7, 1});
    cached(1, 1, 520, 530, {6, 2, 8});
    cached(1, 1, 300, 301, {4, 2, 20});
    cached(2, 1, 140, 150, {5, 1, 32, 130});
    cached(1, 1, 97, 98, {8, 1, 80});
    cached(1, 1, 97, 98, {6, 3, 96, 40});
    cached(2, 1, 60, 77, {4, 1, 128});
    cached(1, 1, 40, 41, {4, 2, 257});
    cached(1, 1, 20, 21, {2, 1, 1024});
    cached(1, 1, 5, 6, {1, 1, 1032});
}

TEST_CASE("cuda attention cached: several positions at once") {
    cached(2, 2, 0, 9, {2, 2, 7});
    cached(1, 64, 0, 64, {2, 1, 64});
    cached(2, 33, 40, 80, {4, 2, 40, 20});
    cached(1, 70, 60, 133, {3, 1, 8, 65});
    cached(1, 3, 127, 131, {2, 2, 128});
}

TEST_CASE("cuda attention cached: a sequence in calls of any length equals the whole") {
    auto all = [](auto& op) {
        in_calls(op, 1, {2, 2, 64}, {1, 1, 1, 61, 1, 1, 70, 1}, 3);
        in_calls(op, 2, {4, 2, 20, 30}, {7, 1, 1, 50, 1}, 0);
        in_calls(op, 1, {3, 1, 136}, {1, 16, 1}, 10);
    };
    all(cuda_ops<float>(Dtype::fp32));
    all(cuda_ops<bf16>(Dtype::bf16));
}

TEST_CASE("cuda attention cached: the same bits in any order of threads and blocks") {
    std::vector<unsigned char> floats, halves;
    each_schedule([&] {
        const auto f = bits(cuda_ops<float>(Dtype::fp32), {2, 2, 64});
        const auto h = bits(cuda_ops<bf16>(Dtype::bf16), {6, 2, 64});
        if (floats.empty()) floats = f, halves = h;
        CHECK(f == floats);
        CHECK(h == halves);
    });
}

TEST_CASE("cuda attention cached: a recorded call follows the position") {
    const Ops<float>& op = cuda_ops<float>(Dtype::fp32);
    if (!op.record) return;
    const Heads h = {2, 1, 64};
    const int maxT = 200;
    const Memory m(op);
    const Numbers numbers = random_normal(4 * h.HS, 1), keys = random_normal(maxT * h.HS, 2);
    Array<float> qkv(m, numbers), k(m, keys), v(m, keys), y(m, 2 * h.HS);
    Array<int> pos(m, Numbers{0});
    auto at = [&](int p) { op.upload(static_cast<int*>(pos), &p, int64_t(sizeof p)); };
    op.attention_cached(y, k, v, qkv, 1, 1, pos, maxT, h);
    op.record();
    op.attention_cached(y, k, v, qkv, 1, 1, pos, maxT, h);
    void* graph = op.recorded();
    for (int p : {63, 64, 199, 5, 128}) {
        at(p);
        op.replay(graph);
        Array<float> k2(m, k.read()), v2(m, v.read()), y2(m, 2 * h.HS);
        op.attention_cached(y2, k2, v2, qkv, 1, 1, pos, maxT, h);
        CHECK(y.bits() == y2.bits());
        CHECK(k.bits() == k2.bits());
    }
    op.release_graph(graph);
}
