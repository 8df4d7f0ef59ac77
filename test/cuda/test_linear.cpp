#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>

#include "cuda_test.h"

#include "tools/selftest/linear.h"

namespace {
const struct {
    int C, OC;
} WIDTHS[] = {{1, 1}, {1, 8}, {7, 1}, {7, 24}, {8, 7}, {24, 100}, {96, 24}, {100, 96}, {96, 100}};
constexpr Residual RESIDUALS[] = {Residual::none, Residual::apart, Residual::in_y};

// `choices`, but each product whose description contains `form` gets `choice`.
std::string with_choice(const std::string& choices, const std::string& form, const std::string& choice) {
    std::string out;
    for (size_t at = 0, end; (end = choices.find(';', at)) != std::string::npos; at = end + 1) {
        const std::string line = choices.substr(at, end - at);
        const size_t equals = line.find('=');
        const bool meant = equals != std::string::npos && line.find(form) < equals;
        out += (meant ? line.substr(0, equals + 1) + choice : line) + ";";
    }
    return out;
}
std::string choice_of(const std::string& choices, const std::string& form) {
    const size_t at = choices.find(form), equals = choices.find('=', at);
    return at == std::string::npos ? "" : choices.substr(equals + 1, choices.find(';', equals) - equals - 1);
}

// Bits of a product's y.
template <class T> Bits forward_bits(const Ops<T>& op, int N, int C, int OC) {
    const Memory m(op);
    Array<T> x(m, random_normal(int64_t(N) * C, 1)), w(m, random_normal(int64_t(OC) * C, 2));
    Array<T> b(m, random_normal(OC, 3)), y(m, int64_t(N) * OC);
    op.linear_forward(y, x, w, b, nullptr, N, C, OC, {});
    return y.bits();
}
template <class T, class P> void all_fused(const Ops<T, P>& op, Dtype dtype, int N, int C, int OC) {
    EXPECT(check_linear_gelu_forward(op, N, C, OC, dtype));
    EXPECT(check_linear_gelu_backward(op, N, C, OC, dtype));
}
}    // namespace

TEST_CASE("cuda linear: as if no product could take a bias") {
    auto all = [](auto& op, const TestTable& t) {
        int variant = 0;
        for (int N : {1, 2, 3, 4, 5, 33})
            for (auto [C, OC] : WIDTHS)
                for (bool bias : {false, true})
                    EXPECT(check_linear_forward(op, N, C, OC, bias, RESIDUALS[variant++ % 3], t.dtype));
    };
    cuda_choose("");
    each_table(TablePart::products, all);
    cuda_choose(with_choice(cuda_choices(), "epilogue 4", "-"));
    each_table(TablePart::products, all);
    cuda_choose("");
}

TEST_CASE("cuda linear: as if no product could sum over rows") {
    const Ops<float>& op = cuda_ops<float>(Dtype::fp32);
    auto all = [&] {
        for (auto [N, OC] : {std::pair{33, 40}, {129, 300}, {8197, 3}})
            EXPECT(check_linear_backward(op, N, 1, OC, false, true));
    };
    each_order([&] {
        cuda_choose("");
        all();
        cuda_choose(with_choice(cuda_choices(), "epilogue 512", "-"));
        all();
    });
    cuda_choose("");
}

TEST_CASE("cuda linear: with GELU, fused or in steps") {
    auto all = [](auto& op, const TestTable& t) {
        for (int N : {1, 3, 4, 5, 33})
            for (auto [C, OC] : WIDTHS) all_fused(op, t.dtype, N, C, OC);
    };
    cuda_choose("");
    each_table(TablePart::products, all);
    // Then computes fused products in steps: first GELU and column sums, then DGELU, too.
    std::string choices = cuda_choices();
    for (const char* fused : {"epilogue 164", "epilogue 208", "epilogue 512"})
        choices = with_choice(choices, fused, "-");
    cuda_choose(choices);
    each_table(TablePart::products, all);
    choices = with_choice(cuda_choices(), "epilogue 192", "-");
    cuda_choose(choices);
    each_table(TablePart::products, all);
    CHECK(cuda_choices() == with_choice(choices, "epilogue 164", "-"));
    for (const char* fused : {"epilogue 164", "epilogue 192", "epilogue 208", "epilogue 512"})
        CHECK(with_choice(cuda_choices(), fused, "-") == cuda_choices());
    cuda_choose("");
}

