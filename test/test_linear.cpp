#include "ops.h"

#include <array>
#include <unistd.h>

// What the products of a table with parameters of type P see of their inputs.
template <class P> static std::vector<double> rounded(const std::vector<float>& x) {
    std::vector<double> out;
    for (float v : x) out.push_back(double(to_float(from_float<P>(v))));
    return out;
}
// |error| of a float sum of n products against the size of the result
static double tolerance(int n) { return 3e-7 * (2 + std::sqrt(double(n))); }

template <class P> static void compare(int N, int C, int OC) {
    CAPTURE(N); CAPTURE(C); CAPTURE(OC); CAPTURE(sizeof(P));
    const Ops<double>& ref = reference_ops();
    auto x = normal<float>(N * C, 1), r = normal<float>(N * OC, 4), dy = normal<float>(N * OC, 5);
    auto w = normal<P>(OC * C, 2), b = normal<P>(OC, 3);
    // bf16 rounds what is multiplied, nothing else: the reference gets rounded inputs, and the bias gradient is float's
    auto xr = rounded<P>(x), dyr = rounded<P>(dy), wr = doubles(w);
    std::vector<double> plain(N * OC), biased(N * OC), full(N * OC), dx(N * C), dw(OC * C, 0.5), db(OC, 0.25);
    std::vector<double> sink(OC * C);
    ref.linear_forward(plain.data(), xr.data(), wr.data(), nullptr, nullptr, N, C, OC);
    ref.linear_forward(biased.data(), xr.data(), wr.data(), doubles(b).data(), nullptr, N, C, OC);
    ref.linear_forward(full.data(), xr.data(), wr.data(), doubles(b).data(), doubles(r).data(), N, C, OC);
    ref.linear_backward(dx.data(), dw.data(), nullptr, dyr.data(), xr.data(), wr.data(), N, C, OC);
    ref.linear_backward(nullptr, sink.data(), db.data(), doubles(dy).data(), xr.data(), wr.data(), N, C, OC);
    each_isa<P>([&](const Ops<float, P>& op) {
        Guarded<float> y0(N * OC), y1(N * OC), y2(N * OC), y3(N * OC), fdx(N * C), fdw(OC * C, 0.5), fdb(OC, 0.25);
        Guarded<float> dw_only(OC * C, 0.5);
        op.linear_forward(y0, x.data(), w.data(), nullptr, nullptr, N, C, OC);
        op.linear_forward(y1, x.data(), w.data(), b.data(), nullptr, N, C, OC);
        op.linear_forward(y2, x.data(), w.data(), b.data(), r.data(), N, C, OC);
        memcpy(y3.data(), r.data(), r.size() * sizeof(float));
        op.linear_forward(y3, x.data(), w.data(), b.data(), y3, N, C, OC);
        op.linear_backward(fdx, fdw, fdb, dy.data(), x.data(), w.data(), N, C, OC);
        op.linear_backward(nullptr, dw_only, nullptr, dy.data(), x.data(), w.data(), N, C, OC);
        CHECK(relative_error(y0.data(), plain.data(), N * OC) < tolerance(C));
        CHECK(relative_error(y1.data(), biased.data(), N * OC) < tolerance(C));
        CHECK(relative_error(y2.data(), full.data(), N * OC) < tolerance(C));
        CHECK(relative_error(y3.data(), full.data(), N * OC) < tolerance(C));
        CHECK(relative_error(fdx.data(), dx.data(), N * C) < tolerance(OC));
        CHECK(relative_error(fdw.data(), dw.data(), OC * C) < tolerance(N));
        CHECK(relative_error(dw_only.data(), dw.data(), OC * C) < tolerance(N));
        CHECK(relative_error(fdb.data(), db.data(), OC) < tolerance(N));
        CHECK((y0.intact() && y1.intact() && y2.intact() && y3.intact()));
        CHECK((fdx.intact() && fdw.intact() && fdb.intact() && dw_only.intact()));
    });
}

