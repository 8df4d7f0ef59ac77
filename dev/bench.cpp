// bench.cpp - `make bench [ARGS="part-of-a-name threads"]`: each operation and whole training steps: measured, floor,
// ratio.
//
// The floor of a row is what its FLOPs and bytes cost at the peaks measured first, in this run, on as many threads: an
// FMA loop, and a sum over memory in huge pages. Inputs are evicted from the caches before each repetition. Best and
// median are both shown: on a machine with other work the best is the figure, and the distance says how much to trust.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <vector>

#include "../gpt.h"
#include "../layers/cpu.h"
#include <omp.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {
double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// ---- peaks ---------------------------------------------------------------------------------------------------------

// n rounds of 16 independent vector multiply-adds; returns something that depends on all of them.
#define FMA_LOOP(name, target_name, width)                                                                    \
    __attribute__((target(target_name))) float name(int64_t n) {                                              \
        typedef float vec __attribute__((vector_size(4 * width)));                                            \
        vec a[16] = {}, x, y;                                                                                 \
        for (int i = 0; i < width; i++) x[i] = 0.5f + float(n) * 1e-20f, y[i] = float(i);                      \
        for (int i = 0; i < 16; i++) a[i] += float(n + i);    /* else the chains are one and the same */      \
        for (int64_t k = 0; k < n; k++)                                                                       \
            _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) a[i] = a[i] * x + y;                        \
        for (int i = 1; i < 16; i++) a[0] += a[i];                                                            \
        return a[0][0];                                                                                       \
    }
#if defined(__x86_64__)
FMA_LOOP(fma_base, "sse2", 4)
FMA_LOOP(fma_avx2, "avx2,fma", 8)
FMA_LOOP(fma_avx512, "avx512f", 16)
__attribute__((target("avx512f,avx512bf16"))) float bf16_loop(int64_t n) {
    __m512 a[16];
    for (int i = 0; i < 16; i++) a[i] = _mm512_set1_ps(float(n + i));
    const __m512bh x = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3f00)), y = x;
    for (int64_t k = 0; k < n; k++)
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) a[i] = _mm512_dpbf16_ps(a[i], x, y);
    for (int i = 1; i < 16; i++) a[0] += a[i];
    return a[0][0];
}
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
FMA_LOOP(fma_base, "default", 4)
#define WIDE
#endif

// The sum of n 64-byte lines, n even.
WIDE int64_t sum_lines(const int64_t* p, int64_t n) {
    typedef int64_t line __attribute__((vector_size(64)));
    line a = {}, b = {};
    for (int64_t i = 0; i < n; i += 2) {
        a += *reinterpret_cast<const line*>(p + 8 * i);
        b += *reinterpret_cast<const line*>(p + 8 * i + 8);
    }
    a += b;
    return a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6] + a[7];
}

volatile float sink;
double loop_peak(float (*loop)(int64_t), double flops_per_round) {
    const int64_t rounds = 3000000;
    double best = 1e9;
    for (int r = 0; r < 30; r++) {
        double start = now();
#pragma omp parallel
        sink = loop(rounds);
        best = std::min(best, now() - start);
    }
    return flops_per_round * double(rounds) * cpu_threads() / best;
}

struct Peaks { double fp32, bf16, bytes; } peak;
constexpr int64_t PART = 64 << 20, PARTS = 4;    // bytes; a part is more than the last level cache of most CPUs
const int64_t* far_memory;

// Reads the next part: what was in the caches is not any more. In short pieces, so that other work on the machine
// falls between some of them.
int64_t read_part() {
    static int next = 0;
    const int64_t* from = far_memory + PART / 8 * (next++ % PARTS);
    int64_t total = 0;
#pragma omp parallel for schedule(static) reduction(+ : total)
    for (int64_t block = 0; block < 64; block++) total += sum_lines(from + block * (PART / 64 / 8), PART / 64 / 64);
    return total;
}

