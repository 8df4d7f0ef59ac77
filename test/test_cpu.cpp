// test_cpu.cpp - the CPU backend beside its operations (test/ops/ tests these): instruction sets,
// the matrix product, the choice of AMX, memory.
#include "layers/cpu.h"
#include "base/philox.h"

#include "test/ops/ops.h"
#include "tools/selftest/cached.h"

#include <sched.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>

namespace {
// Seeded normal numbers, rounded to T.
template <class T> std::vector<T> normal(int64_t n, uint64_t stream) {
    std::vector<T> x;
    for (double v : random_normal(n, stream)) x.push_back(as<T>(v));
    return x;
}
template <class T> Numbers numbers(const std::vector<T>& x) {
    Numbers out;
    for (T v : x) out.push_back(number(v));
    return out;
}
// |error| of a float sum of n products against the size of the result
double tolerance(int n) { return 3e-7 * (2 + std::sqrt(double(n))); }

// f(ops) for every instruction set of this machine, with parameters of type P.
template <class P = float, class F> void each_isa(F f) {
    for (int i = 0; i < ISA_COUNT; i++)
        if (cpu_supports(Isa(i))) {
            const Ops<float, P>& ops = cpu_ops_isa<P>(Isa(i));
            CAPTURE(std::string(ops.name));
            f(ops);
        }
}
}    // namespace

// ---- one instruction set ------------------------------------------------------------------------

// Distance in units of the last place of a double result rounded to float, denormals included.
static double ulps(float got, double want) {
    if (std::isinf(float(want))) return got == float(want) ? 0 : INFINITY;
    int exponent;
    frexp(want, &exponent);
    return std::fabs(double(got) - want) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

TEST_CASE("cpu: exp within 2 ulp everywhere, exact at the ends") {
    const int n = 1 << 16;
    for (int i = 0; i < ISA_COUNT; i++) {
        if (!cpu_supports(Isa(i))) continue;
        CAPTURE(i);
        double worst = 0;
        for (double from = -110; from < 95; from += 5) {
            std::vector<float> x(n), y(n);
            for (int j = 0; j < n; j++) x[size_t(j)] = float(from + 5.0 * j / n);
            cpu_kernels<float>(Isa(i)).exponentials(y.data(), x.data(), n);
            for (int j = 0; j < n; j++) worst = std::fmax(worst, ulps(y[size_t(j)], std::exp(double(x[size_t(j)]))));
        }
        CHECK(worst < 2);
        std::vector<float> x = {0,      -0.0f,    -INFINITY, INFINITY, NAN,    88.72283f,
                                88.73f, -103.97f, -104,      1e30f,    -1e30f, 1e-30f};
        std::vector<float> y(x.size());
        cpu_kernels<float>(Isa(i)).exponentials(y.data(), x.data(), int64_t(x.size()));
        CHECK(y[0] == 1);
        CHECK(y[1] == 1);
        CHECK(y[2] == 0);
        CHECK(y[3] == INFINITY);
        CHECK(std::isnan(y[4]));
        CHECK(std::isfinite(y[5]));
        CHECK(y[6] == INFINITY);
        CHECK(y[7] > 0);
        CHECK(y[8] == 0);
        CHECK(y[9] == INFINITY);
        CHECK(y[10] == 0);
        CHECK(y[11] == 1);
    }
}

// A (type X) times B (type Y); A is rounded to Y. odd: A begins within a 4-byte word
template <class X, class Y> static void own_product(Isa isa, int M, int N, int K, bool at, bool bt, bool odd = false) {
    CAPTURE(int(isa));
    CAPTURE(M);
    CAPTURE(N);
    CAPTURE(K);
    CAPTURE(at);
    CAPTURE(bt);
    CAPTURE(odd);
    CAPTURE(sizeof(X));
    CAPTURE(sizeof(Y));
    auto a = normal<X>(M * K + odd, 1);
    auto b = normal<Y>(K * N, 2);
    Numbers ar = rounded<Y>(numbers(a)), br = numbers(b);
    ar.erase(ar.begin(), ar.begin() + odd);
    const int ra = at ? 1 : K, ca = at ? M : 1, rb = bt ? 1 : N, cb = bt ? K : 1;
    std::vector<double> want(M * N);
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++)
            for (int k = 0; k < K; k++)
                want[size_t(m * N + n)] += ar[size_t(m * ra + k * ca)] * br[size_t(k * rb + n * cb)];
    Guarded<float> c(M * N), sum(M * N, 1);
    const auto multiply = [&](Matmul<X, Y> m) {
        const CpuKernels<Y>& kernels = cpu_kernels<Y>(isa);
        if constexpr (sizeof(X) == sizeof(Y)) kernels.matmul(m);
        else kernels.gradient_matmul(m);
    };
    multiply({M, N, K, a.data() + odd, ra, ca, b.data(), rb, cb, c});
    multiply({M, N, K, a.data() + odd, ra, ca, b.data(), rb, cb, sum, true});
    for (int64_t j = 0; j < M * N; j++) sum[j] -= 1;
    CHECK(relative_error(c.data(), want.data(), M * N) < tolerance(K));
    CHECK(relative_error(sum.data(), want.data(), M * N) < tolerance(K));
    CHECK((c.intact() && sum.intact()));
}

