#include "global_attention.h"

#include "model/batch.h"

void GlobalAttention::lay_out(Layout& at, const Config& c, const Plan& plan) {
    if (!c.global_projections) return;
    at.purpose("global attention");
    // In a batch of sequences no longer than G, the first G rows of each are all N rows.
    const int64_t N = plan.max_tokens(), width = N * c.attention_width();
    at.reserve(x, N * c.C);
    at.reserve(q, width);
    at.reserve(y, width);
    if (plan.mode == RunMode::train) at.reserve(dq, width), at.reserve(dy, width);
}

// Copies n elements of each of B sequences, which begin to_row and from_row elements apart.
template <class X>
void GlobalAttention::copy_each(X* to, int64_t to_row, const X* from, int64_t from_row, int B, int64_t n) {
    CHECK(n <= INT32_MAX, "global tokens of %lld elements", (long long)n);
    if (op.element(to) == op.activation)
        return op.copy_columns(reinterpret_cast<Activation*>(to), to_row, reinterpret_cast<const Activation*>(from),
                               from_row, nullptr, false, B, int(n));
    for (int b = 0; b < B; b++)
        op.copy(op.at(to, b * to_row), op.at(const_cast<X*>(from), b * from_row), op.bytes(to, n));
}

static int rows_of(const GlobalStep& s) { return std::min(s.h.global_tokens, s.S); }    // G

Heads GlobalAttention::heads_of(const GlobalStep& s) const {
    Heads h = s.h;
    h.source = s.S;
    h.window = h.stride = h.global_tokens = 0;
    h.keys = batch.global_keys();
    h.queries = batch.global_queries();
    h.dropout.seed += uint64_t(1) << 40;    // apart from the window's and from random blocks'
    return h;
}
void GlobalAttention::project_queries(const GlobalStep& s, const Heads& h, int G) {
    copy_each(x, int64_t(G) * s.C, s.x, int64_t(s.S) * s.C, s.B, int64_t(G) * s.C);
    op.linear_forward(q, x, s.q.w, s.q.b, nullptr, s.B * G, s.C, h.q_row(), s.precision);
}

void GlobalAttention::forward(const GlobalStep& s) {
    if (!s.q.w) return;
    const int G = rows_of(s);
    const Heads h = heads_of(s);
    const int64_t rows = int64_t(G) * h.width();
    project_queries(s, h, G);
    op.linear_forward(s.keys, s.x, s.kv.w, s.kv.b, nullptr, s.B * s.S, s.C, h.kv_row(), s.precision);
    op.cross_attention_forward(y, s.lse, q, s.keys, s.B, G, h);
    copy_each(s.y, int64_t(s.S) * h.width(), y, rows, s.B, rows);
}

void GlobalAttention::take(Activation* dlocal, const GlobalStep& s) {
    if (!s.q.w) return;
    const int64_t rows = int64_t(rows_of(s)) * s.h.width(), all = int64_t(s.S) * s.h.width();
    copy_each(dy, rows, dlocal, all, s.B, rows);
    op.zero(dq, op.bytes(dq, s.B * rows));
    copy_each(dlocal, all, dq, rows, s.B, rows);
}

// The queries, which are few, are computed again: no array keeps them.
void GlobalAttention::backward(Activation* dx, const GlobalGradients& d, const GlobalStep& s) {
    if (!s.q.w) return;
    const int G = rows_of(s), C = s.C;
    const Heads h = heads_of(s);
    const int64_t rows = int64_t(G) * h.width();
    project_queries(s, h, G);
    copy_each(y, rows, s.y, int64_t(s.S) * h.width(), s.B, rows);
    op.cross_attention_backward(dq, d.dkeys, dy, y, q, s.keys, s.lse, s.B, G, h);
    op.linear_backward(d.dx_part, d.q, d.qb, dq, x, s.q.w, s.B * G, C, h.q_row(), s.precision);
    op.copy_columns(dx, int64_t(s.S) * C, d.dx_part, int64_t(G) * C, nullptr, true, s.B, G * C);
    optional_linear_backward(op, dx, d.dx_part, d.kv, d.kvb, d.dkeys, s.x, s.kv.w, s.B * s.S, C, h.kv_row());
}
