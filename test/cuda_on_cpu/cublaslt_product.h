// cublaslt_product.h - the emulated cuBLASLt's descriptors (include/cublasLt.h), and the products
// that its documentation allows.
#pragma once
#include "test/cuda_on_cpu/cuda_on_cpu.h"

#include <set>

enum cublasStatus_t {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_NOT_SUPPORTED = 15
};
enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_FAST_TF32 = 77 };
enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_16BF = 14, CUDA_R_8F_E4M3 = 28, CUDA_R_8F_E5M2 = 29 };

enum cublasLtMatmulDescAttributes_t {
    CUBLASLT_MATMUL_DESC_TRANSA = 3,
    CUBLASLT_MATMUL_DESC_TRANSB = 4,
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
    CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER = 11,
    CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD = 12,
    CUBLASLT_MATMUL_DESC_A_SCALE_POINTER = 17,
    CUBLASLT_MATMUL_DESC_B_SCALE_POINTER = 18,
    CUBLASLT_MATMUL_DESC_A_SCALE_MODE = 31,
    CUBLASLT_MATMUL_DESC_B_SCALE_MODE = 32
};
enum cublasLtMatmulMatrixScale_t {
    CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F = 0,
    CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F = 4,
    CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F = 5
};
enum cublasLtEpilogue_t {
    CUBLASLT_EPILOGUE_DEFAULT = 1,
    CUBLASLT_EPILOGUE_BIAS = 4,
    CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 32 | 128 | 4,
    CUBLASLT_EPILOGUE_DGELU = 64 | 128,
    CUBLASLT_EPILOGUE_DGELU_BGRAD = 64 | 128 | 16,
    CUBLASLT_EPILOGUE_BGRADB = 512
};
enum cublasLtReductionScheme_t {
    CUBLASLT_REDUCTION_SCHEME_NONE = 0,
    CUBLASLT_REDUCTION_SCHEME_INPLACE = 1,
    CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2,
    CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE = 4,
    CUBLASLT_REDUCTION_SCHEME_MASK = 7
};
enum cublasLtMatmulPreferenceAttributes_t {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8
};

struct cublasLtMatmulAlgo_t {
    uint64_t data[8];
};
struct cublasLtMatmulHeuristicResult_t {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
};

namespace emu {

struct LtHandle {};
struct LtOperation {
    cublasComputeType_t compute;
    cublasOperation_t ta = CUBLAS_OP_N, tb = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void *bias = nullptr, *aux = nullptr;
    int64_t aux_ld = 0;
    const float *a_scale = nullptr, *b_scale = nullptr;
    cublasLtMatmulMatrixScale_t a_mode = {}, b_mode = {};
    bool blocks() const { return a_mode || b_mode; }
};
struct LtLayout {
    cudaDataType_t type;
    int64_t rows, columns, ld;
    bool fp8() const { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
    size_t size() const { return type == CUDA_R_32F ? 4 : fp8() ? 1 : 2; }
};
struct LtPreference {
    uint64_t workspace = 0;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK, alignment[4] = {256, 256, 256, 256};
};

// Live objects of each kind: a stale descriptor is an error at once, not a later crash.
template <class X> std::set<const void*>& lt_alive() {
    static std::set<const void*> alive;
    return alive;
}
template <class X> X& lt(X* x) {
    if (!lt_alive<X>().count(x)) throw Error("cublasLt: a handle or descriptor was not created, or is destroyed");
    return *x;
}
template <class X> cublasStatus_t lt_create(X** to, X from) {
    lt_alive<X>().insert(*to = new X(from));
    return CUBLAS_STATUS_SUCCESS;
}
template <class X> cublasStatus_t lt_destroy(X* x) {
    lt(x);
    lt_alive<X>().erase(x);
    delete x;
    return CUBLAS_STATUS_SUCCESS;
}
template <class X> cublasStatus_t lt_set(X& to, const void* from, size_t bytes) {
    if (!from || bytes != sizeof(X)) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&to, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

// One product, with copies of its descriptors at the time of the call.
struct LtProduct {
    LtOperation op;
    LtLayout a, b, c, d;
    int64_t m() const { return d.rows; }
    int64_t n() const { return d.columns; }
    int64_t k() const { return op.ta == CUBLAS_OP_N ? a.columns : a.rows; }
    bool has_bias() const { return op.epilogue & CUBLASLT_EPILOGUE_BIAS; }
    bool has_aux() const { return op.epilogue & 128; }
    int64_t sums() const {
        return op.epilogue == CUBLASLT_EPILOGUE_BGRADB ? n() : op.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD ? m() : 0;
    }

    // Index of the scale of a row's block, for a factor with `rows` rows along m or n; and all
    // scales' size with padding.
    int64_t blocks() const { return (k() + 127) / 128; }
    int64_t scale_at(cublasLtMatmulMatrixScale_t mode, int64_t rows, int64_t row, int64_t block) const {
        if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F) return 0;
        if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F) return block * rows + row;
        return row / 128 * ((blocks() + 3) / 4 * 4) + block;
    }
    size_t scale_bytes(cublasLtMatmulMatrixScale_t mode, int64_t rows) const {
        const int64_t padding = mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F ? 3 - (blocks() - 1) % 4 : 0;
        return size_t(scale_at(mode, rows, rows - 1, blocks() - 1) + padding + 1) * 4;
    }
    // cuBLAS's section on block scales: sm_90 only, in both factors, 128x128 in one at most.
    bool block_scales_fit(int capability) const {
        constexpr auto SCALAR = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
        return capability == 90 && op.a_mode != SCALAR && op.b_mode != SCALAR &&
               (op.a_mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F ||
                op.b_mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F) &&
               uintptr_t(op.a_scale) % 16 == 0 && uintptr_t(op.b_scale) % 16 == 0;
    }

