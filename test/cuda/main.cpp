// main.cpp - stand-in
#define DOCTEST_CONFIG_IMPLEMENT
#include "cuda_test.h"
#include <cuda_runtime.h>
#include <cstdio>
void cuda_schedule(uint64_t seed) { emu::schedule(seed); }
bool cuda_emulated() { return true; }
int main(int argc, char** argv) {
    Status s = cuda_open(0);
    if (!s.ok()) { puts(s.message.c_str()); return 1; }
    return doctest::Context(argc, argv).run();
}
