// compose.h - steps of a transformer block for which a table (ops.h) may have one fused operation.
// The fused operation is called if the table has it and nothing else reads its intermediate
// results. Otherwise the step is composed of several operations. This file alone decides, never
// gpt.cpp. Both ways have the same roundings (test/test_fused_steps.cpp).
#pragma once
#include <utility>

#include "ops.h"

// Low-rank adapter of a linear layer (LoRA, Hu et al. 2021): y += scale * drop(x) a^T b^T. With
// magnitudes m (DoRA, Liu et al. 2024) the sum w + scale * b a has rows of the norms m:
// y = m / |w + scale * b a| * (x w^T + scale * x a^T b^T). The backward pass takes the norms for
// constants (section 4.3 there).
struct LowRank {
    const Parameter *a = nullptr, *b = nullptr;    // (R,C), (OC,R); null: none
    int R = 0;
    float scale = 1;
    Dropout dropout = {};
    RowBlocks blocks = {};                   // b's blocks that are not zero
    Input* low = nullptr;                    // (N,R): scale * drop(x) a^T, which the backward pass reads
    Activation* low_sum = nullptr;           // (N,R): low before it is rounded; if types are equal, low
    Activation* low_gradient = nullptr;      // (N,R): scratch
    Activation* wide = nullptr;              // (N,max(C,OC)): scratch
    const Parameter* magnitude = nullptr;    // (OC) or null
    float* inverse_norms = nullptr;          // (OC), by adapter_row_norms; 0: a row without an adapter
    Activation* unscaled = nullptr;          // (N,OC): scratch; used with magnitudes
    Input* dropped = nullptr;                // (N,C): scratch; used with dropout
    explicit operator bool() const { return a; }
};
// Weights of a linear layer.     w (OC,C)  b (OC) or null
struct ProductWeights {
    const Parameter *w, *b;
    LowRank adapter = {};
};
// Targets of a linear layer's gradients. A null one is not computed.
struct ProductGradients {
    GradTarget<Gradient> w;
    Gradient* b;
    GradTarget<Gradient> adapter_a, adapter_b;
    Gradient* magnitude;
};

// ---- products with low-rank adapters ------------------------------------------------------------

