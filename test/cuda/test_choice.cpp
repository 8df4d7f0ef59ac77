// test_choice.cpp - the choice of cuBLASLt's algorithm for a product, by the emulated device's
// clock, and products without an algorithm. Emulator only.
#include <cublasLt.h>
#include <unistd.h>

#include "cuda_test.h"

#include "model/device.h"
#include "tools/selftest/linear.h"

namespace {
// Clears recorded choices; its end resets all settings of the emulated cuBLASLt.
struct Told {
    Told() { cuda_choose(""); }
    ~Told() {
        emu::lt_duration = nullptr, emu::lt_knows_none = nullptr, emu::lt_runs_none = nullptr, emu::lt_gelu_error = 0;
        cuda_choose_by_time(true);
        cuda_choose("");
    }
};
// Returns the text that f writes to stderr.
template <class F> std::string said(F f) {
    FILE* file = tmpfile();
    REQUIRE(file);
    fflush(stderr);
    const int before = dup(2);
    dup2(fileno(file), 2);
    f();
    fflush(stderr);
    dup2(before, 2);
    close(before);
    rewind(file);
    std::string text;
    for (int c; (c = fgetc(file)) != EOF;) text += char(c);
    fclose(file);
    return text;
}
int count(const std::string& text, const std::string& part) {
    int n = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at++) n++;
    return n;
}
// The recorded algorithm of the only product whose description contains `form`.
std::string choice_of(const std::string& form) {
    const std::string choices = cuda_choices();
    const size_t at = choices.find(form), equals = choices.find('=', at);
    CHECK(count(choices, form) == 1);
    return at == std::string::npos ? "" : choices.substr(equals + 1, choices.find(';', equals) - equals - 1);
}
uint64_t parts_of(const std::string& choice) {    // second word of LtAlgorithm, distinct for each
    return choice.size() < 32 ? 0 : std::stoull(choice.substr(16, 16), nullptr, 16);
}
void product(bool bias = false) {
    EXPECT(check_linear_forward(cuda_ops<float>(Dtype::fp32), 20, 96, 64, bias, Residual::none));
}
typedef emu::LtProduct LtProduct;
typedef emu::LtAlgorithm LtAlgorithm;
constexpr uint64_t LISTED[] = {1, 3, 2};    // `parts` of usable algorithms, in heuristic order
}    // namespace

TEST_CASE("cuda choice: the fastest algorithm by the device's clock, the heuristic's first where none clearly is") {
    const Told told;
    for (const uint64_t fast : LISTED) {
        for (const bool clearly : {false, true}) {
            cuda_choose("");
            int runs = 0;
            emu::lt_duration = [&](const LtProduct&, const LtAlgorithm& a) {
                runs++;
                return a.parts == fast ? (clearly ? 0.9 : 0.98) : 1.0;
            };
            product();
            CHECK(parts_of(choice_of("64 x 20 x 96")) == (clearly ? fast : LISTED[0]));
            CHECK(runs > 60);    // 20 ms of warm-up, three rounds
            runs = 0;
            product();
            CHECK(runs == 1);
        }
    }
}

TEST_CASE("cuda choice: inference takes the heuristic's first that runs, and times nothing; training does") {
    const Told told;
    int runs = 0;
    emu::lt_duration = [&](const LtProduct&, const LtAlgorithm& a) {
        runs++;
        return a.parts == LISTED[2] ? 0.1 : 1.0;
    };
    for (const bool train : {false, true, false}) {
        CAPTURE(train);
        REQUIRE(open_device({.device = "cuda", .dtype = "fp32"}, train).ok());
        CHECK(cuda_choices().find("64 x 20 x 96") == std::string::npos);    // choices of the other mode are forgotten
        runs = 0;
        product();
        CHECK((train ? runs > 60 : runs == 2));    // inference: one trial, one computation
        CHECK(parts_of(choice_of("64 x 20 x 96")) == LISTED[train ? 2 : 0]);
        runs = 0;
        product();
        CHECK(runs == 1);
    }
    // A trial must not add to a result. Products with sums or epilogues are tried like plain ones;
    // if no algorithm runs, they are computed in steps ("-").
    for (const bool none : {false, true}) {
        if (none) emu::lt_runs_none = [](const LtProduct& p) { return p.op.epilogue != CUBLASLT_EPILOGUE_DEFAULT; };
        for (const Residual r : {Residual::apart, Residual::in_y})
            EXPECT(check_linear_forward(cuda_ops<float>(Dtype::fp32), 24, 96, 64, true, r));
        EXPECT(check_linear_backward(cuda_ops<float>(Dtype::fp32), 24, 96, 64, true, true));
        CHECK((choice_of("epilogue 512") == "-") == none);
        cuda_choose("");
    }
}