    // cuBLAS's section on fp8: at least one factor E4M3, both with k running fastest, all sizes
    // multiples of 16, D in bf16 or fp32; a bias needs bf16. BGRAD and DGELU are for other types.
    cublasStatus_t fp8_status() const {
        cudaDeviceProp device;
        if (cudaGetDeviceProperties(&device, 0) != cudaSuccess || 10 * device.major + device.minor < 89)
            return CUBLAS_STATUS_NOT_SUPPORTED;
        if (op.blocks() && !block_scales_fit(10 * device.major + device.minor)) return CUBLAS_STATUS_NOT_SUPPORTED;
        if (!a.fp8() || !b.fp8() || (a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2) || d.fp8() ||
            c.type != d.type)
            return CUBLAS_STATUS_NOT_SUPPORTED;
        if (op.ta != CUBLAS_OP_T || op.tb != CUBLAS_OP_N || op.compute != CUBLAS_COMPUTE_32F)
            return CUBLAS_STATUS_NOT_SUPPORTED;
        if (m() % 16 || n() % 16 || k() % 16 || a.ld % 16 || b.ld % 16) return CUBLAS_STATUS_NOT_SUPPORTED;
        if (op.epilogue != CUBLASLT_EPILOGUE_DEFAULT &&
            (op.epilogue != CUBLASLT_EPILOGUE_BIAS || d.type != CUDA_R_16BF))
            return CUBLAS_STATUS_NOT_SUPPORTED;
        if (!op.a_scale || !op.b_scale) throw Error("cublasLt: an fp8 factor whose scale was never set");
        if (has_bias() && !op.bias) throw Error("cublasLt: the epilogue's bias pointer was never set");
        return CUBLAS_STATUS_SUCCESS;
    }
    cublasStatus_t status() const {
        for (const LtLayout* l : {&a, &b, &c, &d})
            if (l->rows < 1 || l->columns < 1 || l->ld < l->rows) return CUBLAS_STATUS_INVALID_VALUE;
        const bool at = op.ta == CUBLAS_OP_T, bt = op.tb == CUBLAS_OP_T;
        if ((at ? a.columns : a.rows) != m() || (bt ? b.rows : b.columns) != n() || (bt ? b.columns : b.rows) != k() ||
            c.rows != m() || c.columns != n())
            return CUBLAS_STATUS_INVALID_VALUE;
        if (a.fp8() || b.fp8()) return fp8_status();
        if (op.a_scale || op.b_scale || op.blocks()) throw Error("cublasLt: a scale of a factor that is not fp8");
        const bool half = a.type == CUDA_R_16BF;
        if (b.type != a.type || c.type != d.type || (!half && d.type != CUDA_R_32F)) return CUBLAS_STATUS_NOT_SUPPORTED;
        if (half && op.compute != CUBLAS_COMPUTE_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
        if ((has_aux() || sums()) && d.type != a.type) return CUBLAS_STATUS_NOT_SUPPORTED;
        if (has_aux() && (op.aux_ld % 8 || op.aux_ld < m()))
            throw Error("cublasLt: the leading dimension of aux must be a multiple of 8 and no less than m");
        // The heuristic reads alignments from these pointers.
        if ((has_bias() || sums()) && !op.bias) throw Error("cublasLt: the epilogue's bias pointer was never set");
        if (has_aux() && !op.aux) throw Error("cublasLt: the epilogue's aux pointer was never set");
        return CUBLAS_STATUS_SUCCESS;
    }
};

}    // namespace emu