void measure_peaks(const Ops<float>& op) {
    void* memory = op.allocate(PART * PARTS);
    memset(memory, 1, PART * PARTS);
    far_memory = static_cast<int64_t*>(memory);
    peak.fp32 = loop_peak(fma_base, 2 * 16 * 4);
#if defined(__x86_64__)
    if (cpu_supports(Isa::avx2)) peak.fp32 = std::max(peak.fp32, loop_peak(fma_avx2, 2 * 16 * 8));
    if (cpu_supports(Isa::avx512)) peak.fp32 = std::max(peak.fp32, loop_peak(fma_avx512, 2 * 16 * 16));
    peak.bf16 = cpu_has_bf16() ? loop_peak(bf16_loop, 4 * 16 * 16) : peak.fp32;
#else
    peak.bf16 = peak.fp32;
#endif
    double best = 1e9;
    for (int r = 0; r < 60; r++) {
        double start = now();
        sink = float(read_part());
        best = std::min(best, now() - start);
    }
    peak.bytes = double(PART) / best;
    printf("%s, %d threads; peaks: %.0f GFLOP/s fp32, %.0f bf16, %.1f GB/s read\n\n", op.name, cpu_threads(),
           peak.fp32 / 1e9, peak.bf16 / 1e9, peak.bytes / 1e9);
}

// ---- operations ----------------------------------------------------------------------------------------------------

const char* filter = "";

void row(const std::string& name, double flops, double flop_peak, double bytes, const std::function<void()>& run) {
    if (name.find(filter) == std::string::npos) return;
    run();
    std::vector<double> times;
    for (double spent = 0; times.size() < 3 || (times.size() < 15 && spent < 0.25); spent += times.back()) {
        sink = float(read_part());
        double start = now();
        run();
        times.push_back(now() - start);
    }
    std::sort(times.begin(), times.end());
    const double best = times[0], median = times[times.size() / 2];
    const double floor = std::max(flops / flop_peak, bytes / peak.bytes);
    const bool compute = flops / flop_peak > bytes / peak.bytes;
    printf("%-44s %9.3f %9.3f ms  %7.1f %-7s  floor %8.3f ms  %3.0f %%\n", name.c_str(), best * 1e3, median * 1e3,
           (compute ? flops : bytes) / best / 1e9, compute ? "GFLOP/s" : "GB/s", floor * 1e3, floor / best * 100);
    fflush(stdout);
}

struct Shape { const char* name; int B, S, C, NH, V, Vp; };

void bench_linear(const Shape& s, Dtype dtype, float* const buffer[5]) {
    const Ops<float>& op = cpu_ops(dtype);
    const std::string label = std::string(dtype == Dtype::bf16 ? "bf16 " : "fp32 ") + s.name;
    const double top = dtype == Dtype::bf16 ? peak.bf16 : peak.fp32;
    auto [y, x, w, dx, dw] = std::array{buffer[0], buffer[1], buffer[2], buffer[3], buffer[4]};
    const int N = s.B * s.S;
    for (auto [what, n, C, OC] : {std::tuple{"qkv", N, s.C, 3 * s.C}, {"fc", N, s.C, 4 * s.C}, {"fc2", N, 4 * s.C, s.C},
                                  {"head, 256 rows", 256, s.C, s.Vp}}) {
        const double flops = 2.0 * n * C * OC, bytes = 4.0 * (double(n) * C + double(n) * OC + double(C) * OC);
        row(label + " linear_forward " + what, flops, top, bytes,
            [&, n = n, C = C, OC = OC] { op.linear_forward(y, x, w, nullptr, nullptr, n, C, OC); });
        row(label + " linear_backward " + what, 2 * flops, top, bytes,
            [&, n = n, C = C, OC = OC] { op.linear_backward(dx, dw, nullptr, y, x, w, n, C, OC); });
    }
    const double weights = 4.0 * s.C * 4 * s.C;
    if (dtype == Dtype::fp32)
        row(label + " linear_forward 1 row, fc", 0, top, weights,
            [&] { op.linear_forward(y, x, w, nullptr, nullptr, 1, s.C, 4 * s.C); });
    if (dtype == Dtype::fp32)
        row(label + " linear_forward 1 row, head", 0, top, 4.0 * s.C * s.Vp,
            [&] { op.linear_forward(y, x, w, nullptr, nullptr, 1, s.C, s.Vp); });
}

