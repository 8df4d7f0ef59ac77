// cublasLt.h - the part of cuBLASLt that layers/matmul/linear.cu calls, for machines without it:
// plain loops behind the library's interface. Names and values are NVIDIA's, so that the caller's
// source does not change.
//
// It refuses calls that the library's documentation refuses (types, leading dimensions of aux,
// workspaces and pointers that do not suit the algorithm), and throws emu::Error where the library
// would fail silently: dead descriptors, vectors that were never set, outputs that overlap inputs.
// The heuristic offers several algorithms, each with its own order of summation, and some that
// cannot run, to test the caller's choice. With FAST_TF32 inputs are rounded to 10 bits, as in
// tensor cores. Products of two fp8 numbers are exact in float; with block scales, the sum over 128
// of k is multiplied by both scales, then accumulated.
#pragma once
#include "layers/matmul/fp8.cuh"
#include "test/cuda_on_cpu/cublaslt_product.h"

#include <algorithm>
#include <functional>
#include <vector>

namespace emu {

// An algorithm: `parts` of the dot products are summed apart, forwards or backwards.
struct LtAlgorithm {
    static constexpr uint64_t MAGIC = 0x6361626c61734c74;
    uint64_t magic, parts, reduction, backwards, alignment, runs, unused[2];
    bool valid() const { return magic == MAGIC && parts - 1 < 8 && reduction <= 4 && alignment <= 256; }
    size_t workspace(const LtProduct& p) const {
        return reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE ? size_t(p.m() * p.n()) * parts * 4 : 0;
    }
    bool fits(const LtProduct& p) const {    // leading dimensions
        for (const LtLayout* l : {&p.a, &p.b, &p.c, &p.d})
            if (size_t(l->ld) * l->size() % alignment) return false;
        return true;
    }
};
inline LtAlgorithm lt_algorithm(const cublasLtMatmulAlgo_t& a) {
    LtAlgorithm x;
    static_assert(sizeof x == sizeof a);
    memcpy(&x, &a, sizeof x);
    return x;
}
inline cublasLtMatmulAlgo_t lt_opaque(const LtAlgorithm& x) {
    cublasLtMatmulAlgo_t a;
    memcpy(&a, &x, sizeof x);
    return a;
}

inline float lt_number(const void* p, cudaDataType_t type, int64_t i) {
    if (type == CUDA_R_32F) return static_cast<const float*>(p)[i];
    if (type == CUDA_R_8F_E4M3) return to_float(static_cast<const e4m3*>(p)[i]);
    if (type == CUDA_R_8F_E5M2) return to_float(static_cast<const e5m2*>(p)[i]);
    return to_float(static_cast<const bf16*>(p)[i]);
}
inline void lt_store(void* p, cudaDataType_t type, int64_t i, float x) {
    if (type == CUDA_R_32F) static_cast<float*>(p)[i] = x;
    else static_cast<bf16*>(p)[i] = to_bf16(x);
}
inline float lt_tf32(float x) {    // nearest, ties away from zero, 10 bits
    uint32_t u = __float_as_uint(x);
    if ((u & 0x7f800000) == 0x7f800000) return x;
    return __uint_as_float((u + 0x1000) & 0xffffe000);
}
// op(matrix) as floats with k first: (k,m) of A, (k,n) of B.
inline std::vector<float> lt_dense(const void* p, const LtLayout& l, bool columns_are_k, bool tf32) {
    std::vector<float> x(size_t(l.rows * l.columns));
    for (int64_t c = 0; c < l.columns; c++)
        for (int64_t r = 0; r < l.rows; r++) {
            const float v = lt_number(p, l.type, c * l.ld + r);
            x[size_t(columns_are_k ? c * l.rows + r : r * l.columns + c)] = tf32 ? lt_tf32(v) : v;
        }
    return x;
}

// lt_multiply: sum (n,m) += over k: a (k,m), b (k,n).
typedef float LtVector __attribute__((vector_size(16)));
inline LtVector lt_load(const float* p) {
    LtVector v;
    memcpy(&v, p, sizeof v);
    return v;
}
inline void lt_add(float* p, LtVector v) {
    v += lt_load(p);
    memcpy(p, &v, sizeof v);
}
inline void lt_multiply(float* sum, const float* a, const float* b, int64_t m, int64_t n, int64_t k) {
    constexpr int COLUMNS = 4, WIDTH = 8;
    for (int64_t j = 0; j < n; j += COLUMNS)
        for (int64_t i = 0; i < m; i += WIDTH) {
            if (j + COLUMNS <= n && i + WIDTH <= m) {
                LtVector s[COLUMNS][2] = {};
                for (int64_t l = 0; l < k; l++) {
                    const LtVector low = lt_load(a + l * m + i), high = lt_load(a + l * m + i + 4);
                    for (int c = 0; c < COLUMNS; c++) {
                        const float factor = b[l * n + j + c];
                        s[c][0] += low * factor, s[c][1] += high * factor;
                    }
                }
                for (int c = 0; c < COLUMNS; c++) {
                    lt_add(sum + (j + c) * m + i, s[c][0]);
                    lt_add(sum + (j + c) * m + i + 4, s[c][1]);
                }
            } else
                for (int64_t c = j; c < std::min(n, j + COLUMNS); c++)
                    for (int64_t r = i; r < std::min(m, i + WIDTH); r++) {
                        float s = 0;
                        for (int64_t l = 0; l < k; l++) s += a[l * m + r] * b[l * n + c];
                        sum[c * m + r] += s;
                    }
        }
}

// The product of fp8 factors. The tensor cores of sm_90 truncate a sum of 32 products to 13 bits of
// mantissa; every 128 k cuBLASLt adds it to a sum in float (DeepSeek-V3 2024, section 3.3). On an
// H200 (2026-11-27) results of 16 to 272 k were off by 3.6e-5 to 1.4e-4 of their size.
inline void lt_multiply_fp8(float* sum, const float* a, const float* b, int64_t m, int64_t n, int64_t k) {
    constexpr int64_t STEP = 32, PROMOTED = 128;
    std::vector<float> kept(size_t(m * n));
    for (int64_t from = 0; from < k; from += STEP) {
        const int64_t to = std::min(from + STEP, k);
        lt_multiply(kept.data(), a + from * m, b + from * n, m, n, to - from);
        const bool promoted = to == k || to % PROMOTED == 0;
        for (size_t i = 0; i < kept.size(); i++) {
            kept[i] = __uint_as_float(__float_as_uint(kept[i]) & 0xfffffc00);
            if (promoted) sum[i] += kept[i], kept[i] = 0;
        }
    }
}

inline size_t lt_bytes(const LtLayout& l) { return size_t((l.columns - 1) * l.ld + l.rows) * l.size(); }
inline bool lt_overlap(const void* p, size_t p_bytes, const void* q, size_t q_bytes) {
    return p_bytes && q_bytes && uintptr_t(p) < uintptr_t(q) + q_bytes && uintptr_t(q) < uintptr_t(p) + p_bytes;
}

// Set by tests: milliseconds of an algorithm; products for which none is listed, or none runs.
inline std::function<double(const LtProduct&, const LtAlgorithm&)> lt_duration;
inline std::function<bool(const LtProduct&)> lt_knows_none, lt_runs_none;
inline float lt_gelu_error = 0;    // relative error of GELU and its derivative

struct LtCall {
    LtProduct p;
    LtAlgorithm algorithm;
    const void *a, *b, *c;
    void *d, *workspace;
    float alpha, beta;

