// linear.cu - y = x w^T + b + residual and its gradients, by cuBLASLt, which only this file calls.
// Up to GEMV_ROWS rows have a kernel of their own (gemv.cuh).
//
// cuBLASLt's matrices are column-major: a row-major (N,OC) is its (OC,N), with leading dimension
// OC. So the factors swap, and D (m,n) = op(A) (m,k) op(B) (k,n) is
//     y  (OC,N) = w (C,OC)^T x  (C,N)
//     dx (C,N)  = w (C,OC)   dy (OC,N)
//     dw (C,OC) = x (C,N)    dy (OC,N)^T
// An epilogue's vector runs along m (bias, sums of dpre) or n (BGRADB: sums of dy). 2 N C OC FLOPs
// each; at least N C + C OC + N OC elements move. With C=768, OC=2304, bf16 and many rows that is
// 576 FLOPs a byte; an H200 does 206 in the time of a byte (989 TFLOP/s, 4.8 TB/s): bound by tensor
// cores.
//
// An epilogue may be free, cost more than a separate kernel, or not exist, depending on GPU, type
// and version. So the first call of a form times all algorithms on the call's operands, and
// separate steps, and keeps the fastest (autotune.h). Inference instead takes the heuristic's first
// algorithm that runs (cuda_choose_by_time). An algorithm gives the same bits every time (cuBLAS
// guide, results reproducibility); two algorithms may differ. For a product without epilogue the
// only alternative is own_gemm.h, used if no algorithm of cuBLASLt runs.
#include <algorithm>
#include <cinttypes>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/console.h"
#include "autotune.h"
#include "cublaslt.h"
#include "layers/cuda.cuh"
#include "layers/cuda.h"
#include "gemv.cuh"
#include "own_gemm.h"
#include "cublaslt_gemm.cuh"