// The adapter's input: x, or x after dropout.    x (N,C)
inline const Input* adapter_input(const Table& op, const Input* x, const LowRank& l, int N, int C) {
    if (l.dropout.rate > 0) op.drop_inputs(l.dropped, x, int64_t(N) * C, l.dropout);
    return l.dropout.rate > 0 ? l.dropped : x;
}
// Products with an adapter's small matrices are not rounded to 8 bits.
inline Precision adapter_precision(Precision of_product) {
    return of_product == Precision::fp8 ? Precision::prefill : of_product;
}
// Computes LowRank::low, the input of the adapter's second matrix.
inline void adapter_low(const Table& op, const Input* x, const LowRank& l, int N, int C, Precision precision) {
    const int64_t n = int64_t(N) * l.R;
    op.linear_forward(l.low_sum, adapter_input(op, x, l, N, C), l.a, nullptr, nullptr, N, C, l.R, precision);
    op.add_scaled(l.low_sum, nullptr, l.low_sum, l.scale, n, {});
    op.round_inputs(l.low, l.low_sum, n);
}
// Fills LowRank::inverse_norms, which are right until the weights change. Does nothing without
// magnitudes.
inline void adapter_row_norms(const Table& op, const ProductWeights& p, int C) {
    const LowRank& l = p.adapter;
    if (l.magnitude) op.inverse_row_norms(l.inverse_norms, p.w, l.a, l.b, l.scale, l.blocks, C, l.blocks.rows(), l.R);
}
// y = x w^T + b + residual + the adapter's addend.    x (N,C)  y (N,OC)
// residual (N,OC) or null. The addend comes first, as a residual of the product; with magnitudes, b
// and the true residual are added after the factors.
inline void adapted_linear(const Table& op, Activation* y, const Input* x, const ProductWeights& p,
                           const Activation* residual, int N, int C, int OC, Precision precision) {
    const LowRank& l = p.adapter;
    if (!l) return op.linear_forward(y, x, p.w, p.b, residual, N, C, OC, precision);
    const Precision small = adapter_precision(precision);
    adapter_low(op, x, l, N, C, small);
    op.linear_forward(l.wide, l.low, l.b, nullptr, l.magnitude ? nullptr : residual, N, l.R, OC, small);
    if (!l.magnitude) return op.linear_forward(y, x, p.w, p.b, l.wide, N, C, OC, precision);
    op.linear_forward(l.unscaled, x, p.w, nullptr, l.wide, N, C, OC, precision);
    op.scale_columns_forward(y, l.unscaled, l.magnitude, l.inverse_norms, p.b, residual, N, OC);
}
// Backward pass of the factors m / norm, given dy (N,OC). Adds the gradient of m to d (OC). Returns
// the gradient of the factors' input, which lies in LowRank::unscaled; without magnitudes, dy. The
// factors' input is computed again, because no array keeps it.    x (N,C)
inline const Activation* magnitude_backward(const Table& op, Gradient* d, const Activation* dy, const Input* x,
                                            const ProductWeights& p, int N, int C, int OC, Precision precision) {
    const LowRank& l = p.adapter;
    if (!l.magnitude) return dy;
    op.linear_forward(l.wide, l.low, l.b, nullptr, nullptr, N, l.R, OC, adapter_precision(precision));
    op.linear_forward(l.unscaled, x, p.w, nullptr, l.wide, N, C, OC, precision);
    op.scale_columns_backward(l.unscaled, d, dy, l.unscaled, l.magnitude, l.inverse_norms, N, OC);
    return l.unscaled;
}
// Backward pass: dx = the gradient of x, given dy (N,OC); may be null only without an adapter.
inline void adapted_linear_backward(const Table& op, Activation* dx, const ProductGradients& d, const Activation* dy,
                                    const Input* x, const ProductWeights& p, int N, int C, int OC,
                                    Precision precision) {
    const LowRank& l = p.adapter;
    // A bias, which the factors do not change, is frozen beside an adapter: d.b is null.
    dy = magnitude_backward(op, d.magnitude, dy, x, p, N, C, OC, precision);
    op.linear_backward(dx, d.w, d.b, dy, x, p.w, N, C, OC, precision);
    if (!l) return;
    const Precision small = adapter_precision(precision);
    op.linear_backward(l.low_gradient, d.adapter_b, nullptr, dy, l.low, l.b, N, l.R, OC, small);
    if (d.adapter_b.p && l.blocks.count > 1) op.keep_blocks(d.adapter_b.p, l.blocks, OC, l.R);
    op.add_scaled(l.low_gradient, nullptr, l.low_gradient, l.scale, int64_t(N) * l.R, {});
    op.linear_backward(l.wide, d.adapter_a, nullptr, l.low_gradient, adapter_input(op, x, l, N, C), l.a, N, C, l.R,
                       small);
    op.add_scaled(dx, dx, l.wide, 1, int64_t(N) * C, l.dropout);
}

// ---- norm, then a product -----------------------------------------------------------------------

// A norm's weights and the statistics for its backward pass.    mean (null for RMSNorm), rstd (N)
struct NormStep {
    // none: the model has no norm here. The linear layer reads x itself or, if products' inputs
    // have another type, a rounded copy. shared: another branch has already computed this norm.
    enum class Kind { norm, none, shared } kind;
    Norm norm;
    const Parameter *w, *b;
    float *mean, *rstd;
};

// y = norm(x)     x, y (N,C)
inline void norm_forward(const Table& op, Input* y, const Activation* x, const NormStep& n, int N, int C) {
    if (n.kind == NormStep::Kind::norm) op.norm_forward(y, n.mean, n.rstd, x, n.w, n.b, n.norm, N, C);
    if (n.kind == NormStep::Kind::none) op.round_inputs(y, x, int64_t(N) * C);
}
// dx += the gradient of x, given dy. The gradients of w and b are added to dw and db (C).
inline void norm_backward(const Table& op, Activation* dx, Gradient* dw, Gradient* db, const Activation* dy,
                          const Activation* x, const NormStep& n, int N, int C) {
    if (n.kind == NormStep::Kind::norm) op.norm_backward(dx, dw, db, dy, x, n.w, n.mean, n.rstd, n.norm, N, C);
    else op.add_scaled(dx, dx, dy, 1, int64_t(N) * C, {});
}

// y = norm(x) w^T + b     x, normed (N,C)  y (N,OC)     keep: a later step reads normed
inline void norm_linear(const Table& op, Activation* y, Input* normed, const Activation* x, const NormStep& n,
                        const ProductWeights& p, int N, int C, int OC, Precision precision, bool keep) {
    if (op.norm_linear_forward && n.kind == NormStep::Kind::norm && !keep && !p.adapter)
        return op.norm_linear_forward(y, normed, n.mean, n.rstd, x, n.w, n.b, n.norm, p.w, p.b, N, C, OC);
    norm_forward(op, normed, x, n, N, C);
    adapted_linear(op, y, normed, p, nullptr, N, C, OC, precision);
}