    void check() const {
        const LtLayout aux = {p.d.type, p.m(), p.n(), p.op.aux_ld};
        const LtLayout vector = {p.d.type, p.sums() ? p.sums() : p.m(), 1, 1};
        const struct {
            const void* at;
            size_t bytes;
            bool written;
        } all[] = {{a, lt_bytes(p.a), false},
                   {b, lt_bytes(p.b), false},
                   {d, lt_bytes(p.d), true},
                   {c, c == d ? 0 : lt_bytes(p.c), false},
                   {workspace, algorithm.workspace(p), true},
                   {p.op.aux, p.has_aux() ? lt_bytes(aux) : 0, p.has_bias()},
                   {p.op.a_scale, p.op.a_scale ? p.scale_bytes(p.op.a_mode, p.m()) : 0, false},
                   {p.op.b_scale, p.op.b_scale ? p.scale_bytes(p.op.b_mode, p.n()) : 0, false},
                   {p.op.bias, p.has_bias() || p.sums() ? lt_bytes(vector) : 0, p.sums() > 0}};
        for (const auto& one : all) {
            if (!on_device(one.at, one.bytes)) throw Error("cublasLtMatmul: an operand is not the device's memory");
            for (const auto& other : all)
                if (&one != &other && one.written && lt_overlap(one.at, one.bytes, other.at, other.bytes))
                    throw Error("cublasLtMatmul: an output overlaps another operand");
        }
        // The library may multiply elements beyond k, zeros, by the padding of 128x128's scales.
        auto padded = [&](const float* scales, cublasLtMatmulMatrixScale_t mode, int64_t rows) {
            if (mode != CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F) return;
            for (int64_t row = 0; row < rows; row += 128)
                for (int64_t block = p.blocks(); block % 4; block++)
                    if (scales[p.scale_at(mode, rows, row, block)] != 0)
                        throw Error("cublasLtMatmul: the padding of scales is not 0");
        };
        padded(p.op.a_scale, p.op.a_mode, p.m());
        padded(p.op.b_scale, p.op.b_mode, p.n());
    }

