// test_model.cpp - the whole model on the CUDA backend: like the reference, like itself, out of memory.
#include "model/gpu_plan.h"

#include "cuda_test.h"
#include "test/toy_model.h"

namespace {
const Config SMALL = {101, 48, 2, 2, 64, 256, 1e-5f};    // heads of 32
const Config GROUPED = {.V = 101, .T = 48, .L = 2, .NH = 4, .C = 64, .NKV = 2, .HS = 32, .window = 11};

template <class T> std::unique_ptr<Model> cuda_model(Dtype dtype = sizeof(T) == 2 ? Dtype::bf16 : Dtype::fp32) {
    return std::make_unique<Model>(cuda_ops<T>(dtype));
}
std::unique_ptr<Model> cuda_model_of(bool half) { return half ? cuda_model<bf16>() : cuda_model<float>(); }

double relative(const std::vector<float>& a, const std::vector<float>& b) {
    double error = 0, square = 0;
    for (size_t i = 0; i < a.size(); i++)
        error += (double(a[i]) - double(b[i])) * (double(a[i]) - double(b[i])), square += double(b[i]) * double(b[i]);
    return std::sqrt(error / square);
}
std::vector<float> weights_of(const Model& g) { return flat_part(g, Part::weights); }
}    // namespace

namespace {
void check_training(const Config& c) {
    const int B = 2, S = 37;
    auto in = toy_tokens(B * S, c.V, 1), out = toy_tokens(B * S, c.V, 2);
    Model r(reference_ops());
    toy_model(r, c, {Use::train, B, S});
    std::vector<double> losses;
    std::vector<float> first;
    for (int step = 0; step < 4; step++) {
        losses.push_back(train_pass(r, in, out, B, S));
        if (step == 0) first = flat_grads(r);
        update(r, 3e-3f, 0.95f, 0.1f, 1);
    }
    for (bool half : {false, true}) {
        CAPTURE(half);
        auto g = cuda_model_of(half);
        toy_model(*g, c, {Use::train, B, S});
        const double tolerance = half ? 3e-2 : 1e-5;
        for (int step = 0; step < 4; step++) {
            CHECK(train_pass(*g, in, out, B, S) == doctest::Approx(losses[size_t(step)]).epsilon(tolerance / 5));
            if (step == 0) CHECK(relative(flat_grads(*g), first) < tolerance);
            const Step s = update(*g, 3e-3f, 0.95f, 0.1f, 1);
            CHECK((s.updates == step + 1 && !s.skipped));
            CHECK(s.loss == doctest::Approx(losses[size_t(step)]).epsilon(tolerance / 5));
        }
        CHECK(losses.back() < losses.front() - 0.1);
        CHECK(relative(weights_of(*g), weights_of(r)) < 30 * tolerance);    // AdamW divides noise by noise
    }
}
}    // namespace

TEST_CASE("model on cuda: losses, gradients and updates like the reference's") {
    check_training(SMALL);
    check_training(GROUPED);
}

TEST_CASE("model on cuda: the same bits in every schedule, with or without recomputation, in less memory") {
    const int B = 2, S = 33;
    auto in = toy_tokens(B * S, SMALL.V, 1), out = toy_tokens(B * S, SMALL.V, 2);
    for (bool half : {false, true}) {
        std::vector<float> kept;
        int64_t bytes = INT64_MAX;
        for (int r = 0; r < 3; r++) {
            cuda_schedule(uint64_t(r));
            auto g = cuda_model_of(half);
            toy_model(*g, SMALL, {Use::train, B, S, Recompute(r)});
            train_pass(*g, in, out, B, S);
            add_pass(*g, out, in, B, S);    // accumulated
            update(*g, 1e-2f, 0.95f, 0.1f);
            auto now = weights_of(*g);
            if (kept.empty()) kept = now;
            CAPTURE(half);
            CAPTURE(r);
            if (Recompute(r) != Recompute::cheap)
                CHECK(memcmp(now.data(), kept.data(), kept.size() * sizeof(float)) == 0);
            else CHECK(relative(now, kept) < 1e-2);    // GELU of the rounded input, not of the product's sum
            int64_t need = 0;
            for (const MemoryRow& row : g->memory(SMALL, g->plan)) need += row.bytes;
            CHECK(need < bytes);
            bytes = need;
        }
        cuda_schedule(0);
    }
}

TEST_CASE("model on cuda: generation, one token at a time and replayed, equals the whole sequence") {
    const int B = 2, S = 20;
    auto in = toy_tokens(B * S, SMALL.V, 1);
    for (int k = 0; k < 4; k++) {
        const bool half = k % 2;
        CAPTURE(k);
        auto g = cuda_model_of(half);
        toy_model(*g, k < 2 ? SMALL : GROUPED, {Use::infer, B, SMALL.T});
        for (int split : {1, 7})
            generate_toy(*g, in, B, S, split, 3, [&](const Cache& cache, auto& cached, auto& whole) {
                CHECK((cache.graph != nullptr) == (cache.pos >= split + 2));
                CHECK(relative(cached, whole) < (half ? 2e-2 : 1e-5));
            });
    }
}

TEST_CASE("model on cuda: stochastic rounding trains, and without fp32 weights") {
    train_stochastically(*cuda_model<bf16>(), SMALL);
}

TEST_CASE("model on cuda: too large a batch is an error that says what to do") {
    auto g = cuda_model<bf16>();
    const Status s = g->allocate({50257, 1 << 20, 48, 25, 1600, 6400, 1e-5f}, {Use::train, 64, 1 << 20});
    CHECK(s.code == Exit::device);
    CHECK(s.message.find("--recompute") != std::string::npos);
    auto small = cuda_model<bf16>();
    CHECK(small->allocate(SMALL, {Use::train, 1, 8}).ok());    // the device is still usable
}

// --dry-run --gpu plans on machines without CUDA, so it has the sizes once more (model/gpu_plan.cpp).
TEST_CASE("model on cuda: what is planned without a GPU is what the GPU's operations announce") {
    const CudaDevice& device = cuda_device();
    const Gpu gpu = {"here", "here", 10 * device.major + device.minor, device.multiprocessors, 0, 0, 0, 0};
    auto compare = [&]<class T>(const Ops<T>& op) {
        CHECK(op.logits_bytes == PLANNED_LOGITS_BYTES);
        const Heads heads[] = {{1, 1, 5},     {2, 2, 32},  {12, 12, 64}, {16, 4, 64},   {8, 8, 128},
                               {32, 8, 128},  {4, 2, 80},  {3, 1, 20},   {2, 2, 256},   {2, 1, 264},
                               {1, 1, 1024},  {1, 1, 1032}, {25, 25, 64}, {6, 6, 7}};
        for (const Heads& h : heads)
            for (int B : {1, 2, 8, 32, 500})
                for (int S : {1, 17, 64, 129, 1024, 8192}) {
                    const int C = h.NH * h.HS;
                    const int64_t told = op.scratch_bytes(B, S, C, 4 * C, 50304, 5360, h);
                    CAPTURE(B);
                    CAPTURE(S);
                    CAPTURE(h.NH);
                    CAPTURE(h.NKV);
                    CAPTURE(h.HS);
                    CHECK(planned_scratch(gpu, int(sizeof(T)), B, S, C, 4 * C, 50304, 5360, h) == told);
                }
    };
    compare(cuda_ops<bf16>(Dtype::bf16));
    compare(cuda_ops<float>(Dtype::fp32));
}
