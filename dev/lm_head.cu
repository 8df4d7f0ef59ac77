// lm_head.cu - ladders: cross_entropy in place; the LM head in chunks, as in gpt.cpp.
#include "ladder.h"
#include "tools/selftest/lm_head.h"

namespace {
// ---- cross entropy ------------------------------------------------------------------------------

// One thread per row, three passes. A warp's lanes read rows Vp elements apart and use 2 bytes of
// each 32-byte sector.
__global__ void thread_a_row(float* loss, bf16* d, const bf16* logits, const int* target, float scale, int N, int V,
                             int Vp) {
    const int n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= N) return;
    const bf16* x = logits + int64_t(n) * Vp;
    const float logit = to_float(x[target[n]]);
    float top = -INFINITY, sum = 0;
    for (int v = 0; v < V; v++) top = fmaxf(top, to_float(x[v]));
    for (int v = 0; v < V; v++) sum += expf(to_float(x[v]) - top);
    for (int v = 0; v < Vp; v++) {
        const float p = v < V ? expf(to_float(x[v]) - top) / sum - (v == target[n]) : 0;
        d[int64_t(n) * Vp + v] = to_bf16(scale * p);
    }
    loss[n] = logf(sum) + (top - logit);
}
void cross_entropy_0(float* loss, bf16* d, const bf16* x, const int* target, const float*, float scale, LossPenalties,
                     Logits, int N, int V, int Vp) {
    launch(thread_a_row, {unsigned(ceil_div(N, 32)), 32}, loss, d, x, target, scale, N, V, Vp);
}

// One block per row, W elements per thread and access, the end of the row element by element.
// Sum::apart makes one pass for the maximum, one for the sum, one for the gradient. The others find
// maximum and sum in one pass: the sum is relative to a running maximum and is rescaled at each
// element, or once for W of them.
enum class Sum { apart, by_element, by_vector };
template <Sum SUM, class L> __device__ inline void add(float& top, float& sum, const L& l) {
    float was = top;
    for (int i = 0; i < l.width; i++) {
        top = fmaxf(top, l[i]);
        if (SUM == Sum::by_element) sum = sum * __expf(was - top) + __expf(l[i] - top), was = top;
    }
    if (SUM != Sum::by_vector) return;
    sum *= __expf(was - top);
    for (int i = 0; i < l.width; i++) sum += __expf(l[i] - top);
}
template <int W, Sum SUM>
__global__ void block_a_row(float* loss, bf16* d, const bf16* logits, const int* target, float scale, int V, int Vp) {
    const int64_t row = int64_t(blockIdx.x) * Vp;
    const bf16* x = logits + row;
    const int y = target[blockIdx.x];
    const float logit = to_float(x[y]);
    auto each = [&](auto f) {    // f(v, logits v to v + W - 1)
        for (int v = threadIdx.x * W; v < V / W * W; v += blockDim.x * W) f(v, load<W>(x + v));
        for (int v = V / W * W + threadIdx.x; v < V; v += blockDim.x) f(v, load<1>(x + v));
    };
    float own = -1e30f, sum = 0;
    each([&](int, auto l) { add<SUM>(own, sum, l); });
    const float top = block_max(own);
    if (SUM == Sum::apart)
        each([&](int, auto l) {
            for (int i = 0; i < l.width; i++) sum += __expf(l[i] - top);
        });
    else sum *= __expf(own - top);
    sum = block_sum(sum);
    if (threadIdx.x == 0) loss[blockIdx.x] = logf(sum) + (top - logit);
    each([&](int v, auto l) {
        for (int i = 0; i < l.width; i++) l.set(i, scale * (__expf(l[i] - top) / sum - (v + i == y)));
        store<l.width>(d + row + v, l);
    });
    for (int v = V + threadIdx.x; v < Vp; v += blockDim.x) d[row + v] = to_bf16(0);
}
template <int W, Sum SUM> void cross_entropy_blocks(float* loss, bf16* d, const bf16* x, const int* target,
                                                    const float*, float scale, LossPenalties, Logits, int N, int V,
                                                    int Vp) {
    launch(block_a_row<W, SUM>, {unsigned(N), 1024}, loss, d, x, target, scale, V, Vp);
}

void cross_entropy_ladder(const Ops<bf16>& op) {
    const int N = ladder_size(2048, 4), V = 50257, Vp = 50304;
    Ladder ladder("cross_entropy in place, bf16, V=50257 Vp=50304, N=" + std::to_string(N), 2.0 * N * (V + Vp));
    Sets<bf16> logits(op, ladder.sets, int64_t(N) * Vp);
    Sets<float> loss(op, ladder.sets, N);
    const std::vector<int> tokens = random_tokens(N, V, 1);
    Array<int> target(Memory(op), Numbers(tokens.begin(), tokens.end()));
    const int* y = target;
    for (auto [name, f] : {Rung{"a thread a row, three passes", cross_entropy_0},
                           Rung{"a block a row, three passes", cross_entropy_blocks<1, Sum::apart>},
                           Rung{"16 bytes a thread", cross_entropy_blocks<8, Sum::apart>},
                           Rung{"online softmax: two passes", cross_entropy_blocks<8, Sum::by_element>},
                           Rung{"rescaled once for 8 logits", cross_entropy_blocks<8, Sum::by_vector>},
                           Rung{"production: 2 loads ahead, the row kept", op.cross_entropy}}) {
        const auto run = f;
        ladder.rung(name, check_cross_entropy(with(op, &Ops<bf16>::cross_entropy, run), 5, 1003, 1008, true, true),
                    [&](int set) { run(loss[set], logits[set], logits[set], y, nullptr, 1e-4f, {}, {}, N, V, Vp); });
    }
}