TEST_CASE("cuda linear: trying the algorithms leaves what is added to alone") {
    each_table(TablePart::products, [](auto& op, const TestTable& t) {
        auto first = [&](auto check) {
            cuda_choose("");
            EXPECT(check());
            EXPECT(check());
        };
        first([&] { return check_linear_forward(op, 33, 24, 40, true, Residual::in_y, t.dtype); });
        first([&] { return check_linear_forward(op, 33, 24, 40, false, Residual::in_y, t.dtype); });
        first([&] { return check_linear_backward(op, 33, 24, 40, true, true, t.dtype); });
        first([&] { return check_linear_gelu_backward(op, 33, 24, 40, t.dtype); });
    });
}

TEST_CASE("cuda linear: recorded once, replayed often") {
    auto run = [](auto& op, auto zero) {
        typedef decltype(zero) T;
        REQUIRE((op.begin_capture != nullptr));
        const Memory m(op);
        const int N = 20, C = 24, OC = 40;
        const Numbers start = random_normal(OC * C, 9);
        Array<T> x(m, random_normal(N * C, 1)), w(m, random_normal(OC * C, 2)), b(m, random_normal(OC, 3));
        Array<T> dy(m, random_normal(N * OC, 4));
        struct Outputs {
            Array<T> y, pre, dx, dpre;
            Array<Grad<T>> dw, db, sum;
        };
        auto outputs = [&] {
            return new Outputs{{m, N * OC}, {m, N * OC}, {m, N * C}, {m, N * C}, {m, start}, {m, start}, {m, start}};
        };
        auto all = [&](Outputs& o) {
            op.linear_gelu_forward(o.y, o.pre, x, w, b, N, C, OC, {});
            op.linear_forward(o.y, x, w, b, o.pre, N, C, OC, {});
            op.linear_forward(o.y, x, w, b, o.y, 2, C, OC, {});
            op.linear_backward(o.dx, {o.dw, true}, o.db, dy, x, w, N, C, OC, {});
            op.linear_gelu_backward(o.dpre, {o.dw, true}, o.db, o.sum, dy, x, w, x, N, C, OC);
        };
        each_order([&] {
            const std::unique_ptr<Outputs> expected(outputs()), got(outputs());
            all(*expected);
            all(*expected);
            const auto before = got->dw.bits();
            op.begin_capture();
            all(*got);
            void* graph = op.end_capture();
            CHECK(got->dw.bits() == before);
            op.launch_graph(graph);
            op.launch_graph(graph);
            CHECK(got->y.bits() == expected->y.bits());
            CHECK(got->dx.bits() == expected->dx.bits());
            CHECK(got->dpre.bits() == expected->dpre.bits());
            CHECK(got->dw.bits() == expected->dw.bits());
            CHECK(got->db.bits() == expected->db.bits());
            CHECK(got->sum.bits() == expected->sum.bits());
            op.release_graph(graph);
        });
    };
    run(cuda_ops<float>(Dtype::fp32), 0.0f);
    run(cuda_ops<bf16>(Dtype::bf16), bf16{});
}

TEST_CASE("cuda linear: what was never called is not recorded") {
    const auto& op = cuda_ops<float>(Dtype::fp32);
    REQUIRE((op.begin_capture != nullptr));
    if (!cuda_emulated()) SKIP("a process with a GPU must not fork");
    const Memory m(op);
    Array<float> x(m, Numbers(77 * 5, 1)), w(m, Numbers(3 * 5, 1)), y(m, 77 * 3);
    int pipes[2];
    REQUIRE(pipe(pipes) == 0);
    fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(pipes[1], 2);
        op.begin_capture();
        op.linear_forward(y, x, w, nullptr, nullptr, 77, 5, 3, {});
        _exit(0);
    }
    close(pipes[1]);
    std::string said;
    char text[512];
    for (ssize_t n; (n = read(pipes[0], text, sizeof text)) > 0;) said.append(text, size_t(n));
    int status = 0;
    waitpid(child, &status, 0);
    close(pipes[0]);
    CHECK(WIFSIGNALED(status));
    CHECK(said.find("3 x 77 x 5") != std::string::npos);
}

