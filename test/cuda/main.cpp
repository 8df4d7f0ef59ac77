// main.cpp - the tests of the CUDA backend: as plain C++ on the emulator, by nvcc on a GPU.
#define DOCTEST_CONFIG_IMPLEMENT
#include "cuda_test.h"
#include "../count.h"

#ifdef EMULATED_GPU
#include <cuda_runtime.h>
void cuda_schedule(uint64_t seed) { emu::schedule(seed); }
bool cuda_emulated() { return true; }
#else
void cuda_schedule(uint64_t) {}
bool cuda_emulated() { return false; }
#endif

int main(int argc, char** argv) {
    const Status opened = cuda_open(0);
    if (opened.ok()) return run_counted(argc, argv);
    printf("skipped: all tests of the CUDA backend: %s\n\n0 passed, 0 failed, 1 skipped\n", opened.message.c_str());
    return 0;
}