TEST_CASE("cpu: the product against the reference") {
    for (int i = 0; i < ISA_COUNT; i++) {
        if (!cpu_supports(Isa(i))) continue;
        for (auto [M, N, K] : {std::array{1, 1, 1},
                               {7, 31, 65},
                               {6, 64, 400},
                               {97, 70, 33},
                               {1600, 20, 17},
                               {65, 200, 801},
                               {1400, 1500, 5},
                               {9, 50, 3201},
                               {97, 70, 34},
                               {50, 9, 3200}})
            for (int form = 0; form < 4; form++) {
                own_product<float, float>(Isa(i), M, N, K, form & 1, form & 2);
                own_product<float, bf16>(Isa(i), M, N, K, form & 1, form & 2);
                for (bool odd : {false, true}) own_product<bf16, bf16>(Isa(i), M, N, K, form & 1, form & 2, odd);
            }
        auto a = normal<float>(100 * 500, 1), b = normal<float>(500 * 130, 2);
        expect_same_bits([&] {
            std::vector<float> c(100 * 130);
            cpu_kernels<float>(Isa(i)).matmul({100, 130, 500, a.data(), 500, 1, b.data(), 130, 1, c.data()});
            const auto* bytes = reinterpret_cast<const unsigned char*>(c.data());
            return Bits(bytes, bytes + c.size() * sizeof(float));
        });
    }
}

template <class P> static void expect_gelu_bits(const Ops<float, P>& op, int N, int C, int OC) {
    CAPTURE(std::string(op.name));
    CAPTURE(N);
    auto x = normal<P>(N * C, 1), w = normal<P>(OC * C, 2), b = normal<P>(OC, 3);
    Guarded<float> pre(int64_t(N) * OC), pre1(int64_t(N) * OC);
    Guarded<P> y(int64_t(N) * OC), y1(int64_t(N) * OC);
    op.linear_forward(pre, x.data(), w.data(), b.data(), nullptr, N, C, OC, {});
    op.activation_forward(y, pre, Act::gelu_tanh, false, N, OC);
    op.linear_gelu_forward(y1, pre1, x.data(), w.data(), b.data(), N, C, OC, {});
    CHECK(memcmp(pre.data(), pre1.data(), size_t(pre.n) * 4) == 0);
    CHECK(memcmp(y.data(), y1.data(), size_t(y.n) * sizeof(P)) == 0);
    CHECK((pre1.intact() && y1.intact()));
}
TEST_CASE("cpu: linear with GELU has the bits of linear, then gelu") {
    each_isa<float>([](const Ops<float>& op) { expect_gelu_bits(op, 50, 90, 130); });
    each_isa<bf16>([](const Ops<float, bf16>& op) { expect_gelu_bits(op, 50, 90, 130); });
    auto by_tiles = [](auto& op) { expect_gelu_bits(op, 50, 90, 130), expect_gelu_bits(op, 1000, 20, 528); };
    by_tiles(cpu_ops_isa<float>(cpu_isa(), Tiles::emulated));
    by_tiles(cpu_ops_isa<bf16>(cpu_isa(), Tiles::emulated));    // 528 columns: stores that bypass the caches
}

