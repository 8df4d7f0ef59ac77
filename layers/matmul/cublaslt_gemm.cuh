// cublaslt_gemm.cuh - what cuBLASLt is asked for: a matrix product, as linear.cu makes it, also for linear_fp8.cu.
#pragma once
#include <cublasLt.h>

#include <compare>
#include <functional>
#include <string>

// D = op(A) op(B) (+ C), through an epilogue; all matrices dense. C and D, bias, sums and aux are of one type.
struct Form {
    cudaDataType_t in, out;
    cublasComputeType_t compute;
    cublasOperation_t ta, tb;
    int m, n, k;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    bool add = false;
    bool b_e5m2 = false;    // B is E5M2, A E4M3
    // fp8's. square: A's 128x128, B's 1x128; rows: both 1x128.
    enum class Scales { tensor, square, rows } scales = {};
    int alignment = 16;    // every pointer's, in bytes; vector loads and TMA want 16, nothing wants more
    auto operator<=>(const Form&) const = default;

    bool fp8() const { return in == CUDA_R_8F_E4M3; }    // then ta is T and tb N; sizes are multiples of 16
    bool blocks() const { return scales != Scales::tensor; }
    cudaDataType_t b_in() const { return b_e5m2 ? CUDA_R_8F_E5M2 : in; }
    bool plain() const { return epilogue == CUBLASLT_EPILOGUE_DEFAULT; }
    const char* other_way() const { return plain() && !fp8() ? "own" : "-"; }    // than cuBLASLt, as in `chosen`
    bool has_bias() const { return epilogue & CUBLASLT_EPILOGUE_BIAS; }
    bool has_aux() const { return epilogue & 128; }
    int sums() const {    // how many sums the epilogue computes
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
    const void *a, *b, *c;    // c: null, d or what d shares no element with
    void* d;
    const void *bias = nullptr, *aux = nullptr;            // GELU_AUX_BIAS writes aux
    float* sums = nullptr;                                 // += the epilogue's sums
    const float *a_scale = nullptr, *b_scale = nullptr;    // fp8: A's and B's numbers are times these
    int64_t kept = 0;                                      // bytes of the scratch that hold operands
};

// steps(operands) does the same without cuBLASLt, or in several calls: where it has no such epilogue or a slow one. Of
// fp8: in bf16.
typedef std::function<void(const Operands&)> Steps;
void multiply(Form f, const Operands& x, const Steps& steps);
// Whether multiply is known to take the steps: then what only cuBLASLt would read need not be made. Only the values of
// the pointers count.
bool takes_steps(Form f, const Operands& x);
void multiply(const Form& f, const Operands& x);    // bf16 or fp32, without an epilogue