// y = x w^T + b.     x (N,C)  y (N,OC)     Does nothing if w is null: the model has no such layer.
inline void optional_linear(const Table& op, Activation* y, const Input* x, const ProductWeights& p, int N, int C,
                            int OC) {
    if (p.w) op.linear_forward(y, x, p.w, p.b, nullptr, N, C, OC, {});
}
// Backward pass of optional_linear: dx += dy w, dw (+)= dy^T x, db += the sum of dy's rows. scratch
// (N,C) gets dy w before it is added.
inline void optional_linear_backward(const Table& op, Activation* dx, Activation* scratch, GradTarget<Gradient> dw,
                                     Gradient* db, const Activation* dy, const Input* x, const Parameter* w, int N,
                                     int C, int OC) {
    if (!w) return;
    op.linear_backward(scratch, dw, db, dy, x, w, N, C, OC, {});
    op.add_scaled(dx, dx, scratch, 1, int64_t(N) * C, {});
}
// x = scale * drop(x)     (n)
inline void scale_and_drop(const Table& op, Activation* x, float scale, int64_t n, Dropout drop) {
    if (scale != 1 || drop.rate > 0) op.add_scaled(x, nullptr, x, scale, n, drop);
}

// ---- the ffn: a product, an activation, a product -----------------------------------------------

// The part of an ffn before its second product: pre = x w^T + b, y = act(pre). In a shared expert,
// y may then be multiplied by one gate per position, sigmoid(x row_gate_w^T).
// x (N,C)  pre (N,F), gated (N,2*F)  y (N,F)
struct FfnStep {
    ProductWeights first, second;
    Act act;
    bool gated;    // y = act(half) * half (activation_forward)
    int C, F;      // F 0: no ffn, only its norm
    Precision precision;
    Activation* pre;
    Input* y;
    const Parameter* row_gate_w;    // (1,C) or null: no gate
    Activation* row_gate;           // (N)
    Input* gated_y;                 // (N,F): second product's input; without row_gate y
    int pre_width() const { return gated ? 2 * F : F; }
};

// Whether GELU is fused with the ffn's products. more: another step (the shared expert's gate, an
// adapter) lies between GELU and a product, so that it cannot be fused.
inline bool fuses_gelu(const Table& op, Act act, bool gated, bool more, Precision precision) {
    return op.linear_gelu_forward && act == Act::gelu_tanh && !gated && !more && precision != Precision::fp8;
}
inline bool fuses_gelu(const Table& op, const FfnStep& f) {
    return fuses_gelu(op, f.act, f.gated, f.row_gate_w || f.first.adapter || f.second.adapter, f.precision);
}
// Computes y and gated_y from pre.
inline void ffn_activate(const Table& op, const FfnStep& f, int N) {
    if (f.F) op.activation_forward(f.y, f.pre, f.act, f.gated, N, f.F);
    if (f.row_gate_w) op.row_gate_forward(f.gated_y, f.y, f.row_gate, N, f.F);
}
// x = norm(from), then the ffn of x up to y.     keep: a later step reads x
inline void norm_ffn_forward(const Table& op, Input* x, const Activation* from, const NormStep& n, const FfnStep& f,
                             int N, bool keep) {
    if (op.norm_ffn_forward && n.kind == NormStep::Kind::norm && f.F && !f.row_gate_w && !keep && !f.first.adapter)
        return op.norm_ffn_forward(f.y, f.pre, x, n.mean, n.rstd, from, n.w, n.b, n.norm, f.first.w, f.first.b, f.act,
                                   f.gated, N, f.C, f.F);
    norm_forward(op, x, from, n, N, f.C);
    if (!f.F) return;
    if (fuses_gelu(op, f)) return op.linear_gelu_forward(f.y, f.pre, x, f.first.w, f.first.b, N, f.C, f.F, f.precision);
    adapted_linear(op, f.pre, x, f.first, nullptr, N, f.C, f.pre_width(), f.precision);
    optional_linear(op, f.row_gate, x, {f.row_gate_w, nullptr}, N, f.C, 1);
    ffn_activate(op, f, N);
}
// Targets of an ffn's weight gradients; scratch memory dpre, dy, drow_gate and dx_of_gate with the
// shapes of pre, y, row_gate and x. Unless the activation is gated, dpre and dy may be one array.
struct FfnGradients {
    ProductGradients first, second;
    GradTarget<Gradient> row_gate_w;
    Activation *dpre, *dy, *drow_gate, *dx_of_gate;
};
// dx (N,C) = the gradient of the ffn's input x, given dout (N,C), the gradient of the second
// product's output. F 0: does nothing.
inline void ffn_backward(const Table& op, Activation* dx, const FfnGradients& d, const Activation* dout, const Input* x,
                         const FfnStep& f, int N) {
    if (!f.F) return;
    if (fuses_gelu(op, f)) {
        op.linear_gelu_backward(d.dpre, d.second.w, d.second.b, d.first.b, dout, f.y, f.second.w, f.pre, N, f.F, f.C);
        return op.linear_backward(dx, d.first.w, nullptr, d.dpre, x, f.first.w, N, f.C, f.F, f.precision);
    }
    adapted_linear_backward(op, d.dy, d.second, dout, f.gated_y, f.second, N, f.F, f.C, f.precision);
    if (f.row_gate_w) op.row_gate_backward(d.dy, d.drow_gate, d.dy, f.y, f.row_gate, N, f.F);
    op.activation_backward(d.dpre, d.dy, f.pre, f.act, f.gated, N, f.F);
    adapted_linear_backward(op, dx, d.first, d.dpre, x, f.first, N, f.C, f.pre_width(), f.precision);
    optional_linear_backward(op, dx, d.dx_of_gate, d.row_gate_w, nullptr, d.drow_gate, x, f.row_gate_w, N, f.C, 1);
}