TEST_CASE("linear: every instruction set against the reference") {
    for (int N : {1, 2, 3, 4, 5, 7, 31, 65})
        for (int C : {1, 3, 31, 32, 33, 96, 769}) {
            const int OC = C == 769 ? 50 : C == 32 ? 257 : C + 17;
            compare<float>(N, C, OC);
            if (N != 7) compare<bf16>(N, C, OC);
        }
    // Few rows: of groups of one to four; too long for L1; a multiple of a page
    for (auto [N, C, OC] : {std::array{6, 70, 19}, {9, 33, 21}, {16, 512, 50}, {2, 4099, 7}, {4, 3072, 18},
                            {8, 3072, 5}}) {
        compare<float>(N, C, OC);
        compare<bf16>(N, C, OC);
    }
    // Several blocks of k and of both operands; both ways round.
    for (auto [N, C, OC] : {std::array{300, 130, 500}, {20, 1700, 90}, {150, 70, 2500}, {1700, 33, 20}}) {
        compare<float>(N, C, OC);
        compare<bf16>(N, C, OC);
    }
}

template <class P> static void with_gelu() {
    const Dtype dtype = sizeof(P) == 2 ? Dtype::bf16 : Dtype::fp32;
    each_isa<P>([&](const Ops<float, P>& op) {
        for (auto [N, C, OC] : {std::array{1, 40, 90}, {4, 33, 20}, {5, 1, 1}, {49, 100, 130}, {200, 1700, 50}}) {
            CAPTURE(N); CAPTURE(C); CAPTURE(OC);
            Check forward = check_linear_gelu_forward(op, N, C, OC, dtype);
            Check backward = check_linear_gelu_backward(op, N, C, OC, dtype);
            CHECK_MESSAGE(forward.ok(), forward.output);
            CHECK_MESSAGE(backward.ok(), backward.output);
        }
    });
}
TEST_CASE("linear: with GELU, every instruction set against the reference") {
    with_gelu<float>();
    with_gelu<bf16>();
}
TEST_CASE("linear: with GELU the bits of linear, then gelu") {
    each_isa<float>([&](const Ops<float>& op) {
        const int N = 50, C = 90, OC = 130;
        auto x = normal<float>(N * C, 1), w = normal<float>(OC * C, 2), b = normal<float>(OC, 3);
        std::vector<float> pre(size_t(N) * OC), y(pre), pre1(pre), y1(pre);
        op.linear_forward(pre.data(), x.data(), w.data(), b.data(), nullptr, N, C, OC);
        op.gelu_forward(y.data(), pre.data(), N * OC);
        op.linear_gelu_forward(y1.data(), pre1.data(), x.data(), w.data(), b.data(), N, C, OC);
        CHECK(pre == pre1);
        CHECK(y == y1);
    });
}

// Few rows are our own products', the others the library's: neither may ask for the other without end.
template <class P> static void library() {
    for (int i = 0; i < ISA_COUNT; i++) {
        const Ops<float, P>* op = cpu_supports(Isa(i)) ? onednn_ops<P>(Isa(i)) : nullptr;
        if (!op) continue;    // it may have no bf16 here
        CAPTURE(i);
        CHECK((op->layernorm_forward == cpu_ops_isa<P>(Isa(i)).layernorm_forward));
        for (auto [N, C, OC] : {std::array{1, 30, 50}, {3, 40, 90}, {GEMV_ROWS, 40, 20}, {GEMV_ROWS + 1, 40, 20},
                                {33, 65, 130}, {300, 130, 500}, {2500, 16, 16}})
            for (bool bias : {false, true}) {
                for (Residual residual : {Residual::none, Residual::apart, Residual::in_y})
                    EXPECT(check_linear_forward(*op, N, C, OC, bias, residual));
                EXPECT(check_linear_backward(*op, N, C, OC, true, bias));
            }
    }
}
TEST_CASE("linear: oneDNN's products, where it is linked") {
    if (!onednn_ops<float>(Isa::base)) SKIP("this build has no oneDNN");
    library<float>();
    library<bf16>();
}