    void operator()() const {
        Hidden hidden;
        check();
        if (lt_duration) clock_ms += lt_duration(p, algorithm);
        const int64_t m = p.m(), n = p.n(), k = p.k();
        const bool tf32 = p.op.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
        if (workspace) memset(workspace, 0xff, algorithm.workspace(p));
        const std::vector<float> A = lt_dense(a, p.a, p.op.ta == CUBLAS_OP_N, tf32);
        const std::vector<float> B = lt_dense(b, p.b, p.op.tb == CUBLAS_OP_T, tf32);
        std::vector<float> sum(size_t(m * n));
        static bool turn = false;    // order of parts alternates between calls
        const bool in_place = algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_INPLACE;
        const bool backwards = in_place ? turn ^= true : algorithm.backwards;
        for (uint64_t i = 0; i < algorithm.parts; i++) {
            const uint64_t part = backwards ? algorithm.parts - 1 - i : i;
            const int64_t from = k * int64_t(part) / int64_t(algorithm.parts);
            const int64_t to = k * int64_t(part + 1) / int64_t(algorithm.parts);
            if (p.op.blocks()) multiply_blocks(sum, A, B, from, to);
            else
                (p.a.fp8() ? lt_multiply_fp8 : lt_multiply)(sum.data(), A.data() + from * m, B.data() + from * n, m, n,
                                                            to - from);
        }
        finish(sum);
        if (p.op.epilogue == CUBLASLT_EPILOGUE_BGRADB)
            for (int64_t j = 0; j < n; j++) {
                float s = 0;
                for (int64_t l = 0; l < k; l++) s += B[size_t(l * n + j)];
                lt_store(p.op.bias, p.d.type, j, s);
            }
    }

    void multiply_blocks(std::vector<float>& sum, const std::vector<float>& A, const std::vector<float>& B,
                         int64_t from, int64_t to) const {
        const int64_t m = p.m(), n = p.n();
        std::vector<float> part(sum.size());
        for (int64_t next; from < to; from = next) {
            next = std::min(to, (from / 128 + 1) * 128);
            std::fill(part.begin(), part.end(), 0.0f);
            lt_multiply_fp8(part.data(), A.data() + from * m, B.data() + from * n, m, n, next - from);
            for (int64_t j = 0; j < n; j++)
                for (int64_t i = 0; i < m; i++)
                    sum[size_t(j * m + i)] += part[size_t(j * m + i)] *
                                              (p.op.a_scale[p.scale_at(p.op.a_mode, m, i, from / 128)] *
                                               p.op.b_scale[p.scale_at(p.op.b_mode, n, j, from / 128)]);
        }
    }

