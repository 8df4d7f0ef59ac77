// test_launches.cpp - the emulator's record of launches, which `make sass` and `make gpu-time`
// read, and of the work that a generated token enqueues. Emulator only.
#include <set>

#include "infer/decode/device_sampler.h"
#include "layers/cuda.cuh"

#include "cuda_test.h"
#include "test/model_checks.h"
#include "test/toy_model.h"

#include "tools/selftest/cached.h"

namespace {
__global__ void write_one(int* p) { p[threadIdx.x] = 1; }

typedef std::map<std::string, int> Handed;
const Handed STEADY = {{"graph", 1}, {"download", 1}, {"record", 1}};    // record: the event of mark()

// Draws tokens of two texts, and records the work that each step enqueues on the device.
struct Drawn {
    struct Step {
        Handed handed;
        bool page;
    };    // page: a text began a new cache page
    std::vector<int> ids;
    std::vector<Step> all;
    Model g;
    KvCache cache;
    Drawn(const Table& op, const Config& c, const CacheOptions& kind) : g(op) {
        toy_model(g, c, {RunMode::infer, 2, 5});
        REQUIRE(allocate_cache(g, cache, 2, 64, kind).ok());
    }
    void prompt(const std::vector<int>& which, int S) {
        extend(g, cache, toy_tokens(int(which.size()) * S, g.c.V, 7).data(), S, which);
    }
    void steps(DeviceSampler& device_sampler, const Sampler& sampler, int place, int n) {
        device_sampler.begin({{0, 3, place, &sampler, false}, {1, 4, place, &sampler, false}});
        for (int i = 0; i < n; i++) {
            std::vector<emu::Entry> journal;
            emu::journal = &journal;
            device_sampler.step();
            emu::journal = nullptr;
            Step step = {{}, false};
            for (const emu::Entry& e : journal) step.handed[e.what]++;
            for (int b : {0, 1}) step.page |= cache.table[b].pos % Pages::SIZE == 1;
            all.push_back(step);
            const int* drawn = device_sampler.next();
            ids.insert(ids.end(), drawn, drawn + 2);
        }
    }
    // Two settings of sampling, one after the other. After 14 steps of each, a new text takes the
    // place of sequence 1.
    void run(int last) {
        prompt({0, 1}, 5);
        for (const Sampling& s : {Sampling{.temperature = 1.5, .top_k = 0, .top_p = 0.95},
                                  {.temperature = 2, .top_k = 0, .penalties = {.repetition = 1.3}, .seed = 5}}) {
            const Sampler sampler = Sampler::open(s, {}, g.c.V).value;
            DeviceSampler device_sampler(g, cache);
            REQUIRE(device_sampler.open(sampler, g.c.V));
            steps(device_sampler, sampler, 0, 14);
            cache.table.rewind(1, 0);
            prompt({1}, 3);
            steps(device_sampler, sampler, 14, last);
        }
    }
};
}    // namespace

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
    CHECK_MESSAGE(text.find(" 128 0 ") != std::string::npos, text);    // block size of norm.cu
}

// Attention of a draft of 7 tokens and the token before it, in GPT-2 at position 1000.
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
    REQUIRE(all.size() == 2);    // the first launch appends to the cache
    CHECK(all[1].blocks.x >= 100);
}
TEST_CASE("emulator: a draft over a long cache keeps an H100's multiprocessors busy") {
    int status;
    const std::string text = run_again("EMU_SMS=132", "--no-skip -tc='launches: a draft*'", &status);
    CHECK_MESSAGE(status == 0, text);
}

TEST_CASE("emulator: a token that the device draws is one recorded step and one download") {
    const Table op(cuda_ops<bf16>(Dtype::bf16));
    Drawn drawn(op, {101, 64, 3, 2, 64}, {});
    drawn.run(6);
    REQUIRE(drawn.all.size() == 40);
    for (int i = 0; i < 40; i++) {
        CAPTURE(i);
        auto& [handed, page] = drawn.all[size_t(i)];
        const int step = i % 20;    // 14: another text, the old recording
        CHECK((handed["upload"] > 0) == (step == 0 || step == 14 || page));
        handed.erase("upload");
        if (step == 0) CHECK((handed["graph"] == 0 && handed["kernel"] > 15));
        else CHECK(handed == STEADY);
    }
}

TEST_CASE("model on cuda: tokens drawn by recorded steps, a text at a time, are those of steps that are not recorded") {
    const Table op(cuda_ops<bf16>(Dtype::bf16));
    Table plain = op;
    plain.begin_capture = nullptr;
    const std::vector<Kind> kinds = kind_configs({.V = 61, .T = 64, .L = 1, .NH = 2, .C = 32, .F = 48, .NKV = 1});
    for (size_t i = 0; i < kinds.size(); i += 4)
        for (bool evicts : {false, true}) {
            const Config& c = kinds[i].c;
            if (c.mask_kind == MaskKind::all || !config_check(c).ok()) continue;    // some need two layers
            if (evicts && (i > 0 || why_no_eviction(c))) continue;
            CAPTURE(std::string(kinds[i].name));
            CAPTURE(evicts);
            const CacheOptions kind = {.evicts = evicts, .sinks = 4};
            emu::schedule(evicts);
            Drawn recorded(op, c, kind), steps(plain, c, kind);
            recorded.g.head_rows = 1;    // head and draw in parts of the batch
            recorded.run(evicts ? 30 : 6), steps.run(evicts ? 30 : 6);
            emu::schedule(0);
            CHECK(recorded.ids == steps.ids);
            CHECK(recorded.all.back().handed.count("graph") == 1);
        }
}

TEST_CASE("emulator: kernels that overlap prefer the same split of shared memory") {
    if (!cuda_overlaps()) SKIP("before sm_90 no launches overlap: EMU_CC=90");
    const Config gpt2 = {101, 48, 3, 2, 64};
    const Config llama = kind_configs({.V = 61, .T = 40, .L = 2, .NH = 4, .C = 128, .F = 88, .NKV = 2, .HS = 32})[0].c;
    std::vector<emu::Launched> all;
    for (const bool half : {false, true})
        for (const Config& c : {gpt2, llama}) {
            Model g(half ? Table(cuda_ops<bf16>(Dtype::bf16)) : Table(cuda_ops<float>(Dtype::fp32)));
            toy_model(g, c, {RunMode::infer, 1, 5});
            KvCache cache;
            REQUIRE(allocate_cache(g, cache, 1, 32, {}).ok());
            extend(g, cache, toy_tokens(5, c.V, 1).data(), 5);
            emu::launched_now = &all;
            extend(g, cache, toy_tokens(1, c.V, 2).data(), 1);
            emu::launched_now = nullptr;
        }
    std::set<bool> dynamic;    // kernels with and without dynamic shared memory
    for (const emu::Launched& l : all) {
        if (!l.overlaps) continue;
        CHECK(l.carveout == OVERLAP_CARVEOUT);
        dynamic.insert(l.shared > 0);
    }
    CHECK(dynamic.size() == 2);
}