// ---- rotation, then attention -------------------------------------------------------------------

// Norms and rotates queries and keys as t says. If t has neither norm nor rotation, the caller
// passes one array as qkv_rot and qkv.
inline void rope_forward(const Table& op, Activation* qkv_rot, float* rstd, const Activation* qkv, const Parameter* qw,
                         const Parameter* kw, const float* cos_sin, int B, int S, const int* pos, const Heads& h,
                         const QkNormRope& t) {
    if (t.dims || t.norms()) op.rope_forward(qkv_rot, rstd, qkv, qw, kw, cos_sin, B, S, pos, h, t);
}
inline void rope_backward(const Table& op, Activation* d, Gradient* dqw, Gradient* dkw, const Activation* qkv,
                          const Parameter* qw, const Parameter* kw, const float* cos_sin, const float* rstd, int B,
                          int S, const Heads& h, const QkNormRope& t) {
    if (t.dims || t.norms())
        op.rope_backward(d, dqw, dkw, t.norms() ? qkv : nullptr, qw, kw, cos_sin, rstd, B, S, h, t);
}
// y = attention over the cache, after the norm and rotation of queries and keys. keep: a later step
// reads qkv_rot. Shapes: rope_forward and attention_cached in operations.inc.
inline void rope_attention_cached(const Table& op, Input* y, Activation* qkv_rot, float* rstd, const Activation* qkv,
                                  const Parameter* qw, const Parameter* kw, const float* cos_sin, const Pages& cache,
                                  int B, int S, const int* rope_pos, const int* pos, const Heads& h,
                                  const QkNormRope& t, bool keep) {
    if (op.rope_attention_cached && (t.dims || t.norms()) && !keep)
        return op.rope_attention_cached(y, qkv_rot, rstd, qkv, qw, kw, cos_sin, cache, B, S, rope_pos, pos, h, t);
    rope_forward(op, qkv_rot, rstd, qkv, qw, kw, cos_sin, B, S, rope_pos, h, t);
    op.attention_cached(y, qkv_rot, cache, B, S, pos, h);
}

// ---- a branch's end and the residual ------------------------------------------------------------

