// onednn.cpp - times our matrix products and oneDNN's in alternation, on equal inputs, and prints
// the ratio. oneDNN is only a yardstick: flatgpt does not link it.
//     make onednn ARGS="gpt2 4 256"    MODEL BATCH SEQ and FLATGPT_ISA are as in `flatgpt bench`
//
// oneDNN gets bf16 weights and inputs as they are, but gradients, which are float, as copies
// rounded to bf16; the rounding is timed, too.
#include <oneapi/dnnl/dnnl.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "base/console.h"
#include "base/philox.h"
#include "layers/cpu.h"
#include "layers/peaks.h"
#include "model/config.h"

namespace {
using dnnl::memory;

struct Primitive {
    dnnl::matmul run;
    memory a, b, c, bias, residual;
    std::unordered_map<int, memory> arguments;
};

// Key of a primitive: the shapes, strides and options of its product, and the number of threads.
using PrimitiveKey = std::array<int64_t, 12>;

memory::desc dense(int64_t rows, int64_t columns, memory::data_type type) {
    return {{rows, columns}, type, memory::dims{columns, 1}};
}

// Throws dnnl::error if oneDNN has no such product for this CPU.
template <class X, class P> Primitive make(const dnnl::engine& engine, const Matmul<X, P>& p) {
    const auto f32 = memory::data_type::f32, input = p.is_bf16 ? memory::data_type::bf16 : f32;
    const auto type = sizeof(P) == 2 ? memory::data_type::bf16 : f32;    // the bias's type
    const memory::desc a({p.M, p.K}, input, memory::dims{p.ra, p.ca}), b({p.K, p.N}, input, memory::dims{p.rb, p.cb});
    const memory::desc c = dense(p.M, p.N, f32), bias = p.bias ? dense(1, p.N, type) : memory::desc();
    dnnl::post_ops after;
    if (p.add) after.append_sum(1);
    if (p.residual) after.append_binary(dnnl::algorithm::binary_add, c);
    dnnl::primitive_attr attributes;
    attributes.set_post_ops(after);
#if DNNL_VERSION_MAJOR >= 3
    dnnl::matmul::primitive_desc plan(engine, a, b, bias, c, attributes);
#else
    dnnl::matmul::primitive_desc plan(dnnl::matmul::desc(a, b, bias, c), attributes, engine);
#endif
    Primitive made = {dnnl::matmul(plan),
                      memory(a, engine, nullptr),
                      memory(b, engine, nullptr),
                      memory(c, engine, nullptr),
                      memory(bias, engine, nullptr),
                      memory(c, engine, nullptr),
                      {}};
    made.arguments = {{DNNL_ARG_SRC, made.a}, {DNNL_ARG_WEIGHTS, made.b}, {DNNL_ARG_DST, made.c}};
    if (p.bias) made.arguments[DNNL_ARG_BIAS] = made.bias;
    if (p.residual) made.arguments[DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1] = made.residual;
    return made;
}

// a stands for p.a, rounded to bf16 if B is bf16. False: oneDNN has no such product for this CPU.
template <class X, class P> bool multiply(const Matmul<X, P>& p, const void* a) {
    static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    static dnnl::stream stream(engine);
    static std::map<PrimitiveKey, std::optional<Primitive>> made;
    const PrimitiveKey key = {
        p.M,   p.N,       p.K,          p.ra, p.ca, p.rb, p.cb, p.bias != nullptr, p.residual != nullptr,
        p.add, p.is_bf16, cpu_threads()};
    auto found = made.find(key);
    try {
        if (found == made.end()) {
            found = made.emplace(key, std::nullopt).first;
            found->second = make(engine, p);
        }
        if (!found->second) return false;
        Primitive& primitive = *found->second;
        primitive.a.set_data_handle(const_cast<void*>(a));
        primitive.b.set_data_handle(const_cast<P*>(p.b));
        primitive.c.set_data_handle(p.c);
        if (p.bias) primitive.bias.set_data_handle(const_cast<P*>(p.bias));
        if (p.residual) primitive.residual.set_data_handle(const_cast<float*>(p.residual));
        primitive.run.execute(stream, primitive.arguments);
        stream.wait();
        return true;
    } catch (const dnnl::error&) {
        return false;    // a failed primitive has written nothing
    }
}

// y = x w^T + b; false: oneDNN has no such product.
template <class P> bool forward(float* y, const P* x, const P* w, const P* b, int N, int C, int OC) {
    return multiply(
        Matmul<P, P>{.M = N, .N = OC, .K = C, .a = x, .ra = C, .ca = 1, .b = w, .rb = 1, .cb = C, .c = y, .bias = b},
        x);
}
// dx = dy w, dw = dy^T x    rounded: a buffer for dy in P
template <class P>
bool backward(float* dx, float* dw, P* rounded, const float* dy, const P* x, const P* w, int N, int C, int OC) {
    const void* dy_in = dy;
    if constexpr (sizeof(P) == 2) {
        cpu_ops<P>().from_floats(rounded, dy, int64_t(N) * OC);
        dy_in = rounded;
    }
    const Matmul<float, P> to_dx = {
        .M = N, .N = C, .K = OC, .a = dy, .ra = OC, .ca = 1, .b = w, .rb = C, .cb = 1, .c = dx};
    const Matmul<float, P> to_dw = {
        .M = OC, .N = C, .K = N, .a = dy, .ra = 1, .ca = OC, .b = x, .rb = C, .cb = 1, .c = dw};
    return multiply(to_dx, dy_in) && multiply(to_dw, dy_in);
}

// Limits oneDNN to the chosen instruction set. This must come before its first primitive is made.
void limit_library() {
    const dnnl::cpu_isa most[ISA_COUNT] = {dnnl::cpu_isa::sse41, dnnl::cpu_isa::avx2, dnnl::cpu_isa::avx512_core,
                                           dnnl::cpu_isa::avx512_core_bf16};
    const CpuChoice& chosen = cpu_chosen();
    if (chosen.tiles != Tiles::amx) dnnl::set_max_cpu_isa(most[int(chosen.isa)]);
}

// ---- the comparison -----------------------------------------------------------------------------

template <class X> std::vector<X> random(int64_t n, uint64_t stream, float scale) {
    std::vector<X> x(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; i++) x[size_t(i)] = from_float<X>(scale * philox_normal(1, stream, uint64_t(i)));
    return x;
}
template <class X> void flush(const std::vector<X>& x) { cpu_flush(x.data(), int64_t(x.size() * sizeof(X))); }
// max |a - b| / max |a|
double difference(const std::vector<float>& a, const std::vector<float>& b) {
    double most = 0, size = 0;
    for (size_t i = 0; i < a.size(); i++) {
        most = std::max(most, std::fabs(double(a[i]) - double(b[i])));
        size = std::max(size, std::fabs(double(a[i])));
    }
    return most / size;
}

// Inputs of a product, and the outputs of its two sides: 0 is ours, 1 is oneDNN's.
template <class P> struct Product {
    int N, C, OC;
    std::vector<P> x = random<P>(int64_t(N) * C, 1, 1), w = random<P>(int64_t(OC) * C, 2, 0.05f),
                   b = random<P>(OC, 3, 1);
    std::vector<float> dy = random<float>(int64_t(N) * OC, 4, 1);
    std::vector<P> rounded = std::vector<P>(dy.size());
    std::vector<float> y[2] = {dy, dy}, dx[2] = {std::vector<float>(x.size()), std::vector<float>(x.size())},
                       dw[2] = {std::vector<float>(w.size()), std::vector<float>(w.size())};

    bool run_forward(int side) {
        if (side) return forward(y[1].data(), x.data(), w.data(), b.data(), N, C, OC);
        cpu_ops<P>().linear_forward(y[0].data(), x.data(), w.data(), b.data(), nullptr, N, C, OC, {});
        return true;
    }
    bool run_backward(int side) {
        if (side) return backward(dx[1].data(), dw[1].data(), rounded.data(), dy.data(), x.data(), w.data(), N, C, OC);
        cpu_ops<P>().linear_backward(dx[0].data(), {dw[0].data(), false}, nullptr, dy.data(), x.data(), w.data(), N, C,
                                     OC, {});
        return true;
    }
};

template <class P> void print_row(const std::string& name, Product<P>& p, bool back) {
    auto run = [&](int side) { return back ? p.run_backward(side) : p.run_forward(side); };
    double best[2] = {INFINITY, INFINITY};
    run(0);
    if (!run(1)) return (void)printf("%-32s oneDNN has no such product here\n", name.c_str());
    const double error = back ? std::max(difference(p.dx[0], p.dx[1]), difference(p.dw[0], p.dw[1]))
                              : difference(p.y[0], p.y[1]);
    const double begun = now_seconds();
    for (int n = 0; n < 3 || (n < 15 && now_seconds() - begun < 1); n++)
        for (int side : {0, 1}) {
            flush(p.x), flush(p.w), flush(p.dy), flush(p.y[side]), flush(p.dx[side]), flush(p.dw[side]);
            const double start = now_seconds();
            run(side);
            best[side] = std::min(best[side], now_seconds() - start);
        }
    printf("%-32s %10.1f %10.1f %8.2f   %.1e\n", name.c_str(), best[0] * 1e6, best[1] * 1e6, best[1] / best[0], error);
    fflush(stdout);
}

template <class P> void compare(const Config& c, int N) {
    printf(
        "\n%s beside oneDNN %d.%d, %d rows: best us, ratio, largest difference over the largest number\n%-32s %10s "
        "%10s %8s\n",
        cpu_ops<P>().name, dnnl_version()->major, dnnl_version()->minor, N, "", "ours", "oneDNN", "ratio");
    struct Form {
        const char* name;
        int N, C, OC;
    };
    for (const Form& f : {Form{"qkv", N, c.C, c.qkv_width()},
                          {"proj", N, c.attention_width(), c.C},
                          {"fc", N, c.C, c.F},
                          {"fc2", N, c.F, c.C},
                          {"head", N / 2, c.C, c.Vp()},
                          {"qkv, 1 row", 1, c.C, c.qkv_width()},
                          {"fc, 1 row", 1, c.C, c.F},
                          {"head, 1 row", 1, c.C, c.Vp()}}) {
        Product<P> p = {f.N, f.C, f.OC};
        print_row(formatted("linear_forward %s", f.name), p, false);
        if (f.N > 1) print_row(formatted("linear_backward %s", f.name), p, true);
    }
}
}    // namespace

int main(int count, char** args) {
    const Result<Config> c = config_named(count > 1 ? args[1] : "gpt2");
    if (!c.ok()) return fprintf(stderr, "%s\n", c.status.message.c_str()), int(c.status.code);
    const int N = (count > 2 ? atoi(args[2]) : 4) * (count > 3 ? atoi(args[3]) : 256);
    if (N < 2) return fprintf(stderr, "usage: onednn [MODEL [BATCH [SEQ]]], at least two tokens\n"), 2;
    cpu_set_threads(0);
    limit_library();
    compare<float>(c.value, N);
    if (cpu_has_bf16()) compare<bf16>(c.value, N);
    return 0;
}