TEST_CASE("cuda choice: a clock that rises while algorithms are tried") {
    const Told told;
    for (const double when : {0.0, 0.7, 2.5, 10.0, 19.0, 21.0, 25.0, 30.0}) {
        cuda_choose("");
        const double start = emu::clock_ms;
        emu::lt_duration = [=](const LtProduct&, const LtAlgorithm&) {
            return emu::clock_ms < start + when ? 0.3 : 0.1;
        };
        product();
        CHECK(parts_of(choice_of("64 x 20 x 96")) == LISTED[0]);
    }
}

TEST_CASE("cuda choice: steps that are faster than an epilogue, and slower") {
    const Told told;
    const auto& op = cuda_ops<float>(Dtype::fp32);
    for (const bool slow : {false, true}) {
        cuda_choose("");
        emu::lt_duration = [&](const LtProduct& p, const LtAlgorithm&) { return slow && p.sums() ? 2.0 : 1.0; };
        EXPECT(check_linear_backward(op, 20, 96, 64, true, true));
        CHECK((choice_of("epilogue 512") == "-") == slow);
    }
    cuda_choose("");    // bias alone: no steps while an algorithm runs
    emu::lt_duration = [&](const LtProduct& p, const LtAlgorithm&) { return p.has_bias() ? 2.0 : 1.0; };
    product(true);
    CHECK(parts_of(choice_of("epilogue 4")) == LISTED[0]);
}

TEST_CASE("cuda choice: without an algorithm own kernels compute a product, and say so once") {
    const Told told;
    for (const bool known : {false, true}) {
        cuda_choose("");
        (known ? emu::lt_runs_none : emu::lt_knows_none) = [](const LtProduct& p) { return p.n() == 20; };
        const std::string first = said([] { product(); });
        CHECK_MESSAGE(first ==
                          "flatgpt: the product fp32 to fp32 TN 64 x 20 x 96 epilogue 1 align 16: cuBLASLt 130000 "
                          "has no algorithm that runs (not supported). Kernels of flatgpt's own compute it: right, but "
                          "slower. Another version of cuBLASLt may have one.\n",
                      first);
        CHECK(said([] { product(); }) == "");
        CHECK(choice_of("64 x 20 x 96") == "own");
        emu::lt_runs_none = nullptr, emu::lt_knows_none = nullptr;
        // A process whose cuBLASLt has an algorithm still follows a recorded choice of own kernels.
        const std::string choices = cuda_choices();
        cuda_choose(choices);
        const std::string again = said([] { product(); });
        CHECK_MESSAGE(again.find("(according to the checkpoint)") != std::string::npos, again);
        CHECK(cuda_choices() == choices);
        cuda_choose("");
        CHECK(said([] { product(); }) == "");
        CHECK(parts_of(choice_of("64 x 20 x 96")) == LISTED[0]);
    }
}

