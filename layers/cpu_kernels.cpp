// cpu_kernels.cpp - collects the CPU kernels of one instruction set into a table.
#include "layers/simd/micro_kernel.h"
#include "layers/simd/vec.h"

namespace ISA {
// REGISTER_CPU defines these functions in the kernels' files. They are weak, because operations
// that cpu.cpp defines have no such function.
#define OPERATION(name, ...) [[gnu::weak]] void name##_entry(CpuKernels<float>&), name##_entry(CpuKernels<bf16>&);
#include "layers/operations.inc"
#undef OPERATION

// CPU kernels that are not operations.
#define OTHERS(X)       \
    X(inverse_row_norm) \
    X(exponentials) X(packed_linear) X(packed_experts) X(packed_scratch) X(packed_gradient) X(packed_gradient_scratch)
#define DECLARE(f)                                  \
    Target<decltype(CpuKernels<float>::f)>::type f; \
    Target<decltype(CpuKernels<bf16>::f)>::type f;
OTHERS(DECLARE)
void matmul(const Matmul<float, float>&), matmul(const Matmul<bf16, bf16>&), matmul(const Matmul<float, bf16>&);

template <class P, Tiles tiles> static int64_t scratch_bytes(const CallSizes& call) {
    const auto scratch = kernels<P>(tiles).scratch[int(call.operation)];
    const int64_t bytes = scratch ? scratch(call) : 0;
    return bytes ? cpu_scratch_size(bytes) : 0;
}

template <class P> static CpuKernels<P> make(Tiles tiles) {
    CpuKernels<P> l = {};
    l.tiles = tiles;
    typedef void (*Entry)(CpuKernels<P>&);
#define OPERATION(name, ...) \
    if (const Entry enter = name##_entry) enter(l);
#include "layers/operations.inc"
#undef OPERATION
#define OTHER(f) l.f = f;
    OTHERS(OTHER)
    l.matmul = matmul;
    l.gradient_matmul = matmul;
    l.attention_rounds_to_bf16 = sizeof(P) == 2 && NATIVE_BF16;
    l.scratch_bytes = l.tiles == Tiles::none  ? scratch_bytes<P, Tiles::none>
                      : l.tiles == Tiles::amx ? scratch_bytes<P, Tiles::amx>
                                              : scratch_bytes<P, Tiles::emulated>;
    return l;
}
template <> CpuKernels<float> kernels<float>(Tiles tiles) { return make<float>(tiles); }
template <> CpuKernels<bf16> kernels<bf16>(Tiles tiles) { return make<bf16>(tiles); }
}    // namespace ISA