// The end of a branch (attention or ffn). Its last product, sum = in w^T + b + experts, is added to
// the residual stream x:
// out = x + scale * drop(norm(sum)), or with norm_of_sum out = norm(x + scale * drop(sum))
struct Branch {
    const Input* in;    // (N,width); width 0: no such product
    int width;
    ProductWeights p;
    Precision precision;
    const Activation* expert_out = nullptr;    // experts' outputs (N*K,C); null: no experts
    const Gradient* factors = nullptr;
    Routes routes = {};
    Router router = {};
    Activation* product;    // (N,C): the norm's input; unused without norm
    NormStep norm;
    bool norm_of_sum;
    float scale;
    Dropout dropout;
    bool has_norm() const { return norm.kind == NormStep::Kind::norm; }
};
// Computes `out`, the residual stream after the branch, from x, the stream before it (formula:
// Branch). If `out` is null, computes only what the product's backward pass reads.
inline void branch_add(const Table& op, Activation* out, const Activation* x, const Branch& b, int N, int C) {
    if (!out && b.p.adapter) adapter_low(op, b.in, b.p.adapter, N, b.width, adapter_precision(b.precision));
    if (!out) return;
    Activation* product = b.has_norm() ? b.product : out;
    const bool norm_first = b.has_norm() && !b.norm_of_sum;
    // The product itself adds the residual, unless scale, dropout or a norm lies between them.
    const bool in_product = b.scale == 1 && b.dropout.rate == 0 && !norm_first;
    const Activation* residual = in_product ? x : nullptr;
    if (b.width) adapted_linear(op, product, b.in, b.p, residual, N, b.width, C, b.precision);
    if (b.expert_out)
        op.experts_combine(product, b.width ? product : residual, b.expert_out, b.factors, b.routes, b.router, N, C);
    if (!in_product && !norm_first) op.add_scaled(product, x, product, b.scale, int64_t(N) * C, b.dropout);
    if (b.has_norm())
        op.stream_norm_forward(out, b.norm.mean, b.norm.rstd, product, b.norm.w, b.norm.b, b.norm.norm, N, C);
    if (norm_first) op.add_scaled(out, x, out, b.scale, int64_t(N) * C, b.dropout);
}

// x: gradient of the residual stream. branch, t: scratch. All are (N,C); t may be larger.
struct ResidualGradients {
    Activation *&x, *&branch, *t;
};
// Backward pass of branch_add. At first d.x is the gradient of `out`; afterwards it is the gradient
// of x, and d.x and d.branch may have been swapped. Returns the gradient of the branch's product.
// The gradients of the norm's weights are added to dw and db.
inline const Activation* branch_backward(const Table& op, ResidualGradients d, Gradient* dw, Gradient* db,
                                         const Branch& b, int N, int C) {
    const bool norm_first = b.has_norm() && !b.norm_of_sum;
    auto through_norm = [&](const Activation* dout) {
        op.zero(d.branch, op.bytes(d.branch, int64_t(N) * C));
        norm_backward(op, d.branch, dw, db, dout, b.product, b.norm, N, C);
    };
    if (b.has_norm() && b.norm_of_sum) {
        through_norm(d.x);
        std::swap(d.x, d.branch);    // x and the branch both receive this gradient
    }
    const Activation* dy = d.x;
    if (b.scale != 1 || b.dropout.rate > 0) {
        Activation* scaled = norm_first ? d.t : d.branch;
        op.add_scaled(scaled, nullptr, d.x, b.scale, int64_t(N) * C, b.dropout);
        dy = scaled;
    }
    if (!norm_first) return dy;
    through_norm(dy);
    return d.branch;
}

// ---- attention to an encoder's output -----------------------------------------------------------

