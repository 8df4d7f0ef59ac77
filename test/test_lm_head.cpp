#include "ops.h"

TEST_CASE("cross entropy: every instruction set against the reference") {
    const Ops<double>& ref = reference_ops();
    for (int V : {1, 3, 17, 33, 65, 4095, 4100, 9001})
        for (double size : {1.0, 1e4}) {
            const int N = V > 1000 ? 3 : 7, Vp = V + (V % 3) * 5;
            CAPTURE(V); CAPTURE(size);
            auto logits = normal<float>(int64_t(N) * Vp, 1, size);
            for (int n = 0; n < N; n++)
                for (int v = V; v < Vp; v++) logits[size_t(n * Vp + v)] = 1e30f;    // padding is never looked at
            auto target = tokens(N, V, 2);
            if (V > 1) logits[size_t((target[0] + 1) % V)] = -INFINITY;
            std::vector<double> d(logits.size());
            std::vector<float> want(N);
            ref.cross_entropy(want.data(), d.data(), doubles(logits).data(), target.data(), 0.5f, N, V, Vp);
            each_isa([&](const Ops<float>& op) {
                Guarded<float> loss(N), only(N), dl(N * Vp), same(N * Vp);
                memcpy(same.data(), logits.data(), logits.size() * sizeof(float));
                op.cross_entropy(only, nullptr, logits.data(), target.data(), 0.5f, N, V, Vp);
                op.cross_entropy(loss, dl, logits.data(), target.data(), 0.5f, N, V, Vp);
                CHECK(relative_error(loss.data(), want.data(), N) < 1e-6);
                CHECK(memcmp(loss.data(), only.data(), size_t(N) * sizeof(float)) == 0);
                CHECK(relative_error(dl.data(), d.data(), N * Vp) < 2e-6);
                op.cross_entropy(loss, same, same, target.data(), 0.5f, N, V, Vp);
                CHECK(memcmp(same.data(), dl.data(), logits.size() * sizeof(float)) == 0);
                CHECK((loss.intact() && only.intact() && dl.intact() && same.intact()));
            });
        }
}

TEST_CASE("cross entropy: NaN and infinity spoil their row and no other; same bits") {
    const int N = 4, V = 5000;
    auto logits = normal<float>(N * V, 1);
    logits[4999] = NAN;
    logits[2 * V + 3] = INFINITY;
    auto target = tokens(N, V, 2);
    each_isa([&](const Ops<float>& op) {
        float loss[N];
        std::vector<float> d(logits.size());
        op.cross_entropy(loss, d.data(), logits.data(), target.data(), 1, N, V, V);
        CHECK((std::isnan(loss[0]) && std::isfinite(loss[1]) && std::isnan(loss[2]) && std::isfinite(loss[3])));
        CHECK((std::isnan(d[0]) && std::isfinite(d[V]) && std::isfinite(d[3 * V])));
        auto clean = normal<float>(N * V, 1);
        CHECK(same_bits(N * V + N, [&](float* out) {
            op.cross_entropy(out, out + N, clean.data(), target.data(), 1, N, V, V);
        }));
    });
}

TEST_CASE("cross entropy: gradients of the reference") {
    const Ops<double>& op = reference_ops();
    const int V = 9, Vp = 12;
    for (int t : {0, 4, 8}) {
        auto logits = normal<double>(Vp, 1, 2);
        std::vector<double> d(Vp);
        float unused;
        op.cross_entropy(&unused, d.data(), logits.data(), &t, 1, 1, V, Vp);
        // the loss that the table returns is a float: too coarse for differences
        auto loss = [&] {
            double s = 0;
            for (int v = 0; v < V; v++) s += std::exp(logits[size_t(v)]);
            return std::log(s) - logits[size_t(t)];
        };
        CHECK(unused == doctest::Approx(loss()).epsilon(1e-6));
        CHECK(gradient_error(logits.data(), d.data(), Vp, loss) < 1e-7);
    }
}

TEST_CASE("losses are added in order, whatever the pieces") {
    auto loss = normal<float>(1000, 1);
    loss[0] = 1e15f;    // else the order would not show
    double want = 3, got = 3;
    reference_ops().add_losses(&want, loss.data(), 1000);
    for (int from = 0; from < 1000; from += 130)
        cpu_ops<float>().add_losses(&got, &loss[size_t(from)], std::min(130, 1000 - from));
    CHECK(want == got);
}