TEST_CASE("cpu: what is made for products is fp32's result, rounded to nearest") {
    const int N = 21, C = 68;
    const auto x = normal<float>(2 * N * C, 1), gate = normal<float>(N, 4);
    const auto w = normal<bf16>(C, 2), b = normal<bf16>(C, 3), in = normal<bf16>(N * C, 5);
    std::vector<float> wide_w, wide_b, wide_in;
    for (bf16 v : w) wide_w.push_back(to_float(v));
    for (bf16 v : b) wide_b.push_back(to_float(v));
    for (bf16 v : in) wide_in.push_back(to_float(v));
    for (int i = 0; i < ISA_COUNT; i++) {
        if (!cpu_supports(Isa(i))) continue;
        CAPTURE(i);
        const Ops<float>& floats = cpu_ops_isa<float>(Isa(i));
        const Ops<float, bf16>& halves = cpu_ops_isa<bf16>(Isa(i));
        auto same = [&](const char* what, int64_t n, auto run_floats, auto run_halves) {
            CAPTURE(what);
            Guarded<float> y(n);
            Guarded<bf16> rounded(n);
            run_floats(y.data()), run_halves(rounded.data());
            bool equal = rounded.intact();
            for (int64_t k = 0; k < n; k++) equal = equal && rounded[k].bits == to_bf16(y[k]).bits;
            CHECK(equal);
        };
        std::vector<float> mean(N), rstd(N), lse(size_t(2 * N));
        for (bool rms : {false, true}) {
            const Norm norm = {rms};
            auto run = [&](auto& op, auto* weights, auto* biases) {
                return [&, weights, biases](auto* y) {
                    op.norm_forward(y, mean.data(), rstd.data(), x.data(), weights, biases, norm, N, C);
                };
            };
            same("norm", N * C, run(floats, wide_w.data(), wide_b.data()), run(halves, w.data(), b.data()));
        }
        for (bool gated : {false, true})
            same(
                "activation", N * C, [&](float* y) { floats.activation_forward(y, x.data(), Act::silu, gated, N, C); },
                [&](bf16* y) { halves.activation_forward(y, x.data(), Act::silu, gated, N, C); });
        same(
            "gate", N * C, [&](float* y) { floats.row_gate_forward(y, wide_in.data(), gate.data(), N, C); },
            [&](bf16* y) { halves.row_gate_forward(y, in.data(), gate.data(), N, C); });
        const Heads h = {2, 1, 17}, linear = {.NH = 2, .NKV = 1, .HS = 17, .linear = LinearAttention::elu};
        if (!halves.attention_rounds_to_bf16)
            same(
                "attention", N * 34, [&](float* y) { floats.attention_forward(y, lse.data(), x.data(), 1, N, h); },
                [&](bf16* y) { halves.attention_forward(y, lse.data(), x.data(), 1, N, h); });
        same(
            "linear attention", N * 34,
            [&](float* y) { floats.linear_attention_forward(y, lse.data(), x.data(), nullptr, 1, N, linear); },
            [&](bf16* y) { halves.linear_attention_forward(y, lse.data(), x.data(), nullptr, 1, N, linear); });
    }
}

