// cuda_test.h - what the tests of the CUDA backend share. The same tests run on the emulator and on a GPU.
#pragma once
#include "layers/cuda.h"
#include "tools/selftest/check.h"
#undef CHECK    // ours; doctest's from here on
#include <doctest/doctest.h>

// f() once in thread order and once for each of three drawn schedules; on a GPU once.
void cuda_schedule(uint64_t seed);     // sets the emulator's schedule; does nothing on a GPU
bool cuda_emulated();
// Says why a case cannot run here; the closing line counts it as skipped.
void skip(const char* why);
// This binary again: what it writes, and its exit status as a shell gives it.
std::string run_again(const std::string& environment, const std::string& arguments, int* status);
template <class F> void each_schedule(F f) {
    for (uint64_t seed = 0; seed < (cuda_emulated() ? 4 : 1); seed++) {
        CAPTURE(seed);
        cuda_schedule(seed);
        f();
    }
    cuda_schedule(0);
}
#define EXPECT(check)                                                                              \
    do {                                                                                           \
        Check expected_ = (check);                                                                 \
        CAPTURE(expected_.shape); CAPTURE(expected_.output); CAPTURE(expected_.worst);             \
        CHECK_MESSAGE(expected_.ok(), expected_.op);                                               \
    } while (0)