// Cross-attention of a decoder's block (Vaswani et al. 2017, section 3.2.3). Queries come from the
// normed residual stream; keys and values from the encoder's output, in generation from the cache.
struct CrossStep {
    bool exists;    // false: the model has no encoder; the functions here do nothing
    NormStep norm;
    ProductWeights q, kv;
    Precision precision;
    Heads h;
    int B, S, C;
    const Activation* x;    // (B*S,C): the residual stream
    Input* normed;          // (B*S,C)
    Activation* queries;    // (B*S,NH*HS)
    const Input* source;    // (sources,C): the encoder's output
    int sources;            // positions of all sequences
    Activation* keys;       // (sources,2*NKV*HS)
    Input* y;               // (B*S,NH*HS)
    float* lse;             // (B,NH,S)
    const Pages* cache;     // null: no generation
    const int* last;        // (B,S): last position of the cache's keys
};
inline void cross_keys(const Table& op, const CrossStep& s) {
    adapted_linear(op, s.keys, s.source, s.kv, nullptr, s.sources, s.C, s.h.kv_row(), s.precision);
}
inline void cross_attention_forward(const Table& op, const CrossStep& s) {
    if (!s.exists) return;
    const int N = s.B * s.S;
    norm_linear(op, s.queries, s.normed, s.x, s.norm, s.q, N, s.C, s.h.q_row(), s.precision, !s.cache);
    if (s.cache) return op.cross_attention_cached(s.y, s.queries, *s.cache, s.B, s.S, s.last, s.h);
    cross_keys(op, s);
    op.cross_attention_forward(s.y, s.lse, s.queries, s.keys, s.B, s.S, s.h);
}
// Gradients of a CrossStep and of its branch's end. dqueries, dkeys, dy and dsource_part are
// scratch with the shapes of queries, keys, y (or (B*S,C), if that is wider) and source.
struct CrossGradients {
    ProductGradients q, kv, proj;
    Gradient *norm_w, *norm_b, *post_w, *post_b;
    Activation *dqueries, *dkeys, *dy, *dsource_part;
    Activation* dsource;    // (sources,C): added to
};
// Backward pass of branch_add of cross-attention's end b, and of cross_attention_forward. stream:
// as in branch_backward.
inline void cross_attention_backward(const Table& op, ResidualGradients stream, const CrossGradients& d,
                                     const CrossStep& s, const Branch& b) {
    if (!s.exists) return;
    const int N = s.B * s.S, C = s.C;
    const Activation* dout = branch_backward(op, stream, d.post_w, d.post_b, b, N, C);
    adapted_linear_backward(op, d.dy, d.proj, dout, s.y, b.p, N, b.width, C, s.precision);
    op.cross_attention_backward(d.dqueries, d.dkeys, d.dy, s.y, s.queries, s.keys, s.lse, s.B, s.S, s.h);
    adapted_linear_backward(op, d.dy, d.q, d.dqueries, s.normed, s.q, N, C, s.h.q_row(), s.precision);
    norm_backward(op, stream.x, d.norm_w, d.norm_b, d.dy, s.x, s.norm, N, C);
    adapted_linear_backward(op, d.dsource_part, d.kv, d.dkeys, s.source, s.kv, s.sources, C, s.h.kv_row(), {});
    op.add_scaled(d.dsource, d.dsource, d.dsource_part, 1, int64_t(s.sources) * C, {});
}

// ---- learned biases of relative positions: T5's, which blocks share, and relative keys ----------

// The functions here do nothing if their input is null: all arrays in models without biases, dbias
// and dtable if T5's are frozen. Shapes: bias_rows_forward, relative_keys_forward (operations.inc).
inline void relative_bias_forward(const Table& op, Gradient* bias, const Parameter* table, const int* bucket,
                                  int buckets, int NH, int n) {
    if (table) op.bias_rows_forward(bias, table, bucket, buckets, NH, n);
}
inline void relative_bias_clear(const Table& op, Gradient* dbias, const Heads& h) {
    if (dbias && !h.bias_step) op.zero(dbias, op.bytes(dbias, int64_t(h.NH) * h.distances()));
}
inline void relative_keys_forward(const Table& op, Gradient* bias, const Activation* qkv, const Parameter* keys, int N,
                                  const Heads& h) {
    if (keys) op.relative_keys_forward(bias, qkv, keys, N, h);
}
// Adds the gradient of a block's scores to T5's dbias. With relative keys, dbias has this block's
// alone, and its products are added to dkeys and to queries in dqkv. dkeys null: not computed
inline void score_bias_backward(const Table& op, Activation* dqkv, Gradient* dkeys, Gradient* dbias,
                                const Activation* dy, const Input* y, const Activation* qkv, const float* lse,
                                const Parameter* keys, int B, int S, const Heads& h) {
    if (keys) op.zero(dbias, op.bytes(dbias, int64_t(B) * S * h.bias_step));
    if (dbias) op.attention_bias_backward(dbias, dy, y, qkv, lse, B, S, h);
    if (keys) op.relative_keys_backward(dqkv, dkeys, dbias, qkv, keys, B * S, h);
}
inline void relative_bias_backward(const Table& op, Gradient* dtable, const Gradient* dbias, const int* bucket,
                                   int buckets, int NH, int n) {
    if (dtable) op.bias_rows_backward(dtable, dbias, bucket, buckets, NH, n);
}

// ---- encoders: segments, narrow embeddings, the head's transform --------------------------------

