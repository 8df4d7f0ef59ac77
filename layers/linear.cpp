// linear.cpp - y = x w^T + b + residual and its gradients: oneDNN's matrix products where it is there, and only here;
// otherwise (and for what oneDNN does not offer on this CPU) the product of matmul.cpp. Up to GEMV_ROWS rows go to
// gemv. Bound by FMAs: 2 N C OC of them forward, 4 N C OC backward.
//
// The same bits for any number of threads is a promise of our loops; of oneDNN it is an observation (2.6: all forms
// with 1 to 7 threads, and with 16 and 40 where there are more than 64 rows).
// Weights that are bf16 go into the products as they are, x and dy as rounded copies in scratch; sums and results are
// float.
#include <omp.h>

#include <algorithm>
#include <array>

#include "cpu.h"

#ifdef HAVE_DNNL
#include <oneapi/dnnl/dnnl.hpp>

#include <map>
#include <memory>
#include <optional>
#endif

namespace {
// C (M,N) = A B (+ bias) (+ residual), or += : A(m,k) = a[m*ra + k*ca], B(k,n) = b[k*rb + n*cb].
template <class P> struct Product {
    int M, N, K;
    const float* a; int64_t ra, ca;
    const P* b; int64_t rb, cb;
    float* c;
    const P* bias = nullptr;
    const float* residual = nullptr;    // may be c
    bool add = false;
};

template <class P> void own(const Loops<P>& loops, const Product<P>& p, bool round) {
    bool add = p.add || p.bias || p.residual;
    if (p.bias || (p.residual && p.residual != p.c)) loops.add_rows(p.c, p.residual, p.bias, p.M, p.N);
    loops.matmul({p.M, p.N, p.K, p.a, p.ra, p.ca, p.b, p.rb, p.cb, p.c, add, round});
}

#ifdef HAVE_DNNL
using dnnl::memory;

struct Primitive {
    dnnl::matmul run;
    memory a, b, c, bias, residual;
    std::unordered_map<int, memory> arguments;
};

// The form of a product: what a primitive is made for. The number of threads is part of it.
using Form = std::array<int64_t, 12>;

memory::desc dense(int64_t rows, int64_t columns, memory::data_type type) {
    return {{rows, columns}, type, memory::dims{columns, 1}};
}

// Throws dnnl::error where this CPU has no such product.
template <class P> Primitive make(const dnnl::engine& engine, const Product<P>& p, bool half) {
    const auto input = half ? memory::data_type::bf16 : memory::data_type::f32, f32 = memory::data_type::f32;
    const auto type = sizeof(P) == 2 ? memory::data_type::bf16 : f32;    // of the bias
    const memory::desc a({p.M, p.K}, input, memory::dims{p.ra, p.ca}), b({p.K, p.N}, input, memory::dims{p.rb, p.cb});
    const memory::desc c = dense(p.M, p.N, f32), bias = p.bias ? dense(1, p.N, type) : memory::desc();
    const bool binary = p.residual && p.residual != p.c;
    dnnl::post_ops after;
    if (p.add || (p.residual && !binary)) after.append_sum(1);
    if (binary) after.append_binary(dnnl::algorithm::binary_add, c);
    dnnl::primitive_attr attributes;
    attributes.set_post_ops(after);
#if DNNL_VERSION_MAJOR >= 3
    dnnl::matmul::primitive_desc plan(engine, a, b, bias, c, attributes);
#else
    dnnl::matmul::primitive_desc plan(dnnl::matmul::desc(a, b, bias, c), attributes, engine);
#endif
    Primitive made = {dnnl::matmul(plan), memory(a, engine, nullptr), memory(b, engine, nullptr),
                      memory(c, engine, nullptr), memory(bias, engine, nullptr), memory(c, engine, nullptr), {}};
    made.arguments = {{DNNL_ARG_SRC, made.a}, {DNNL_ARG_WEIGHTS, made.b}, {DNNL_ARG_DST, made.c}};
    if (p.bias) made.arguments[DNNL_ARG_BIAS] = made.bias;
    if (binary) made.arguments[DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1] = made.residual;
    return made;
}

// a, b: the inputs, bf16 with half. False where oneDNN has no such product here.
template <class P> bool library(const Product<P>& p, const void* a, const void* b, bool half) {
    static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    static dnnl::stream stream(engine);
    static std::map<Form, std::optional<Primitive>> made;
    const int residual = !p.residual ? 0 : p.residual == p.c ? 1 : 2;
    const Form form = {p.M, p.N, p.K, p.ra, p.ca, p.rb, p.cb, p.bias != nullptr, residual, p.add, half, cpu_threads()};
    auto found = made.find(form);
    try {
        if (found == made.end()) {
            found = made.emplace(form, std::nullopt).first;
            found->second = make(engine, p, half);
        }
        if (!found->second) return false;
        Primitive& primitive = *found->second;
        primitive.a.set_data_handle(const_cast<void*>(a));
        primitive.b.set_data_handle(const_cast<void*>(b));
        primitive.c.set_data_handle(p.c);
        if (p.bias) primitive.bias.set_data_handle(const_cast<P*>(p.bias));
        if (residual == 2) primitive.residual.set_data_handle(const_cast<float*>(p.residual));
        primitive.run.execute(stream, primitive.arguments);
        stream.wait();
        return true;
    } catch (const dnnl::error&) {
        return false;    // nothing has been written: a failed primitive never started
    }
}
#else
template <class P> bool library(const Product<P>&, const void*, const void*, bool) { return false; }
#endif

// The bf16 copies of a call, in scratch: x (N,C), dy (N,OC), each at a multiple of 64 bytes.
int64_t copy_size(int64_t elements) { return round_up(elements, 32); }
int64_t copies_bytes(int64_t N, int64_t C, int64_t OC) {
    return int64_t(sizeof(bf16)) * (copy_size(N * C) + copy_size(N * OC));
}
struct Copies { bf16 *x, *dy; };
Copies copies(int64_t N, int64_t C, int64_t OC) {
    auto* p = static_cast<bf16*>(cpu_scratch(copies_bytes(N, C, OC)));
    return {p, p + copy_size(N * C)};
}

template <Isa isa, class P> struct Linear {
    static constexpr bool half = sizeof(P) == 2;

    template <class B> static void multiply(const Product<B>& p, const void* a, const void* b) {
        if (!library(p, a, b, half)) own(cpu_loops<B>(isa), p, half);
    }

    // dw += dy^T x. oneDNN shares the sum over k out to threads where k is long (2048 and more) and the result small,
    // and then the bits depend on their number: it gets shorter sums, in order.
    static void weight_gradient(float* dw, const float* dy, const float* x, const void* dy_in, const void* x_in, int N,
                                int C, int OC) {
        constexpr int MOST = 1984, size = half ? 2 : 4;
        const int step = int(round_up(ceil_div(N, ceil_div(N, MOST)), 64));
        for (int64_t n = 0; n < N; n += step) {
            const int rows = std::min(step, N - int(n));
            Product<float> p = {OC, C, rows, dy + n * OC, 1, OC, x + n * C, C, 1, dw};    // dy[n,o] x[n,c]
            p.add = true;
            multiply(p, static_cast<const char*>(dy_in) + n * OC * size, static_cast<const char*>(x_in) + n * C * size);
        }
    }

    static void forward(float* y, const float* x, const P* w, const P* b, const float* residual, int N, int C, int OC) {
        const Loops<P>& loops = cpu_loops<P>(isa);
        if (N <= GEMV_ROWS) return loops.gemv(y, x, w, b, residual, N, C, OC);
        const Product<P> p = {N, OC, C, x, C, 1, w, 1, C, y, b, residual};    // x[n,c] w[o,c]
        const void* x_in = x;
        if constexpr (half) {
            const Copies to = copies(N, C, OC);
            loops.from_floats(to.x, x, int64_t(N) * C);
            x_in = to.x;
        }
        multiply(p, x_in, w);
    }

    static void backward(float* dx, float* dw, float* db, const float* dy, const float* x, const P* w, int N, int C,
                         int OC) {
        const Loops<P>& loops = cpu_loops<P>(isa);
        const void *x_in = x, *dy_in = dy;
        if constexpr (half) {
            const Copies to = copies(N, C, OC);
            loops.from_floats(to.x, x, int64_t(N) * C);
            loops.from_floats(to.dy, dy, int64_t(N) * OC);
            x_in = to.x, dy_in = to.dy;
        }
        if (dx) multiply(Product<P>{N, C, OC, dy, OC, 1, w, C, 1, dx}, dy_in, w);    // dy[n,o] w[o,c]
        weight_gradient(dw, dy, x, dy_in, x_in, N, C, OC);
        if (db) loops.column_sums(db, dy, N, OC);
    }
};
}   // namespace

