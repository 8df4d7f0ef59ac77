// device.h - from --device, --dtype and --threads to a table of operations.
#pragma once
#include "command.h"
#include "layers/layers.h"

struct DeviceOptions {
    std::string device = "auto", dtype = "auto";
    int threads = 0;
};
std::vector<Flag> device_flags(DeviceOptions& o, const char* auto_dtype);
// train: auto is bf16 where the CPU multiplies it natively, else fp32. Otherwise auto is fp32. exit 5: no such device.
Result<const Ops<float>*> choose_ops(const DeviceOptions& o, bool train);