// ---- the head in chunks -------------------------------------------------------------------------

struct Head {
    float *loss, *dw;
    bf16 *dx, *logits;
    const bf16 *x, *w;
    const int* target;
    int N, C, V, Vp;

    // Products, loss and gradients, `rows` rows at a time: logits (rows,Vp).
    void run(const Ops<bf16>& op, int rows) const {
        for (int n = 0; n < N; n += rows) {
            const int R = std::min(rows, N - n);
            op.linear_forward(logits, x + int64_t(n) * C, w, nullptr, nullptr, R, C, Vp, {});
            op.cross_entropy(loss + n, logits, logits, target + n, nullptr, 1, {}, {}, R, V, Vp);
            op.linear_backward(dx + int64_t(n) * C, {dw, n > 0}, nullptr, logits, x + int64_t(n) * C, w, R, C, Vp, {});
        }
    }
};

Check check_head(const Ops<bf16>& op, int rows) {
    const int N = 40, C = 64, V = 1003, Vp = 1008;
    const Ops<double>& ref = reference_ops();
    const Memory m(op);
    const Numbers x = rounded<bf16>(random_normal(N * C, 1)), w = rounded<bf16>(random_normal(Vp * C, 2, 0.2));
    const std::vector<int> y = random_tokens(N, V, 3);
    Numbers logits(size_t(N * Vp)), dx(x.size()), dw(w.size());
    std::vector<float> losses(size_t(N), 0);
    ref.linear_forward(logits.data(), x.data(), w.data(), nullptr, nullptr, N, C, Vp, {});
    ref.cross_entropy(losses.data(), logits.data(), logits.data(), y.data(), nullptr, 1, {}, {}, N, V, Vp);
    ref.linear_backward(dx.data(), {dw.data(), true}, nullptr, logits.data(), x.data(), w.data(), N, C, Vp, {});
    Array<float> loss(m, N), dwd(m, Numbers(w.size(), 0));
    Array<bf16> xd(m, x), wd(m, w), dxd(m, N * C), buffer(m, int64_t(rows) * Vp);
    Array<int> yd(m, Numbers(y.begin(), y.end()));
    Head{loss, dwd, dxd, buffer, xd, wd, yd, N, C, V, Vp}.run(op, rows);
    Check check;
    check.op = "head", check.shape = "rows=" + std::to_string(rows);
    const double limit = 3 * ROUNDING<bf16>;    // logits, dlogits and dx are rounded
    check.expect("loss", loss, Numbers(losses.begin(), losses.end()), limit);
    check.expect("dx", dxd, dx, limit);
    check.expect("dw", dwd, dw, limit);
    return check;
}

void head_ladder(const Ops<bf16>& op) {
    const int N = ladder_size(16384, 8), C = 768, V = ladder_size(50257, 1003), Vp = ladder_size(50304, 1008);
    const double bytes = 4.0 * N * C + 10.0 * Vp * C;    // x, dx; w, and dw read and written
    Ladder ladder("LM head, forward and backward, bf16, C=768, N=" + std::to_string(N), bytes, 6.0 * N * C * Vp);
    Sets<bf16> x(op, ladder.sets, N * C), dx(op, ladder.sets, N * C), w(op, 1, Vp * C, 0.02);
    Sets<bf16> logits(op, 1, int64_t(N) * Vp);
    Sets<float> loss(op, ladder.sets, N), dw(op, 1, Vp * C);
    const std::vector<int> tokens = random_tokens(N, V, 1);
    Array<int> target(Memory(op), Numbers(tokens.begin(), tokens.end()));
    const int* y = target;
    for (int rows : {N, N / 4, N / 8, N / 16}) {
        if (rows == 0) continue;
        char name[60];
        snprintf(name, sizeof name, "%d rows at a time: %.0f MB of logits", rows, 2e-6 * rows * Vp);
        ladder.rung(name, check_head(op, rows == N ? 40 : 16), [&](int set) {
            Head{loss[set], dw[0], dx[set], logits[0], x[set], w[0], y, N, C, V, Vp}.run(op, rows);
        });
    }
}
}    // namespace

int main() {
    if (!ladder_open()) return int(Exit::device);
    const Ops<bf16>& op = cuda_ops<bf16>(Dtype::bf16);
    cross_entropy_ladder(op);
    head_ladder(op);
    return ladder_result();
}
