// device.cpp - opens the device that --device, --dtype and --threads select. Only this file knows
// which backends were built.
#include "device.h"

#include "comm/comm.h"
#include "base/console.h"
#include "base/philox.h"
#include "layers/cuda.h"

#ifndef HAVE_CUDA    // built without nvcc: stubs return the reason
static const char without[] = "this binary was built without CUDA: make found no nvcc, or was told NVCC=";
std::vector<CudaDevice> cuda_devices(std::string* why) {
    *why = without;
    return {};
}
Status cuda_open(int) { return fail(Exit::device, "%s", without); }
const CudaDevice& cuda_device() {
    static const CudaDevice none = {};
    return none;
}
int cublaslt_version() { return 0; }
int64_t cuda_context_bytes() { return 0; }
template <class T> const Ops<T>& cuda_ops(Dtype) {
    static const Ops<T> none = {};
    return none;
}
template const Ops<float>& cuda_ops(Dtype);
template const Ops<bf16>& cuda_ops(Dtype);
std::string cuda_choices() { return ""; }
void cuda_choose(const std::string&) {}
void cuda_choose_by_time(bool) {}
Result<std::unique_ptr<Comm>> nccl_open(Coordinator&) { return fail(Exit::device, "%s", without); }
Result<std::unique_ptr<Comm>> nccl_join(const std::string&, int, int, Activity*, double) {
    return fail(Exit::device, "%s", without);
}
Result<std::string> nccl_new_id() { return fail(Exit::device, "%s", without); }
void nccl_abort(Comm&) {}
#endif

std::vector<Flag> device_flags(DeviceOptions& o, const char* auto_dtype) {
    return {{"--device", &o.device, "where to compute; auto: the GPU if there is one", 0, 0, {"auto", "cpu", "cuda"}},
            {"--dtype",
             &o.dtype,
             std::string("type of parameters and products. On a GPU also of activations (tf32: of products only); on a "
                         "CPU those that products read are bf16, too, the others stay fp32. fp8: for training on sm_89 "
                         "or newer; as bf16, but products of all blocks except the first and the last round their "
                         "factors to 8 bits. fp8-block: on sm_90, with a scale for each block of a factor, not one "
                         "for all of it. auto: ") +
                 auto_dtype,
             0,
             0,
             {"auto", "fp32", "tf32", "bf16", "fp8", "fp8-block"}},
            {"--threads", &o.threads, "CPU threads; 0: the cores this process may use", 0, 4096}};
}

namespace {
Result<Device> open_cpu(const DeviceOptions& o, bool train) {
    if (o.dtype == "tf32" || is_fp8(gpu_dtype(o.dtype)))
        return fail(Exit::usage, "--dtype %s needs a GPU; a CPU has fp32 and bf16", o.dtype.c_str());
    const bool half = o.dtype == "bf16" || (o.dtype == "auto" && train && cpu_has_bf16());
    Device d;
    d.dtype = half ? Dtype::bf16 : Dtype::fp32;
    d.model = std::make_unique<Model>(half ? Table(cpu_ops<bf16>()) : Table(cpu_ops<float>()));
    d.text = std::string(d.model->op.name) + ", " + counted(cpu_threads(), "thread");
    return d;
}

Result<Device> open_cuda(const DeviceOptions& o, bool train, int index) {
    TRY(cuda_open(index));
    cuda_choose_by_time(train);
    Device d;
    d.gpu = true;
    d.dtype = gpu_dtype(o.dtype);
    const CudaDevice& gpu = cuda_device();
    TRY(check_dtype(d.dtype, gpu.name, 10 * gpu.major + gpu.minor, Exit::device));
    if (const int version = cublaslt_version(); d.dtype == Dtype::fp8_block && version < 120900)
        return fail(Exit::device,
                    "--dtype fp8-block: the cuBLASLt that was loaded is version %d.%d, needed is 12.9 or "
                    "newer; fp8 works",
                    version / 10000, version / 100 % 100);
    const bool half = d.dtype == Dtype::bf16 || is_fp8(d.dtype);
    d.model = std::make_unique<Model>(half ? Table(cuda_ops<bf16>(d.dtype)) : Table(cuda_ops<float>(d.dtype)));
    d.text = d.model->op.name;
    d.peak = cuda_device().peak_bf16;
    d.context_bytes = cuda_context_bytes();
    d.total_bytes = cuda_device().memory;
    return d;
}

// Fills with repeated random numbers, since products of zeros draw less power and run faster.
void fill(const Table& op, void* to, Element type, int64_t n) {
    const int64_t PIECE = 1 << 16, bytes = PIECE * element_bytes(type);
    std::vector<float> numbers(size_t{PIECE});
    for (int64_t i = 0; i < PIECE; i++) numbers[size_t(i)] = philox_normal(1, 2, uint64_t(i));
    std::vector<char> host(static_cast<size_t>(bytes));
    from_floats(host.data(), type, numbers.data(), PIECE);
    for (int64_t i = 0; i < n; i += PIECE) op.upload(static_cast<char*>(to) + i / PIECE * bytes, host.data(), bytes);
}

double product_speed(const Table& op) {
    double best = 0, seconds = 0;
    for (int n = 512; n <= 8192 && seconds < 0.02; n *= 2) {
        const int64_t count = int64_t(n) * n;
        const int64_t y_bytes = count * element_bytes(op.activation), x_bytes = count * element_bytes(op.input);
        const int64_t bytes = y_bytes + x_bytes + count * element_bytes(op.parameter);
        char* memory = static_cast<char*>(op.allocate(bytes));
        if (!memory) break;
        Activation* y = reinterpret_cast<Activation*>(memory);
        Input* x = reinterpret_cast<Input*>(memory + y_bytes);
        Parameter* w = reinterpret_cast<Parameter*>(memory + y_bytes + x_bytes);
        fill(op, x, op.input, count);
        fill(op, w, op.parameter, count);
        auto product = [&] { op.linear_forward(y, x, w, nullptr, nullptr, n, n, n, {}); };
        product();
        op.wait(op.mark());
        const double start = now_seconds();
        for (int r = 0; r < 5; r++) product();
        op.wait(op.mark());
        seconds = now_seconds() - start;
        best = std::max(best, 5 * 2.0 * double(n) * n * n / seconds);
        op.release(memory, bytes);
    }
    return best;
}
}    // namespace