TEST_CASE("cuda linear: fp32 is not tf32") {
    const auto exact = forward_bits(cuda_ops<float>(Dtype::fp32), 32, 64, 64);
    CHECK(exact != forward_bits(cuda_ops<float>(Dtype::tf32), 32, 64, 64));
}

TEST_CASE("cuda linear: recorded choices are taken again") {
    const auto& op = cuda_ops<float>(Dtype::fp32);
    cuda_choose("");
    const auto bits = forward_bits(op, 20, 96, 64);
    all_fused(op, Dtype::fp32, 20, 64, 96);
    const std::string choices = cuda_choices();
    CHECK(choices.find_first_of("\"\\\n\t") == std::string::npos);
    CHECK(choices.size() > 200);
    cuda_choose(choices);
    CHECK(cuda_choices() == choices);    // also those not used yet
    CHECK(forward_bits(op, 20, 96, 64) == bits);
    all_fused(op, Dtype::fp32, 20, 64, 96);
    CHECK(cuda_choices() == choices);
    if (!cuda_emulated()) return;
    // Rows of 95 elements got another algorithm, which rounds differently. The product is computed
    // with rows of 96.
    const auto odd = forward_bits(op, 20, 95, 64);
    const std::string other = choice_of(cuda_choices(), "64 x 20 x 95");
    CHECK(other != choice_of(choices, "64 x 20 x 96"));
    cuda_choose(with_choice(choices, "64 x 20 x 96", other));
    CHECK(forward_bits(op, 20, 96, 64) != bits);
    CHECK(choice_of(cuda_choices(), "64 x 20 x 96") == other);
    EXPECT(check_linear_forward(op, 20, 96, 64, true, Residual::none));
    cuda_choose("");
    CHECK(forward_bits(op, 20, 96, 64) == bits);
}

TEST_CASE("cuda linear: choices that make no sense are ignored") {
    const auto& op = cuda_ops<float>(Dtype::fp32);
    cuda_choose("");
    const auto bits = forward_bits(op, 20, 96, 64);
    EXPECT(check_linear_backward(op, 20, 96, 64, true, true));
    const std::string choices = cuda_choices(), form = "64 x 20 x 96", head = choices.substr(0, choices.find(';') + 1);
    // Choices made on another number of multiprocessors must be ignored.
    forward_bits(op, 20, 95, 64);
    std::string elsewhere = with_choice(choices, form, choice_of(cuda_choices(), "64 x 20 x 95"));
    elsewhere[elsewhere.find(';') - 1] ^= 1;
    const std::string deep(100000, '=');
    std::vector<std::string> texts = {"",
                                      "{}",
                                      ";;;=",
                                      elsewhere,
                                      head,
                                      head + "=;=;;-;x",
                                      head + deep,
                                      head + deep + ";",
                                      choices.substr(0, choices.size() / 2),
                                      with_choice(choices, "epilogue 1 ", "-")};    // plain products have no steps
    for (const std::string& choice :
         {std::string(), std::string("0123"), std::string(128, 'f'), std::string(128, 'x'), std::string(4000, '0')})
        texts.push_back(with_choice(choices, form, choice));
    for (const std::string& text : texts) {
        CAPTURE(text);
        cuda_choose(text);
        CHECK(forward_bits(op, 20, 96, 64) == bits);
        EXPECT(check_linear_backward(op, 20, 96, 64, true, true));
        for (const char* one : {"64 x 20 x 96", "epilogue 1 "})
            CHECK(choice_of(cuda_choices(), one) == choice_of(choices, one));
    }
    cuda_choose("");
}
