// onednn.cpp - oneDNN's matrix products, for comparison with our own (`flatgpt bench`). No other
// file uses oneDNN, and no model is computed with it.
//
// bf16 weights and inputs are multiplied as they are, gradients as rounded copies in scratch.
#include <algorithm>
#include <array>
#include <memory>

#include "cpu.h"

#ifdef HAVE_DNNL
#include <oneapi/dnnl/dnnl.hpp>

#include <map>
#include <optional>

namespace {
using dnnl::memory;

struct Primitive {
    dnnl::matmul run;
    memory a, b, c, bias, residual;
    std::unordered_map<int, memory> arguments;
};

// Key of a primitive: the form of its product, with the number of threads.
using Form = std::array<int64_t, 12>;

memory::desc dense(int64_t rows, int64_t columns, memory::data_type type) {
    return {{rows, columns}, type, memory::dims{columns, 1}};
}

// Throws dnnl::error if this CPU has no such product.
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

// a: A, rounded if B is bf16. Returns false if oneDNN has no such product here.
template <class X, class P> bool multiply(const Matmul<X, P>& p, const void* a) {
    static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    static dnnl::stream stream(engine);
    static std::map<Form, std::optional<Primitive>> made;
    const Form form = {p.M,   p.N,       p.K,          p.ra, p.ca, p.rb, p.cb, p.bias != nullptr, p.residual != nullptr,
                       p.add, p.is_bf16, cpu_threads()};
    auto found = made.find(form);
    try {
        if (found == made.end()) {
            found = made.emplace(form, std::nullopt).first;
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

// Table of the instruction set in use, with oneDNN's products, or our own for forms that it lacks.
template <class P> struct OneDnn {
    static constexpr bool is_bf16 = sizeof(P) == 2;
    static const Ops<float, P>& own() { return cpu_ops_isa<P>(cpu_isa()); }
    static int64_t copy_bytes(int64_t N, int64_t OC) { return int64_t(sizeof(bf16)) * N * OC; }

    static void forward(float* y, const P* x, const P* w, const P* b, const float* residual, int N, int C, int OC,
                        Precision) {
        const bool add = residual == y;
        if (!multiply(Matmul<P, P>{.M = N,
                                   .N = OC,
                                   .K = C,
                                   .a = x,
                                   .ra = C,
                                   .ca = 1,
                                   .b = w,
                                   .rb = 1,
                                   .cb = C,
                                   .c = y,
                                   .add = add,
                                   .bias = b,
                                   .residual = add ? nullptr : residual},
                      x))
            own().linear_forward(y, x, w, b, residual, N, C, OC, {});
    }

    static void backward(float* dx, GradTarget<float> dw, float* db, const float* dy, const P* x, const P* w, int N,
                         int C, int OC, Precision) {
        const void* dy_in = dy;
        if constexpr (is_bf16) {    // a copy of dy (N,OC)
            bf16* to = static_cast<bf16*>(cpu_scratch(copy_bytes(N, OC)));
            own().from_floats(to, dy, int64_t(N) * OC);
            dy_in = to;
        }
        if (dx && !multiply(
                      Matmul<float, P>{
                          .M = N, .N = C, .K = OC, .a = dy, .ra = OC, .ca = 1, .b = w, .rb = C, .cb = 1, .c = dx},
                      dy_in))
            return own().linear_backward(dx, dw, db, dy, x, w, N, C, OC, {});
        if (!multiply(Matmul<float, P>{.M = OC,
                                       .N = C,
                                       .K = N,
                                       .a = dy,
                                       .ra = 1,
                                       .ca = OC,
                                       .b = x,
                                       .rb = C,
                                       .cb = 1,
                                       .c = dw.p,
                                       .add = dw.add},
                      dy_in))
            own().linear_backward(nullptr, dw, nullptr, dy, x, w, N, C, OC, {});
        if (db) cpu_kernels<float>(cpu_isa()).column_sums(db, dy, N, OC);
    }

    // Ignores our own products' scratch, which a rare fallback uses if oneDNN has no such product.
    static int64_t scratch_bytes(const CallSizes& call) {
        const bool ours = call.operation != Operation::linear_forward && call.operation != Operation::linear_backward;
        if (ours) return own().scratch_bytes(call);
        const bool copies = is_bf16 && call.operation == Operation::linear_backward;
        return copies ? cpu_scratch_size(copy_bytes(call.rows, call.out)) : 0;
    }
};

// Limits oneDNN to the chosen instruction set. This must come before its first primitive is made.
void limit_library() {
    const dnnl::cpu_isa most[ISA_COUNT] = {dnnl::cpu_isa::sse41, dnnl::cpu_isa::avx2, dnnl::cpu_isa::avx512_core,
                                           dnnl::cpu_isa::avx512_core_bf16};
    const CpuChoice& chosen = cpu_chosen();
    if (chosen.tiles != Tiles::amx) dnnl::set_max_cpu_isa(most[int(chosen.isa)]);
}
// Whether the library multiplies inputs of this type.
template <class P> bool library_has() {
    try {
        make(dnnl::engine(dnnl::engine::kind::cpu, 0), Matmul<P, P>{.M = 32,
                                                                    .N = 32,
                                                                    .K = 32,
                                                                    .a = nullptr,
                                                                    .ra = 32,
                                                                    .ca = 1,
                                                                    .b = nullptr,
                                                                    .rb = 1,
                                                                    .cb = 32,
                                                                    .c = nullptr});
        return true;
    } catch (const dnnl::error&) { return false; }
}

template <class P> const Ops<float, P>& table() {
    static const dnnl_version_t& v = *dnnl_version();
    static const std::string name = std::string("cpu ") + (sizeof(P) == 2 ? "bf16" : "fp32") + " (oneDNN " +
                                    std::to_string(v.major) + "." + std::to_string(v.minor) +
                                    (sizeof(P) == 2 && cpu_chosen().tiles == Tiles::amx ? " with AMX)" : ")");
    static const Ops<float, P> made = [] {
        Ops<float, P> ops = OneDnn<P>::own();
        ops.name = name.c_str();
        ops.linear_forward = OneDnn<P>::forward;
        ops.linear_backward = OneDnn<P>::backward;
        ops.linear_gelu_forward = nullptr;
        ops.linear_gelu_backward = nullptr;
        ops.scratch_bytes = OneDnn<P>::scratch_bytes;
        return ops;
    }();
    return made;
}
}    // namespace

template <class P> const Ops<float, P>* onednn_ops() {
    static const bool has = (limit_library(), library_has<P>());
    return has ? &table<P>() : nullptr;
}
#else
template <class P> const Ops<float, P>* onednn_ops() { return nullptr; }
#endif
template const Ops<float>* onednn_ops();
template const Ops<float, bf16>* onednn_ops();