namespace {
// ---- products: cuBLASLt's descriptors -----------------------------------------------------------

[[noreturn]] void blas_failed(int line, const std::string& what, cublasStatus_t status) {
    const std::string text = what + ": cuBLASLt says " + cublaslt.GetStatusString(status);
    cuda_failed(__FILE__, line, text.c_str(), cudaGetLastError());
}
#define CUBLAS_CHECK(call)                                                                                            \
    do {                                                                                                              \
        if (cublasStatus_t status_ = (call); status_ != CUBLAS_STATUS_SUCCESS) blas_failed(__LINE__, #call, status_); \
    } while (0)

constexpr int CANDIDATES = 8, RUNS_PER_TURN = 2;

struct Plan {
    bool usable = false;    // false: steps or own kernels
    cublasLtMatmulDesc_t operation{};
    cublasLtMatrixLayout_t a{}, b{}, d{};
    cublasLtMatmulAlgo_t algorithm{};
    size_t workspace = 0;
};

std::map<Form, Plan> plans;
// cuBLAS 12.9's modes, by value because older headers lack them.
constexpr auto VEC128 = cublasLtMatmulMatrixScale_t(4), BLK128x128 = cublasLtMatmulMatrixScale_t(5);
// Key: Form::text. Value: the algorithm in hex, "-" for the product's steps (Steps), or "own" for
// own_gemm.h. cuda_choices writes the map, cuda_choose reads it.
std::map<std::string, std::string> chosen;
constexpr double STAYS_WARM = 0.1;    // seconds
double last_choice = -STAYS_WARM;     // time of the last choice
bool by_time = true;                  // see cuda_choose_by_time

cublasLtHandle_t handle() {
    static cublasLtHandle_t h = nullptr;
    if (!h) CUBLAS_CHECK(cublaslt.Create(&h));
    return h;
}

template <class X> void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t what, X value) {
    CUBLAS_CHECK(cublaslt.MatmulDescSetAttribute(operation, what, &value, sizeof value));
}

void set_scales(const Plan& p, const float* a, const float* b) {
    set(p.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, a);
    set(p.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, b);
}

// Returns an error with an older cuBLASLt, which has no block scales.
cublasStatus_t set_scale_modes(const Form& f, const Plan& p) {
    const auto a = f.scales == Form::Scales::square ? BLK128x128 : VEC128, b = VEC128;
    if (!f.blocks()) return CUBLAS_STATUS_SUCCESS;
    const auto status = cublaslt.MatmulDescSetAttribute(p.operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &a, sizeof a);
    if (status) return status;
    return cublaslt.MatmulDescSetAttribute(p.operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &b, sizeof b);
}

Plan describe(const Form& f) {
    Plan p;
    auto layout = [](cudaDataType_t type, int rows, int columns) {
        cublasLtMatrixLayout_t made;
        CUBLAS_CHECK(cublaslt.MatrixLayoutCreate(&made, type, uint64_t(rows), uint64_t(columns), rows));
        return made;
    };
    CUBLAS_CHECK(cublaslt.MatmulDescCreate(&p.operation, f.compute, CUDA_R_32F));
    set(p.operation, CUBLASLT_MATMUL_DESC_TRANSA, f.ta);
    set(p.operation, CUBLASLT_MATMUL_DESC_TRANSB, f.tb);
    set(p.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, f.epilogue);
    // Until the call cuBLASLt reads only the pointers' alignment, so any aligned address will do.
    void* const aligned = reinterpret_cast<void*>(uintptr_t(f.alignment));
    if (f.has_bias() || f.sums()) set(p.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, aligned);
    if (f.has_aux()) {
        set(p.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aligned);
        set(p.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t(f.m));
    }
    if (f.fp8()) set_scales(p, static_cast<float*>(aligned), static_cast<float*>(aligned));
    p.a = f.ta == CUBLAS_OP_T ? layout(f.in, f.k, f.m) : layout(f.in, f.m, f.k);
    p.b = f.tb == CUBLAS_OP_T ? layout(f.b_in(), f.n, f.k) : layout(f.b_in(), f.k, f.n);
    p.d = layout(f.out, f.m, f.n);
    return p;
}

void forget(Plan& p) {
    CUBLAS_CHECK(cublaslt.MatmulDescDestroy(p.operation));
    for (cublasLtMatrixLayout_t l : {p.a, p.b, p.d}) CUBLAS_CHECK(cublaslt.MatrixLayoutDestroy(l));
}

cublasStatus_t run(const Form& f, const Plan& p, const Operands& x) {
    const int64_t sums_bytes = round_up(f.sums() * f.out_size(), 256);
    // WORKSPACE: the most that any algorithm may use.
    char* scratch = static_cast<char*>(cuda_scratch(x.kept + sums_bytes + WORKSPACE, x.kept)) + x.kept;
    if (f.fp8()) set_scales(p, x.a_scale, x.b_scale);
    if (f.has_bias()) set(p.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, x.bias);
    if (f.sums()) set(p.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void*>(scratch));
    if (f.has_aux()) set(p.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, x.aux);
    const float alpha = 1, beta = f.add ? 1 : 0;
    const cublasStatus_t status = cublaslt.Matmul(handle(), p.operation, &alpha, x.a, p.a, x.b, p.b, &beta,
                                                  f.add ? x.c : x.d, p.d, x.d, p.d, &p.algorithm, scratch + sums_bytes,
                                                  p.workspace, cuda_stream());
    if (status == CUBLAS_STATUS_SUCCESS && f.sums()) {
        if (f.out == CUDA_R_32F) sum_ranges(x.sums, reinterpret_cast<const float*>(scratch), 1, f.sums(), 1, true);
        else sum_ranges(x.sums, reinterpret_cast<const bf16*>(scratch), 1, f.sums(), 1, true);
    }
    return status;
}

// ---- products: the choice -----------------------------------------------------------------------

struct Candidate {
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace;
};

// Lists cuBLASLt's algorithms. last_status: cuBLASLt's error if the list is empty.
std::vector<Candidate> candidates(const Form& f, const Plan& p, cublasStatus_t* last_status) {
    cublasLtMatmulPreference_t preference;
    CUBLAS_CHECK(cublaslt.MatmulPreferenceCreate(&preference));
    auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
        CUBLAS_CHECK(cublaslt.MatmulPreferenceSetAttribute(preference, what, &value, sizeof value));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(WORKSPACE));
    // A split sum over k is reduced in order and in float, never in place or in the output's type.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    for (auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                       CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
        prefer(which, uint32_t(f.alignment));
    cublasLtMatmulHeuristicResult_t results[CANDIDATES] = {};
    int count = 0;
    const cublasStatus_t status = cublaslt.MatmulAlgoGetHeuristic(handle(), p.operation, p.a, p.b, p.d, p.d, preference,
                                                                  CANDIDATES, results, &count);
    CUBLAS_CHECK(cublaslt.MatmulPreferenceDestroy(preference));
    std::vector<Candidate> found;
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS) found.push_back({results[i].algo, results[i].workspaceSize});
    *last_status = status == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : status;
    return found;
}

