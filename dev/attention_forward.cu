// attention_forward.cu - the ladder of causal attention, from three kernels over a matrix of scores
// to Hopper's wgmma. It calls the kernels of layers/ themselves, not copies. The last rung is the
// production kernel that the operation table chooses for this device.
#include "ladder.h"
#include "tools/selftest/attention.h"

#include "layers/attention/attention.cuh"

namespace {

constexpr int THREADS = 256;

struct Place {
    int b, head, i, j;
};
__device__ inline Place place(int64_t n, int S, Heads h) {    // the n-th of scores (B,NH,S,S)
    const int64_t row = n / S;
    return {int(row / S / h.NH), int(row / S % h.NH), int(row % S), int(n % S)};
}
__device__ inline const bf16* in_qkv(const bf16* qkv, int b, int s, int head, int S, Heads h) {
    return qkv + ((int64_t(b) * S + s) * (h.NH + 2 * h.NKV) + head) * h.HS;
}

// scores[b,head,i,j] = q . k / sqrt(HS), -inf where key j is masked for query i
__global__ void score_kernel(float* scores, const bf16* qkv, int64_t n, int S, Heads h) {
    const int64_t at = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= n) return;
    const Place x = place(at, S, h);
    const bf16* q = in_qkv(qkv, x.b, x.i, x.head, S, h);
    const bf16* k = in_qkv(qkv, x.b, x.j, h.NH + x.head / (h.NH / h.NKV), S, h);
    const Span keys = keys_of(h, S, x.b, x.i);
    float sum = 0;
    for (int d = 0; d < h.HS; d++) sum += to_float(q[d]) * to_float(k[d]);
    scores[at] = keys.from <= x.j && x.j < keys.to ? sum / sqrtf(float(h.HS)) : -INFINITY;
}
// One block per row: scores become probabilities.
__global__ void softmax_kernel(float* lse, float* scores, int S) {
    float* row = scores + int64_t(blockIdx.x) * S;
    float top = -INFINITY, sum = 0;
    for (int j = int(threadIdx.x); j < S; j += THREADS) top = fmaxf(top, row[j]);
    top = block_max(top);
    for (int j = int(threadIdx.x); j < S; j += THREADS) sum += expf(row[j] - top);
    sum = block_sum(sum);
    for (int j = int(threadIdx.x); j < S; j += THREADS) row[j] = expf(row[j] - top) / sum;
    if (threadIdx.x == 0) lse[blockIdx.x] = top + logf(sum);
}
// y[b,i,head,d] = sum_j p_ij v_jd
__global__ void value_kernel(bf16* y, const float* p, const bf16* qkv, int64_t n, int S, Heads h) {
    const int64_t at = int64_t(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= n) return;
    const int d = int(at % h.HS), head = int(at / h.HS % h.NH), i = int(at / h.HS / h.NH % S);
    const int b = int(at / h.HS / h.NH / S), kv = head / (h.NH / h.NKV);
    const float* row = p + ((int64_t(b) * h.NH + head) * S + i) * S;
    float sum = 0;
    for (int j = 0; j <= i; j++) sum += row[j] * to_float(in_qkv(qkv, b, j, h.NH + h.NKV + kv, S, h)[d]);
    y[at] = to_bf16(sum);
}
void three_kernels(bf16* y, float* lse, const bf16* qkv, int B, int S, Heads h) {
    const int64_t rows = int64_t(B) * h.NH * S;
    float* scores = static_cast<float*>(cuda_scratch(rows * S * int64_t(sizeof(float))));
    launch(score_kernel, {unsigned(ceil_div(rows * S, THREADS)), THREADS}, scores, qkv, rows * S, S, h);
    launch(softmax_kernel, {unsigned(rows), THREADS}, lse, scores, S);
    launch(value_kernel, {unsigned(ceil_div(rows * h.HS, THREADS)), THREADS}, y, scores, qkv, rows * h.HS, S, h);
}

void simt(bf16* y, float* lse, const bf16* qkv, int B, int S, Heads h) {
    attention_forward_simt(y, lse, qkv, qkv, B, S, h);
}
void sm80(bf16* y, float* lse, const bf16* qkv, int B, int S, Heads h) {
    attention_forward_sm80(y, lse, qkv, qkv, B, S, h);
}

void climb(int B, int S, Heads h) {
    const Ops<bf16>& op = cuda_ops<bf16>(Dtype::bf16);
    const int64_t in = int64_t(B) * S * (h.NH + 2 * h.NKV) * h.HS, out = int64_t(B) * S * h.NH * h.HS;
    const int64_t statistics = int64_t(B) * h.NH * S;
    const double flops = 4.0 * B * h.NH * h.HS * S * (S + 1) / 2;    // visible pairs
    Ladder ladder("attention_forward bf16 B=" + std::to_string(B) + " S=" + std::to_string(S) +
                      " NH=" + std::to_string(h.NH) + " NKV=" + std::to_string(h.NKV) + " HS=" + std::to_string(h.HS),
                  2.0 * double(in + out) + 4.0 * double(statistics), flops);
    Sets<bf16> qkv(op, ladder.sets, in), y(op, ladder.sets, out);
    Sets<float> lse(op, ladder.sets, statistics);
    const TrueSpans documents(1, 200, 70);
    auto rung = [&](const char* name, auto f) {
        const Ops<bf16> rung = with(op, &Ops<bf16>::attention_forward, f);
        const Check check = check_attention_forward(rung, 1, 200, documents.in(h));
        ladder.rung(name, check, [&](int set) { f(y[set], lse[set], qkv[set], B, S, h); });
    };
    rung("scores in memory, one thread each", three_kernels);
    rung("tiles in shared memory, online softmax, FMAs", simt);
    if (cuda_capability() == 90) rung("mma.sync, cp.async", sm80);
    rung(cuda_capability() == 90 ? "wgmma, TMA: production" : "mma.sync, cp.async: production", op.attention_forward);
}

}    // namespace

int main() {
    if (!ladder_open()) return int(Exit::device);
    climb(ladder_size(8, 1), ladder_size(1024, 100), {ladder_size(12, 2), ladder_size(12, 2), 64});    // GPT-2
    climb(ladder_size(2, 1), ladder_size(4096, 100), {ladder_size(16, 2), ladder_size(4, 1), 128});
    return ladder_result();
}
