// test_launches.cpp - the emulator notes what is launched, for `make sass` and `make gpu-time`. Not for a GPU.
#include "layers/cuda.cuh"

#include "cuda_test.h"

namespace {
__global__ void write_one(int* p) { p[threadIdx.x] = 1; }
}   // namespace

TEST_CASE("emulator: launches are noted, with or without being run") {
    emu::schedule(0);
    int* p;
    REQUIRE(cudaMalloc(&p, 32 * sizeof(int)) == cudaSuccess);
    for (bool runs : {true, false}) {
        CAPTURE(runs);
        cudaMemset(p, 0, 32 * sizeof(int));
        std::vector<emu::Launched> all;
        emu::launched_now = &all, emu::config.runs = runs;
        launch(write_one, {dim3(1, 1, 1), dim3(16, 2)}, p);
        if (!runs) cudaMemset(p, 0xff, 32 * sizeof(int));
        emu::launched_now = nullptr, emu::config.runs = true;
        REQUIRE(all.size() == 1);
        CHECK((all[0].kernel == reinterpret_cast<const void*>(&write_one) && all[0].threads == 32));
        CHECK((all[0].blocks.x == 1 && all[0].shared == 0));
        std::vector<int> host(32), expected(32, 0);
        if (runs) std::fill_n(expected.begin(), 16, 1);
        cudaDeviceSynchronize();
        cudaMemcpy(host.data(), p, 32 * sizeof(int), cudaMemcpyDeviceToHost);
        CHECK(host == expected);
    }
    cudaFree(p);
    int status;
    const std::string text = run_again("EMU_RUN=0 EMU_LAUNCHES=/dev/stdout", "-tc='norm: against*'", &status);
    CHECK_MESSAGE(text.find(" 128 0 ") != std::string::npos, text);    // norm.cu's blocks
}