std::string hex(const cublasLtMatmulAlgo_t& algorithm) {
    std::string s;
    char word[17];
    for (uint64_t d : algorithm.data) snprintf(word, sizeof word, "%016" PRIx64, d), s += word;
    return s;
}

// Measures on the device's clock. The emulator's clock advances only when a test advances it.
struct Stopwatch {
    cudaEvent_t from, to;
    Stopwatch() {
        for (cudaEvent_t* e : {&from, &to}) CUDA_CHECK(cudaEventCreate(e));
    }
    ~Stopwatch() {
        for (cudaEvent_t e : {from, to}) CUDA_CHECK(cudaEventDestroy(e));
    }
    // Milliseconds of one run; infinite if it fails.
    float time(const std::function<bool()>& run) const {
        float ms;
        CUDA_CHECK(cudaEventRecord(from, cuda_stream()));
        for (int i = 0; i < RUNS_PER_TURN; i++)
            if (!run()) return INFINITY;
        CUDA_CHECK(cudaEventRecord(to, cuda_stream()));
        CUDA_CHECK(cudaEventSynchronize(to));
        CUDA_CHECK(cudaEventElapsedTime(&ms, from, to));
        return ms / RUNS_PER_TURN;
    }
};

// Gives a timed trial its own memory for outputs that it would add to. False: out of memory.
bool trial_operands(const Form& f, Operands& x, char** memory) {
    const int64_t d = f.add && x.c == x.d ? round_up(int64_t(f.m) * f.n * f.out_size(), 256) : 0, sums = f.sums() * 4;
    *memory = nullptr;
    if (d + sums == 0) return true;
    if (cudaMalloc(memory, size_t(d + sums)) != cudaSuccess) {
        (void)cudaGetLastError();    // clears the error
        return false;
    }
    if (d) x.d = *memory;
    if (sums) x.sums = reinterpret_cast<float*>(*memory + d);
    return true;
}

// Index of the fastest algorithm; found.size() if `steps`, separate kernels with the same result,
// are faster; -1 if no algorithm runs.
int fastest(const std::vector<Candidate>& found, const std::function<bool(const Candidate&)>& runs,
            const std::function<void()>& steps) {
    const int algorithms = int(found.size());
    const Stopwatch stopwatch;
    // A new prompt length leads to several choices in a row: only the first warms up the GPU.
    const float warm_ms = now_seconds() - last_choice < STAYS_WARM ? 0 : WARM_MS;
    const auto times = least_times(
        algorithms + (steps != nullptr),
        [&](int i) {
            if (i == algorithms) return stopwatch.time([&] { return steps(), true; });
            return stopwatch.time([&] { return runs(found[size_t(i)]); });
        },
        warm_ms);
    last_choice = now_seconds();
    return pick(times);
}

// Sets the plan's algorithm: `known` if cuBLASLt offers it, else the fastest on the call's operands
// or, without by_time, the first that runs. (The bytes of `known` come from a file, so they are
// only compared.) Sets none if the steps are faster, or if no algorithm runs; then last_status has
// the reason. For products without epilogue, or with only a bias, the steps are not timed.
void choose(const Form& f, Plan& plan, Operands x, const Steps& steps, const std::string& known,
            cublasStatus_t* last_status) {
    if (known == f.other_way()) return;
    if (f.has_aux() && f.m % 8) return;    // cuBLASLt needs aux's rows in multiples of 8
    if ((*last_status = set_scale_modes(f, plan))) return;
    const std::vector<Candidate> found = candidates(f, plan, last_status);
    if (found.empty()) return;
    auto use = [&](const Candidate& c) {
        plan.algorithm = c.algorithm, plan.workspace = c.workspace, plan.usable = true;
    };
    for (const Candidate& c : found)
        if (hex(c.algorithm) == known) return use(c);
    char* memory;
    if (!trial_operands(f, x, &memory)) return use(found[0]);
    auto runs = [&](const Candidate& c) {
        use(c);
        const cublasStatus_t status = run(f, plan, x);
        if (status != CUBLAS_STATUS_SUCCESS) *last_status = status;
        return status == CUBLAS_STATUS_SUCCESS;
    };
    int way;
    if (!by_time) way = int(std::find_if(found.begin(), found.end(), runs) - found.begin());
    else if (f.plain() || f.epilogue == CUBLASLT_EPILOGUE_BIAS) way = fastest(found, runs, nullptr);
    else way = fastest(found, runs, [&] { steps(x); });
    plan.usable = false;
    if (way >= 0 && way < int(found.size())) use(found[size_t(way)]);
    CUDA_CHECK(cudaFree(memory));
}

