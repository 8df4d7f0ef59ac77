// cuda.h for the emulator: the driver's tensor maps, and access to the driver through the runtime.
#pragma once
#include "test/cuda_on_cpu/cuda_on_cpu.h"

enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 };
typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
enum CUtensorMapDataType { CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 = 9 };
enum CUtensorMapInterleave { CU_TENSOR_MAP_INTERLEAVE_NONE = 0 };
enum CUtensorMapSwizzle { CU_TENSOR_MAP_SWIZZLE_64B = 2, CU_TENSOR_MAP_SWIZZLE_128B = 3 };
enum CUtensorMapL2promotion { CU_TENSOR_MAP_L2_PROMOTION_L2_256B = 3 };
enum CUtensorMapFloatOOBfill { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE = 0 };

// Opaque on a GPU; here, the description of a tensor of four dimensions.
struct CUtensorMap {
    const char* base;
    int64_t dim[4], stride[4];    // bytes
    int box[4], swizzle;          // swizzle: bytes
};

// Enforces the driver's rules for bf16 and a swizzle.
inline CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t rank, void* base,
                                       const cuuint64_t* dim, const cuuint64_t* strides, const cuuint32_t* box,
                                       const cuuint32_t* element_strides, CUtensorMapInterleave,
                                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    map->swizzle = swizzle == CU_TENSOR_MAP_SWIZZLE_128B ? 128 : 64;
    bool legal = rank == 4 && reinterpret_cast<uintptr_t>(base) % 16 == 0 && int(box[0]) * 2 <= map->swizzle;
    for (int i = 0; i < 4 && legal; i++) {
        const uint64_t stride = i ? strides[i - 1] : 2;
        legal = dim[i] >= 1 && dim[i] <= 1ull << 32 && box[i] >= 1 && box[i] <= 256 && element_strides[i] == 1 &&
                (i == 0 || (stride % 16 == 0 && stride < 1ull << 40));
        map->dim[i] = int64_t(dim[i]), map->stride[i] = int64_t(stride), map->box[i] = int(box[i]);
    }
    map->base = static_cast<const char*>(base);
    return legal ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess = 0, cudaDriverEntryPointSymbolNotFound = 1 };
constexpr unsigned long long cudaEnableDefault = 0;
inline cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                                    cudaDriverEntryPointQueryResult* found) {
    const bool known = strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
    *function = known ? reinterpret_cast<void*>(&cuTensorMapEncodeTiled) : nullptr;
    *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
