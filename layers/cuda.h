// cuda.h - the CUDA backend's interface. Plain C++: it needs no CUDA header.
#pragma once
#include <string>
#include <vector>

#include "ops.h"

struct CudaDevice {
    int index;
    std::string name;
    int major, minor, multiprocessors;
    int64_t memory, free;    // bytes
    double peak_bf16;        // bf16 products, dense FLOP/s by clock; 0: unknown
};
// The usable GPUs. If none, *why gives the reason: no driver, no device, or capability below 8.0.
std::vector<CudaDevice> cuda_devices(std::string* why);
// Chooses the device of this process; fails with exit code 5. Must precede the first operation.
Status cuda_open(int index);
const CudaDevice& cuda_device();
int cublaslt_version();          // 120900 is 12.9
int64_t cuda_context_bytes();    // bytes in use at cuda_open, other processes included

// T float: fp32 or tf32; T bf16: bf16, fp8 or fp8_block. Needs cuda_open.
template <class T> const Ops<T>& cuda_ops(Dtype dtype);

// matmul/linear.cu times cuBLASLt's algorithms for each shape and keeps the fastest. Two algorithms
// may round differently, so a checkpoint records the choices and a resumed run starts with them.
// Timing takes at least 20 ms a shape, and each prompt length is a shape: with by_time false the
// heuristic's first algorithm that runs is used, so that the first token does not wait. A change of
// by_time discards all choices.
void cuda_choose_by_time(bool by_time);    // initially true
std::string cuda_choices();
void cuda_choose(const std::string& choices);    // output of cuda_choices; unknown text is ignored