// Sequences of one and of several parts; with any number of threads, which divide the heads.
TEST_CASE("cpu: a position's attention has the same bits beside others, on any number of threads") {
    each_isa([](const Ops<float>& op) {
        for (const Heads& h : {Heads{4, 2, 24}, Heads{.NH = 3, .NKV = 3, .HS = 64, .window = 300}}) {
            const std::vector<int> held = {100, 400, 0, 200};
            const int B = int(held.size()), width = 26;
            CacheArrays<float> cache(Memory(op), Element::f32, h.NKV, h.HS, width, held);
            const std::vector<float> qkv = normal<float>(int64_t(B) * h.qkv_width(), 1);
            std::vector<float> all(size_t(B) * size_t(h.width())), one(size_t(h.width()));
            for (int threads : {1, 2, 3}) {
                CAPTURE(threads);
                cpu_set_threads(threads);
                op.attention_cached(all.data(), qkv.data(), cache.device(), B, 1, held.data(), h);
                cpu_set_threads(1);
                for (int b = 0; b < B; b++) {
                    CAPTURE(b);
                    Pages alone = cache.device();
                    alone.table += b * width;
                    op.attention_cached(one.data(), qkv.data() + b * h.qkv_width(), alone, 1, 1, &held[size_t(b)], h);
                    CHECK(memcmp(one.data(), all.data() + b * h.width(), one.size() * sizeof(float)) == 0);
                }
            }
        }
        cpu_set_threads(0);
    });
}

TEST_CASE("cpu: x plus a multiple of b has the same bits, however many elements are beside") {
    const int64_t all = 40000;
    const std::vector<float> x = normal<float>(all, 1), b = normal<float>(all, 2);
    each_isa([&](const Ops<float>& op) {
        std::vector<float> whole(x.size()), part(x.size());
        op.add_scaled(whole.data(), x.data(), b.data(), 0.22f, all, {});
        for (const int64_t n : {1, 17, 8192, 8193, 8208}) {    // one thread, several; whole vectors and a rest
            CAPTURE(n);
            op.add_scaled(part.data(), x.data(), b.data(), 0.22f, n, {});
            CHECK(memcmp(part.data(), whole.data(), size_t(n) * sizeof(float)) == 0);
        }
    });
}

TEST_CASE("cpu: the sum of squares has the same bits on every instruction set") {
    const Numbers numbers = random_normal(300003, 1);
    const std::vector<float> x(numbers.begin(), numbers.end());
    std::vector<int64_t> sizes = {9001, 300003};
    for (int64_t n = 1; n < 300; n++) sizes.push_back(n);    // lengths that reveal another order of summation
    for (int64_t n : sizes) {
        double expected[8], sum = 0;    // 8 interleaved sums in each block of 8192
        for (int64_t from = 0; from < n; from += 8192) {
            std::fill_n(expected, 8, 0);
            for (int64_t i = from; i < std::min(n, from + 8192); i++)
                expected[(i - from) % 8] += double(x[size_t(i)]) * double(x[size_t(i)]);
            double block = 0;
            for (double lane : expected) block += lane;
            sum += block;
        }
        for (int isa = 0; isa < ISA_COUNT; isa++) {
            if (!cpu_supports(Isa(isa))) continue;
            double out = 0;
            cpu_ops_isa<float>(Isa(isa)).sum_of_squares(&out, x.data(), n);
            CHECK(out == sum);
        }
    }
}

