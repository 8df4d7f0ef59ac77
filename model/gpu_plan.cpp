// gpu_plan.cpp - the table of GPUs, and the sizes that the CUDA backend asks for on them.
#include "gpu_plan.h"

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "layers/cuda.h"

// ---- the table ------------------------------------------------------------------------------------------------------

namespace {
constexpr double GB = 1e9, TFLOPS = 1e12;
// By NVIDIA's data sheets, bf16 without sparsity, sums in fp32. A sheet's GB are taken as 1e9 bytes, which is safe:
// cudaMemGetInfo shows 85.0e9 bytes of an H100's 80 GB, and 47.7e9 of an L40S' 48, whose ECC takes a part. A link is
// one direction of NVLink, else of PCIe x16.
const Gpu GPUS[] = {
    // H100 Tensor Core GPU data sheet (2023): SXM5 1,979 TFLOPS with sparsity, 3.35 TB/s, NVLink 900 GB/s; PCIe 1,513,
    // 2 TB/s, PCIe 5.0. Multiprocessors: H100 architecture paper (2022).
    {"h100", "H100 SXM 80 GB", 90, 132, 80 * GB, 989 * TFLOPS, 3350 * GB, 450 * GB},
    {"h100-pcie", "H100 PCIe 80 GB", 90, 114, 80 * GB, 756 * TFLOPS, 2000 * GB, 64 * GB},
    // H200 Tensor Core GPU data sheet (2024): 141 GB, 4.8 TB/s, products as H100 SXM.
    {"h200", "H200 SXM 141 GB", 90, 132, 141 * GB, 989 * TFLOPS, 4800 * GB, 450 * GB},
    // HGX B200, Blackwell architecture brief (2024): 2.25 PFLOPS, 180 GB, up to 8 TB/s, NVLink 1.8 TB/s.
    {"b200", "B200 180 GB", 100, 148, 180 * GB, 2250 * TFLOPS, 8000 * GB, 900 * GB},
    // A100 Tensor Core GPU data sheet (2021): 312 TFLOPS, 1,555 and 2,039 GB/s (SXM), NVLink 600 GB/s.
    {"a100-40", "A100 SXM 40 GB", 80, 108, 40 * GB, 312 * TFLOPS, 1555 * GB, 300 * GB},
    {"a100-80", "A100 SXM 80 GB", 80, 108, 80 * GB, 312 * TFLOPS, 2039 * GB, 300 * GB},
    // A40 data sheet (2021): 149.7 TFLOPS, 696 GB/s. A10 data sheet (2021): 125 TFLOPS, 600 GB/s. Both PCIe 4.0.
    {"a40", "A40 48 GB", 86, 84, 48 * GB, 149.7 * TFLOPS, 696 * GB, 32 * GB},
    {"a10", "A10 24 GB", 86, 72, 24 * GB, 125 * TFLOPS, 600 * GB, 32 * GB},
    // L40S data sheet (2023): 362.05 TFLOPS, 864 GB/s. L4 data sheet (2023): 242 with sparsity, 300 GB/s. PCIe 4.0.
    {"l40s", "L40S 48 GB", 89, 142, 48 * GB, 362 * TFLOPS, 864 * GB, 32 * GB},
    {"l4", "L4 24 GB", 89, 58, 24 * GB, 121 * TFLOPS, 300 * GB, 32 * GB},
    // GA102 architecture paper (2020): 71 TFLOPS. Ada architecture paper (2022): 165.2. RTX Blackwell
    // architecture paper (2025): 209.5. PCIe 4.0, 4.0, 5.0.
    {"rtx3090", "GeForce RTX 3090 24 GB", 86, 82, 24 * GB, 71 * TFLOPS, 936 * GB, 32 * GB},
    {"rtx4090", "GeForce RTX 4090 24 GB", 89, 128, 24 * GB, 165.2 * TFLOPS, 1008 * GB, 32 * GB},
    {"rtx5090", "GeForce RTX 5090 32 GB", 120, 170, 32 * GB, 209.5 * TFLOPS, 1792 * GB, 64 * GB},
    // Too old for this backend, and said so.
    {"v100", "V100", 70, 80, 32 * GB, 0, 900 * GB, 150 * GB},
    {"t4", "T4", 75, 40, 16 * GB, 0, 320 * GB, 16 * GB},
};
constexpr int OLDEST = 80;    // cuda_devices refuses what is older
// What the driver and its context take of a GPU's memory before the first allocation: nobody knows it without the GPU.
constexpr int64_t DRIVER_BYTES = int64_t(600) << 20;

std::string plain(const std::string& name) {    // "RTX 4090", "rtx-4090" and "rtx4090" are one name
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
    if (!found) return fail(Exit::usage, "--gpu %s: expected one of %s", name.c_str(), gpu_names().c_str());
    if (found->capability < OLDEST)
        return fail(Exit::usage, "--gpu %s: compute capability %d.%d, needed is 8.0 (Ampere) or newer", name.c_str(),
                    found->capability / 10, found->capability % 10);
    return *found;
}

// ---- sizes ----------------------------------------------------------------------------------------------------------

namespace {
int64_t embedding(int64_t N, int64_t C) {    // embedding.cu: a and b, place, heads, tails
    const int64_t length = std::max<int64_t>(ceil_div(N, 1024), 16);
    return 2 * round_up(4 * N, 256) + round_up(4 * 256 * ceil_div(N, 2048), 256) + 8 * ceil_div(N, length) * C;
}
int64_t norm(int64_t N, int64_t C) { return std::min<int64_t>(512, N) * 2 * C * 4; }
int64_t linear(int64_t N, int64_t columns) {    // linear.cu: cuBLASLt's workspace and a column's sums
    const int64_t rows = std::max<int64_t>(64, ceil_div(N, 128));
    return std::max((int64_t(32) << 20) + round_up(columns * 4, 256), ceil_div(N, rows) * columns * 4);
}

// attention.cu's choice of kernels, and what each keeps between those of its backward.
int64_t attention(const Gpu& gpu, int type_bytes, int64_t B, int64_t S, Heads h) {
    const char* asked = getenv("FLATGPT_ATTENTION");
    const std::string newest = asked ? asked : "sm90";
    const bool half = type_bytes == 2 && newest != "plain", sm80 = half && h.HS % 8 == 0 && h.HS <= 256;
    if (half && newest == "sm90" && gpu.capability == 90 && (h.HS == 64 || h.HS == 128)) {
        const int64_t rows = h.HS == 64 ? 128 : 64, tiles = B * h.NH * ceil_div(S, rows);
        return tiles * 4 * (2 * 64 * 64 + 2 * rows + 1);    // dq, lse and delta, turns
    }
    return 4 * B * h.NH * (sm80 ? 2 * round_up(S, 128) : S);
}
// attention_cached.cu: partial results of the splits of a head's keys.
int64_t cached(const Gpu& gpu, int type_bytes, int64_t B, Heads h) {
    if (h.HS > 1024) return 0;
    const int64_t group = h.NH / h.NKV, E = h.HS % (16 / type_bytes) == 0 && h.HS <= 256 ? 8 : 32;
    const int64_t G = E == 32 || group == 1 ? 1 : group == 2 ? 2 : 4;
    int64_t lanes = 1;
    while (lanes * E < h.HS) lanes *= 2;
    const int64_t items = B * h.NKV * ceil_div(group, G), rounds = ceil_div(INT_MAX, 128 / lanes * (E == 8 ? 4 : 1));
    const int64_t fill = items > 8192 ? 1 : ceil_div(4 * gpu.multiprocessors, items), splits = std::min(fill, rounds);
    return splits > 1 ? items * splits * G * lanes * (E + 2) * 4 : 0;
}
}    // namespace

int64_t planned_scratch(const Gpu& gpu, int type_bytes, int B, int S, int C, int F, int, int, Heads h) {
    const int64_t N = int64_t(B) * S, columns = std::max({C, F, (h.NH + 2 * h.NKV) * h.HS}), sums = 1024 * 8;
    return std::max({embedding(N, C), norm(N, C), linear(N, columns), attention(gpu, type_bytes, B, S, h),
                     cached(gpu, type_bytes, B, h), sums});
}

// ---- the device -----------------------------------------------------------------------------------------------------

namespace {
Gpu planned;    // global, as entries of Ops take no context argument
template <class T> int64_t scratch_bytes(int B, int S, int C, int F, int Vp, int head_rows, Heads h) {
    return planned_scratch(planned, int(sizeof(T)), B, S, C, F, Vp, head_rows, h);
}
int64_t free_bytes() { return int64_t(planned.memory) - DRIVER_BYTES; }

template <class T> std::unique_ptr<Model> plan_model(const std::string& name) {
    static std::string kept;
    static Ops<T> table;
    kept = name;
    table = {};
    table.name = kept.c_str();
    table.logits_bytes = PLANNED_LOGITS_BYTES;
    table.scratch_bytes = scratch_bytes<T>;
    table.free_bytes = free_bytes;
#define OPERATION(entry, need, arguments) table.entry = [](auto...) {};
#include "layers/operations.inc"
#undef OPERATION
    return std::make_unique<Model>(table);
}
}    // namespace

Result<Device> plan_device(const DeviceOptions& o, const std::string& gpu, int local_rank) {
    std::string why, name = gpu;
    if (gpu.empty()) {
        if (o.device != "cuda" || !cuda_devices(&why).empty()) return open_device(o, true, local_rank);
        name = GPUS[0].name;
    }
    if (o.device == "cpu") return fail(Exit::usage, "--gpu %s: --device cpu has none", gpu.c_str());
    Result<Gpu> found = gpu_named(name);
    TRY(found.status);
    planned = found.value;
    Device d;
    d.gpu = d.planned = true;
    d.dtype = o.dtype == "fp32" ? Dtype::fp32 : o.dtype == "tf32" ? Dtype::tf32 : Dtype::bf16;
    const char* type = d.dtype == Dtype::fp32 ? " fp32" : d.dtype == Dtype::tf32 ? " tf32" : " bf16";
    const std::string backend = planned.text + std::string(type);
    d.model = d.dtype == Dtype::bf16 ? plan_model<bf16>(backend) : plan_model<float>(backend);
    d.text = backend + ", by its data sheet";
    if (gpu.empty())
        d.text += "\n              as no GPU can be used here (flatgpt info --devices says why)"
                  "\n              --gpu NAME plans for another";
    d.peak = planned.peak, d.bandwidth = planned.bandwidth, d.link = planned.link;
    d.context_bytes = DRIVER_BYTES, d.total_bytes = int64_t(planned.memory);
    return d;
}