#ifdef HAVE_DNNL
const char* linear_library() {
    static const dnnl_version_t& v = *dnnl_version();
    static const std::string name = "oneDNN " + std::to_string(v.major) + "." + std::to_string(v.minor);
    return name.c_str();
}
#else
const char* linear_library() { return "own GEMM"; }
#endif

template <class P> int64_t linear_scratch(const Loops<P>& loops, int N, int C, int OC) {
    const int64_t few = sizeof(P) == 2 ? loops.gemv_scratch(C) : 0;
#ifdef HAVE_DNNL
    return std::max(few, sizeof(P) == 2 ? copies_bytes(N, C, OC) : 0);
#else
    return std::max({few, loops.matmul_scratch(N, OC, C), loops.matmul_scratch(N, C, OC),
                     loops.matmul_scratch(OC, C, N)});
#endif
}
template int64_t linear_scratch(const Loops<float>&, int, int, int);
template int64_t linear_scratch(const Loops<bf16>&, int, int, int);

template <class P> LinearEntries<P> linear_entries(Isa isa) {
    auto entries = [&]<Isa i>() { return LinearEntries<P>{Linear<i, P>::forward, Linear<i, P>::backward}; };
    switch (isa) {
        case Isa::avx512bf16: return entries.template operator()<Isa::avx512bf16>();
        case Isa::avx512: return entries.template operator()<Isa::avx512>();
        case Isa::avx2: return entries.template operator()<Isa::avx2>();
        default: return entries.template operator()<Isa::base>();
    }
}
template LinearEntries<float> linear_entries(Isa);
template LinearEntries<bf16> linear_entries(Isa);