// Reports that cuBLASLt has no algorithm for a product, and what computes it instead. A plan is
// made once in a process, so the message appears once.
void tell_other_way(const Form& f, const char* why) {
    const std::string form = f.text();
    if (f.fp8()) {
        fprintf(stderr,
                "flatgpt: in fp8 the product %s: cuBLASLt %zu has no algorithm that runs (%s). It is computed "
                "in bf16.\n",
                form.c_str(), cublaslt.GetVersion(), why);
        return;
    }
    fprintf(stderr,
            "flatgpt: the product %s: cuBLASLt %zu has no algorithm that runs (%s). Kernels of flatgpt's own "
            "compute it: right, but slower. Another version of cuBLASLt may have one.\n",
            form.c_str(), cublaslt.GetVersion(), why);
}

Plan& make_plan(const Form& f, const Operands& x, const Steps& steps) {
    const std::string text = f.text();
    cudaStreamCaptureStatus capture;
    CUDA_CHECK(cudaStreamIsCapturing(cuda_stream(), &capture));
    CHECK(capture == cudaStreamCaptureStatusNone,
          "A product of a new form (%s) in a graph capture: "
          "run each operation once before its capture.",
          text.c_str());
    Plan& plan = plans[f] = describe(f);
    std::string& choice = chosen[text];
    cublasStatus_t last_status = CUBLAS_STATUS_SUCCESS;
    choose(f, plan, x, steps, std::string(choice), &last_status);
    if (!plan.usable && (f.plain() || f.fp8()))
        tell_other_way(f, last_status ? cublaslt.GetStatusString(last_status) : "according to the checkpoint");
    choice = plan.usable ? hex(plan.algorithm) : f.other_way();
    return plan;
}

Form aligned(Form f, const Operands& x) {
    uintptr_t all = 16;
    for (const void* p : {x.a, x.b, x.c, static_cast<const void*>(x.d), x.bias, x.aux}) all |= uintptr_t(p);
    f.alignment = int(all & -all);
    return f;
}
}    // namespace

bool takes_steps(Form f, const Operands& x) {
    const auto found = plans.find(aligned(f, x));
    return found != plans.end() && !found->second.usable;
}

void multiply(Form f, const Operands& x, const Steps& steps) {
    f = aligned(f, x);
    const auto found = plans.find(f);
    const Plan& plan = found != plans.end() ? found->second : make_plan(f, x, steps);
    if (plan.usable) CUBLAS_CHECK(run(f, plan, x));
    else steps(x);
}

namespace {
// cuBLASLt's factors are swapped (column-major); own kernels need them swapped back.
void by_own_kernels(const Form& f, const Operands& x) {
    const size_t bytes = size_t(f.m * f.out_size() * f.n);
    if (f.add && x.c != x.d) CUDA_CHECK(cudaMemcpyAsync(x.d, x.c, bytes, cudaMemcpyDeviceToDevice, cuda_stream()));
    const auto product = [&]<class T>(T) {
        const T *a = static_cast<const T*>(x.b), *b = static_cast<const T*>(x.a);
        if (f.ta == CUBLAS_OP_T) own_product(Product::y, x.d, a, b, f.n, f.k, f.m, f.add);
        else if (f.tb == CUBLAS_OP_N) own_product(Product::dx, x.d, a, b, f.n, f.m, f.k, f.add);
        else own_product(Product::dw, x.d, a, b, f.k, f.m, f.n, f.add);
    };
    f.in == CUDA_R_32F ? product(float()) : product(bf16());
}
}    // namespace
void multiply(const Form& f, const Operands& x) {
    multiply(f, x, [&f](const Operands& to) { by_own_kernels(f, to); });
}

namespace {
// Names the library's version and the kind of device for which choices hold.
std::string header() {
    char s[80];
    snprintf(s, sizeof s, "cuBLASLt %zu sm_%d %d", cublaslt.GetVersion(), cuda_capability(), cuda_multiprocessors());
    return s;
}
}    // namespace

