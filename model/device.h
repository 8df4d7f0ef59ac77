// device.h - from --device, --dtype and --threads to a model on a device.
#pragma once
#include "base/command.h"
#include "model/model.h"

struct DeviceOptions {
    std::string device = "auto", dtype = "auto";
    int threads = 0;
};
std::vector<Flag> device_flags(DeviceOptions& o, const char* auto_dtype);

struct Device {
    std::unique_ptr<Model> model;    // empty; its type and device are chosen
    std::string text;                // "cpu bf16 (AMX), 2 threads"
    bool gpu = false;
    Dtype dtype = Dtype::fp32;    // the products' type
    double peak = 0;              // a GPU's dense FLOP/s of bf16 products, whatever the type, by its clock; 0: unknown
    int64_t context_bytes = 0;    // GPU memory that the driver takes before any allocation
    int64_t total_bytes = 0;      // GPU memory in total
    bool planned = false;         // a GPU that is not here (train/gpu_plan.h): it has sizes, no operations
    double bandwidth = 0, link = 0;    // a planned GPU's bytes/s: of its memory, to other GPUs of its machine
};
// train: auto is bf16 on a GPU and where the CPU multiplies it natively, else fp32; a GPU's products are by the fastest
// of the library's algorithms. Otherwise auto is bf16 on a GPU, fp32 on the CPU; products are by the first algorithm
// that runs. local_rank: which of the GPUs that this process sees; the only one, if it sees no other. exit 5: no
// such device.
Result<Device> open_device(const DeviceOptions& o, bool train, int local_rank = 0);
const char* dtype_name(Dtype dtype);         // as --dtype has it
Dtype gpu_dtype(const std::string& name);    // auto: bf16
// exit `code`: a GPU of this capability (89: sm_89) multiplies no such type
Status check_dtype(Dtype dtype, const std::string& gpu, int capability, Exit code);
double measure_peak(const Device& d);    // FLOP/s of a large product, now; 0 on the CPU

// The algorithms that a GPU's library was found fastest with: a resumed run must use the same. "" on the CPU.
std::string device_choices();
void device_choose(const std::string& choices);
// For people: the GPUs, a line each, or why there is none; the CPU's instruction sets.
std::string describe_devices();