    void finish(const std::vector<float>& sum) const {
        constexpr float A = 0.7978845608f, CUBIC = 0.044715f;    // sqrt(2/pi)
        const LtOperation& op = p.op;
        std::vector<float> rows(size_t(p.m()));
        const float scale = op.a_scale && !op.blocks() ? *op.a_scale * *op.b_scale * alpha : alpha;
        for (int64_t j = 0; j < p.n(); j++)
            for (int64_t i = 0; i < p.m(); i++) {
                const int64_t at = j * p.d.ld + i;
                float x = scale * sum[size_t(j * p.m() + i)];
                if (beta != 0) x += beta * lt_number(c, p.c.type, j * p.c.ld + i);
                if (p.has_bias()) x += lt_number(op.bias, p.d.type, i);
                if (op.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
                    lt_store(op.aux, p.d.type, j * op.aux_ld + i, x);
                    x = x / 2 * (1 + tanhf(A * (x + CUBIC * x * x * x))) * (1 + lt_gelu_error);
                } else if (p.has_aux()) {
                    const float v = lt_number(op.aux, p.d.type, j * op.aux_ld + i);
                    const float t = tanhf(A * (v + CUBIC * v * v * v));
                    x *= ((1 + t) / 2 + v / 2 * (1 - t * t) * A * (1 + 3 * CUBIC * v * v)) * (1 + lt_gelu_error);
                }
                rows[size_t(i)] += x;
                lt_store(d, p.d.type, at, x);
            }
        if (op.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD)
            for (int64_t i = 0; i < p.m(); i++) lt_store(op.bias, p.d.type, i, rows[size_t(i)]);
    }
};

}    // namespace emu

using cublasLtHandle_t = emu::LtHandle*;
using cublasLtMatmulDesc_t = emu::LtOperation*;
using cublasLtMatrixLayout_t = emu::LtLayout*;
using cublasLtMatmulPreference_t = emu::LtPreference*;