// Format "header;form=algorithm;form=-;": no quotes, backslashes or line ends.
std::string cuda_choices() {
    std::string s = header() + ";";
    for (const auto& [form, choice] : chosen) s += form + "=" + choice + ";";
    return s;
}

static void forget_all() {
    for (auto& [form, plan] : plans) forget(plan);
    plans.clear();
    chosen.clear();
    last_choice = -STAYS_WARM;
}

void cuda_choose_by_time(bool now) {
    if (now != by_time) forget_all();
    by_time = now;
}

void cuda_choose(const std::string& choices) {
    forget_all();
    const std::string ours = header() + ";";
    if (choices.compare(0, ours.size(), ours) != 0) return;
    for (size_t at = ours.size(), end; (end = choices.find(';', at)) != std::string::npos; at = end + 1)
        if (const size_t equals = choices.find('=', at); equals < end)
            chosen[choices.substr(at, equals - at)] = choices.substr(equals + 1, end - equals - 1);
}

// ---- linear -------------------------------------------------------------------------------------

namespace {
template <class T, Dtype dtype> struct Linear {
    static constexpr auto type = sizeof(T) == 4 ? CUDA_R_32F : CUDA_R_16BF;
    static constexpr auto compute = dtype == Dtype::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;

    static void forward(T* y, const T* x, const T* w, const T* b, const T* residual, int N, int C, int OC, Precision) {
        if (N <= GEMV_ROWS) return gemv<T>(y, nullptr, x, w, b, residual, N, C, OC);
        const auto epilogue = b ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
        const Form f = {type, type, compute, CUBLAS_OP_T, CUBLAS_OP_N, OC, N, C, epilogue, residual != nullptr};
        const Operands operands = {w, x, residual, y, b};
        if (!b) return multiply(f, operands);
        multiply(f, operands, [&](Operands to) {
            const int64_t n = int64_t(N) * OC;
            launch(bias_rows_kernel<T>, {unsigned(ceil_div(n, 256)), 256}, static_cast<T*>(to.d), b, residual, n, OC);
            Form plain = f;
            plain.epilogue = CUBLASLT_EPILOGUE_DEFAULT, plain.add = true;
            multiply(plain, {w, x, to.d, to.d});
        });
    }

    static void gelu_forward(T* y, T* pre, const T* x, const T* w, const T* b, int N, int C, int OC, Precision) {
        if (N <= GEMV_ROWS) return gemv<T>(y, pre, x, w, b, nullptr, N, C, OC);
        auto in_steps = [&](const Operands&) {
            forward(pre, x, w, b, nullptr, N, C, OC, {});
            cuda_ops<T>(dtype).activation_forward(y, pre, Act::gelu_tanh, false, N, OC);
        };
        if (!b) return in_steps({});
        const auto epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
        multiply({type, type, compute, CUBLAS_OP_T, CUBLAS_OP_N, OC, N, C, epilogue}, {w, x, nullptr, y, b, pre},
                 in_steps);
    }

    static Form dx_form(int N, int C, int OC, cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT) {
        return {type, type, compute, CUBLAS_OP_N, CUBLAS_OP_N, C, N, OC, epilogue};
    }

    // dw (+)= dy^T x   db += sum_n dy
    static void parameters(GradTarget<Grad<T>> dw, Grad<T>* db, const T* dy, const T* x, int N, int C, int OC) {
        if (!dw.p) return db ? column_sums(db, dy, N, OC) : void();
        const auto epilogue = db ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_DEFAULT;
        const Form f = {type, CUDA_R_32F, compute, CUBLAS_OP_N, CUBLAS_OP_T, C, OC, N, epilogue, dw.add};
        Operands operands = {x, dy, dw.p, dw.p};
        if (!db) return multiply(f, operands);
        operands.sums = db;
        multiply(f, operands, [&](const Operands& to) {
            Form plain = f;
            plain.epilogue = CUBLASLT_EPILOGUE_DEFAULT;
            multiply(plain, to);
            column_sums(to.sums, dy, N, OC);
        });
    }

    static void backward(T* dx, GradTarget<Grad<T>> dw, Grad<T>* db, const T* dy, const T* x, const T* w, int N, int C,
                         int OC, Precision) {
        if (dx) multiply(dx_form(N, C, OC), {w, dy, nullptr, dx});
        parameters(dw, db, dy, x, N, C, OC);
    }

    static void gelu_backward(T* dpre, GradTarget<Grad<T>> dw, Grad<T>* db, Grad<T>* dpre_sum, const T* dy, const T* x,
                              const T* w, const T* pre, int N, int C, int OC) {
        auto slope_after = [&](const Operands& to) {
            multiply(dx_form(N, C, OC), to);
            cuda_ops<T>(dtype).activation_backward(dpre, dpre, pre, Act::gelu_tanh, false, N, C);
        };
        auto sums_after = [&](const Operands& to) {
            multiply(dx_form(N, C, OC, CUBLASLT_EPILOGUE_DGELU), to, slope_after);
            column_sums(to.sums, dpre, N, C);
        };
        const Operands operands = {w, dy, nullptr, dpre, nullptr, pre, dpre_sum};
        if (dpre_sum) multiply(dx_form(N, C, OC, CUBLASLT_EPILOGUE_DGELU_BGRAD), operands, sums_after);
        else multiply(dx_form(N, C, OC, CUBLASLT_EPILOGUE_DGELU), operands, slope_after);
        parameters(dw, db, dy, x, N, C, OC);
    }

    static void entries(Ops<T>& o) {
        if (!o.fp8) o.linear_forward = forward, o.linear_backward = backward;    // fp8: linear_fp8.cu's
        o.lm_head_backward = backward;
        o.linear_gelu_forward = gelu_forward;
        o.linear_gelu_backward = gelu_backward;
    }
};

// One thread per element. Bound by memory, and small: an adapter's matrix.
__global__ void keep_blocks_kernel(float* x, RowBlocks blocks, int64_t n, int cols) {
    const int64_t at = blockIdx.x * 256ll + threadIdx.x;
    if (at >= n) return;
    const int r = int(at / cols), c = int(at % cols), i = blocks.of(r);
    if (c < blocks.col[i] || c >= blocks.col[i + 1]) x[at] = 0;
}
void keep_blocks(float* x, RowBlocks blocks, int rows, int cols) {
    const int64_t n = int64_t(rows) * cols;
    launch(keep_blocks_kernel, {unsigned(ceil_div(n, 256)), 256}, x, blocks, n, cols);
}

// A block has NORM_ROWS rows, so that each load of a serves all of them. Runs once per update, with
// 2 R FLOPs for each element of w.
constexpr int NORM_ROWS = 4;
template <class T> __global__ void inverse_row_norms_kernel(float* inverse, const T* w, const T* a, const T* b,
                                                            float scale, RowBlocks blocks, int C, int OC, int R) {
    const int first = blockIdx.x * NORM_ROWS, rows = min(NORM_ROWS, OC - first);
    const int from = blocks.col[blocks.of(first)], to = blocks.col[blocks.of(first + rows - 1) + 1];
    float squares[NORM_ROWS] = {};
    for (int c = threadIdx.x; c < C; c += blockDim.x) {
        float v[NORM_ROWS] = {};
        for (int i = 0; i < rows; i++) v[i] = to_float(w[int64_t(first + i) * C + c]);
        for (int k = from; k < to; k++) {
            const float scaled = scale * to_float(a[int64_t(k) * C + c]);
            for (int i = 0; i < rows; i++) v[i] += scaled * to_float(b[int64_t(first + i) * R + k]);
        }
        for (int i = 0; i < rows; i++) squares[i] += v[i] * v[i];
    }
    for (int i = 0; i < rows; i++) {
        const float norm = sqrtf(block_sum(squares[i]));
        if (threadIdx.x == 0) inverse[first + i] = blocks.columns(first + i) && norm > 0 ? 1 / norm : 0;
    }
}
template <class T> void inverse_row_norms(float* inverse, const T* w, const T* a, const T* b, float scale,
                                          RowBlocks blocks, int C, int OC, int R) {
    launch(inverse_row_norms_kernel<T>, {unsigned(ceil_div(OC, NORM_ROWS)), 256}, inverse, w, a, b, scale, blocks, C,
           OC, R);
}

template <class T, int W>
__device__ inline void column_factors(float (&factor)[W], const T* magnitude, const float* inverse) {
    const Vec<T, W> m = load<W>(magnitude);
#pragma unroll
    for (int j = 0; j < W; j++) factor[j] = inverse[j] != 0 ? m[j] * inverse[j] : 1;
}
// Each thread has W elements of a row. Bound by memory.
template <class T, int W> __global__ void scale_columns_kernel(T* y, const T* x, const T* magnitude,
                                                               const float* inverse, const T* b, const T* residual,
                                                               int64_t n, int C) {
    const int64_t at = (blockIdx.x * 256ll + threadIdx.x) * W;
    if (at >= n) return;
    const int c = int(at % C);
    float factor[W];
    column_factors<T>(factor, magnitude + c, inverse + c);
    Vec<T, W> v = load<W>(x + at), more[2] = {};
    if (b) more[0] = load<W>(b + c);
    if (residual) more[1] = load<W>(residual + at);
#pragma unroll
    for (int j = 0; j < W; j++) v.set(j, v[j] * factor[j] + more[0][j] + more[1][j]);
    store<W>(y + at, v);
}
template <class T> void scale_columns_forward(T* y, const T* x, const T* magnitude, const float* inverse, const T* b,
                                              const T* residual, int N, int C) {
    const int64_t n = int64_t(N) * C;
    auto run = [&](auto kernel, int W) {
        launch(kernel, {unsigned(ceil_div(n, 256 * W)), 256}, y, x, magnitude, inverse, b, residual, n, C);
    };
    rows_align<T>(C) ? run(scale_columns_kernel<T, VEC<T>>, VEC<T>) : run(scale_columns_kernel<T, 1>, 1);
}

// Lanes, warps and ranges of rows as in column_sums (gemv.cuh). Bound by memory.
template <class T, int W> __global__ void scale_columns_backward_kernel(float* sums_out, T* dx, const T* dy, const T* x,
                                                                        const T* magnitude, const float* inverse, int N,
                                                                        int C, int rows, bool add) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int64_t c = (blockIdx.x * 32ll + lane) * W, from = int64_t(blockIdx.y) * rows;
    const int64_t to = from + rows < N ? from + rows : N;
    float sum[W] = {};
    if (c < C) {
        float factor[W];
        column_factors<T>(factor, magnitude + c, inverse + c);
        for (int64_t n = from + warp; n < to; n += SUM_WARPS) {
            const int64_t at = n * C + c;
            Vec<T, W> d = load<W>(dy + at);
            const Vec<T, W> v = load<W>(x + at);
#pragma unroll
            for (int j = 0; j < W; j++) {
                sum[j] += d[j] * v[j];
                d.set(j, d[j] * factor[j]);
            }
            store<W>(dx + at, d);
        }
    }
    if (!sums_out) return;
    add_warps(sum, c, C, [&](int64_t column, float s) {
        float& to_column = sums_out[blockIdx.y * int64_t(C) + column];
        to_column = (add ? to_column : 0) + s * inverse[column];
    });
}
template <class T> void scale_columns_backward(T* dx, float* dmagnitude, const T* dy, const T* x, const T* magnitude,
                                               const float* inverse, int N, int C) {
    const int rows = int(column_sum_rows(N)), parts = int(ceil_div(N, rows));
    const bool in_parts = dmagnitude && parts > 1;
    float* out = in_parts ? static_cast<float*>(cuda_scratch(int64_t(parts) * C * 4)) : dmagnitude;
    auto run = [&](auto kernel, int W) {
        const dim3 grid(unsigned(ceil_div(C, 32 * W)), unsigned(parts));
        launch(kernel, {grid, SUM_WARPS * 32}, out, dx, dy, x, magnitude, inverse, N, C, rows, !in_parts);
    };
    rows_align<T>(C) ? run(scale_columns_backward_kernel<T, VEC<T>>, VEC<T>)
                     : run(scale_columns_backward_kernel<T, 1>, 1);
    if (in_parts) sum_ranges(dmagnitude, out, parts, C, parts, true);
}

const CudaRegistration entries([]<class T>(Ops<T>& o, Dtype dtype) {
    o.keep_blocks = keep_blocks;
    o.inverse_row_norms = inverse_row_norms<T>;
    o.scale_columns_forward = scale_columns_forward<T>;
    o.scale_columns_backward = scale_columns_backward<T>;
    if constexpr (sizeof(T) == 2) Linear<T, Dtype::bf16>::entries(o);
    else if (dtype == Dtype::tf32) Linear<T, Dtype::tf32>::entries(o);
    else Linear<T, Dtype::fp32>::entries(o);
});
}    // namespace
