// gpu_plan.h - an absent GPU, for `flatgpt train --dry-run --gpu NAME`: its data sheet, and a
// device whose operations have only sizes. Needs neither a driver nor CUDA in the binary.
#pragma once
#include <string>
#include <vector>

#include "model/device.h"

struct Gpu {
    const char *name, *text;            // value of --gpu; full name
    int capability, multiprocessors;    // 90: sm_90
    double memory, peak;                // bytes; FLOP/s of dense bf16 products
    double bandwidth, link;             // bytes/s of memory; of the link to other GPUs
};
// Finds a GPU's row by name; "a100" finds a100-40. Exit 2: unknown name, or a GPU that is too old.
Result<Gpu> gpu_named(const std::string& name);
std::string gpu_names();    // "h100, h200, ..."

// Returns the CUDA backend's operation table (Table, layers/ops.h) for this GPU. Only its sizes can
// be read: its operations must not be called.
Table planned_table(const Gpu& gpu, Dtype dtype);

// Opens the device for which a dry run plans: the named GPU, else open_device's; for --device cuda
// on a machine without a GPU, an H100. Exit 2: the named GPU is unknown, too old or lacks the
// dtype; or an exit of open_device.
Result<Device> plan_device(const DeviceOptions& o, const std::string& gpu, int local_rank);
