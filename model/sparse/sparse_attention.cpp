#include "sparse_attention.h"

#include "model/batch.h"

// Elements of queries (N,width) before the keys behind them.
static int64_t aligned(int N, int width) { return round_up(int64_t(N) * width, 64); }

void SparseAttention::lay_out(Layout& at, const Config& c, const Plan& plan) {
    const KeyParts parts = KeyParts::of(c);
    if (!parts.count()) return;
    at.purpose("sparse attention");
    const int64_t N = plan.max_tokens(), width = N * c.NH * c.HS, row = N * (c.NH + 2 * c.NKV) * c.HS + 64;
    const bool dilated = parts.dilation > 1;
    at.reserve(rows, row);
    at.reserve(part, width);
    at.reserve(part_lse, N * c.NH);
    if (op.has_input_type()) at.reserve(sum, width);
    if (op.has_input_type() && dilated) at.reserve(sum_rows, width);
    if (plan.mode != RunMode::train) return;
    at.reserve(drows, row);
    if (dilated) at.reserve(dy_rows, width);
}

// to[n] = from[rows[n]]
void SparseAttention::copy_rows(Input* to, const Input* from, const int* order, int N, const Heads& h) {
    const int width = h.width();
    if (!sum) {
        op.copy_columns(reinterpret_cast<Activation*>(to), width, reinterpret_cast<const Activation*>(from), width,
                        order, false, N, width);
        return;
    }
    Heads all = h;
    all.keys = all.queries = nullptr;
    op.attention_merge(sum, part_lse, from, part_lse, false, 1, N, all);    // converts to activations
    op.copy_columns(sum_rows, width, sum, width, order, false, N, width);
    op.round_inputs(to, sum_rows, int64_t(N) * width);
}

Heads SparseAttention::masked(const Heads& h, int i) const {
    Heads with = h;
    with.keys = batch.key_part(i).keys;
    with.queries = batch.key_part(i).queries;
    return with;
}
Heads SparseAttention::part_of(const Heads& h, int i, int S) const {
    Heads with = masked(h, i);
    with.source = S;
    with.window = with.global_tokens = 0;
    with.dropout.seed += uint64_t(i + 1) << 32;    // dropout apart from the window's
    return with;
}

void SparseAttention::forward(bool parts, Input* y, float* lse, const Activation* qkv, int B, int S, const Heads& h) {
    if (!parts) return ring.attention_forward(y, lse, qkv, B, S, h);
    const int N = B * S, row = h.qkv_width(), queries = h.NH * h.HS, keys = row - queries;
    if (batch.key_parts().dilation > 1) {
        op.copy_columns(rows, row, qkv, row, batch.key_part(0).rows, false, N, row);
        op.attention_forward(part, lse, rows, B, S, masked(h, 0));
        return copy_rows(y, part, batch.key_part(0).back, N, h);
    }
    Activation* const to = sum ? sum : reinterpret_cast<Activation*>(y);
    Activation* const kv = op.at(rows, aligned(N, queries));
    op.attention_forward(sum ? part : y, lse, qkv, B, S, h);
    if (sum) op.attention_merge(to, lse, part, lse, false, B, S, h);
    op.copy_columns(rows, queries, qkv, row, nullptr, false, N, queries);
    for (int i = 0; i < batch.key_parts().count(); i++) {
        const Heads part_heads = part_of(h, i, S);
        op.copy_columns(kv, keys, op.at(const_cast<Activation*>(qkv), queries), row, batch.key_part(i).rows, false, N,
                        keys);
        op.cross_attention_forward(part, part_lse, rows, kv, B, S, part_heads);
        op.attention_merge(to, lse, part, part_lse, true, B, S, part_heads);
    }
    op.round_inputs(y, to, int64_t(N) * h.width());
}

void SparseAttention::backward(bool parts, Activation* dqkv, const Activation* dy, const Input* y,
                               const Activation* qkv, const float* lse, int B, int S, const Heads& h) {
    if (!parts) return ring.attention_backward(dqkv, dy, y, qkv, lse, B, S, h);
    const int N = B * S, row = h.qkv_width(), queries = h.NH * h.HS, keys = row - queries, width = h.width();
    if (batch.key_parts().dilation > 1) {
        const int* const order = batch.key_part(0).rows;
        op.copy_columns(rows, row, qkv, row, order, false, N, row);
        op.copy_columns(dy_rows, width, dy, width, order, false, N, width);
        copy_rows(part, y, order, N, h);
        op.attention_backward(drows, dy_rows, part, rows, lse, B, S, masked(h, 0));
        op.copy_columns(dqkv, row, drows, row, batch.key_part(0).back, false, N, row);
        return;
    }
    Activation *const kv = op.at(rows, aligned(N, queries)), *const dkv = op.at(drows, aligned(N, queries));
    op.attention_backward(dqkv, dy, y, qkv, lse, B, S, h);
    op.copy_columns(rows, queries, qkv, row, nullptr, false, N, queries);
    for (int i = 0; i < batch.key_parts().count(); i++) {
        const KeyParts::Part p = batch.key_part(i);
        op.copy_columns(kv, keys, op.at(const_cast<Activation*>(qkv), queries), row, p.rows, false, N, keys);
        op.cross_attention_backward(drows, dkv, dy, y, rows, kv, lse, B, S, part_of(h, i, S));
        op.copy_columns(dqkv, row, drows, queries, nullptr, true, N, queries);
        op.copy_columns(op.at(dqkv, queries), row, dkv, keys, p.back, true, N, keys);
    }
}