static float nearest(float x) { return to_float(to_bf16(x)); }
TEST_CASE("cpu: what the products of bf16 in attention round, and what not") {
    if (!cpu_supports(Isa::avx512bf16)) SKIP("this CPU has no bf16 products");
    const Ops<float, bf16>& op = cpu_ops_isa<bf16>(Isa::avx512bf16);
    const Heads h = {1, 1, 4};
    // Two positions; the second weighs v of the first by p = exp(-3/4), its own by 1.
    const float own = 0.3f, third = 1.0f / 3, e = std::exp(-0.75f), p = nearest(e), total = 1 + e;
    const float qkv[] = {0, 0, 0, 0, 0,   0, 0, 0, 1, third, 0, 0,    //
                         1, 0, 0, 0, 1.5, 0, 0, 0, 0, 0,     1, own};
    bf16 y[8];
    float lse[2];
    op.attention_forward(y, lse, qkv, 1, 2, h);
    const float want[] = {1,         nearest(third),      0, 0, p / total, p * nearest(third) / total,
                          1 / total, nearest(own) / total};
    for (int d = 0; d < 8; d++) CHECK(std::fabs(to_float(y[d]) - nearest(want[d])) < 1e-6);
    CHECK(std::fabs(lse[1] - (0.75f + std::log(total))) < 1e-6);
    CHECK(std::fabs(p / e - 1) > 1e-4);    // else bf16's rounding would not show
    // Backward of the second position's dy: dv = p dy, ds = p (dp - delta), dq = ds k, dk = ds q,
    // where the terms of the sums are rounded to bf16.
    const float dy[] = {0, 0, 0, 0, third, 0, 0, 0}, g = nearest(third);
    float d[24];
    op.attention_backward(d, dy, y, qkv, lse, 1, 2, h);
    const float share[] = {e / total, 1 / total}, delta = third * to_float(y[4]);
    const float ds[] = {nearest(share[0] * (g - delta)), nearest(share[1] * -delta)};
    CHECK(std::fabs(d[8] - nearest(share[0]) * g) < 1e-6);
    CHECK(std::fabs(d[20] - nearest(share[1]) * g) < 1e-6);
    CHECK(std::fabs(d[4] - ds[0] / 2) < 1e-6);
    CHECK(std::fabs(d[16] - ds[1] / 2) < 1e-6);
    CHECK(std::fabs(d[12] - ds[1] * 1.5f / 2) < 1e-6);
    // q = k = 1/3, which bf16 rounds visibly: lse must show the product of the rounded numbers.
    const float scores[] = {third, 0, 0, 0, third, 0, 0, 0, 0, 0, 0, 0};
    op.attention_forward(y, lse, scores, 1, 1, h);
    CHECK(std::fabs(lse[0] - g * g / 2) < 1e-7);
    CHECK(std::fabs(g * g - third * third) > 1e-4);
}

TEST_CASE("cpu: a master steps as float parameters do, to the bit") {
    const int n = 9024;
    const auto w = normal<float>(n, 1), g = normal<float>(n, 2);
    std::vector<uint8_t> groups(size_t(ceil_div(n, 64)));
    for (size_t i = 0; i < groups.size(); i++) groups[i] = i % 3 != 1;
    const OptimizerParams rates = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f};
    const Step step = {1, 1, 3, 1, 3.69f, 7.01f, 0};
    for (int i = 0; i < ISA_COUNT; i++) {
        if (!cpu_supports(Isa(i))) continue;
        std::vector<float> a = w, b = w, m(n), v(n), m2(n), v2(n);
        std::vector<bf16> rounded(n);
        cpu_ops_isa<float>(Isa(i)).update_weights(a.data(), nullptr, {m.data()}, {v.data()}, g.data(), groups.data(), n,
                                                  &step, UpdateRule::adamw, rates, 0);
        cpu_ops_isa<bf16>(Isa(i)).update_weights(rounded.data(), b.data(), {m2.data()}, {v2.data()}, g.data(),
                                                 groups.data(), n, &step, UpdateRule::adamw, rates, 0);
        CHECK((a == b && m == m2 && v == v2));
    }
}

TEST_CASE("cpu: losses are added in order, whatever the pieces") {
    auto loss = normal<float>(1000, 1);
    loss[0] = 1e15f;    // makes the order of sums visible
    double want = 3, got = 3;
    reference_ops().add_losses(&want, loss.data(), 1000);
    for (int from = 0; from < 1000; from += 130)
        cpu_ops<float>().add_losses(&got, &loss[size_t(from)], std::min(130, 1000 - from));
    CHECK(want == got);
}

