// reference_experts.cpp - experts in double and plain loops: the definition. See reference.h.
#include "reference.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace {
using T = double;

// A position's score of each expert and, for the balance, its share of the sum of all scores.
struct Scores {
    std::vector<T> score, share;
    T lse, all = 0;    // lse of the logits; sum of the scores
    Scores(const T* logits, Router r) : score(size_t(r.E)), share(size_t(r.E)) {
        T top = -INFINITY, sum = 0;
        for (int i = 0; i < r.E; i++) top = std::fmax(top, logits[i]);
        for (int i = 0; i < r.E; i++) sum += std::exp(logits[i] - top);
        lse = top + std::log(sum);
        for (int i = 0; i < r.E; i++)
            score[size_t(i)] = r.sigmoid ? 1 / (1 + std::exp(-logits[i])) : std::exp(logits[i] - lse);
        for (T s : score) all += s;
        for (int i = 0; i < r.E; i++) share[size_t(i)] = score[size_t(i)] / all;
    }
    T of_chosen(const int* expert, Router r) const {
        T sum = 0;
        for (int k = 0; k < r.K; k++) sum += score[size_t(expert[k])];
        return sum;
    }
};

// Chooses the K largest of E logits, the largest first; of equal ones the lower number.
void choose(int* expert, const T* logits, Router r) {
    for (int k = 0; k < r.K; k++) {
        expert[k] = -1;
        for (int i = 0; i < r.E; i++)
            if (std::find(expert, expert + k, i) == expert + k && (expert[k] < 0 || logits[i] > logits[expert[k]]))
                expert[k] = i;
    }
}
T sigmoid(T x) { return 1 / (1 + std::exp(-x)); }
}    // namespace

