// test_amx.cpp - matrix products by AMX tiles: the emulated instructions (the "twin"), and the
// loops around them, run on the twin. test/ops/ tests the operations that use them.
#define ISA twin    // the namespace of simd/tiles.h in this file
#include "layers/simd/amx_tiles.h"
#include "base/philox.h"

#include "test/ops/ops.h"

namespace {
uint32_t random_bits(uint64_t stream, uint64_t i) { return philox(3, stream, i).v[0]; }
uint32_t word(bf16 low, bf16 high) { return uint32_t(high.bits) << 16 | low.bits; }
float as_float(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
bf16 random_half(uint64_t i, int spread) {    // any size, some zero, some denormal
    const float x = philox_normal(1, 7, i) * std::ldexp(1.0f, int(random_bits(8, i) % uint32_t(2 * spread)) - spread);
    return i % 13 == 0 ? bf16{uint16_t(i % 128)} : i % 17 == 0 ? bf16{0x8000} : to_bf16(x);
}
float flush(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
struct alignas(64) Words {
    uint32_t u[256];
};

// c += a b by one implementation of tiles, loaded and stored with strides of 64 and 128 bytes.
template <class Set> Words multiplied(Set& tiles, const Words& a, const Words& b, const Words& c) {
    uint32_t wide[16][32];
    for (int i = 0; i < 16; i++) memcpy(wide[i], a.u + 16 * i, 64);
    tiles.configure();
    tiles.template zero<3>();
    tiles.template load<1>(wide, 128), tiles.template load_past_l1<7>(&b, 64), tiles.template load<0>(&c, 64);
    tiles.template products<0, 1, 7>();
    Words out;
    tiles.template store<0>(&out, 64);
    tiles.template store<3>(wide, 128);
    bool zero = true;
    for (auto& row : wide)
        for (int j = 0; j < 16; j++) zero = zero && row[j] == 0;
    CHECK(zero);
    tiles.release();
    return out;
}
// One element of c by the definition in Intel's manual.
float expected(const Words& a, const Words& b, float c, int i, int j) {
    float chain[2] = {};
    for (int k = 0; k < 16; k++)
        for (int h = 0; h < 2; h++) {
            const uint32_t x = a.u[16 * i + k] >> (16 * h) << 16, y = b.u[16 * k + j] >> (16 * h) << 16;
            chain[h] = flush(std::fma(flush(as_float(x)), flush(as_float(y)), chain[h]));
        }
    return flush(flush(c) + flush(chain[0] + chain[1]));
}
bool same(float x, float y) { return std::isnan(x) ? std::isnan(y) : memcmp(&x, &y, 4) == 0; }
}    // namespace

TEST_CASE("amx: the twin of a tile product has the manual's bits, and AMX has the twin's") {
    for (int spread : {1, 20, 70, 120}) {
        CAPTURE(spread);
        Words a, b, c;
        for (int i = 0; i < 256; i++) {
            const uint64_t at = uint64_t(i) * 4;
            a.u[i] = word(random_half(at, spread), random_half(at + 1, spread));
            b.u[i] = word(random_half(at + 2, spread), random_half(at + 3, spread));
            const float x = i % 5 ? philox_normal(2, 7, uint64_t(i)) : float(i) * 0x1p-149f;
            memcpy(&c.u[i], &x, 4);
        }
        twin::Pretended tiles;
        const Words got = multiplied(tiles, a, b, c);
        bool right = true;
        for (int i = 0; i < 256; i++)
            right = right && same(as_float(got.u[i]), expected(a, b, as_float(c.u[i]), i / 16, i % 16));
        CHECK(right);
#if defined(__x86_64__)
        if (!cpu_has_amx()) continue;
        twin::Amx instructions;
        const Words real = multiplied(instructions, a, b, c);
        bool alike = true;
        for (int i = 0; i < 256; i++) alike = alike && same(as_float(real.u[i]), as_float(got.u[i]));
        CHECK(alike);
#endif
    }
    // Even and odd k are summed apart: 1 + (2^-24 + 2^-24) > 1, but (1 + 2^-24) + 2^-24 == 1.
    Words a = {}, b = {}, c = {};
    const bf16 one = to_bf16(1), small = to_bf16(0x1p-24f), tiny = to_bf16(0x1p-70f);
    a.u[0] = word(one, one), b.u[0] = word(small, small);
    const float unit = 1, denormal = 0x1p-130f;
    memcpy(&c.u[0], &unit, 4), memcpy(&c.u[1], &denormal, 4);
    a.u[32] = word(tiny, tiny), b.u[2] = word(tiny, tiny);
    const bf16 none = to_bf16(0), x = to_bf16(0x1p-63f), y = to_bf16(0x1p-64f);
    a.u[48] = a.u[49] = word(x, none), b.u[5] = b.u[21] = word(y, none);
    twin::Pretended tiles;
    const Words got = multiplied(tiles, a, b, c);
    CHECK(as_float(got.u[53]) == 0);    // two denormals, flushed before a normal sum
    CHECK(as_float(got.u[0]) == 1 + 0x1p-23f);
    CHECK(as_float(got.u[1]) == 0);     // denormal c, flushed to zero
    CHECK(as_float(got.u[34]) == 0);    // denormal product, flushed to zero
}

namespace {
// c += a b of int8 by tiles of this depth; numbers beyond the depth must not count.
template <class Set> Words multiplied_bytes(Set& tiles, const Words& a, const Words& b, const Words& c, int depth) {
    tiles.configure(depth);
    tiles.template load<5>(&a, 64), tiles.template load<7>(&b, 64), tiles.template load<2>(&c, 64);
    tiles.template byte_products<2, 5, 7>();
    Words out;
    tiles.template store<2>(&out, 64);
    tiles.release();
    return out;
}
}    // namespace

TEST_CASE("amx: the twin of a product of bytes is exact, whatever its depth, and AMX has the twin's bits") {
    Words a, b, c, largest;
    uint64_t stream = 1;
    for (Words* w : {&a, &b, &c}) {
        for (uint32_t i = 0; i < 256; i++) w->u[i] = random_bits(stream, i);
        stream++;
    }
    for (uint32_t& u : largest.u) u = 0x80808080;    // -128: the largest products
    auto byte = [](const Words& w, int row, int at) { return int(int8_t(w.u[16 * row + at / 4] >> (at % 4 * 8))); };
    for (int depth : {16, 32, 64})
        for (const auto& [x, y] : {std::pair{a, b}, {largest, largest}}) {
            CAPTURE(depth);
            twin::Pretended tiles;
            const Words got = multiplied_bytes(tiles, x, y, c, depth);
            bool right = true;
            for (int i = 0; i < 16; i++)
                for (int j = 0; j < 16; j++) {
                    uint32_t sum = c.u[16 * i + j];
                    for (int k = 0; k < depth; k++) sum += uint32_t(byte(x, i, k) * byte(y, k / 4, 4 * j + k % 4));
                    right = right && sum == got.u[16 * i + j];
                }
            CHECK(right);
#if defined(__x86_64__)
            if (!cpu_has_amx_int8()) continue;
            twin::Amx instructions;
            const Words real = multiplied_bytes(instructions, x, y, c, depth);
            CHECK(memcmp(&real, &got, sizeof got) == 0);
#endif
        }
}

namespace {
struct Form {
    int M, N, K;
    bool across_a = false, across_b = false;    // k is not contiguous
    bool add = false, bias = false, residual = false, gelu = false, slope = false, sums = false;
};
Form random_form(uint64_t i) {
    auto draw = [&](uint64_t stream, uint32_t n) { return int(random_bits(stream, i) % n); };
    Form f = {1 + draw(1, 100), 1 + draw(2, 100), 1 + draw(3, 100), draw(4, 2) > 0, draw(5, 2) > 0};
    f.add = draw(6, 2), f.bias = draw(7, 2), f.residual = draw(8, 2);
    (draw(9, 3) == 0 ? f.gelu : f.slope) = draw(10, 2), f.sums = f.across_a && draw(11, 2);
    return f;
}
double tanh_gelu(double x) { return 0.5 * x * (1 + std::tanh(0.7978845608 * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) { return (tanh_gelu(x + 1e-5) - tanh_gelu(x - 1e-5)) / 2e-5; }

// One product: its inputs; run() returns its outputs, which check() compares with sums in double.
template <class X, class Y> struct Case {    // element types of A and B
    static constexpr bool FLOATS = sizeof(Y) == 4;
    Form f;
    std::vector<X> a;
    std::vector<float> residual, pre;
    std::vector<Y> b, bias;
    Isa isa;
    Case(const Form& form, Isa isa)
        : f(form), a(size_t(f.M * f.K)), residual(size_t(f.M * f.N)), pre(residual), b(size_t(f.K * f.N)),
          bias(size_t(f.N)), isa(isa) {
        fill(a, 1), fill(b, 2), fill(bias, 3), fill(residual, 4), fill(pre, 5);
        a.resize(a.size() + size_t(32 * f.M), as<X>(NAN));    // NaN behind the matrix, never to be read
        b.resize(b.size() + size_t(32 * f.N), as<Y>(NAN));
        f.sums &= sizeof(X) == 4;
    }
    template <class E> static void fill(std::vector<E>& x, uint64_t stream) {
        for (size_t i = 0; i < x.size(); i++) x[i] = as<E>(philox_normal(5, stream, i));
    }
    struct Out {
        Guarded<float> c, sums;
        Guarded<Y> gelu;
        Out(const Form& f) : c(f.M * f.N, 1), sums(f.M, 2), gelu(f.M * f.N, 7) {}
    };
    Out run() {
        Out out(f);
        const int M = f.M, N = f.N, K = f.K;
        const int64_t ra = f.across_a ? 1 : K, ca = f.across_a ? M : 1;
        const int64_t rb = f.across_b ? N : 1, cb = f.across_b ? 1 : K;
        Matmul<X, Y> m = {M, N, K, a.data(), ra, ca, b.data(), rb, cb, out.c, f.add, Tiles::emulated};
        m.bias = f.bias ? bias.data() : nullptr, m.residual = f.residual ? residual.data() : nullptr;
        m.gelu_of = f.slope ? pre.data() : nullptr, m.gelu = f.gelu ? out.gelu.data() : nullptr;
        if constexpr (sizeof(X) == 4) m.row_sums = f.sums ? out.sums.data() : nullptr;
        const CpuKernels<Y> kernels = cpu_kernels<Y>(isa);
        if constexpr (sizeof(X) == sizeof(Y)) kernels.matmul(m);
        else kernels.gradient_matmul(m);
        CHECK((out.c.intact() && out.gelu.intact() && out.sums.intact()));
        return out;
    }
    float a_at(int m, int k) const { return float(number(a[size_t(f.across_a ? k * f.M + m : m * f.K + k)])); }
    double b_at(int k, int n) const { return number(b[size_t(f.across_b ? k * f.N + n : n * f.K + k)]); }
    void check() {
        CAPTURE(f.M);
        CAPTURE(f.N);
        CAPTURE(f.K);
        CAPTURE(f.across_a);
        CAPTURE(f.across_b);
        CAPTURE(f.sums);
        CAPTURE(sizeof(X));
        CAPTURE(sizeof(Y));
        CAPTURE(f.add);
        CAPTURE(f.bias);
        CAPTURE(f.residual);
        CAPTURE(f.gelu);
        CAPTURE(f.slope);
        CAPTURE(int(isa));
        Out out = run();
        double worst = 0;
        const uint64_t elements = uint64_t(f.M) * uint64_t(f.N), most = 4000;    // larger results: a random sample
        for (uint64_t t = 0; t < std::min(elements, most); t++) {
            const uint64_t i = elements <= most ? t : random_bits(1, t) % elements;
            const int m = int(i / uint64_t(f.N)), n = int(i % uint64_t(f.N));
            double want = 0;
            for (int k = 0; k < f.K; k++) want += (FLOATS ? a_at(m, k) : to_float(to_bf16(a_at(m, k)))) * b_at(k, n);
            want += (f.add ? 1 : 0) + (f.bias ? number(bias[size_t(n)]) : 0) + (f.residual ? residual[i] : 0);
            if (f.slope) want *= gelu_slope(pre[i]);
            const double scale = 1 + std::sqrt(f.K), gelu = f.gelu ? tanh_gelu(want) : 7;
            worst = worse(worst, std::fabs(out.c[int64_t(i)] - want) / scale);
            const double rounding = FLOATS ? 0 : std::fabs(gelu) * 0x1p-8;
            worst = worse(worst, (std::fabs(number(out.gelu[int64_t(i)]) - gelu) - rounding) / scale);
        }
        CHECK(worst < 2e-6);
        for (int m = 0; m < f.M; m++) {
            double sum = 2;
            for (int k = 0; f.sums && k < f.K; k++) sum += a_at(m, k);
            CHECK(std::fabs(out.sums[m] - sum) < 1e-6 * (f.K + 2));
        }
    }
    Bits bits() {
        Out out = run();
        Bits all;
        auto put = [&]<class E>(Guarded<E>& x) {
            const auto* p = reinterpret_cast<const unsigned char*>(x.data());
            all.insert(all.end(), p, p + int64_t(sizeof(E)) * x.n);
        };
        put(out.c), put(out.gelu), put(out.sums);
        return all;
    }
};
template <class F> void each_isa(F f) {
    for (int i = 0; i < ISA_COUNT; i++)
        if (cpu_supports(Isa(i))) f(Isa(i));
}
// Several blocks of k, the last one partial; several resident parts; stores that bypass the caches.
const std::vector<Form> LARGE = {{65, 130, 600, false, false, false, true, true},
                                 {130, 65, 770, true, true, true, false, false, false, false, true},
                                 {40, 33, 2400, true, true, true, false, false, false, true, true},
                                 {33, 70, 900, true, false, false, true, false, false, false, true},
                                 {40, 600, 1500, false, false, true, true},
                                 {700, 40, 30, true, false, true, false, false, false, false, true},
                                 {1000, 528, 20, false, false, false, true, false, true},
                                 {1000, 528, 40, true, true, false, false, false, false, false, true},
                                 {1000, 960, 416, true, true},
                                 {1000, 960, 1000, true, true},
                                 {1000, 990, 700, true, true, false, true, false, false, true, true},
                                 // B in parts, so that A is streamed for each part; then
                                 // two threads that each stream all of A
                                 {410, 830, 1000, true, true, false, false, false, false, false, true},
                                 {30, 960, 1000, true, true, false, false, false, false, false, true},
                                 // The operand A is the resident one; A and B are contiguous along
                                 // k.
                                 {40, 1000, 1000, false, false, false, true}};
}    // namespace

TEST_CASE("amx: products against the reference, awkward shapes and every epilogue") {
    each_isa([](Isa isa) {
        for (uint64_t i = 0; i < 60; i++) {
            const Form f = random_form(i);
            if (i % 3 == 0) Case<float, bf16>(f, isa).check();
            if (i % 3 == 1) Case<bf16, bf16>(f, isa).check();
            if (i % 3 == 2) Case<float, float>(f, isa).check();
        }
        // base emulates tiles by calls of fmaf(): seconds for each large product
        for (const Form& f : LARGE)
            if (isa == cpu_isa() || (f.M < 1000 && (isa != Isa::base || test_long() || f.M * f.N * f.K < 10000000)))
                Case<float, bf16>(f, isa).check(), Case<bf16, bf16>(f, isa).check(), Case<float, float>(f, isa).check();
    });
}

TEST_CASE("amx: the same bits each time, with any number of threads and on every instruction set") {
    auto of_types = []<class X, class Y>(X, Y) {    // element types of A and B
        CAPTURE(sizeof(X));
        CAPTURE(sizeof(Y));
        auto same_bits = [](const Form& f, Isa isa, std::vector<int> counts) {
            CAPTURE(f.M);
            CAPTURE(f.N);
            CAPTURE(f.K);
            CAPTURE(int(isa));
            Case<X, Y> c(f, isa);
            const Bits first = c.bits();
            for (int threads : counts) {
                cpu_set_threads(threads);
                CHECK(c.bits() == first);
            }
            cpu_set_threads(0);
        };
        for (uint64_t i = 100; i < 120; i++)
            same_bits(random_form(i), i % 2 ? cpu_isa() : Isa::base, {1, 2, 3, 7, 8, 8});
        for (const Form& f : LARGE) same_bits(f, cpu_isa(), {3});    // seconds each with emulated tiles
        const Form f = LARGE[0];
        const Bits first = Case<X, Y>(f, cpu_isa()).bits();
        if (cpu_isa() >= Isa::avx2)    // every one of them has FMA
            each_isa([&](Isa isa) {
                if (isa >= Isa::avx2) CHECK(Case<X, Y>(f, isa).bits() == first);
            });
    };
    of_types(0.0f, bf16()), of_types(bf16(), bf16()), of_types(0.0f, 0.0f);
}

TEST_CASE("amx: a row's bits do not depend on other rows") {
    auto of_type = []<class X>(X) {
        for (const Form& f : {Form{170, 70, 40}, {170, 70, 600}, {170, 70, 1700}, {700, 600, 1500}}) {
            const int N = f.N, K = f.K;
            Case<X, X> all(f, cpu_isa());
            auto whole = all.run();
            for (auto [from, rows] : {std::pair{0, 1}, {5, 40}, {33, 130}, {100, 70}}) {
                Case<X, X> some({rows, N, K}, cpu_isa());
                std::copy_n(all.a.begin() + from * K, rows * K, some.a.begin());
                auto part = some.run();
                CHECK(memcmp(part.c.data(), whole.c.data() + from * N, size_t(rows * N) * 4) == 0);
            }
        }
    };
    of_type(0.0f), of_type(bf16());
}

// Inputs vary by factors up to 2^40; errors are relative to the sum of absolute products.
TEST_CASE("amx: products of floats are nearer than by FMAs, and keep what is not finite") {
    const Form f = {64, 64, 768};
    Case<float, float> c(f, cpu_isa());
    for (size_t i = 0; i < c.a.size(); i++) c.a[i] = std::ldexp(c.a[i], int(random_bits(20, i) % 40) - 20);
    for (size_t i = 0; i < c.b.size(); i++) c.b[i] = std::ldexp(c.b[i], int(random_bits(21, i) % 40) - 20);
    auto out = c.run();
    double by_tiles = 0, by_fmas = 0;
    for (int m = 0; m < f.M; m++)
        for (int n = 0; n < f.N; n++) {
            double want = 0, all = 0;
            float chain = 0;
            for (int k = 0; k < f.K; k++) {
                const double product = double(c.a_at(m, k)) * c.b_at(k, n);
                want += product, all += std::fabs(product);
                chain = std::fma(c.a_at(m, k), float(c.b_at(k, n)), chain);
            }
            by_tiles = worse(by_tiles, std::fabs(out.c[m * f.N + n] - want) / all);
            by_fmas = worse(by_fmas, std::fabs(chain - want) / all);
        }
    CAPTURE(by_tiles);
    CAPTURE(by_fmas);
    CHECK(by_tiles < by_fmas);

    c.a[0] = INFINITY, c.a[size_t(f.K)] = NAN, c.a[size_t(2 * f.K)] = as_float(0x7fffffff);
    c.a[size_t(3 * f.K)] = as_float(0xffffffff), c.a[size_t(4 * f.K)] = 3.402823466e38f;
    auto odd = c.run();
    for (int m = 0; m < 6; m++)
        for (int n = 0; n < f.N; n++) CHECK(std::isfinite(odd.c[m * f.N + n]) == (m > 4));
}