inline size_t cublasLtGetVersion() { return emu::config.cublaslt; }
inline const char* cublasLtGetStatusString(cublasStatus_t s) {
    switch (s) {
        case CUBLAS_STATUS_SUCCESS: return "success";
        case CUBLAS_STATUS_NOT_INITIALIZED: return "not initialized";
        case CUBLAS_STATUS_INVALID_VALUE: return "invalid value";
        case CUBLAS_STATUS_NOT_SUPPORTED: return "not supported";
    }
    return "unknown";
}
inline cublasStatus_t cublasLtCreate(cublasLtHandle_t* h) { return emu::lt_create(h, {}); }
inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) { return emu::lt_destroy(h); }
inline cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* d, cublasComputeType_t compute,
                                               cudaDataType_t scale) {
    return scale == CUDA_R_32F ? emu::lt_create(d, {compute}) : CUBLAS_STATUS_NOT_SUPPORTED;
}
inline cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { return emu::lt_destroy(d); }
inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what,
                                                     const void* from, size_t bytes) {
    emu::LtOperation& op = emu::lt(d);
    switch (what) {
        case CUBLASLT_MATMUL_DESC_TRANSA: return emu::lt_set(op.ta, from, bytes);
        case CUBLASLT_MATMUL_DESC_TRANSB: return emu::lt_set(op.tb, from, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE: return emu::lt_set(op.epilogue, from, bytes);
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return emu::lt_set(op.bias, from, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return emu::lt_set(op.aux, from, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return emu::lt_set(op.aux_ld, from, bytes);
        case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return emu::lt_set(op.a_scale, from, bytes);
        case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return emu::lt_set(op.b_scale, from, bytes);
        case CUBLASLT_MATMUL_DESC_A_SCALE_MODE: return emu::lt_set(op.a_mode, from, bytes);
        case CUBLASLT_MATMUL_DESC_B_SCALE_MODE: return emu::lt_set(op.b_mode, from, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}
inline cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* l, cudaDataType_t type, uint64_t rows,
                                                 uint64_t columns, int64_t ld) {
    return emu::lt_create(l, {type, int64_t(rows), int64_t(columns), ld});
}
inline cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { return emu::lt_destroy(l); }
inline cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* p) { return emu::lt_create(p, {}); }
inline cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return emu::lt_destroy(p); }
inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                           cublasLtMatmulPreferenceAttributes_t what, const void* from,
                                                           size_t bytes) {
    emu::LtPreference& p = emu::lt(preference);
    switch (what) {
        case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return emu::lt_set(p.workspace, from, bytes);
        case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return emu::lt_set(p.reductions, from, bytes);
        default: return emu::lt_set(p.alignment[what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], from, bytes);
    }
}

inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t op,
                                                     cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                     cublasLtMatmulPreference_t preference, int most,
                                                     cublasLtMatmulHeuristicResult_t* results, int* count) {
    using namespace emu;
    lt(h);
    const LtProduct p = {lt(op), lt(a), lt(b), lt(c), lt(d)};
    const LtPreference& want = lt(preference);
    *count = 0;
    if (most < 1) return CUBLAS_STATUS_INVALID_VALUE;
    if (cublasStatus_t s = p.status()) return s;
    if (lt_knows_none && lt_knows_none(p)) return CUBLAS_STATUS_NOT_SUPPORTED;
    constexpr uint64_t M = LtAlgorithm::MAGIC;
    const LtAlgorithm all[] = {
        {M, 7, CUBLASLT_REDUCTION_SCHEME_INPLACE, 0, 2, 1, {}},
        {M, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0, 16, 0, {}},    // offered, but fails at the call
        {M, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0, 16, 1, {}},
        {M, 3, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 0, 2, 1, {}},
        {M, 2, CUBLASLT_REDUCTION_SCHEME_NONE, 1, 2, 1, {}}};
    for (const LtAlgorithm& x : all) {
        if (*count == most || !x.fits(p) || x.workspace(p) > want.workspace) continue;
        if (x.reduction && !(x.reduction & want.reductions)) continue;
        if (*std::min_element(want.alignment, want.alignment + 4) < x.alignment) continue;
        results[(*count)++] = {lt_opaque(x), x.workspace(p), CUBLAS_STATUS_SUCCESS, 1, {}};
    }
    if (*count < most)    // an unusable result is listed, too
        results[(*count)++] = {{{~uint64_t(0)}}, ~size_t(0), CUBLAS_STATUS_NOT_SUPPORTED, 1, {}};
    return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t op, const void* alpha, const void* a,
                                     cublasLtMatrixLayout_t al, const void* b, cublasLtMatrixLayout_t bl,
                                     const void* beta, const void* c, cublasLtMatrixLayout_t cl, void* d,
                                     cublasLtMatrixLayout_t dl, const cublasLtMatmulAlgo_t* algo, void* workspace,
                                     size_t workspace_bytes, cudaStream_t stream) {
    using namespace emu;
    lt(h);
    const LtProduct p = {lt(op), lt(al), lt(bl), lt(cl), lt(dl)};
    if (!alpha || !beta || !a || !b || !c || !d || !algo) return CUBLAS_STATUS_INVALID_VALUE;
    if (cublasStatus_t s = p.status()) return s;
    const LtAlgorithm x = lt_algorithm(*algo);
    if (!x.valid() || workspace_bytes < x.workspace(p) || (x.workspace(p) && !workspace))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!x.fits(p) || !x.runs || (lt_runs_none && lt_runs_none(p))) return CUBLAS_STATUS_NOT_SUPPORTED;
    for (const void* q : {a, b, c, static_cast<const void*>(d)})
        if (uintptr_t(q) % x.alignment) return CUBLAS_STATUS_NOT_SUPPORTED;
    const float scale = *static_cast<const float*>(alpha), share = *static_cast<const float*>(beta);
    const LtCall call = {p, x, a, b, c, d, workspace, scale, share};
    if (note_launch({nullptr, {unsigned(p.m()), unsigned(p.n()), unsigned(p.k())}, 0, 0})) enqueue(stream, call);
    return CUBLAS_STATUS_SUCCESS;
}
