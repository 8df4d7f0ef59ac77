// gpu_plan.h - a GPU that is not here, for `flatgpt train --dry-run --gpu NAME`: its data sheet, and a device whose
// operations are only asked for their sizes. Needs no driver, and no CUDA in the binary.
#pragma once
#include <string>
#include <vector>

#include "model/device.h"

struct Gpu {
    const char *name, *text;            // as --gpu has it, as people call it
    int capability, multiprocessors;    // 90: sm_90
    double memory, peak;                // bytes; dense FLOP/s of bf16 products
    double bandwidth, link;             // bytes/s: of its memory, to the other GPUs of its machine
};
// A row of the table; "a100" finds a100-40. Exit 2: no such row and which there are, or the GPU is too old.
Result<Gpu> gpu_named(const std::string& name);
std::string gpu_names();    // "h100, h200, ..."

// The CUDA backend's table on such a GPU: sizes alone, none of its operations can be called.
Table planned_table(const Gpu& gpu, Dtype dtype);

// The device that a dry run plans for: gpu if it is named, else the one that open_device finds. With --device cuda on
// a machine without a GPU: an H100.   exit 2, and those of open_device
Result<Device> plan_device(const DeviceOptions& o, const std::string& gpu, int local_rank);
