// cuda.h - the CUDA backend's interface to the rest of the program. Plain C++: no CUDA header.
#pragma once
#include <string>
#include <vector>

#include "ops.h"

struct CudaDevice {
    int index;
    std::string name;
    int major, minor, multiprocessors;
    int64_t memory, free;    // bytes
    double peak_bf16;        // dense FLOP/s of bf16 products, by clock; 0: unknown
};
// The usable GPUs; if none, *why is the reason: no driver, no device, compute capability below 8.0.
std::vector<CudaDevice> cuda_devices(std::string* why);
// Chooses the device of this process. Must precede the first operation.   exit 5
Status cuda_open(int index);
const CudaDevice& cuda_device();
int cublaslt_version();    // loaded library's version: 120900 is 12.9
// GPU memory in use when the device was opened: by the driver and by other processes.
int64_t cuda_context_bytes();

// T float: fp32 or tf32; T bf16: bf16, fp8 or fp8_block. After cuda_open.
template <class T> const Ops<T>& cuda_ops(Dtype dtype);

// linear.cu tries cuBLASLt's algorithms for each shape and chooses the fastest. Two choices may
// round differently, so a checkpoint records them and a resumed run begins with them. Trying takes
// 20 ms and more for each shape, and every length of a prompt has its own: without by_time the
// first algorithm that the heuristic names and that runs is chosen, and a first token need not
// wait. Changing by_time forgets all choices.
void cuda_choose_by_time(bool by_time);    // initially true
std::string cuda_choices();
void cuda_choose(const std::string& choices);    // accepts cuda_choices()' text; ignores unknown text
