#include "cuda_test.h"
#include "tools/selftest/checks.h"

namespace {
template <class T> void each_use(const Ops<T>& op, int N, int V, int Vp) {
    EXPECT(check_cross_entropy(op, N, V, Vp, false, false));
    EXPECT(check_cross_entropy(op, N, V, Vp, true, false));
    EXPECT(check_cross_entropy(op, N, V, Vp, true, true));
}
struct Row { double loss; Numbers gradient; };
// One row of V logits, and NaN in its padding.
template <class T> Row row(const Ops<T>& op, Numbers logits, int V, int target) {
    const Memory m(op);
    Array<T> x(m, logits);
    Array<float> loss(m, 1);
    Array<int> y(m, Numbers{double(target)});
    op.cross_entropy(loss, x, x, y, 1, 1, V, int(logits.size()));
    return {loss.read()[0], x.read()};
}
}   // namespace

TEST_CASE("cuda cross entropy: against the reference") {
    auto all = [](auto& op) {
        for (int V : {1, 2, 7, 31, 33, 65, 257}) {
            each_use(op, 3, V, V);
            each_use(op, 2, V, int(round_up(V, 16)));
            each_use(op, 2, V, V + 3);
        }
        each_use(op, 2, 1000, 1200);
    };
    each_schedule([&] {
        all(cuda_ops<float>(Dtype::fp32));
        all(cuda_ops<bf16>(Dtype::bf16));
    });
}

TEST_CASE("cuda cross entropy: rows of many logits, in shared memory and not") {
    auto all = [](auto& op, int V, int Vp) {
        each_use(op, 2, V, Vp);
        each_use(op, 1, V, V | 1);
    };
    each_schedule([&] {
        all(cuda_ops<float>(Dtype::fp32), 9001, 9016);      // 36 KB
        all(cuda_ops<bf16>(Dtype::bf16), 13001, 13104);     // 26 KB
    });
    all(cuda_ops<float>(Dtype::fp32), 50257, 50304);        // 201 KB: two rows never fit
    all(cuda_ops<bf16>(Dtype::bf16), 50257, 50304);         // 101 KB: two rows fit sm_90
    all(cuda_ops<bf16>(Dtype::bf16), 128256, 128256);
}

TEST_CASE("cuda cross entropy: the same bits in place, without gradients and in any order of threads") {
    const int N = 5, V = 5003, Vp = 5008;
    auto run = [&](auto& op, auto zero) {
        typedef decltype(zero) T;
        const Memory m(op);
        Numbers logits = random_normal(N * Vp, 1, 5);
        for (int i = 0; i < N * Vp; i++)
            if (i % Vp >= V) logits[size_t(i)] = NAN;
        const std::vector<int> target = random_tokens(N, V, 2);
        Array<int> y(m, Numbers(target.begin(), target.end()));
        std::vector<unsigned char> first, first_loss;
        each_schedule([&] {
            Array<float> a(m, N), b(m, N), c(m, N);
            Array<T> x(m, logits), same(m, logits), d(m, N * Vp);
            const auto before = x.bits();
            op.cross_entropy(a, nullptr, x, y, 0.1f, N, V, Vp);
            op.cross_entropy(b, d, x, y, 0.1f, N, V, Vp);
            op.cross_entropy(c, same, same, y, 0.1f, N, V, Vp);
            CHECK(x.bits() == before);
            if (first.empty()) first = d.bits(), first_loss = a.bits();
            CHECK(d.bits() == first);
            CHECK(same.bits() == first);
            CHECK(a.bits() == first_loss);
            CHECK(b.bits() == first_loss);
            CHECK(c.bits() == first_loss);
        });
    };
    run(cuda_ops<float>(Dtype::fp32), 0.0f);
    run(cuda_ops<bf16>(Dtype::bf16), bf16{});
}

TEST_CASE("cuda cross entropy: extreme logits") {
    const auto& op = cuda_ops<float>(Dtype::fp32);
    const int V = 300, Vp = 304;
    auto logits = [&](double x) {
        Numbers l(size_t(Vp), x);
        for (int v = V; v < Vp; v++) l[size_t(v)] = NAN;
        return l;
    };
    Numbers l = logits(-1000);
    l[5] = 1000;    // the target's probability is 0 in any float
    Row r = row(op, l, V, 7);
    CHECK(r.loss == doctest::Approx(2000));
    CHECK(r.gradient[5] == 1);
    CHECK(r.gradient[7] == -1);
    CHECK(r.gradient[8] == 0);

    l = logits(-INFINITY);    // masked but for two
    l[299] = l[0] = 3e38;
    r = row(op, l, V, 299);
    CHECK(r.loss == doctest::Approx(std::log(2)));
    CHECK(r.gradient[0] == doctest::Approx(0.5));
    CHECK(r.gradient[299] == doctest::Approx(-0.5));
    CHECK(r.gradient[1] == 0);
    CHECK(row(op, l, V, 1).loss == INFINITY);

    for (double bad : {double(NAN), double(INFINITY)})
        for (int at : {0, 150, 299}) {
            l = logits(1);
            l[size_t(at)] = bad;
            r = row(op, l, V, 2);
            CHECK(std::isnan(r.loss));
            CHECK(std::isnan(r.gradient[1]));
            CHECK(r.gradient[V] == 0);    // padding stays clean even then
        }
    CHECK(std::isnan(row(op, logits(-INFINITY), V, 2).loss));
}

TEST_CASE("cuda cross entropy: NaN spoils its row and no other") {
    const int N = 3, V = 40;
    const auto& op = cuda_ops<bf16>(Dtype::bf16);
    const Memory m(op);
    Numbers l = random_normal(N * V, 1);
    l[V + 13] = NAN;
    Array<bf16> x(m, l);
    Array<float> loss(m, N);
    Array<int> y(m, Numbers{3, 4, 5});
    op.cross_entropy(loss, x, x, y, 1, N, V, V);
    const Numbers losses = loss.read(), d = x.read();
    for (int n = 0; n < N; n++) CHECK(std::isnan(losses[size_t(n)]) == (n == 1));
    for (int i = 0; i < N * V; i++) CHECK(std::isnan(d[size_t(i)]) == (i / V == 1));
}
