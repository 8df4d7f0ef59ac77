// cublaslt.h - the part of cuBLASLt that linear.cu calls, from a library that is loaded when a GPU is opened. Linked to
// the binary, its 540 MB would cost every command, on a machine without a GPU too, 0.1 s and 140 MB of memory: its
// tables of pointers are filled in at the start.
#pragma once
#include <cublasLt.h>

#include "base/common.h"

#define CUBLASLT_FUNCTIONS(X)                                                                                     \
    X(GetVersion) X(GetStatusString) X(Create) X(MatmulDescCreate) X(MatmulDescDestroy) X(MatmulDescSetAttribute) \
    X(MatrixLayoutCreate) X(MatrixLayoutDestroy) X(MatmulPreferenceCreate) X(MatmulPreferenceDestroy)             \
    X(MatmulPreferenceSetAttribute) X(MatmulAlgoGetHeuristic) X(Matmul)

struct CublasLt {
#define CUBLASLT_POINTER(f) decltype(&cublasLt##f) f = nullptr;
    CUBLASLT_FUNCTIONS(CUBLASLT_POINTER)
#undef CUBLASLT_POINTER
};
extern CublasLt cublaslt;