TEST_CASE("cuda choice: all products without cuBLASLt, of all types, sizes and alignments") {
    const Told told;
    const struct {
        int N, C, OC;
    } sizes[] = {{5, 1, 1},    {33, 7, 24},   {64, 64, 64},    {65, 40, 136}, {128, 136, 8},
                 {31, 96, 24}, {129, 24, 96}, {200, 200, 136}, {9, 3, 130},   {300, 16, 16}};
    for (const bool any : {false, true}) {    // any: no algorithm; else epilogues only
        emu::lt_knows_none = [=](const LtProduct& p) { return any || p.op.epilogue == CUBLASLT_EPILOGUE_DEFAULT; };
        std::string text = said([&] {
            each_table(TablePart::products, [&](auto& op, const TestTable& t) {
                for (const auto& size : sizes)
                    each_order([&, N = size.N, C = size.C, OC = size.OC] {
                        for (const Residual r : {Residual::none, Residual::apart, Residual::in_y})
                            for (const bool bias : {false, true})
                                EXPECT(check_linear_forward(op, N, C, OC, bias, r, t.dtype));
                        for (const bool add : {false, true})
                            EXPECT(check_linear_backward(op, N, C, OC, true, add, t.dtype, add));
                        EXPECT(check_linear_gelu_forward(op, N, C, OC, t.dtype));
                        EXPECT(check_linear_gelu_backward(op, N, C, OC, t.dtype));
                    });
            });
        });
        for (const char* form : {"TN", "NN", "NT"})
            for (const char* type : {"fp32 to fp32 ", "fp32 to fp32 by tf32 ", "bf16 to bf16 ", "bf16 to fp32 "}) {
                const bool dw = std::string(form) == "NT", half = std::string(type).find("bf16") == 0;
                const bool there = !half || dw == (std::string(type) == "bf16 to fp32 ");
                CHECK((text.find(type + std::string(form)) != std::string::npos) == there);
            }
        CHECK(count(cuda_choices(), "=own;") == count(text, "flatgpt: the product "));
        cuda_choose("");
    }
}

TEST_CASE("cuda choice: a fused GELU may be wrong by 1e-5 in fp32, and no more") {
    const Told told;
    const auto& op = cuda_ops<float>(Dtype::fp32);
    for (const float error : {0.0f, 9e-6f, 1.5e-5f}) {
        CAPTURE(error);
        emu::lt_gelu_error = error;
        CHECK(check_linear_gelu_forward(op, 33, 24, 96, Dtype::fp32).ok() == (error < 1e-5f));
        CHECK(check_linear_gelu_backward(op, 33, 96, 24, Dtype::fp32).ok() == (error < 1e-5f));
    }
}

TEST_CASE("cuda choice: own kernels give the same bits twice, and in a recording") {
    const Told told;
    emu::lt_knows_none = [](const LtProduct&) { return true; };
    const auto& op = cuda_ops<bf16>(Dtype::bf16);
    const int N = 40, C = 24, OC = 40;
    const Memory m(op);
    Array<bf16> x(m, random_normal(N * C, 1)), w(m, random_normal(OC * C, 2)), y(m, N * OC);
    Array<bf16> residual(m, random_normal(N * OC, 3));
    said([&] { op.linear_forward(y, x, w, nullptr, residual, N, C, OC, {}); });
    const auto bits = y.bits();
    op.begin_capture();
    op.linear_forward(y, x, w, nullptr, residual, N, C, OC, {});
    void* graph = op.end_capture();
    op.zero(y, N * OC * 2);
    op.launch_graph(graph);
    CHECK(y.bits() == bits);
    op.release_graph(graph);
}

// The fp8 table, but its products are in fp8 with any Precision that a check passes.
static Ops<bf16> always_fp8() {
    Ops<bf16> op = cuda_ops<bf16>(Dtype::fp8);
    op.linear_forward = [](bf16* y, const bf16* x, const bf16* w, const bf16* b, const bf16* residual, int N, int C,
                           int OC, Precision) {
        cuda_ops<bf16>(Dtype::fp8).linear_forward(y, x, w, b, residual, N, C, OC, Precision::fp8);
    };
    op.linear_backward = [](bf16* dx, GradTarget<float> dw, float* db, const bf16* dy, const bf16* x, const bf16* w,
                            int N, int C, int OC, Precision) {
        cuda_ops<bf16>(Dtype::fp8).linear_backward(dx, dw, db, dy, x, w, N, C, OC, Precision::fp8);
    };
    return op;
}