// The functions here do nothing for models without these parameters (table, w or p.w null).
// x (N,C) += table[segment].     scratch (N,C)
inline void segments_forward(const Table& op, Activation* x, Activation* scratch, const int* segment,
                             const Parameter* table, int B, int S, int C) {
    if (!table) return;
    op.embedding_forward(scratch, segment, table, nullptr, B, S, C, nullptr);
    op.add_scaled(x, x, scratch, 1, int64_t(B) * S * C, {});
}
inline void segments_backward(const Table& op, Gradient* dtable, const Activation* dx, const int* segment, int B, int S,
                              int C, int rows) {
    if (dtable) op.embedding_backward(dtable, nullptr, dx, segment, B, S, C, rows, nullptr);
}
// y (N,C) = norm(x) w^T + b, or norm(x) without w. Without a norm, y is x, and nothing is done.
// x, normed (N,E)
inline void norm_project(const Table& op, Activation* y, Input* normed, const Activation* x, const NormStep& n,
                         const ProductWeights& p, int N, int E, int C) {
    if (n.kind == NormStep::Kind::none) return;
    if (!p.w) return op.stream_norm_forward(y, n.mean, n.rstd, x, n.w, n.b, n.norm, N, E);
    norm_forward(op, normed, x, n, N, E);
    op.linear_forward(y, normed, p.w, p.b, nullptr, N, E, C, {});
}
struct NormProjectGradients {
    GradTarget<Gradient> w;
    Gradient *b, *norm_w, *norm_b;
};
// Backward pass of norm_project: returns the gradient of x (N,E), given dy (N,C), in one of the
// arrays dy and other, which are both overwritten.
inline Activation* norm_project_backward(const Table& op, Activation* dy, Activation* other,
                                         const NormProjectGradients& d, const Activation* x, const Input* normed,
                                         const NormStep& n, const Parameter* w, int N, int E, int C) {
    if (n.kind == NormStep::Kind::none) return dy;
    if (w) {
        op.linear_backward(other, d.w, d.b, dy, normed, w, N, E, C, {});
        std::swap(dy, other);
    }
    op.zero(other, op.bytes(other, int64_t(N) * E));
    norm_backward(op, other, d.norm_w, d.norm_b, dy, x, n, N, E);
    return other;
}
// y = norm(act(x w^T + b)); norm.kind none: without the norm.
struct HeadStep {
    ProductWeights p;
    Act act;
    NormStep norm;
    int C, H;    // x (N,C), all others (N,H)
    Activation *pre, *activated;
    Input* y;
};
// Returns the head's input: t.y, or x for models without a transform.
inline const Input* head_transform(const Table& op, const Input* x, const HeadStep& t, int N, Precision precision) {
    if (!t.p.w) return x;
    op.linear_forward(t.pre, x, t.p.w, t.p.b, nullptr, N, t.C, t.H, precision);
    if (t.norm.kind == NormStep::Kind::none) op.activation_forward(t.y, t.pre, t.act, false, N, t.H);
    else {
        op.stream_activation_forward(t.activated, t.pre, t.act, N, t.H);
        norm_forward(op, t.y, t.activated, t.norm, N, t.H);
    }
    return t.y;
}
// dy (N,H): gradient of y, which is overwritten. scratch (N,H)
struct HeadGradients {
    GradTarget<Gradient> w;
    Gradient *b, *norm_w, *norm_b;
    Activation *dy, *scratch;
};
inline void head_transform_backward(const Table& op, Activation* dx, const HeadGradients& d, const Input* x,
                                    const HeadStep& t, int N) {
    if (!t.p.w) return;
    Activation* dact = d.dy;
    if (t.norm.kind == NormStep::Kind::norm) {
        dact = d.scratch;
        op.zero(dact, op.bytes(dact, int64_t(N) * t.H));
        norm_backward(op, dact, d.norm_w, d.norm_b, d.dy, t.activated, t.norm, N, t.H);
    }
    op.activation_backward(dact, dact, t.pre, t.act, false, N, t.H);
    op.linear_backward(dx, d.w, d.b, dact, x, t.p.w, N, t.C, t.H, {});
}

// ---- means of texts ----------------------------------------------------------------------------

