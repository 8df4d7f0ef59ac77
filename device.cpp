// device.cpp - from --device, --dtype and --threads to a table of operations.
#include "device.h"

std::vector<Flag> device_flags(DeviceOptions& o, const char* auto_dtype) {
    return {{"--device", &o.device, "where to compute; auto: the GPU if there is one", 0, 0, {"auto", "cpu", "cuda"}},
            {"--dtype",
             &o.dtype,
             std::string("inputs of matrix products; sums, weights and the rest stay fp32. auto: ") + auto_dtype,
             0,
             0,
             {"auto", "fp32", "bf16"}},
            {"--threads", &o.threads, "CPU threads; 0: the cores this process may use", 0, 4096}};
}

Result<const Ops<float>*> choose_ops(const DeviceOptions& o, bool train) {
    if (o.device == "cuda")
        return fail(Exit::device, "--device cuda: this binary was built without a CUDA backend; use --device cpu");
    cpu_set_threads(o.threads);
    if (o.dtype == "bf16" && !cpu_has_bf16())
        return fail(Exit::device,
                    "--dtype bf16: this CPU has no bf16 products (AVX512-BF16 or AMX), fp32 is faster on it");
    const bool bf16 = o.dtype == "bf16" || (o.dtype == "auto" && train && cpu_has_bf16());
    return &cpu_ops(bf16 ? Dtype::bf16 : Dtype::fp32);
}
