// reference_shortcuts.cpp - definitions of the operations of layers/shortcuts.cpp.
#include <cmath>

#include "reference.h"

namespace reference {
typedef double T;

void residual_mix_forward(double* y, const double* x, const double* x0, const double* factor, const double* factor0,
                          int l, float sign, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = (factor ? factor[l] : 1) * x[i] + T(sign) * factor0[l] * x0[i];
}
void residual_mix_backward(double* d, double* dx0, double* dfactor, double* dfactor0, const double* x, const double* x0,
                           const double* factor, const double* factor0, int l, float sign, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (dfactor) dfactor[l] += d[i] * x[i];
        if (dfactor0) dfactor0[l] += T(sign) * d[i] * x0[i];
        dx0[i] += T(sign) * factor0[l] * d[i];
        d[i] *= factor ? factor[l] : 1;
    }
}

static T sigmoid(T x) { return 1 / (1 + std::exp(-x)); }

// The row that row n gets a part of, or null.
static const double* row_before(const double* x, const double* previous, int n, int S, int C, const int* pos) {
    if (pos ? pos[n] <= 0 : n % S == 0) return nullptr;
    return previous ? previous + int64_t(n) * C : x + int64_t(n - 1) * C;
}
void smear_forward(double* y, const double* x, const double* previous, const double* w, const double* lambda, int B,
                   int S, int C, const int* pos) {
    for (int n = 0; n < B * S; n++) {
        const double *row = x + int64_t(n) * C, *before = row_before(x, previous, n, S, C, pos);
        const T gate = *lambda * sigmoid(dot(row, w, smear_channels(C)));
        for (int c = 0; c < C; c++) y[int64_t(n) * C + c] = row[c] + (before ? gate * before[c] : 0);
    }
}
void smear_backward(double* dx, double* dw, double* dlambda, const double* dy, const double* x, const double* w,
                    const double* lambda, int B, int S, int C, const int* pos) {
    for (int64_t i = 0; i < int64_t(B) * S * C; i++) dx[i] = dy[i];
    for (int n = 0; n < B * S; n++) {
        const double *row = x + int64_t(n) * C, *d = dy + int64_t(n) * C;
        const double* before = row_before(x, nullptr, n, S, C, pos);
        if (!before) continue;
        const T s = sigmoid(dot(row, w, smear_channels(C))), dgate = dot(d, before, C);
        const T dsum = *lambda * s * (1 - s) * dgate;
        add(dx + int64_t(n - 1) * C, *lambda * s, d, C);
        add(dx + int64_t(n) * C, dsum, w, smear_channels(C));
        if (dw) add(dw, dsum, row, smear_channels(C));
        if (dlambda) *dlambda += s * dgate;
    }
}
void previous_tokens(int* previous, int* history, const int* tok, const int* sequences, const int* cache_pos, int B,
                     int S, int positions) {
    for (int n = 0; n < B * S; n++) {
        int* past = history + int64_t(sequences[n / S]) * positions;
        previous[n] = cache_pos[n] > 0 ? past[cache_pos[n] - 1] : 0;
        if (cache_pos[n] >= 0) past[cache_pos[n]] = tok[n];
    }
}

void value_embedding_forward(double* qkv, const double* x, const double* table, const double* gate_w, const int* tok,
                             int N, int C, Heads h) {
    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 0; k < h.NKV; k++) {
            double* v = qkv + n * h.qkv_width() + h.width() + (h.NKV + k) * h.HS;
            const T s = sigmoid(dot(x + n * C, gate_w + k * value_gate_channels(C), value_gate_channels(C)));
            add(v, T(VALUE_GATE_SCALE) * s, table + ((tok ? tok[n] : n) * h.NKV + k) * h.HS, h.HS);
        }
}
void value_embedding_backward(double* dx, double* dvalues, double* dgate_w, const double* dqkv, const double* x,
                              const double* table, const double* gate_w, const int* tok, int N, int C, Heads h) {
    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 0; k < h.NKV; k++) {
            const double* dv = dqkv + n * h.qkv_width() + h.width() + (h.NKV + k) * h.HS;
            const double* w = gate_w + k * value_gate_channels(C);
            const T s = sigmoid(dot(x + n * C, w, value_gate_channels(C)));
            const T dgate = dot(dv, table + ((tok ? tok[n] : n) * h.NKV + k) * h.HS, h.HS);
            const T dsum = T(VALUE_GATE_SCALE) * s * (1 - s) * dgate;
            for (int i = 0; dvalues && i < h.HS; i++)
                dvalues[(n * h.NKV + k) * h.HS + i] = T(VALUE_GATE_SCALE) * s * dv[i];
            add(dx + n * C, dsum, w, value_gate_channels(C));
            if (dgate_w) add(dgate_w + k * value_gate_channels(C), dsum, x + n * C, value_gate_channels(C));
        }
}
}    // namespace reference