Result<Device> open_device(const DeviceOptions& o, bool train, int local_rank) {
    cpu_set_threads(o.threads);
    if (!train && is_fp8(gpu_dtype(o.dtype)))
        return fail(Exit::usage, "--dtype %s is for training; a model that was trained so is read with bf16",
                    o.dtype.c_str());
    if (o.device == "cpu") return open_cpu(o, train);
    std::string why;
    const std::vector<CudaDevice> devices = cuda_devices(&why);
    const bool found = !devices.empty();
    if (!found && o.device == "cuda") return fail(Exit::device, "--device cuda: %s", why.c_str());
    if (!found) return open_cpu(o, train);
    const size_t at = devices.size() == 1 ? 0 : size_t(local_rank);
    if (at >= devices.size())
        return fail(Exit::device, "rank %d of this machine: it has %zu GPUs; one rank for each, or fewer", local_rank,
                    devices.size());
    return open_cuda(o, train, devices[at].index);
}

static const char* const DTYPES[] = {"fp32", "tf32", "bf16", "fp8", "fp8-block"};    // in the order of Dtype
const char* dtype_name(Dtype dtype) { return DTYPES[int(dtype)]; }
Dtype gpu_dtype(const std::string& name) {
    for (Dtype d : {Dtype::fp32, Dtype::tf32, Dtype::fp8, Dtype::fp8_block})
        if (name == dtype_name(d)) return d;
    return Dtype::bf16;
}
Status check_dtype(Dtype dtype, const std::string& gpu, int capability, Exit code) {
    const bool blocks = dtype == Dtype::fp8_block;
    if (!is_fp8(dtype) || (blocks ? capability == 90 : capability >= 89)) return {};
    return fail(code, "--dtype %s: %s has compute capability %d.%d, needed is %s; %s works there", dtype_name(dtype),
                gpu.c_str(), capability / 10, capability % 10, blocks ? "9.0 (Hopper)" : "8.9 (Ada) or newer",
                blocks && capability >= 89 ? "fp8" : "bf16");
}
double measure_peak(const Device& d) { return d.gpu ? product_speed(d.model->op) : 0; }
std::string device_choices() { return cuda_device().multiprocessors ? cuda_choices() : ""; }
void device_choose(const std::string& choices) {
    if (cuda_device().multiprocessors) cuda_choose(choices);
}

std::string describe_devices() {
    std::string why, text;
    const std::vector<CudaDevice> devices = cuda_devices(&why);
    if (devices.empty()) text = "GPU   none: " + why + "\n";
    for (const CudaDevice& d : devices) {
        text += formatted("GPU   %s, compute capability %d.%d, %d multiprocessors,\n      %s of %s free",
                          d.name.c_str(), d.major, d.minor, d.multiprocessors, human_bytes(double(d.free)).c_str(),
                          human_bytes(double(d.memory)).c_str());
        if (d.peak_bf16 > 0) text += formatted(", %.0f TFLOP/s bf16 by its clock", d.peak_bf16 / 1e12);
        text += "\n";
    }
    return text + "CPU   " + cpu_ops<float>().name + ", " + cpu_ops<bf16>().name + ", " +
           counted(cpu_threads(), "thread") + "\n";
}
