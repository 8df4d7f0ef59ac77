// cuda_test.h - what the tests of the CUDA backend alone share. They run on the emulator and on a GPU, as those of
// test/ops/ do, over the tables of tables.cpp.
#pragma once
#include "layers/cuda.h"

#include "test/ops/ops.h"

void cuda_schedule(uint64_t seed);    // sets the emulator's schedule, 0 for thread order; does nothing on a GPU
bool cuda_emulated();
// Kernels that the emulator has run, or only those that overlap the one in front; 0 on a GPU.
int64_t cuda_launches(bool overlapping = false);
#define NEED_SM90() \
    if (cuda_device().major != 9 || cuda_device().minor) SKIP("not an sm_90")    // emulated: EMU_CC=90
#define NEED_FP8() \
    if (10 * cuda_device().major + cuda_device().minor < 89) SKIP("no fp8 here")    // emulated: EMU_CC=90
// Those that this GPU has.
inline std::vector<Dtype> fp8_types() {
    if (cuda_device().major == 9) return {Dtype::fp8, Dtype::fp8_block};
    return {Dtype::fp8};
}
// This binary again: what it writes, and its exit status as a shell gives it.
std::string run_again(const std::string& environment, const std::string& arguments, int* status);
