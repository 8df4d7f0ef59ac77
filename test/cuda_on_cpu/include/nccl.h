// nccl.h - the part of NCCL in use, emulated between processes of one machine (nccl.cpp).
#pragma once
#include <climits>

#include "test/cuda_on_cpu/cuda_on_cpu.h"

#define NCCL_VERSION_CODE 22809
struct ncclUniqueId {
    char internal[128];
};
typedef struct ncclComm* ncclComm_t;
enum ncclResult_t {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7
};
enum ncclDataType_t { ncclFloat32 = 7, ncclFloat64 = 8, ncclBfloat16 = 9 };
enum ncclRedOp_t { ncclSum = 0 };
struct ncclConfig_t {
    unsigned magic;
    int blocking;
};
#define NCCL_CONFIG_INITIALIZER \
    { 0xcafebeef, INT_MIN }

ncclResult_t ncclGetVersion(int* version);
const char* ncclGetErrorString(ncclResult_t r);
const char* ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);    // from any thread
// send == recv; recv == send + rank * n; send == recv + rank * n; or disjoint. n: elements per
// rank.
ncclResult_t ncclAllReduce(const void* send, void* recv, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t s);
ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t n, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t s);
ncclResult_t ncclBroadcast(const void* send, void* recv, size_t n, ncclDataType_t type, int from, ncclComm_t comm,
                           cudaStream_t s);
ncclResult_t ncclGroupStart();
ncclResult_t ncclSend(const void* send, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t s);
ncclResult_t ncclRecv(void* recv, size_t n, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t s);
ncclResult_t ncclGroupEnd();
ncclResult_t ncclAllGather(const void* send, void* recv, size_t n, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t s);
