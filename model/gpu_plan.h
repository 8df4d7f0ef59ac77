// gpu_plan.h - a GPU that is not here, for `flatgpt train --dry-run --gpu NAME`: its data sheet, and a device whose
// operations are only asked for their sizes. Needs no driver, and no CUDA in the binary.
#pragma once
#include <string>
#include <vector>

#include "device.h"

struct Gpu {
    const char *name, *text;               // as --gpu has it, as people call it
    int capability, multiprocessors;       // 90: sm_90
    double memory, peak;                   // bytes; dense FLOP/s of bf16 products
    double bandwidth, link;                // bytes/s: of its memory, to the other GPUs of its machine
};
// A row of the table; "a100" finds a100-40. Exit 2: no such row and which there are, or the GPU is too old.
Result<Gpu> gpu_named(const std::string& name);
std::string gpu_names();    // "h100, h200, ..."

// The scratch that the CUDA backend announces on such a GPU for these sizes; type_bytes: 2 for bf16, 4 for fp32 and
// tf32. A test holds it to what layers/*.cu announce.
int64_t planned_scratch(const Gpu& gpu, int type_bytes, int B, int S, int C, int F, int Vp, int head_rows, Heads h);
constexpr int64_t PLANNED_LOGITS_BYTES = int64_t(512) << 20;    // as cuda.cu's

// The device that a dry run plans for: gpu if it is named, else the one that open_device finds. With --device cuda on
// a machine without a GPU: an H100.   exit 2, and those of open_device
Result<Device> plan_device(const DeviceOptions& o, const std::string& gpu, int local_rank);
