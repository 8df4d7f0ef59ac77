// cublaslt_gemm.cuh - a product by cuBLASLt in linear.cu, also for linear_fp8.cu.
#pragma once
#include <cublasLt.h>

#include <compare>
#include <functional>
#include <string>

// D = op(A) op(B) (+ C), then an epilogue; dense matrices. C, D, bias, sums and aux have one type.
struct Form {
    cudaDataType_t in, out;
    cublasComputeType_t compute;
    cublasOperation_t ta, tb;
    int m, n, k;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    bool add = false;
    bool b_e5m2 = false;    // B is E5M2, A E4M3
    // fp8 only. square: A scaled by 128x128 blocks, B by 1x128; rows: both by 1x128.
    enum class Scales { tensor, square, rows } scales = {};
    int alignment = 16;    // bytes, every pointer's; vectors and TMA need 16
    auto operator<=>(const Form&) const = default;

    bool fp8() const { return in == CUDA_R_8F_E4M3; }    // requires ta = T, tb = N, sizes divisible by 16
    bool blocks() const { return scales != Scales::tensor; }
    cudaDataType_t b_in() const { return b_e5m2 ? CUDA_R_8F_E5M2 : in; }
    bool plain() const { return epilogue == CUBLASLT_EPILOGUE_DEFAULT; }
    // The alternative to cuBLASLt, as linear.cu's `chosen` stores it.
    const char* other_way() const { return plain() && !fp8() ? "own" : "-"; }
    bool has_bias() const { return epilogue & CUBLASLT_EPILOGUE_BIAS; }
    bool has_aux() const { return epilogue & 128; }
    int sums() const {    // number of sums that the epilogue computes
        return epilogue == CUBLASLT_EPILOGUE_BGRADB ? n : epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD ? m : 0;
    }
    int64_t out_size() const { return out == CUDA_R_32F ? 4 : 2; }
    std::string text() const {
        char s[160];
        const char* type = scales == Scales::square ? "fp8 128x128 by 1x128"
                           : blocks()               ? "fp8 1x128 by 1x128"
                           : b_e5m2                 ? "fp8 e5m2"
                           : fp8()                  ? "fp8"
                           : in == CUDA_R_32F       ? "fp32"
                                                    : "bf16";
        snprintf(s, sizeof s, "%s to %s%s %s%s %d x %d x %d epilogue %d%s align %d", type,
                 out == CUDA_R_32F ? "fp32" : "bf16", compute == CUBLAS_COMPUTE_32F ? "" : " by tf32", ta ? "T" : "N",
                 tb ? "T" : "N", m, n, k, int(epilogue), add ? " add" : "", alignment);
        return s;
    }
};

struct Operands {
    const void *a, *b, *c;    // c: null, d, or disjoint from d
    void* d;
    const void *bias = nullptr, *aux = nullptr;            // GELU_AUX_BIAS writes aux
    float* sums = nullptr;                                 // the epilogue's sums are added here
    const float *a_scale = nullptr, *b_scale = nullptr;    // fp8: factors of A and B
    int64_t kept = 0;                                      // bytes of scratch that hold operands
};

// steps(operands) computes the product without cuBLASLt or in several calls, for epilogues that
// cuBLASLt lacks or computes slowly. For fp8 it computes in bf16.
typedef std::function<void(const Operands&)> Steps;
void multiply(Form f, const Operands& x, const Steps& steps);
// Whether multiply will certainly use the steps: operands that only cuBLASLt reads are then not
// needed. Only the alignment of x's pointers matters.
bool takes_steps(Form f, const Operands& x);
void multiply(const Form& f, const Operands& x);    // bf16 or fp32, no epilogue
