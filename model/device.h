// device.h - opens the device that --device, --dtype and --threads select.
#pragma once
#include "base/command.h"
#include "model/model.h"

struct DeviceOptions {
    std::string device = "auto", dtype = "auto";
    int threads = 0;
};
std::vector<Flag> device_flags(DeviceOptions& o, const char* auto_dtype);

struct Device {
    std::unique_ptr<Model> model;    // not allocated yet
    std::string text;                // "cpu bf16 (AMX), 2 threads"
    bool gpu = false;
    Dtype dtype = Dtype::fp32;    // products' type
    double peak = 0;              // GPU: dense bf16 FLOP/s at its clock; 0: unknown
    int64_t context_bytes = 0;    // GPU memory of the driver and its context
    int64_t total_bytes = 0;      // GPU memory in total
    bool planned = false;         // an absent GPU (train/gpu_plan.h): sizes only
    double link = 0;              // planned GPU: bytes/s to other GPUs
};
// For training, --dtype auto means bf16 on a GPU and on a CPU with bf16 instructions, and fp32 on
// other CPUs. A GPU's products then use the fastest of cuBLASLt's algorithms. If not `train`, auto
// means bf16 on a GPU and fp32 on a CPU, and products use the first algorithm that runs.
// local_rank: index of the GPU, ignored if only one is visible. Exit 5: no such device.
Result<Device> open_device(const DeviceOptions& o, bool train, int local_rank = 0);
const char* dtype_name(Dtype dtype);         // value of --dtype
Dtype gpu_dtype(const std::string& name);    // "auto": bf16
// Checks that a GPU of this capability (89: sm_89) has products of this dtype; if not, fails with
// `code`.
Status check_dtype(Dtype dtype, const std::string& gpu, int capability, Exit code);
double measure_peak(const Device& d);    // FLOP/s of a large product; CPU: 0

// Text that lists the algorithms measured fastest for a GPU's products; "" on the CPU. A resumed
// run passes it to device_choose, because other algorithms would round differently.
std::string device_choices();
void device_choose(const std::string& choices);
// Text that lists each GPU, or the reason why there is none, and the CPU's instruction sets.
std::string describe_devices();