TEST_CASE("cuda choice: fp8 products without cuBLASLt are bf16's, and said once") {
    if (10 * cuda_device().major + cuda_device().minor < 89) SKIP("EMU_CC=90 has fp8");
    const Told told;
    const Ops<bf16> op = always_fp8();
    for (const bool none : {false, true}) {    // the heuristic lists none, or none runs
        cuda_choose("");
        (none ? emu::lt_knows_none : emu::lt_runs_none) = [](const LtProduct& p) { return p.a.fp8(); };
        const std::string text = said([&] {
            for (int twice = 0; twice < 2; twice++) {
                for (const Residual r : {Residual::none, Residual::apart, Residual::in_y})
                    EXPECT(check_linear_forward(op, 32, 48, 64, true, r, Dtype::bf16));
                for (const bool add : {false, true})
                    EXPECT(check_linear_backward(op, 32, 48, 64, true, true, Dtype::bf16, add));
            }
        });
        CHECK(count(text, "flatgpt: in fp8 the product fp8") == 5);    // y with and without residual, dx, dw twice
        CHECK(count(text, "computed in bf16") == 5);
        CHECK(count(cuda_choices(), "=-;") == 5);
        const std::string choices = cuda_choices();
        emu::lt_knows_none = nullptr, emu::lt_runs_none = nullptr;
        cuda_choose(choices);    // same choices as a resumed run
        CHECK(count(said([&] { EXPECT(check_linear_forward(op, 32, 48, 64, true, Residual::none, Dtype::bf16)); }),
                    "according to the checkpoint") == 1);
    }
    // Only dx falls back to bf16. It must not overwrite the fp8 factors of dw in the scratch.
    cuda_choose("");
    emu::lt_knows_none = [](const LtProduct& p) { return p.b.type == CUDA_R_8F_E5M2 && p.d.type == CUDA_R_16BF; };
    CHECK(count(said([&] { EXPECT(check_linear_backward(op, 80, 48, 64, true, true, Dtype::fp8, false)); }),
                "computed in bf16") == 1);
}

TEST_CASE("cuda choice: an fp8 product that is known to be bf16's makes no casts") {
    if (10 * cuda_device().major + cuda_device().minor < 89) SKIP("EMU_CC=90 has fp8");
    const Told told;
    const int N = 32, C = 48, OC = 64;
    for (const Dtype dtype : {Dtype::fp8, Dtype::fp8_block}) {
        if (dtype == Dtype::fp8_block && cuda_device().major != 9) continue;
        const Ops<bf16> op = cuda_ops<bf16>(dtype);
        const Memory m(op);
        Array<bf16> x(m, random_normal(N * C, 1)), w(m, random_normal(OC * C, 2)), dy(m, random_normal(N * OC, 3));
        Array<bf16> y(m, N * OC), dx(m, N * C);
        Array<float> dw(m, OC * C);
        // Launches of a forward and a backward pass, counted once the choices have been made.
        auto launches = [&](std::function<bool(const LtProduct&)> unknown, bool with_dx = true) {
            cuda_choose("");
            emu::lt_knows_none = [=](const LtProduct& p) { return p.a.fp8() && unknown(p); };
            std::array<int64_t, 2> counts;
            said([&] {
                for (int twice = 0; twice < 2; twice++) {
                    const int64_t start = cuda_launches();
                    op.linear_forward(y, x, w, nullptr, nullptr, N, C, OC, Precision::fp8);
                    const int64_t between = cuda_launches();
                    op.linear_backward(with_dx ? static_cast<bf16*>(dx) : nullptr, {dw, false}, nullptr, dy, x, w, N, C,
                                       OC, Precision::fp8);
                    counts = {between - start, cuda_launches() - between};
                }
            });
            return counts;
        };
        const int64_t cast = dtype == Dtype::fp8 ? 2 : 1;    // launches per cast
        typedef std::array<int64_t, 2> Counts;
        auto is_dw = [](const LtProduct& p) { return p.d.type == CUDA_R_32F; };
        CHECK(launches([](const LtProduct&) { return false; }) == Counts{2 * cast, 3 * cast});
        CHECK(launches([](const LtProduct&) { return false; }, false) == Counts{2 * cast, 2 * cast});
        CHECK(launches([](const LtProduct&) { return true; }) == Counts{0, 0});
        CHECK(launches(is_dw) == Counts{2 * cast, 2 * cast});
        CHECK(launches(is_dw, false) == Counts{2 * cast, 0});
        CHECK(launches([&](const LtProduct& p) { return !is_dw(p); }) == Counts{0, 2 * cast});
    }
}