// round: A, and B where it is float, are rounded to bf16.
template <class P> static void own_product(Isa isa, int M, int N, int K, bool at, bool bt, bool round) {
    CAPTURE(int(isa)); CAPTURE(M); CAPTURE(N); CAPTURE(K); CAPTURE(at); CAPTURE(bt); CAPTURE(round); CAPTURE(sizeof(P));
    auto a = normal<float>(M * K, 1);
    auto b = normal<P>(K * N, 2);
    auto ar = round ? rounded<bf16>(a) : doubles(a), br = doubles(b);
    if (round && sizeof(P) == 4) br = rounded<bf16>(normal<float>(K * N, 2));
    const int ra = at ? 1 : K, ca = at ? M : 1, rb = bt ? 1 : N, cb = bt ? K : 1;
    std::vector<double> want(M * N);
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++)
            for (int k = 0; k < K; k++)
                want[size_t(m * N + n)] += ar[size_t(m * ra + k * ca)] * br[size_t(k * rb + n * cb)];
    Guarded<float> c(M * N), sum(M * N, 1);
    const Loops<P>& loops = cpu_loops<P>(isa);
    loops.matmul({M, N, K, a.data(), ra, ca, b.data(), rb, cb, c, false, round});
    loops.matmul({M, N, K, a.data(), ra, ca, b.data(), rb, cb, sum, true, round});
    for (int64_t j = 0; j < M * N; j++) sum[j] -= 1;
    CHECK(relative_error(c.data(), want.data(), M * N) < tolerance(K));
    CHECK(relative_error(sum.data(), want.data(), M * N) < tolerance(K));
    CHECK((c.intact() && sum.intact()));
}

TEST_CASE("linear: our own product against the reference, whatever the library") {
    for (int i = 0; i < ISA_COUNT; i++) {
        if (!cpu_supports(Isa(i))) continue;
        for (auto [M, N, K] :
             {std::array{1, 1, 1}, {7, 31, 65}, {6, 64, 400}, {97, 70, 33}, {1600, 20, 17}, {65, 200, 801},
              {1400, 1500, 5}, {9, 50, 3201}})
            for (int form = 0; form < 4; form++) {
                for (bool round : {false, true}) own_product<float>(Isa(i), M, N, K, form & 1, form & 2, round);
                own_product<bf16>(Isa(i), M, N, K, form & 1, form & 2, true);
            }
        auto a = normal<float>(100 * 500, 1), b = normal<float>(500 * 130, 2);
        CHECK(same_bits(100 * 130, [&](float* c) {
            cpu_loops<float>(Isa(i)).matmul({100, 130, 500, a.data(), 500, 1, b.data(), 130, 1, c, false, false});
        }));
    }
}

template <class P> static void any_threads() {
    auto same = [](const Ops<float, P>& op) {
        for (auto [N, C, OC] : {std::array{3, 200, 300}, {3, 3072, 70}, {13, 65, 83}, {64, 96, 288},
                                {256, 384, 1152}, {512, 128, 65}, {33, 769, 50}, {2048, 16, 16}}) {
            CAPTURE(N); CAPTURE(C); CAPTURE(OC);
            auto x = normal<float>(N * C, 1);
            auto w = normal<P>(OC * C, 2), b = normal<P>(OC, 3);
            CHECK(same_bits(2 * N * OC + N * C + OC * C + OC, [&](float* y) {
                float *dy = y + N * OC, *dx = dy + N * OC, *dw = dx + N * C, *db = dw + OC * C;
                for (int i = 0; i < OC * C + OC; i++) dw[i] = 1;
                fill_normal(dy, N * OC, 4);
                op.linear_forward(y, x.data(), w.data(), b.data(), dy, N, C, OC);
                op.linear_backward(dx, dw, db, dy, x.data(), w.data(), N, C, OC);
            }));
        }
    };
    each_isa<P>(same);
    if (cpu_chosen().tiles) same(cpu_ops<P>());    // oneDNN's, where they are what a user gets
}
TEST_CASE("linear: the same bits for any number of threads") {
    any_threads<float>();
    any_threads<bf16>();
}

template <class P> static void one_nan() {
    each_isa<P>([&](const Ops<float, P>& op) {
        for (int N : {2, 9}) {
            auto x = normal<float>(N * 40, 1);
            auto w = normal<P>(30 * 40, 2);
            memset(&w[7 * 40 + 3], 0x7f, sizeof(P));    // rounding as an integer would turn 0x7fffffff into -0
            memset(reinterpret_cast<char*>(&w[7 * 40 + 3]), 0xff, sizeof(P) - 1);
            std::vector<float> y(size_t(N) * 30);
            op.linear_forward(y.data(), x.data(), w.data(), nullptr, nullptr, N, 40, 30);
            for (size_t i = 0; i < y.size(); i++) CHECK(std::isnan(y[i]) == (i % 30 == 7));
        }
    });
}
TEST_CASE("linear: a NaN in the weights is seen in its column, with bf16 too") {
    one_nan<float>();
    one_nan<bf16>();
}
TEST_CASE("linear: a NaN in the inputs is seen in its row, with bf16 too") {
    each_isa<bf16>([&](const Ops<float, bf16>& op) {
        for (int N : {2, 9}) {
            auto x = normal<float>(N * 40, 1);
            auto w = normal<bf16>(30 * 40, 2);
            const uint32_t all_ones = 0x7fffffff;    // rounding as an integer would turn this NaN into -0
            memcpy(&x[40 + 3], &all_ones, 4);
            std::vector<float> y(size_t(N) * 30);
            op.linear_forward(y.data(), x.data(), w.data(), nullptr, nullptr, N, 40, 30);
            for (size_t i = 0; i < y.size(); i++) CHECK(std::isnan(y[i]) == (i / 30 == 1));
        }
    });
}

