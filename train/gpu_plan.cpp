// gpu_plan.cpp - data sheets of GPUs, and the CUDA backend's operation table for each.
#include "gpu_plan.h"

#include "layers/cuda.h"
#include "layers/scratch.h"

// ---- the table ----------------------------------------------------------------------------------

namespace {
constexpr double GB = 1e9, TFLOPS = 1e12;
// From NVIDIA's data sheets; peak: bf16 without sparsity, fp32 accumulation. A sheet's GB are read
// as 1e9 bytes. cudaMemGetInfo reports more for an H100 (85.0e9 bytes for 80 GB), but slightly less
// for an L40S (47.7e9 for 48 GB), where ECC takes a part. link: one direction of NVLink, or of PCIe
// x16.
const Gpu GPUS[] = {
    // H100 Tensor Core GPU data sheet (2023): SXM5 1,979 TFLOPS with sparsity, 3.35 TB/s, NVLink
    // 900 GB/s; PCIe 1,513, 2 TB/s, PCIe 5.0. Multiprocessors: H100 architecture paper (2022).
    {"h100", "H100 SXM 80 GB", 90, 132, 80 * GB, 989 * TFLOPS, 3350 * GB, 450 * GB},
    {"h100-pcie", "H100 PCIe 80 GB", 90, 114, 80 * GB, 756 * TFLOPS, 2000 * GB, 64 * GB},
    // H200 Tensor Core GPU data sheet (2024): 141 GB, 4.8 TB/s, products as H100 SXM.
    {"h200", "H200 SXM 141 GB", 90, 132, 141 * GB, 989 * TFLOPS, 4800 * GB, 450 * GB},
    // HGX B200, Blackwell architecture brief (2024): 2.25 PFLOPS, 180 GB, 8 TB/s, NVLink 1.8 TB/s.
    {"b200", "B200 180 GB", 100, 148, 180 * GB, 2250 * TFLOPS, 8000 * GB, 900 * GB},
    // A100 Tensor Core GPU data sheet (2021), SXM: 312 TFLOPS, 1,555 and 2,039 GB/s, NVLink 600
    // GB/s.
    {"a100-40", "A100 SXM 40 GB", 80, 108, 40 * GB, 312 * TFLOPS, 1555 * GB, 300 * GB},
    {"a100-80", "A100 SXM 80 GB", 80, 108, 80 * GB, 312 * TFLOPS, 2039 * GB, 300 * GB},
    // A40 data sheet (2021): 149.7 TFLOPS, 696 GB/s. A10's (2021): 125 TFLOPS, 600 GB/s. PCIe 4.0.
    {"a40", "A40 48 GB", 86, 84, 48 * GB, 149.7 * TFLOPS, 696 * GB, 32 * GB},
    {"a10", "A10 24 GB", 86, 72, 24 * GB, 125 * TFLOPS, 600 * GB, 32 * GB},
    // L40S data sheet (2023): 362.05 TFLOPS, 864 GB/s. L4's (2023): 242 with sparsity, 300 GB/s.
    // PCIe 4.0.
    {"l40s", "L40S 48 GB", 89, 142, 48 * GB, 362 * TFLOPS, 864 * GB, 32 * GB},
    {"l4", "L4 24 GB", 89, 58, 24 * GB, 121 * TFLOPS, 300 * GB, 32 * GB},
    // GA102 architecture paper (2020): 71 TFLOPS. Ada architecture paper (2022): 165.2. RTX
    // Blackwell architecture paper (2025): 209.5. PCIe 4.0, 4.0, 5.0.
    {"rtx3090", "GeForce RTX 3090 24 GB", 86, 82, 24 * GB, 71 * TFLOPS, 936 * GB, 32 * GB},
    {"rtx4090", "GeForce RTX 4090 24 GB", 89, 128, 24 * GB, 165.2 * TFLOPS, 1008 * GB, 32 * GB},
    {"rtx5090", "GeForce RTX 5090 32 GB", 120, 170, 32 * GB, 209.5 * TFLOPS, 1792 * GB, 64 * GB},
    // These GPUs are too old for the CUDA backend, and are listed for a message of their own.
    {"v100", "V100", 70, 80, 32 * GB, 0, 900 * GB, 150 * GB},
    {"t4", "T4", 75, 40, 16 * GB, 0, 320 * GB, 16 * GB},
};
constexpr int OLDEST = 80;    // capability below which cuda_devices refuses
// GPU memory that the driver and its context take before the first allocation: a guess, as it
// depends on the GPU and the driver.
constexpr int64_t DRIVER_BYTES = int64_t(600) << 20;

std::string plain(const std::string& name) {    // "RTX 4090", "rtx-4090", "rtx4090" become equal
    std::string text;
    for (char c : name)
        if (c != ' ' && c != '-' && c != '_') text += char(tolower(static_cast<unsigned char>(c)));
    return text;
}
}    // namespace