void bench_operations(const Shape& s) {
    const Ops<float>& op = cpu_ops(Dtype::fp32);
    const std::string label = std::string("fp32 ") + s.name;
    const int N = s.B * s.S, C = s.C, F = 4 * C, cached = 1024, last = cached - 1;
    const Heads h = {s.NH, s.NH, C / s.NH}, near = {s.NH, s.NH, C / s.NH, 64};
    const int64_t size = std::max({int64_t(64) << 20, int64_t(s.Vp) * C, int64_t(N) * F});
    const double nc = 4.0 * N * C;
    float* b[5];
    for (float*& p : b) {
        p = static_cast<float*>(op.allocate(size * 4));
        for (int64_t i = 0; i < size; i++) p[i] = float(int(i * 2654435761u >> 20) % 2001 - 1000) * 1e-3f;
    }
    auto [y, x, w, g, d] = std::array{b[0], b[1], b[2], b[3], b[4]};
    std::vector<float> mean(size_t(N), 0.0f), rstd(size_t(N), 1.0f), lse(size_t(N) * s.NH), loss(mean);
    std::vector<int> tok(static_cast<size_t>(N));
    for (int i = 0; i < N; i++) tok[size_t(i)] = int(int64_t(i) * 7919 % s.V);

    row(label + " embedding_forward", 0, 1, 3 * nc, [&] { op.embedding_forward(y, tok.data(), w, x, s.B, s.S, C, nullptr); });
    row(label + " embedding_backward", 0, 1, 3 * nc, [&] { op.embedding_backward(d, g, x, tok.data(), s.B, s.S, C, s.V); });
    row(label + " layernorm_forward", 0, 1, 2 * nc,
        [&] { op.layernorm_forward(y, mean.data(), rstd.data(), x, w, g, 1e-5f, N, C); });
    row(label + " layernorm_backward", 0, 1, 4 * nc,
        [&] { op.layernorm_backward(d, y, y + C, g, x, w, mean.data(), rstd.data(), N, C); });
    const double pairs = double(s.B) * s.NH * s.S * (s.S + 1) / 2 * h.HS;
    row(label + " attention_forward", 4 * pairs, peak.fp32, 4 * nc,
        [&] { op.attention_forward(y, lse.data(), x, s.B, s.S, h); });
    row(label + " attention_backward", 10 * pairs, peak.fp32, 8 * nc,
        [&] { op.attention_backward(d, g, y, x, lse.data(), s.B, s.S, h); });
    const double seen = double(s.B) * s.NH * s.S * 64 * h.HS;
    row(label + " attention_forward, window 64", 4 * seen, peak.fp32, 4 * nc,
        [&] { op.attention_forward(y, lse.data(), x, s.B, s.S, near); });
    row(label + " attention_backward, window 64", 10 * seen, peak.fp32, 8 * nc,
        [&] { op.attention_backward(d, g, y, x, lse.data(), s.B, s.S, near); });
    row(label + " attention_cached, 1 query, 1024 keys", 0, 1, 8.0 * s.B * cached * C,
        [&] { op.attention_cached(y, w, g, x, s.B, 1, &last, cached, h); });
    row(label + " gelu_forward", 0, 1, 2.0 * 4 * N * F, [&] { op.gelu_forward(y, x, int64_t(N) * F); });
    row(label + " gelu_backward", 0, 1, 3.0 * 4 * N * F, [&] { op.gelu_backward(d, g, x, int64_t(N) * F); });
    const int rows = 256;
    row(label + " cross_entropy", 0, 1, 8.0 * rows * s.Vp,
        [&] { op.cross_entropy(loss.data(), y, x, tok.data(), 1e-3f, rows, s.V, s.Vp); });
    double norm;
    row(label + " sum_of_squares, 32M", 0, 1, 4.0 * (32 << 20), [&] { op.sum_of_squares(&norm, x, 32 << 20); });
    memset(g, 0, size_t(size) * 4);
    memset(d, 0, size_t(size) * 4);
    const Step step = {0, 0, 1, 1, 10, 20, 0};
    const std::vector<uint8_t> decays((32 << 20) / 64, 1);
    row(label + " adamw, 32M", 0, 1, 28.0 * (32 << 20), [&] {
        op.adamw(w, nullptr, g, d, x, decays.data(), 32 << 20, &step, {1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f}, 1);
    });
    bench_linear(s, Dtype::fp32, b);
    bench_linear(s, Dtype::bf16, b);
    for (float* p : b) op.release(p, size * 4);
}