TEST_CASE("cpu: products with bf16 weights round gradients first") {
    each_table(TablePart::products, []<class T, class P>(const Ops<T, P>& op, const TestTable&) {
        if constexpr (std::is_same_v<T, float> && sizeof(P) == 2) {
            const int C = 70, OC = 33;
            for (int N : {1, 16, 20}) {
                std::vector<float> dy(size_t(N * OC)), dx(size_t(N * C)), rounded(dy), expected(dx), dw(size_t(OC * C));
                std::vector<P> w(size_t(OC * C)), x(size_t(N * C));
                for (size_t i = 0; i < dy.size(); i++)
                    dy[i] = philox_normal(1, 1, i), rounded[i] = to_float(to_bf16(dy[i]));
                for (size_t i = 0; i < w.size(); i++) w[i] = to_bf16(philox_normal(1, 2, i));
                for (size_t i = 0; i < x.size(); i++) x[i] = to_bf16(philox_normal(1, 3, i));
                std::vector<float> dw_expected = dw;
                op.linear_backward(dx.data(), {dw.data(), false}, nullptr, dy.data(), x.data(), w.data(), N, C, OC, {});
                op.linear_backward(expected.data(), {dw_expected.data(), false}, nullptr, rounded.data(), x.data(),
                                   w.data(), N, C, OC, {});
                CHECK((dx == expected && dw == dw_expected));
                std::vector<P> half(dy.size());
                for (size_t i = 0; i < dy.size(); i++) half[i] = to_bf16(dy[i]);
                op.lm_head_backward(dx.data(), {dw.data(), false}, nullptr, half.data(), x.data(), w.data(), N, C, OC,
                                    {});
                CHECK((dx == expected && dw == dw_expected));
            }
        }
    });
}

// ---- the backend around the operations ----------------------------------------------------------

TEST_CASE("cpu: what multiplies on a CPU with AMX, without and in disguise") {
    auto chosen = [](const char* isa, const char* amx, bool has_amx, bool slow_pairs = false) {
        const Result<CpuChoice> c = cpu_choice(isa, amx, has_amx, slow_pairs);
        REQUIRE(c.ok());
        return c.value;
    };
    const bool can_tile = cpu_supports(Isa::avx512bf16);    // every CPU with AMX has avx512bf16
    for (const char* none : {static_cast<const char*>(nullptr), ""}) {
        const CpuChoice plain = chosen(none, none, false), tiled = chosen(none, none, true);
        CHECK(plain.tiles == Tiles::none);
        CHECK(tiled.tiles == (can_tile ? Tiles::amx : Tiles::none));
        CHECK(plain.isa == tiled.isa);
        // Pairs that are slower than floats are taken only where tiles replace them, or if named.
        const Isa floats = std::min(plain.isa, Isa::avx512);
        CHECK(chosen(none, none, false, true).isa == floats);
        CHECK(chosen(none, "refuse", true, true).isa == floats);
        CHECK(chosen(none, none, true, true).isa == tiled.isa);
        CHECK(chosen(none, "pretend", false, true).isa == tiled.isa);
        if (can_tile) CHECK(chosen("avx512bf16", none, false, true).isa == Isa::avx512bf16);
        CHECK(chosen("base", none, true).tiles == Tiles::none);    // as on a CPU of that level
    }
    for (bool has_amx : {false, true}) {
        CHECK(chosen(nullptr, "refuse", has_amx).tiles == Tiles::none);
        CHECK(chosen(nullptr, "pretend", has_amx).tiles == Tiles::emulated);
        const CpuChoice base = chosen("base", "pretend", has_amx);
        CHECK((base.isa == Isa::base && base.tiles == Tiles::emulated));
    }
    for (auto [isa, amx, named] : {std::array{"sse9", "", "FLATGPT_ISA=sse9: expected"},
                                   {"", "yes", "FLATGPT_AMX=yes: expected pretend or refuse"}}) {
        const Status s = cpu_choice(isa, amx, true, false).status;
        CHECK(s.code == Exit::usage);
        CHECK(s.message.find(named) == 0);
        const ProcessResult r = run_flatgpt(
            {"info"}, {.environment = {std::string("FLATGPT_ISA=") + isa, std::string("FLATGPT_AMX=") + amx}});
        CHECK((r.exit_code == 2 && r.err.find(named) != std::string::npos));
    }
    CHECK((cpu_ops_isa<float>(cpu_isa(), Tiles::emulated).linear_forward !=
           cpu_ops_isa<float>(cpu_isa()).linear_forward));
    CHECK(
        (cpu_ops_isa<bf16>(cpu_isa(), Tiles::emulated).linear_forward != cpu_ops_isa<bf16>(cpu_isa()).linear_forward));
}
TEST_CASE("cpu: pretended and refused, AMX changes the products that the command takes") {
    for (const char* dtype : {"fp32", "bf16"}) {
        auto line = [&](std::string environment) {
            const ProcessResult r =
                run_flatgpt({"selftest", "--device", "cpu", "--dtype", dtype, "--filter", "add_losses"},
                            {.environment = {environment}});
            CHECK(r.exit_code == 0);
            return r.out.substr(0, r.out.find('\n'));
        };
        CHECK(line("FLATGPT_AMX=pretend").find("(AMX, pretended)") != std::string::npos);
        CHECK(line("FLATGPT_AMX=refuse").find("AMX") == std::string::npos);
        CHECK((line("FLATGPT_AMX").find("(AMX)") != std::string::npos) == (cpu_has_amx() && cpu_has_bf16()));
    }
}

