// test_launches.cpp - the emulator notes what is launched, for `make sass` and `make gpu-time`. Not for a GPU.
#include "layers/cuda.cuh"

#include "cuda_test.h"

#include "tools/selftest/cached.h"

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

// A draft of 7 tokens and one more, checked by GPT-2 at position 1000.
TEST_CASE("launches: a draft over a long cache" * doctest::skip()) {
    const Ops<bf16>& op = cuda_ops<bf16>(Dtype::bf16);
    const Memory m(op);
    const Heads h = {12, 12, 64};
    const int S = 8;
    CacheArrays<bf16> cache(m, Element::bf16, h.NKV, h.HS, 64, {1000});
    Array<bf16> qkv(m, random_normal(S * h.qkv_width(), 1)), y(m, S * h.width());
    Array<int> pos(m, Numbers{1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007});
    std::vector<emu::Launched> all;
    emu::launched_now = &all;
    op.attention_cached(y, qkv, cache.device(), 1, S, pos, h);
    emu::launched_now = nullptr;
    REQUIRE(all.size() == 2);    // the first one appends
    CHECK(all[1].blocks.x >= 100);
}
TEST_CASE("emulator: a draft over a long cache keeps an H100's multiprocessors busy") {
    int status;
    const std::string text = run_again("EMU_SMS=132", "--no-skip -tc='launches: a draft*'", &status);
    CHECK_MESSAGE(status == 0, text);
}
