// ring.cpp - see ring.h.
#include "model/ring/ring.h"

#include "model/batch.h"
#include "model/weights.h"

Status Ring::check(const Config& c, const Plan& plan) {
    const int N = plan.cp;
    if (N == 1) return {};
    if (plan.ranks % N)
        return fail(Exit::usage,
                    "--cp %d: expected a divisor of the number of ranks, found %d; start them by mpirun, "
                    "a multiple of %d",
                    N, plan.ranks, N);
    if (plan.S % 2)
        return fail(Exit::usage,
                    "--cp %d, --seq-len %d: expected a multiple of 2 x cp = %d, as each rank has two "
                    "equal chunks of a sequence",
                    N, plan.whole_S(), 2 * N);
    const std::pair<bool, const char*> kinds[] = {
        {c.encoder_layers > 0, "an encoder"},
        {c.mask_kind != MaskKind::causal, "a mask that is not causal"},
        {c.linear != LinearAttention::none, "linear attention"},
        {c.stride > 0 || c.global_tokens > 0, "sparse attention"},
        {c.position == Position::alibi, "ALiBi"},
        {c.bias_distance() > 0, "relative position biases"},
        {c.smear, "smear, which reads the token before"},
        {c.experts > 0, "experts, which count the rows of whole sequences"},
        {plan.dropout > 0 || plan.attention_dropout > 0 || c.adapter.dropout > 0, "dropout"}};
    for (const auto& [found, what] : kinds)
        if (found)
            return fail(Exit::usage, "--cp %d: expected a model without %s, found one with it; leave --cp out", N,
                        what);
    return {};
}

void Ring::lay_out(Layout& at, const Config& c, const Plan& plan) {
    rank = plan.rank % plan.cp;
    ranks = plan.cp;
    if (ranks == 1) return;
    at.purpose("attention around the ranks");
    const int64_t N = plan.max_tokens(), queries = N * c.NH * c.HS, keys = N * 2 * c.NKV * c.HS;
    at.reserve(q, queries);
    for (Activation** p : {&kv[0], &kv[1]}) at.reserve(*p, keys);
    at.reserve(part, queries);
    at.reserve(part_lse, N * c.NH);
    if (op.has_input_type()) at.reserve(sum, queries);
    if (plan.mode != RunMode::train) return;
    at.reserve(dq, queries);
    for (Activation** p : {&dkv[0], &dkv[1], &dkv[2]}) at.reserve(*p, keys);
}

bool Ring::sees(int source, const Heads& h) const { return batch.ring_mask(source, h.window > 0).any; }

// This rank's queries and the keys of rank `source`. Among a rank's own positions, a causal mask of
// whole sequences is a causal mask.
Heads Ring::part_of(const Heads& h, int source, int S) const {
    Heads part_heads = h;
    part_heads.window = 0;
    part_heads.source = source == rank ? 0 : S;
    part_heads.keys = part_heads.queries = nullptr;
    if (source == rank && !h.window && !batch.ring_has_documents()) return part_heads;
    const Batch::RingMask mask = batch.ring_mask(source, h.window > 0);
    part_heads.keys = mask.keys;
    part_heads.queries = mask.queries;
    return part_heads;
}

// Copies the queries to q, and keys and values to kv[0].
void Ring::split(const Activation* qkv, int N, const Heads& h) {
    const int row = h.qkv_width(), queries = h.NH * h.HS, keys = row - queries;
    op.copy_columns(q, queries, qkv, row, nullptr, false, N, queries);
    op.copy_columns(kv[0], keys, op.at(const_cast<Activation*>(qkv), queries), row, nullptr, false, N, keys);
}

// Returns the mark behind the message. A trial step of rank 0 alone has no comm: it computes with
// whatever the buffers hold, and its results are not used.
int64_t Ring::pass_on(Activation* to, const Activation* from, int64_t n) {
    if (!store.comm) return 0;
    store.comm->pass_on(to, from, n, op.activation, ranks);
    return store.comm->mark();
}
static void join(Comm* comm, int64_t mark) {
    if (comm) comm->join(mark);
}

void Ring::attention_forward(Input* y, float* lse, const Activation* qkv, int B, int S, const Heads& h) {
    if (ranks == 1) return op.attention_forward(y, lse, qkv, B, S, h);
    const int N = B * S;
    const int64_t keys = int64_t(N) * 2 * h.NKV * h.HS;
    Activation* const to = sum ? sum : reinterpret_cast<Activation*>(y);
    split(qkv, N, h);
    for (int step = 0; step < ranks; step++) {
        const Activation* present = kv[step % 2];
        const int64_t next = step + 1 < ranks ? pass_on(kv[(step + 1) % 2], present, keys) : 0;
        const Heads part_heads = part_of(h, source_of(step), S);
        if (step == 0) op.attention_forward(part, part_lse, qkv, B, S, part_heads);
        else if (sees(source_of(step), h)) op.cross_attention_forward(part, part_lse, q, present, B, S, part_heads);
        if (sees(source_of(step), h)) op.attention_merge(to, lse, part, part_lse, step > 0, B, S, part_heads);
        join(store.comm, next);
    }
    op.round_inputs(y, to, int64_t(N) * h.width());
}

void Ring::attention_backward(Activation* dqkv, const Activation* dy, const Input* y, const Activation* qkv,
                              const float* lse, int B, int S, const Heads& h) {
    if (ranks == 1) return op.attention_backward(dqkv, dy, y, qkv, lse, B, S, h);
    const int N = B * S, row = h.qkv_width(), queries = h.NH * h.HS, width = row - queries;
    const int64_t keys = int64_t(N) * width;
    Activation* const others = dkv[2];    // gradients that the ranks before have added up
    split(qkv, N, h);
    int64_t next = pass_on(kv[1], kv[0], keys), summed = 0;
    op.attention_backward(dqkv, dy, y, qkv, lse, B, S, part_of(h, rank, S));
    for (int step = 1; step < ranks; step++) {
        Activation* const mine = dkv[step % 2];
        const int source = source_of(step);
        join(store.comm, next);
        if (step + 1 < ranks) next = pass_on(kv[(step + 1) % 2], kv[step % 2], keys);
        if (sees(source, h)) {
            op.cross_attention_backward(dq, mine, dy, y, q, kv[step % 2], lse, B, S, part_of(h, source, S));
            op.copy_columns(dqkv, row, dq, queries, nullptr, true, N, queries);
        } else {
            op.zero(mine, op.bytes(mine, keys));
        }
        join(store.comm, summed);
        if (step > 1) op.copy_columns(mine, width, others, width, nullptr, true, N, width);
        summed = pass_on(others, mine, keys);
    }
    join(store.comm, summed);
    op.copy_columns(op.at(dqkv, queries), row, others, width, nullptr, true, N, width);
}