TEST_CASE("cpu: memory is zeroed and aligned, threads can be set, the table says what it is") {
    const Ops<float>& op = cpu_ops<float>();
    for (int64_t bytes : {int64_t(0), int64_t(1), int64_t(5000), int64_t(3) << 20}) {
        auto* p = static_cast<unsigned char*>(op.allocate(bytes));
        REQUIRE(p != nullptr);
        CHECK(reinterpret_cast<uintptr_t>(p) % 64 == 0);
        bool zero = true;
        for (int64_t i = 0; i < bytes; i++) zero = zero && p[i] == 0, p[i] = 1;
        CHECK(zero);
        op.zero(p, bytes);
        for (int64_t i = 0; i < bytes; i++) zero = zero && p[i] == 0;
        CHECK(zero);
        op.release(p, bytes);
    }
    CHECK(op.allocate(int64_t(1) << 60) == nullptr);
    const std::vector<float> from = normal<float>(600000, 1);
    for (auto copy : {op.copy, op.upload, op.download, op.upload_async, op.use_uploaded, op.download_async}) {
        std::vector<float> to(600000);
        copy(to.data(), from.data(), 600000 * 4);
        op.wait(op.mark());
        CHECK(from == to);
    }
    for (auto convert : {op.from_floats, op.to_floats}) {
        std::vector<float> to(600000);
        convert(to.data(), from.data(), 600000);
        CHECK(from == to);
    }
    void* host = op.allocate_host(100);
    CHECK(host != nullptr);
    op.release_host(host, 100);
    CHECK(op.free_bytes() > 0);
    CHECK(op.free_bytes() < int64_t(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE));
    cpu_set_threads(3);
    CHECK(cpu_threads() == 3);
    cpu_set_threads(0);
    CHECK(cpu_threads() >= 1);
    CHECK(cpu_check().ok());
    CHECK(std::string(op.name).find("cpu fp32 (") == 0);
    CHECK(std::string(cpu_ops<bf16>().name).find("cpu bf16 (") == 0);
}
TEST_CASE("cpu: CPUs that share a core count once") {
    cpu_set_t mask;
    REQUIRE(sched_getaffinity(0, sizeof mask, &mask) == 0);
    const int cpus = CPU_COUNT(&mask);
    const std::string system = temporary_directory();
    CHECK(cpu_cores(system) == cpus);    // none is described
    for (int cpu = 0, n = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &mask)) continue;
        const std::string topology = system + "/cpu" + std::to_string(cpu) + "/topology";
        std::filesystem::create_directories(topology);
        std::ofstream(topology + "/thread_siblings_list") << "pair " << n++ / 2 << "\n";
    }
    CHECK(cpu_cores(system) == (cpus + 1) / 2);
    cpu_set_threads(0);
    CHECK(cpu_threads() <= cpu_cores("/sys/devices/system/cpu"));
}