namespace reference {

void router_forward(double* factors, Routes to, double* totals, const double* logits, Router r, int B, int S) {
    const int E = r.E, K = r.K;
    std::fill_n(to.counts, B * E, 0);
    for (int b = 0; b < B; b++) {
        std::vector<T> shares(size_t(E), 0);
        for (int n = b * S; n < (b + 1) * S; n++) {
            int* expert = to.expert + int64_t(n) * K;
            const Scores s(logits + int64_t(n) * E, r);
            choose(expert, logits + int64_t(n) * E, r);
            for (int k = 0; k < K; k++) {
                factors[int64_t(n) * K + k] = s.score[size_t(expert[k])] / (r.normalise ? s.of_chosen(expert, r) : 1);
                to.counts[b * E + expert[k]]++;
            }
            for (int i = 0; i < E; i++) shares[size_t(i)] += s.share[size_t(i)] / S;
            if (totals) totals[E + 1] += s.lse * s.lse;
        }
        for (int i = 0; i < E && totals; i++) {
            const T f = T(to.counts[b * E + i]) / S;
            totals[i] += to.counts[b * E + i];
            totals[E] += T(E) / K * f * shares[size_t(i)];
        }
    }
    int at = 0;
    for (int i = 0; i < E; i++) {
        to.offsets[i] = at;
        for (int row = 0; row < B * S * K; row++)
            if (to.expert[row] == i) to.row[to.permuted_row[row] = at++] = row;
    }
    to.offsets[E] = at;
}

void router_backward(double* dlogits, const double* dfactors, Routes routes, const double* logits, Router r,
                     float balance, float z, int B, int S) {
    const int E = r.E, K = r.K;
    for (int n = 0; n < B * S; n++) {
        const Scores s(logits + int64_t(n) * E, r);
        const int* expert = routes.expert + int64_t(n) * K;
        const T* dw = dfactors + int64_t(n) * K;
        const T chosen = s.of_chosen(expert, r);
        std::vector<T> dscore(size_t(E), 0);
        // Gradient through the factors: w_k = s_k, or s_k / sum.
        T mean = 0;
        for (int k = 0; k < K; k++) mean += s.score[size_t(expert[k])] / chosen * dw[k];
        for (int k = 0; k < K; k++) dscore[size_t(expert[k])] += r.normalise ? (dw[k] - mean) / chosen : dw[k];
        // Gradient of the balance.
        std::vector<T> dshare(size_t(E), 0);
        T mean_share = 0;
        for (int i = 0; i < E; i++) {
            dshare[size_t(i)] = T(balance) * E / K * T(routes.counts[n / S * E + i]) / S;
            mean_share += s.share[size_t(i)] * dshare[size_t(i)];
        }
        for (int i = 0; i < E; i++) dscore[size_t(i)] += (dshare[size_t(i)] - mean_share) / s.all;
        // Gradient through the scores to the logits.
        T mean_score = 0;
        for (int i = 0; i < E; i++) mean_score += s.score[size_t(i)] * dscore[size_t(i)];
        for (int i = 0; i < E; i++) {
            const T score = s.score[size_t(i)], p = std::exp(logits[int64_t(n) * E + i] - s.lse);
            const T d = r.sigmoid ? score * (1 - score) * dscore[size_t(i)] : score * (dscore[size_t(i)] - mean_score);
            dlogits[int64_t(n) * E + i] = d + 2 * T(z) * s.lse * p;
        }
    }
}

void experts_gather(double* y, const double* x, Routes routes, Router r, int N, int C) {
    for (int64_t i = 0; i < int64_t(N) * r.K; i++) std::copy_n(x + int64_t(routes.row[i] / r.K) * C, C, y + i * C);
}
void experts_combine(double* y, const double* residual, const double* x, const double* factors, Routes routes, Router r,
                     int N, int C) {
    for (int64_t n = 0; n < N; n++)
        for (int c = 0; c < C; c++) {
            T sum = residual ? residual[n * C + c] : 0;
            for (int64_t row = n * r.K; row < (n + 1) * r.K; row++)
                sum += (factors ? factors[row] : 1) * x[int64_t(routes.permuted_row[row]) * C + c];
            y[n * C + c] = sum;
        }
}
void experts_combine_backward(double* dx, double* dfactors, const double* dy, const double* x, const double* factors,
                              Routes routes, Router r, int N, int C) {
    for (int64_t row = 0; row < int64_t(N) * r.K; row++) {
        const T* d = dy + row / r.K * C;
        const int64_t at = int64_t(routes.permuted_row[row]) * C;
        dfactors[row] = dot(d, x + at, C);
        for (int c = 0; c < C; c++) dx[at + c] = factors[row] * d[c];
    }
}

void experts_forward(double* y, const double* x, const double* w, Routes routes, Router r, int, int C, int OC) {
    for (int i = 0; i < r.E; i++)
        reference_ops().linear_forward(y + int64_t(routes.offsets[i]) * OC, x + int64_t(routes.offsets[i]) * C,
                                       w + int64_t(i) * OC * C, nullptr, nullptr,
                                       routes.offsets[i + 1] - routes.offsets[i], C, OC, {});
}
void experts_backward(double* dx, GradTarget<double> dw, const double* dy, const double* x, const double* w,
                      Routes routes, Router r, int, int C, int OC) {
    for (int i = 0; i < r.E; i++) {
        const int64_t at = routes.offsets[i], matrix = int64_t(i) * OC * C;
        reference_ops().linear_backward(dx + at * C, {dw.p ? dw.p + matrix : nullptr, dw.add}, nullptr, dy + at * OC,
                                        x + at * C, w + matrix, routes.offsets[i + 1] - routes.offsets[i], C, OC, {});
    }
}

void row_gate_forward(double* y, const double* x, const double* gate, int N, int F) {
    for (int64_t i = 0; i < int64_t(N) * F; i++) y[i] = sigmoid(gate[i / F]) * x[i];
}
void row_gate_backward(double* dx, double* dgate, const double* dy, const double* x, const double* gate, int N, int F) {
    for (int64_t n = 0; n < N; n++) {
        const T s = sigmoid(gate[n]);
        T dot = 0;
        for (int64_t i = n * F; i < (n + 1) * F; i++) {
            dot += dy[i] * x[i];
            dx[i] = s * dy[i];
        }
        dgate[n] = s * (1 - s) * dot;
    }
}

}    // namespace reference
