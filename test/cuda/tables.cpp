// tables.cpp - the tables of test_cuda: the GPU's, or the emulated one's.
#include "cuda_test.h"

template <class T> void attention_forward_simt(T* y, float* lse, const T* q, const T* kv, int B, int S, Heads h);
template <class T> void attention_backward_simt(T* dq, T* dkv, const T* dy, const T* y, const T* q, const T* kv,
                                                const float* lse, int B, int S, Heads h);

const int ORDERS = cuda_emulated() && !getenv("EMU_RUN") ? 4 : 1;
const int EVERY = 5;    // the emulator and the reference are slow
const bool FAST_EXP = true;
double share(const std::string&, const Check::Output&) { return 1; }    // whole limit: a GPU rounds differently
void set_order(int order) { cuda_schedule(uint64_t(order)); }

const std::vector<TestTable>& test_tables() {
    static Ops<bf16> plain = cuda_ops<bf16>(Dtype::bf16);    // kernels for head sizes without tensor cores
    plain.attention_forward = [](bf16* y, float* lse, const bf16* qkv, int B, int S, Heads h) {
        attention_forward_simt(y, lse, qkv, qkv, B, S, h);
    };
    plain.attention_backward = [](bf16* dqkv, const bf16* dy, const bf16* y, const bf16* qkv, const float* lse, int B,
                                  int S,
                                  Heads h) { attention_backward_simt(dqkv, dqkv, dy, y, qkv, qkv, lse, B, S, h); };
    plain.cross_attention_forward = attention_forward_simt<bf16>;
    plain.cross_attention_backward = attention_backward_simt<bf16>;
    static const std::vector<TestTable> all = {{&cuda_ops<float>(Dtype::fp32), Dtype::fp32},
                                               {&cuda_ops<float>(Dtype::tf32), Dtype::tf32, TablePart::products},
                                               {&cuda_ops<bf16>(Dtype::bf16), Dtype::bf16},
                                               {&plain, Dtype::bf16, TablePart::attention}};
    return all;
}
std::string absent_tables() {
    const CudaDevice& d = cuda_device();
    return d.major == 9 && d.minor == 0 ? "" : "the kernels of sm_90: " + d.name + " is not one";
}