TEST_CASE("emulator: cuBLASLt's demands of fp8 products") {
    if (10 * cuda_device().major + cuda_device().minor < 89) SKIP("EMU_CC=90 has fp8");
    const float scale = 1;
    auto status = [&](auto change) {
        LtProduct p = {{CUBLAS_COMPUTE_32F, CUBLAS_OP_T, CUBLAS_OP_N},
                       {CUDA_R_8F_E4M3, 64, 32, 64},
                       {CUDA_R_8F_E5M2, 64, 48, 64},
                       {CUDA_R_16BF, 32, 48, 32},
                       {CUDA_R_16BF, 32, 48, 32}};
        p.op.a_scale = p.op.b_scale = &scale;
        change(p);
        return p.status();
    };
    auto set_k = [](LtProduct& p, int64_t k) { p.a.rows = p.a.ld = p.b.rows = p.b.ld = k; };
    CHECK(status([](LtProduct&) {}) == CUBLAS_STATUS_SUCCESS);
    CHECK(status([](LtProduct& p) { p.c.type = p.d.type = CUDA_R_32F; }) == CUBLAS_STATUS_SUCCESS);
    const auto no = CUBLAS_STATUS_NOT_SUPPORTED;
    CHECK(status([](LtProduct& p) { p.op.ta = CUBLAS_OP_N, p.a = {CUDA_R_8F_E4M3, 32, 64, 32}; }) == no);
    CHECK(status([](LtProduct& p) { p.op.tb = CUBLAS_OP_T, p.b = {CUDA_R_8F_E5M2, 48, 64, 48}; }) == no);
    CHECK(status([&](LtProduct& p) { set_k(p, 72); }) == no);
    CHECK(status([](LtProduct& p) { p.b.columns = p.c.columns = p.d.columns = 40; }) == no);
    CHECK(status([](LtProduct& p) { p.a.type = CUDA_R_8F_E5M2; }) == no);
    CHECK(status([](LtProduct& p) { p.b.type = CUDA_R_16BF; }) == no);
    CHECK(status([](LtProduct& p) { p.op.epilogue = CUBLASLT_EPILOGUE_BGRADB; }) == no);
    CHECK_THROWS_AS(status([](LtProduct& p) { p.op.b_scale = nullptr; }), emu::Error);
    // Block scales: which pairs of modes are legal, and alignment to 16 bytes.
    const auto scalar = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, vec = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
               blk = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    alignas(16) const float scales[8] = {};
    const bool hopper = cuda_device().major == 9;
    struct Modes {
        cublasLtMatmulMatrixScale_t a, b;
        bool legal;
    };
    for (const Modes& m : {Modes{vec, vec, true},
                           {blk, vec, true},
                           {vec, blk, true},
                           {blk, blk, false},
                           {scalar, vec, false},
                           {blk, scalar, false}})
        for (const int from : {0, 1}) {    // scales aligned to 16 bytes, or 4
            CAPTURE(int(m.a));
            CAPTURE(int(m.b));
            CAPTURE(from);
            CHECK((status([&](LtProduct& p) {
                       p.op.a_mode = m.a, p.op.b_mode = m.b, p.op.a_scale = scales, p.op.b_scale = scales + from;
                   }) == CUBLAS_STATUS_SUCCESS) == (m.legal && hopper && from == 0));
        }
}
