// gpu_plan.h - an absent GPU, for `flatgpt train --dry-run --gpu NAME`: its data sheet, and a
// device that has only the sizes of operations. Needs no driver, and no CUDA in the binary.
#pragma once
#include <string>
#include <vector>

#include "model/device.h"

struct Gpu {
    const char *name, *text;            // value of --gpu, full name
    int capability, multiprocessors;    // 90: sm_90
    double memory, peak;                // bytes; dense FLOP/s of bf16 products
    double bandwidth, link;             // bytes/s: memory, link to other GPUs
};
// A row of the table; "a100" finds a100-40. Exit 2: unknown name, or too old a GPU.
Result<Gpu> gpu_named(const std::string& name);
std::string gpu_names();    // "h100, h200, ..."

// The CUDA backend's table on this GPU: sizes alone, its operations must not be called.
Table planned_table(const Gpu& gpu, Dtype dtype);

// The device that a dry run plans for: the GPU named, or open_device's; for --device cuda on a
// machine without a GPU, an H100. Exit 2, and open_device's.
Result<Device> plan_device(const DeviceOptions& o, const std::string& gpu, int local_rank);
