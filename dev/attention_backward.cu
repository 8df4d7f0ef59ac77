// attention_backward.cu - the ladder of causal attention's gradient, from probabilities in memory
// to Hopper's wgmma. It calls the kernels of layers/ themselves, not copies. The last rung is the
// production kernel that the operation table chooses for this device.
#include "ladder.h"
#include "tools/selftest/attention.h"

#include "layers/attention/attention.cuh"

namespace {

constexpr int THREADS = 256;

// Row s of head `head` of packed qkv, or of its gradient.
template <class T> __device__ T* packed(T* qkv, int b, int s, int head, int S, Heads h) {
    return qkv + ((int64_t(b) * S + s) * (h.NH + 2 * h.NKV) + head) * h.HS;
}
__device__ inline const bf16* output(const bf16* y, int b, int s, int head, int S, Heads h) {
    return y + ((int64_t(b) * S + s) * h.NH + head) * h.HS;
}
__device__ inline float dot(const bf16* a, const bf16* b, int n) {
    float sum = 0;
    for (int d = 0; d < n; d++) sum += to_float(a[d]) * to_float(b[d]);
    return sum;
}

// p and ds (B,NH,S,S): p = exp(score - lse), ds = p (dy . v - dy . y) / sqrt(HS); 0 where masked
__global__ void score_kernel(float* p, float* ds, const bf16* dy, const bf16* y, const bf16* qkv, const float* lse,
                             int64_t n, int S, Heads h) {
    const int64_t at = int64_t(blockIdx.x) * THREADS + threadIdx.x, row = at / S;
    if (at >= n) return;
    const int i = int(row % S), j = int(at % S), head = int(row / S % h.NH), b = int(row / S / h.NH);
    const int kv = h.NH + head / (h.NH / h.NKV);
    const Span keys = keys_of(h, S, b, i);
    p[at] = ds[at] = 0;
    if (j < keys.from || j >= keys.to) return;
    const float scale = 1 / sqrtf(float(h.HS));
    const bf16* g = output(dy, b, i, head, S, h);
    p[at] = expf(dot(packed(qkv, b, i, head, S, h), packed(qkv, b, j, kv, S, h), h.HS) * scale - lse[row]);
    const float dp = dot(g, packed(qkv, b, j, kv + h.NKV, S, h), h.HS);
    ds[at] = p[at] * (dp - dot(g, output(y, b, i, head, S, h), h.HS)) * scale;
}
// dq[i,d] = sum_j ds_ij k_jd
__global__ void query_kernel(bf16* dqkv, const float* ds, const bf16* qkv, int64_t n, int S, Heads h) {
    const int64_t at = int64_t(blockIdx.x) * THREADS + threadIdx.x, row = at / h.HS;
    if (at >= n) return;
    const int d = int(at % h.HS), i = int(row % S), head = int(row / S % h.NH), b = int(row / S / h.NH);
    float sum = 0;
    for (int j = 0; j <= i; j++)
        sum += ds[row * S + j] * to_float(packed(qkv, b, j, h.NH + head / (h.NH / h.NKV), S, h)[d]);
    packed(dqkv, b, i, head, S, h)[d] = to_bf16(sum);
}
// dk[j,d] = sum_i ds_ij q_id   dv[j,d] = sum_i p_ij dy_id   summed over a group's query heads, too
__global__ void key_kernel(bf16* dqkv, const float* p, const float* ds, const bf16* dy, const bf16* qkv, int64_t n,
                           int S, Heads h) {
    const int64_t at = int64_t(blockIdx.x) * THREADS + threadIdx.x, row = at / h.HS;
    if (at >= n) return;
    const int d = int(at % h.HS), j = int(row % S), kv = int(row / S % h.NKV), b = int(row / S / h.NKV);
    const int group = h.NH / h.NKV;
    float dk = 0, dv = 0;
    for (int head = kv * group; head < (kv + 1) * group; head++)
        for (int i = j; i < S; i++) {
            const int64_t pair = ((int64_t(b) * h.NH + head) * S + i) * S + j;
            dk += ds[pair] * to_float(packed(qkv, b, i, head, S, h)[d]);
            dv += p[pair] * to_float(output(dy, b, i, head, S, h)[d]);
        }
    packed(dqkv, b, j, h.NH + kv, S, h)[d] = to_bf16(dk);
    packed(dqkv, b, j, h.NH + h.NKV + kv, S, h)[d] = to_bf16(dv);
}
void three_kernels(bf16* dqkv, const bf16* dy, const bf16* y, const bf16* qkv, const float* lse, int B, int S,
                   Heads h) {
    const int64_t pairs = int64_t(B) * h.NH * S * S, queries = int64_t(B) * S * h.NH * h.HS;
    const int64_t keys = int64_t(B) * S * h.NKV * h.HS;
    float* p = static_cast<float*>(cuda_scratch(2 * pairs * int64_t(sizeof(float))));
    float* ds = p + pairs;
    launch(score_kernel, {unsigned(ceil_div(pairs, THREADS)), THREADS}, p, ds, dy, y, qkv, lse, pairs, S, h);
    launch(query_kernel, {unsigned(ceil_div(queries, THREADS)), THREADS}, dqkv, ds, qkv, queries, S, h);
    launch(key_kernel, {unsigned(ceil_div(keys, THREADS)), THREADS}, dqkv, p, ds, dy, qkv, keys, S, h);
}

void simt(bf16* dqkv, const bf16* dy, const bf16* y, const bf16* qkv, const float* lse, int B, int S, Heads h) {
    attention_backward_simt(dqkv, dqkv, dy, y, qkv, qkv, lse, B, S, h);
}
void sm80(bf16* dqkv, const bf16* dy, const bf16* y, const bf16* qkv, const float* lse, int B, int S, Heads h) {
    attention_backward_sm80(dqkv, dqkv, dy, y, qkv, qkv, lse, B, S, h);
}

void climb(int B, int S, Heads h) {
    const Ops<bf16>& op = cuda_ops<bf16>(Dtype::bf16);
    const int64_t in = int64_t(B) * S * (h.NH + 2 * h.NKV) * h.HS, out = int64_t(B) * S * h.NH * h.HS;
    const int64_t statistics = int64_t(B) * h.NH * S;
    const double flops = 10.0 * B * h.NH * h.HS * S * (S + 1) / 2;    // five products over visible pairs
    Ladder ladder("attention_backward bf16 B=" + std::to_string(B) + " S=" + std::to_string(S) +
                      " NH=" + std::to_string(h.NH) + " NKV=" + std::to_string(h.NKV) + " HS=" + std::to_string(h.HS),
                  4.0 * double(in + out) + 4.0 * double(statistics), flops);
    Sets<bf16> qkv(op, ladder.sets, in), dy(op, ladder.sets, out), y(op, ladder.sets, out), dqkv(op, ladder.sets, in);
    Sets<float> lse(op, ladder.sets, statistics);
    for (int set = 0; set < ladder.sets; set++) op.attention_forward(y[set], lse[set], qkv[set], B, S, h);
    const TrueSpans documents(1, 200, 70);
    auto rung = [&](const char* name, auto f) {
        const Ops<bf16> rung = with(op, &Ops<bf16>::attention_backward, f);
        const Check check = check_attention_backward(rung, 1, 200, documents.in(h));
        ladder.rung(name, check, [&](int set) { f(dqkv[set], dy[set], y[set], qkv[set], lse[set], B, S, h); });
    };
    rung("probabilities in memory, one thread each", three_kernels);
    rung("tiles in shared memory, FMAs", simt);
    if (cuda_capability() == 90) rung("mma.sync, cp.async", sm80);
    rung(cuda_capability() == 90 ? "wgmma, TMA: production" : "mma.sync, cp.async: production", op.attention_backward);
}

}    // namespace

int main() {
    if (!ladder_open()) return int(Exit::device);
    climb(ladder_size(8, 1), ladder_size(1024, 100), {ladder_size(12, 2), ladder_size(12, 2), 64});    // GPT-2
    climb(ladder_size(2, 1), ladder_size(4096, 100), {ladder_size(16, 2), ladder_size(4, 1), 128});
    return ladder_result();
}