std::string gpu_names() {
    std::string text;
    for (const Gpu& g : GPUS)
        if (g.capability >= OLDEST) text += (text.empty() ? "" : ", ") + std::string(g.name);
    return text;
}

Result<Gpu> gpu_named(const std::string& name) {
    const Gpu* found = nullptr;
    const std::string wanted = plain(name);
    for (const Gpu& g : GPUS)
        if (plain(g.name) == wanted) found = &g;
    for (const Gpu& g : GPUS)
        if (!found && !wanted.empty() && std::string(g.name).starts_with(wanted + "-")) found = &g;
    if (!found) {
        std::vector<std::string> known;
        for (const Gpu& g : GPUS) known.push_back(g.name);
        return fail(Exit::usage, "--gpu %s: expected one of %s%s", name.c_str(), gpu_names().c_str(),
                    did_you_mean(name, known).c_str());
    }
    if (found->capability < OLDEST)
        return fail(Exit::usage, "--gpu %s: compute capability %d.%d, needed is 8.0 (Ampere) or newer", name.c_str(),
                    found->capability / 10, found->capability % 10);
    return *found;
}

// ---- the device ---------------------------------------------------------------------------------

namespace {
Gpu planned;    // global, as a table's functions have no context
template <class T> int64_t scratch_bytes(const CallSizes& call) {
    return cuda_call_scratch(call, sizeof(T), planned.multiprocessors, planned.capability == 90);
}
template <class T> Table sizes_table(const std::string& name) {
    static std::string kept;
    kept = name;
    Ops<T> table;
    table.name = kept.c_str();
    table.logits_bytes = cuda_logits_bytes(int64_t(planned.memory));
    table.scratch_bytes = scratch_bytes<T>;
    table.free_bytes = [] { return int64_t(planned.memory) - DRIVER_BYTES; };
#define OPERATION(entry, need, arguments, ...) \
    table.entry = [](auto...) { CHECK(false, "%s: %s computes nothing", #entry, planned.text); };
#include "layers/operations.inc"
#undef OPERATION
    return table;
}
}    // namespace

Table planned_table(const Gpu& gpu, Dtype dtype) {
    planned = gpu;
    const std::string name = std::string(gpu.text) + " " + dtype_name(dtype);
    if (dtype == Dtype::fp32 || dtype == Dtype::tf32) return sizes_table<float>(name);
    Table table = sizes_table<bf16>(name);
    table.fp8 = is_fp8(dtype);
    return table;
}

Result<Device> plan_device(const DeviceOptions& o, const std::string& gpu, int local_rank) {
    std::string why, name = gpu;
    if (gpu.empty()) {
        if (o.device != "cuda" || !cuda_devices(&why).empty()) return open_device(o, true, local_rank);
        name = GPUS[0].name;
    }
    const Gpu found = TRY(gpu_named(name));
    Device d;
    d.gpu = d.planned = true;
    d.dtype = gpu_dtype(o.dtype);
    TRY(check_dtype(d.dtype, found.text, found.capability, Exit::usage));
    d.model = std::make_unique<Model>(planned_table(found, d.dtype));
    const std::string backend = d.model->op.name;
    d.text = backend + ", by its data sheet";
    if (gpu.empty())
        d.text +=
            "\n              as no GPU can be used here (flatgpt info --devices says why)"
            "\n              --gpu NAME plans for another";
    d.peak = planned.peak;
    d.link = planned.link;
    d.context_bytes = DRIVER_BYTES, d.total_bytes = int64_t(planned.memory);
    return d;
}