TEST_CASE("linear: gradients of the reference") {
    const Ops<double>& op = reference_ops();
    const int N = 4, C = 3, OC = 5;
    auto x = normal<double>(N * C, 1), w = normal<double>(OC * C, 2), b = normal<double>(OC, 3);
    auto r = normal<double>(N * OC, 4), g = normal<double>(N * OC, 5);
    std::vector<double> y(N * OC), dx(N * C), dw(OC * C), db(OC);
    auto loss = [&] {
        op.linear_forward(y.data(), x.data(), w.data(), b.data(), r.data(), N, C, OC);
        return dot(y, g);
    };
    op.linear_backward(dx.data(), dw.data(), db.data(), g.data(), x.data(), w.data(), N, C, OC);
    CHECK(gradient_error(x.data(), dx.data(), N * C, loss) < 1e-8);
    CHECK(gradient_error(w.data(), dw.data(), OC * C, loss) < 1e-8);
    CHECK(gradient_error(b.data(), db.data(), OC, loss) < 1e-8);
    CHECK(gradient_error(r.data(), g.data(), N * OC, loss) < 1e-8);
}

// ---- the backend around the operations ------------------------------------------------------------------------------

TEST_CASE("cpu: whose products a CPU with AMX, without and in disguise takes") {
    auto chosen = [](const char* isa, const char* gemm, const char* amx, bool has_amx) {
        const Result<CpuChoice> c = cpu_choice(isa, gemm, amx, has_amx);
        REQUIRE(c.ok());
        return c.value;
    };
    const bool can_tile = cpu_supports(Isa::avx512bf16);    // no CPU has AMX alone
    for (const char* none : {static_cast<const char*>(nullptr), ""}) {
        const CpuChoice plain = chosen(none, none, none, false), tiled = chosen(none, none, none, true);
        CHECK((!plain.library_fp32 && !plain.library_bf16 && !plain.tiles));
        CHECK((!tiled.library_fp32 && tiled.library_bf16 == can_tile && tiled.tiles == can_tile));
        CHECK(plain.isa == tiled.isa);
    }
    for (bool has_amx : {false, true}) {
        const CpuChoice refused = chosen(nullptr, nullptr, "refuse", has_amx);
        CHECK((!refused.library_fp32 && !refused.library_bf16 && !refused.tiles));
        const CpuChoice pretended = chosen(nullptr, nullptr, "pretend", has_amx);
        CHECK((!pretended.library_fp32 && pretended.library_bf16 && pretended.tiles == (has_amx && can_tile)));
        const CpuChoice own = chosen(nullptr, "own", "pretend", has_amx);
        CHECK((!own.library_fp32 && !own.library_bf16));
        const CpuChoice library = chosen(nullptr, "onednn", "refuse", has_amx);
        CHECK((library.library_fp32 && library.library_bf16 && !library.tiles));
        const CpuChoice base = chosen("base", nullptr, nullptr, has_amx);    // as on a CPU with no more than that
        CHECK((base.isa == Isa::base && !base.library_bf16 && !base.tiles));
        CHECK((chosen("base", nullptr, "pretend", has_amx).library_bf16));
    }
    for (auto [isa, gemm, amx, named] : {std::array{"sse9", "", "", "FLATGPT_ISA=sse9: expected"},
                                         {"", "mkl", "", "FLATGPT_GEMM=mkl: expected own or onednn"},
                                         {"", "", "yes", "FLATGPT_AMX=yes: expected pretend or refuse"}}) {
        const Status s = cpu_choice(isa, gemm, amx, true).status;
        CHECK(s.code == Exit::usage);
        CHECK(s.message.find(named) == 0);
        const ProcessResult r = run_flatgpt({"info"}, {.environment = {std::string("FLATGPT_ISA=") + isa,
                                            std::string("FLATGPT_GEMM=") + gemm, std::string("FLATGPT_AMX=") + amx}});
        CHECK((r.exit_code == 2 && r.err.find(named) != std::string::npos));
    }
    // Each choice has a table, and the library's is there only where the library is.
    for (const char* gemm : {"own", "onednn", ""})
        for (const char* amx : {"pretend", "refuse", ""}) {
            const CpuChoice c = chosen(nullptr, gemm, amx, cpu_has_amx());
            const Ops<float, bf16>* library = onednn_ops<bf16>(c.isa);
            CHECK(&cpu_ops_of<bf16>(c) == (library && c.library_bf16 ? library : &cpu_ops_isa<bf16>(c.isa)));
        }
}
TEST_CASE("cpu: pretended and refused, AMX changes the products that the command takes") {
    auto line = [](std::vector<std::string> environment) {
        const ProcessResult r = run_flatgpt(
            {"selftest", "--device", "cpu", "--dtype", "bf16", "--filter", "add_losses"}, {.environment = environment});
        CHECK(r.exit_code == 0);
        return r.out.substr(0, r.out.find('\n'));
    };
    if (!cpu_has_bf16()) SKIP("this CPU has no bf16 products");
    const bool library = onednn_ops<bf16>(Isa::avx512bf16);
    CHECK((line({"FLATGPT_AMX=pretend", "FLATGPT_GEMM"}).find("oneDNN") != std::string::npos) == library);
    CHECK((line({"FLATGPT_AMX=refuse", "FLATGPT_GEMM=onednn"}).find("oneDNN") != std::string::npos) == library);
    CHECK(line({"FLATGPT_AMX=refuse", "FLATGPT_GEMM"}).find("oneDNN") == std::string::npos);
    CHECK(line({"FLATGPT_AMX=pretend", "FLATGPT_GEMM=own"}).find("oneDNN") == std::string::npos);
    CHECK(line({"FLATGPT_AMX=refuse", "FLATGPT_GEMM=onednn"}).find("with AMX") == std::string::npos);
}