// y = the mean of x over each position's text (Heads::keys), by attention whose queries and keys
// are 0. Its values, the last C columns of qkv, are copies of x; where x has another type, products
// with `values`: 0 above the identity. A model without y has no such step.
struct PoolStep {
    Activation* qkv;            // (B*S,3*C); its first 2*C columns are 0
    float* lse;                 // (B,NH,S)
    Input* y;                   // (B*S,C)
    const Parameter* values;    // (3*C,C)
    Heads heads;
};
inline bool copies_values(const Table& op) { return !op.has_input_type(); }
inline void pool_forward(const Table& op, const Input* x, const PoolStep& t, int B, int S) {
    const int C = t.heads.width();
    if (!t.y) return;
    if (copies_values(op))
        op.copy_columns(op.at(t.qkv, 2 * C), 3 * C, reinterpret_cast<const Activation*>(x), C, nullptr, false, B * S,
                        C);
    else op.linear_forward(t.qkv, x, t.values, nullptr, nullptr, B * S, C, 3 * C, Precision::prefill);
    op.attention_forward(t.y, t.lse, t.qkv, B, S, t.heads);
}
// dx (B*S,C): gradient of y, which becomes that of x. dqkv (B*S,3*C): scratch
inline void pool_backward(const Table& op, Activation* dx, Activation* dqkv, const PoolStep& t, const Input* x, int B,
                          int S) {
    const int C = t.heads.width();
    if (!t.y) return;
    op.attention_backward(dqkv, dx, t.y, t.qkv, t.lse, B, S, t.heads);
    if (copies_values(op)) op.copy_columns(dx, C, op.at(dqkv, 2 * C), 3 * C, nullptr, false, B * S, C);
    else
        op.linear_backward(dx, {static_cast<Gradient*>(nullptr), false}, nullptr, dqkv, x, t.values, B * S, C, 3 * C,
                           {});
}

// ---- shortcuts around blocks --------------------------------------------------------------------

// The functions here do nothing for models without these parameters (factors0, table or w null) or
// arrays (dx or other null). Shapes: operations.inc.
inline void residual_mix_forward(const Table& op, Activation* y, const Activation* x, const Activation* x0,
                                 const Parameter* factors, const Parameter* factors0, int l, float sign, int64_t n) {
    if (factors0) op.residual_mix_forward(y, x, x0, factors, factors0, l, sign, n);
}
inline void residual_mix_backward(const Table& op, Activation* d, Activation* dx0, Gradient* dfactors,
                                  Gradient* dfactors0, const Activation* x, const Activation* x0,
                                  const Parameter* factors, const Parameter* factors0, int l, float sign, int64_t n) {
    if (factors0) op.residual_mix_backward(d, dx0, dfactors, dfactors0, x, x0, factors, factors0, l, sign, n);
}
inline void clear_gradient(const Table& op, Activation* dx, int64_t n) {
    if (dx) op.zero(dx, op.bytes(dx, n));
}
// dx += other, where the model has other
inline void add_gradient(const Table& op, Activation* dx, const Activation* other, int64_t n) {
    if (other) op.add_scaled(dx, dx, other, 1, n, {});
}
inline void smear_forward(const Table& op, Activation* y, const Activation* x, const Activation* previous,
                          const Parameter* w, const Parameter* lambda, int B, int S, int C, const int* pos) {
    if (w) op.smear_forward(y, x, previous, w, lambda, B, S, C, pos);
}
// Returns the gradient of x: dx, or dy for models without smear.
inline Activation* smear_backward(const Table& op, Activation* dx, Gradient* dw, Gradient* dlambda, Activation* dy,
                                  const Activation* x, const Parameter* w, const Parameter* lambda, int B, int S, int C,
                                  const int* pos) {
    if (!w) return dy;
    op.smear_backward(dx, dw, dlambda, dy, x, w, lambda, B, S, C, pos);
    return dx;
}
inline void keep_copy(const Table& op, Activation* to, const Activation* from, int64_t n, bool keeps) {
    if (keeps) op.copy(to, from, op.bytes(to, n));
}
inline void value_embedding_forward(const Table& op, Activation* qkv, const Input* x, const Parameter* table,
                                    const Parameter* gate_w, const int* tok, int N, int C, const Heads& h) {
    if (table) op.value_embedding_forward(qkv, x, table, gate_w, tok, N, C, h);
}
// values (N,NKV*HS): scratch for the gradient of the table's rows
inline void value_embedding_backward(const Table& op, Activation* dx, Activation* values, Gradient* dtable,
                                     Gradient* dgate_w, const Activation* dqkv, const Input* x, const Parameter* table,
                                     const Parameter* gate_w, const int* tok, int B, int S, int C, int V,
                                     const Heads& h) {
    if (!table) return;
    op.value_embedding_backward(dx, dtable ? values : nullptr, dgate_w, dqkv, x, table, gate_w, tok, B * S, C, h);
    if (dtable) op.embedding_backward(dtable, nullptr, values, tok, B, S, h.NKV * h.HS, V, nullptr);
}
