// packed_ops.cpp - the CPU's table of operations for packed weights: products by packed.h, all
// others by the fp32 table.
#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "base/pool.h"
#include "layers/cpu.h"

namespace {
// Operations for packed weights. Operations without a matrix are fp32's, because vectors of
// parameters are floats here, too.
template <Isa isa, Tiles tiles> struct PackedOps {
    typedef PackedWeight P;
    static const Ops<float>& own() { return cpu_ops_isa<float>(isa); }
    static const CpuKernels<float>& kernels() {
        static const CpuKernels<float> made = cpu_kernels<float>(isa);
        return made;
    }
    static const float* floats(const P* w) { return w ? w->floats : nullptr; }
    static PackedProduct product(float* y, const float* x, const P* w, int N, int C, int OC) {
        static const bool vnni = cpu_has_vnni(isa);
        static const Tiles bytes = tiles == Tiles::amx && !cpu_has_amx_int8() ? Tiles::none : tiles;
        static const PrefetchDistance ahead = cpu_prefetch_distance();
        return {y, x, w, nullptr, nullptr, N, C, OC, vnni, tiles, bytes, ahead};
    }

    static void embedding_forward(float* x, const int* tok, const P* wte, const P* wpe, int B, int S, int C,
                                  const int* pos) {
        if (!wte->count) return own().embedding_forward(x, tok, wte->floats, floats(wpe), B, S, C, pos);    // segments
        each_chunk(B * S, [&](int64_t n, int) {
            float* out = x + n * C;
            unpack_row(*wte, C, tok[n], out);
            const float* p = wpe ? wpe->floats + int64_t(pos ? std::max(pos[n], 0) : n % S) * C : nullptr;
            for (int c = 0; p && c < C; c++) out[c] += p[c];
        });
    }
    // Calls f(first, rows, count) for ranges of tokens, with their rows of the table as floats.
    template <class F> static void each_unpacked(const P* table, const int* tok, int N, int64_t width, F f) {
        constexpr int MOST = 256;
        thread_local std::vector<float> rows;    // kept: a decode step allocates nothing
        rows.resize(size_t(std::min(N, MOST) * width));
        float* const at = rows.data();    // this thread's, for the loops of all threads
        for (int first = 0; first < N; first += MOST) {
            const int count = std::min(MOST, N - first);
            each_chunk(count, [&](int64_t n, int) {
                unpack_row(*table, int(width), tok ? tok[first + n] : first + n, at + n * width);
            });
            f(int64_t(first), at, count);
        }
    }
    static void value_embedding_forward(float* qkv, const float* x, const P* table, const P* gate_w, const int* tok,
                                        int N, int C, Heads h) {
        each_unpacked(table, tok, N, h.NKV * h.HS, [&](int64_t n, const float* rows, int count) {
            own().value_embedding_forward(qkv + n * h.qkv_width(), x + n * C, rows, gate_w->floats, nullptr, count, C,
                                          h);
        });
    }
    static void value_embedding_backward(float* dx, float* dvalues, float* dgate_w, const float* dqkv, const float* x,
                                         const P* table, const P* gate_w, const int* tok, int N, int C, Heads h) {
        CHECK(!dvalues && !dgate_w, "packed weights have no gradient");
        each_unpacked(table, tok, N, h.NKV * h.HS, [&](int64_t n, const float* rows, int count) {
            own().value_embedding_backward(dx + n * C, nullptr, nullptr, dqkv + n * h.qkv_width(), x + n * C, rows,
                                           gate_w->floats, nullptr, count, C, h);
        });
    }
    static void residual_mix_forward(float* y, const float* x, const float* x0, const P* factor, const P* factor0,
                                     int l, float sign, int64_t n) {
        own().residual_mix_forward(y, x, x0, floats(factor), factor0->floats, l, sign, n);
    }
    static void residual_mix_backward(float* d, float* dx0, float* dfactor, float* dfactor0, const float* x,
                                      const float* x0, const P* factor, const P* factor0, int l, float sign,
                                      int64_t n) {
        own().residual_mix_backward(d, dx0, dfactor, dfactor0, x, x0, floats(factor), factor0->floats, l, sign, n);
    }
    static void smear_forward(float* y, const float* x, const float* previous, const P* w, const P* lambda, int B,
                              int S, int C, const int* pos) {
        own().smear_forward(y, x, previous, w->floats, lambda->floats, B, S, C, pos);
    }
    static void smear_backward(float* dx, float* dw, float* dlambda, const float* dy, const float* x, const P* w,
                               const P* lambda, int B, int S, int C, const int* pos) {
        own().smear_backward(dx, dw, dlambda, dy, x, w->floats, lambda->floats, B, S, C, pos);
    }
    static void norm_forward(float* y, float* mean, float* rstd, const float* x, const P* w, const P* b, Norm norm,
                             int N, int C) {
        own().norm_forward(y, mean, rstd, x, floats(w), floats(b), norm, N, C);
    }
    static void rope_forward(float* y, float* rstd, const float* x, const P* qw, const P* kw, const float* cos_sin,
                             int B, int S, const int* pos, Heads h, QkNormRope t) {
        own().rope_forward(y, rstd, x, floats(qw), floats(kw), cos_sin, B, S, pos, h, t);
    }
    static void bias_rows_forward(float* bias, const P* from, const int* bucket, int buckets, int NH, int n) {
        own().bias_rows_forward(bias, from->floats, bucket, buckets, NH, n);
    }
    static void relative_keys_forward(float* bias, const float* qkv, const P* keys, int N, Heads h) {
        own().relative_keys_forward(bias, qkv, keys->floats, N, h);
    }
    static void relative_keys_backward(float* dqkv, float* dkeys, const float* dbias, const float* qkv, const P* keys,
                                       int N, Heads h) {
        own().relative_keys_backward(dqkv, dkeys, dbias, qkv, keys->floats, N, h);
    }
    static void linear_forward(float* y, const float* x, const P* w, const P* b, const float* residual, int N, int C,
                               int OC, Precision precision) {
        if (!w->count) return own().linear_forward(y, x, w->floats, floats(b), residual, N, C, OC, precision);
        PackedProduct p = product(y, x, w, N, C, OC);
        p.b = floats(b);
        p.residual = residual;
        p.precision = precision;
        CHECK(precision != Precision::prefill || residual != y, "residual is y");
        kernels().packed_linear(p);
    }
    static void linear_gelu_forward(float* y, float*, const float* x, const P* w, const P* b, int N, int C, int OC,
                                    Precision precision) {
        PackedProduct p = product(y, x, w, N, C, OC);
        p.b = floats(b);
        p.gelu = true;
        p.precision = precision;
        kernels().packed_linear(p);
    }
    static void experts_forward(float* y, const float* x, const P* w, Routes routes, Router r, int N, int C, int OC) {
        kernels().packed_experts(product(y, x, w, N, C, OC), routes, r);
    }
    // Training beside frozen packed weights (QLoRA): only adapters, which are floats, have
    // gradients.
    static void linear_backward(float* dx, GradTarget<float> dw, float* db, const float* dy, const float* x, const P* w,
                                int N, int C, int OC, Precision) {
        if (!w->count) return own().linear_backward(dx, dw, db, dy, x, w->floats, N, C, OC, {});
        CHECK(!dw.p && !db, "packed weights have no gradient");
        if (dx) kernels().packed_gradient(product(dx, dy, w, N, C, OC), 0);
    }
    static void experts_backward(float* dx, GradTarget<float> dw, const float* dy, const float*, const P* w,
                                 Routes routes, Router r, int, int C, int OC) {
        CHECK(!dw.p, "packed weights have no gradient");
        for (int e = 0; e < r.E; e++) {
            const int64_t from = routes.offsets[e];
            const int rows = routes.offsets[e + 1] - routes.offsets[e];
            if (rows)
                kernels().packed_gradient(product(dx + from * C, dy + from * OC, w, rows, C, OC), int64_t(e) * OC);
        }
    }
    static void inverse_row_norms(float* inverse, const P* w, const P* a, const P* b, float scale, RowBlocks blocks,
                                  int C, int OC, int R) {
        each_chunk(OC, [&](int64_t o, int) {
            inverse[o] = 0;
            if (!blocks.columns(o)) return;
            thread_local std::vector<float> row;
            row.resize(size_t(C));
            unpack_row(*w, C, o, row.data());
            const int i = blocks.of(o);
            inverse[o] = kernels().inverse_row_norm(row.data(), a->floats, b->floats + o * R, scale, blocks.col[i],
                                                    blocks.col[i + 1], C);
        });
    }
    static void scale_columns_forward(float* y, const float* x, const P* magnitude, const float* inverse, const P* b,
                                      const float* residual, int N, int C) {
        own().scale_columns_forward(y, x, magnitude->floats, inverse, floats(b), residual, N, C);
    }
    static void scale_columns_backward(float* dx, float* dmagnitude, const float* dy, const float* x,
                                       const P* magnitude, const float* inverse, int N, int C) {
        own().scale_columns_backward(dx, dmagnitude, dy, x, magnitude->floats, inverse, N, C);
    }
    static void norm_backward(float* dx, float* dw, float* db, const float* dy, const float* x, const P* w,
                              const float* mean, const float* rstd, Norm norm, int N, int C) {
        own().norm_backward(dx, dw, db, dy, x, floats(w), mean, rstd, norm, N, C);
    }
    static void rope_backward(float* d, float* dqw, float* dkw, const float* x, const P* qw, const P* kw,
                              const float* cos_sin, const float* rstd, int B, int S, Heads h, QkNormRope t) {
        own().rope_backward(d, dqw, dkw, x, floats(qw), floats(kw), cos_sin, rstd, B, S, h, t);
    }
    // What is trained is fp32, and its only copy is the master.
    static void update_weights(P*, float* master, StateArray m, StateArray v, const float* dw, const uint8_t* groups,
                               int64_t n, const Step* step, UpdateRule rule, OptimizerParams a, uint64_t seed) {
        own().update_weights(master, nullptr, m, v, dw, groups, n, step, rule, a, seed);
    }
    static void average_weights(float* average, const P*, const float* master, float rate, int64_t n,
                                const Step* step) {
        own().average_weights(average, master, nullptr, rate, n, step);
    }
    static int64_t gradient_scratch(const CallSizes& call) {
        return std::max(own().scratch_bytes(call),
                        cpu_scratch_size(kernels().packed_gradient_scratch(call.rows, call.in, call.out)));
    }
    static int64_t scratch_bytes(const CallSizes& call) {
        switch (call.operation) {
            case Operation::linear_backward:
            case Operation::lm_head_backward:
            case Operation::experts_backward: return gradient_scratch(call);
            case Operation::linear_forward:
            case Operation::linear_gelu_forward:
            case Operation::experts_forward: return cpu_scratch_size(kernels().packed_scratch(call, tiles));
            default: return own().scratch_bytes(call);
        }
    }
};
template <Isa isa, Tiles tiles> const Ops<float, PackedWeight>& packed_table() {
    typedef PackedOps<isa, tiles> Of;
    const char* more = tiles == Tiles::amx ? ", AMX" : tiles == Tiles::emulated ? ", AMX, pretended" : "";
    static const std::string name = std::string("cpu (") + cpu_isa_name(isa) + (cpu_has_vnni(isa) ? ", VNNI" : "") +
                                    more + ")";
    static const Ops<float, PackedWeight> made = [] {
        Ops<float, PackedWeight> ops;
        static_cast<Backend&>(ops) = Of::own();
        ops.name = name.c_str();
        // An operation whose type is equal in both tables has no parameters and is copied. The
        // others are set below, or stay null.
        auto take = []<class F, class G>(F& to, G from) {
            if constexpr (std::is_same_v<F, G>) to = from;
        };
#define OPERATION(name, need, arguments, ...) take(ops.name, Of::own().name);
#include "layers/operations.inc"
#undef OPERATION
        ops.embedding_forward = Of::embedding_forward;
        ops.residual_mix_forward = Of::residual_mix_forward;
        ops.residual_mix_backward = Of::residual_mix_backward;
        ops.smear_forward = Of::smear_forward;
        ops.smear_backward = Of::smear_backward;
        ops.value_embedding_forward = Of::value_embedding_forward;
        ops.value_embedding_backward = Of::value_embedding_backward;
        ops.norm_forward = ops.stream_norm_forward = Of::norm_forward;
        ops.rope_forward = Of::rope_forward;
        ops.bias_rows_forward = Of::bias_rows_forward;
        ops.relative_keys_forward = Of::relative_keys_forward;
        ops.relative_keys_backward = Of::relative_keys_backward;
        ops.linear_forward = Of::linear_forward;
        ops.linear_gelu_forward = Of::linear_gelu_forward;
        ops.experts_forward = Of::experts_forward;
        ops.linear_backward = ops.lm_head_backward = Of::linear_backward;
        ops.experts_backward = Of::experts_backward;
        ops.inverse_row_norms = Of::inverse_row_norms;
        ops.scale_columns_forward = Of::scale_columns_forward;
        ops.scale_columns_backward = Of::scale_columns_backward;
        ops.norm_backward = Of::norm_backward;
        ops.rope_backward = Of::rope_backward;
        ops.update_weights = Of::update_weights;
        ops.average_weights = Of::average_weights;
        ops.scratch_bytes = Of::scratch_bytes;
        return ops;
    }();
    return made;
}

template <Isa isa> const Ops<float, PackedWeight>& with_tiles(Tiles tiles) {
    if (tiles == Tiles::amx) return packed_table<isa, Tiles::amx>();
    return tiles == Tiles::emulated ? packed_table<isa, Tiles::emulated>() : packed_table<isa, Tiles::none>();
}
}    // namespace

const Ops<float, PackedWeight>& cpu_packed_ops_isa(Isa isa, Tiles tiles) {
    switch (isa) {
        case Isa::avx512bf16: return with_tiles<Isa::avx512bf16>(tiles);
        case Isa::avx512: return with_tiles<Isa::avx512>(tiles);
        case Isa::avx2: return with_tiles<Isa::avx2>(tiles);
        default: return with_tiles<Isa::base>(tiles);
    }
}
const Ops<float, PackedWeight>& cpu_packed_ops() {
    static const Ops<float, PackedWeight>& chosen = cpu_packed_ops_isa(cpu_chosen().isa, cpu_chosen().tiles);
    return chosen;
}
