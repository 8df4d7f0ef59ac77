// cuda_test.h - shared by the tests that only the CUDA backend has. Like those of test/ops/, they
// run on the emulator and on a GPU, over the tables of tables.cpp.
#pragma once
#include "layers/cuda.h"

#include "test/ops/ops.h"

void cuda_schedule(uint64_t seed);    // emulator's schedule; 0: thread order; no-op on GPUs
bool cuda_emulated();
// Number of kernels that the emulator has run, or of those that overlap the previous one; 0 on a
// GPU.
int64_t cuda_launches(bool overlapping = false);
#define NEED_SM90() \
    if (cuda_device().major != 9 || cuda_device().minor) SKIP("not an sm_90")    // emulated: EMU_CC=90
#define NEED_FP8() \
    if (10 * cuda_device().major + cuda_device().minor < 89) SKIP("no fp8 here")    // emulated: EMU_CC=90
// The fp8 dtypes that this GPU has.
inline std::vector<Dtype> fp8_types() {
    if (cuda_device().major == 9) return {Dtype::fp8, Dtype::fp8_block};
    return {Dtype::fp8};
}
// Runs this binary again in a shell. Returns its output; *status gets the shell's exit status.
std::string run_again(const std::string& environment, const std::string& arguments, int* status);
