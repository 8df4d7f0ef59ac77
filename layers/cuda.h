// cuda.h - the CUDA backend as the rest of the program sees it. Plain C++: no CUDA header.
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
// The usable GPUs. Where there is none, *why says so: no driver, no device, compute capability below 8.0.
std::vector<CudaDevice> cuda_devices(std::string* why);
// Chooses the device of this process. Comes before the first operation.   exit 5
Status cuda_open(int index);
const CudaDevice& cuda_device();    // the chosen one
int cublaslt_version();             // the loaded library's: 120900 is 12.9
int64_t cuda_context_bytes();       // its memory in use when it was opened: by the driver and by other processes

// T float: fp32 or tf32; T bf16: bf16, fp8 or fp8_block. After cuda_open.
template <class T> const Ops<T>& cuda_ops(Dtype dtype);

// linear.cu chooses the fastest of cuBLASLt's algorithms for each shape by trying them. Two choices may round
// differently, so a checkpoint records them and a resumed run begins with them. Trying takes 20 ms and more for each
// shape, and every length of a prompt has its own: without by_time the first that the heuristic names and that runs
// is taken: a first token need not wait. Another value of by_time forgets all choices.
void cuda_choose_by_time(bool by_time);    // true at first
std::string cuda_choices();
void cuda_choose(const std::string& choices);    // takes what cuda_choices gave; unknown text is ignored