// ---- training steps ------------------------------------------------------------------------------------------------

void bench_step(const char* name, const Config& c, int B, int S, Dtype dtype, int reps) {
    const std::string label = std::string(dtype == Dtype::bf16 ? "bf16 step " : "fp32 step ") + name;
    if (label.find(filter) == std::string::npos) return;
    Gpt<float> g(cpu_ops(dtype));
    if (Status s = g.allocate(c, {Use::train, B, S}); !s.ok()) {
        printf("%s: %s\n", label.c_str(), s.message.c_str());
        return;
    }
    g.init(1);
    const int N = B * S;
    std::vector<int> tok(static_cast<size_t>(N)), target(tok);
    for (int i = 0; i < N; i++) {
        tok[size_t(i)] = int((i * 7919LL + 13) % c.V);
        target[size_t(i)] = int((i * 104729LL + 7) % c.V);
    }
    std::vector<double> times;
    double loss = 0;
    for (int r = 0; r < reps + 1; r++) {
        double start = now();
        g.begin_step();
        g.batch(tok.data(), target.data(), B, S);
        g.forward();
        g.loss(true, 1.0f / float(N));
        g.backward();
        g.update({1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f}, {}, 1);
        loss = g.finish().loss;
        if (r > 0) times.push_back(now() - start);
    }
    std::sort(times.begin(), times.end());
    // products: 6 FLOPs a weight; causal attention: 2 C S forward, 5 C S backward, a layer
    const double flops = N * (6.0 * (12.0 * c.L * c.C * c.C + double(c.V) * c.C) + 7.0 * c.L * c.C * S);
    const double floor = flops / (dtype == Dtype::bf16 ? peak.bf16 : peak.fp32);
    const double best = times[0], median = times[times.size() / 2];
    printf("%-44s %9.1f %9.1f ms  %7.0f tok/s (median %.0f)  floor %8.1f ms  %3.0f %%  (loss %.4f)\n", label.c_str(),
           best * 1e3, median * 1e3, N / best, N / median, floor * 1e3, floor / best * 100, loss);
    fflush(stdout);
}
}   // namespace

int main(int argc, char** argv) {
    cpu_spin_less(argv);
    if (argc > 1) filter = argv[1];
    cpu_set_threads(argc > 2 ? atoi(argv[2]) : 0);
    measure_peaks(cpu_ops(Dtype::fp32));
    printf("%-44s %9s %9s\n", "", "best", "median");
    bench_operations({"124M", 4, 256, 768, 12, 50257, 50304});
    bench_operations({"C=384", 12, 256, 384, 6, 65, 80});
    Config small;
    small.V = 65, small.T = 256, small.L = 6, small.NH = 6, small.C = 384, small.F = 1536;
    for (Dtype dtype : {Dtype::fp32, Dtype::bf16}) {
        bench_step("6L 6H C=384 T=256 B=12 V=65", small, 12, 256, dtype, 6);
        bench_step("124M B=4 T=256", Config{}, 4, 256, dtype, 4);
    }
}