TEST_CASE("cpu: memory is zeroed and aligned, threads can be set, the table says what it is") {
    const Ops<float>& op = cpu_ops<float>();
    for (int64_t bytes : {int64_t(0), int64_t(1), int64_t(5000), int64_t(3) << 20}) {
        auto* p = static_cast<unsigned char*>(op.allocate(bytes));
        REQUIRE(p != nullptr);
        CHECK(reinterpret_cast<uintptr_t>(p) % 64 == 0);
        bool zero = true;
        for (int64_t i = 0; i < bytes; i++) zero = zero && p[i] == 0, p[i] = 1;
        CHECK(zero);
        op.zero(p, bytes);
        for (int64_t i = 0; i < bytes; i++) zero = zero && p[i] == 0;
        CHECK(zero);
        op.release(p, bytes);
    }
    CHECK(op.allocate(int64_t(1) << 60) == nullptr);
    std::vector<float> from = normal<float>(600000, 1);
    for (auto copy : {op.copy, op.upload, op.download, op.upload_ahead, op.take, op.download_later}) {
        std::vector<float> to(600000);
        copy(to.data(), from.data(), 600000 * 4);
        op.wait(op.mark());
        CHECK(from == to);
    }
    for (auto convert : {op.from_floats, op.to_floats}) {
        std::vector<float> to(600000);
        convert(to.data(), from.data(), 600000);
        CHECK(from == to);
    }
    each_isa([](auto& table) { EXPECT(check_casts(table, 100001)); });
    each_isa<bf16>([](auto& table) {
        for (int n : {1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 100001}) EXPECT(check_casts(table, n));
    });
    void* host = op.allocate_host(100);
    CHECK(host != nullptr);
    op.release_host(host, 100);
    CHECK(op.free_bytes() > 0);
    CHECK(op.free_bytes() < int64_t(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE));
    cpu_set_threads(3);
    CHECK(cpu_threads() == 3);
    cpu_set_threads(0);
    CHECK(cpu_threads() >= 1);
    CHECK(cpu_check().ok());
    CHECK(std::string(op.name).find("cpu fp32 (") == 0);
    CHECK(std::string(cpu_ops<bf16>().name).find("cpu bf16 (") == 0);
}
