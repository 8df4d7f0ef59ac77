// cublaslt.h - the part of cuBLASLt that linear.cu calls. It is loaded when a GPU is opened. If the
// binary were linked with it, every command would pay for its 540 MB, even without a GPU: 0.1 s and
// 140 MB of memory, because the loader fills in its tables of pointers at the start.
#pragma once
#include <cublasLt.h>

#include "base/common.h"

// clang-format would format this list of macro calls as an expression.
// clang-format off
#define CUBLASLT_FUNCTIONS(X) \
    X(GetVersion) X(GetStatusString) X(Create) X(MatmulDescCreate) X(MatmulDescDestroy) \
    X(MatmulDescSetAttribute) X(MatrixLayoutCreate) X(MatrixLayoutDestroy) \
    X(MatmulPreferenceCreate) X(MatmulPreferenceDestroy) X(MatmulPreferenceSetAttribute) \
    X(MatmulAlgoGetHeuristic) X(Matmul)
// clang-format on

struct CublasLt {
#define CUBLASLT_POINTER(f) decltype(&cublasLt##f) f = nullptr;
    CUBLASLT_FUNCTIONS(CUBLASLT_POINTER)
#undef CUBLASLT_POINTER
};
extern CublasLt cublaslt;
