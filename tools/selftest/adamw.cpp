#include "base/philox.h"
#include "layers/step_verdict.h"
#include "adamw.h"

#include "selftest.h"

namespace {
void demand(Check& check, bool holds, const char* what) {
    if (!holds) check.worst = INFINITY, check.output = what;
}

// A Step in device memory.
struct DeviceStep {
    static constexpr int64_t WORDS = ceil_div(sizeof(Step), 8);
    Array<double> memory;
    DeviceStep(Memory m, const Step& s) : memory(m, words(s)) {}
    operator Step*() { return reinterpret_cast<Step*>(static_cast<double*>(memory)); }
    Step read() const {
        Step s;
        memcpy(&s, memory.bits().data(), sizeof s);
        return s;
    }
    static Numbers words(const Step& s) {
        Numbers w(WORDS);
        memcpy(w.data(), &s, sizeof s);
        return w;
    }
};

constexpr OptimizerParams ADAM = {0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 3};
Step step_of(int64_t updates, float scale) {
    Step s = {};
    decide_step(&s, 1, 1, ADAM, {});
    s.updates = updates;
    s.scale = scale;
    s.m_correction = float(1 / (1 - std::pow(double(ADAM.beta1), double(updates))));
    s.v_correction = float(1 / (1 - std::pow(double(ADAM.beta2), double(updates))));
    return s;
}

// Inputs of a step. Weights (0.02) are about as large as their change (0.01), and second moments
// are at least 1, so that an error in either term of the new weight shows.
struct Problem {
    Numbers w, m, v, dw, groups;
    template <class P> static Problem of(int64_t n, bool with_master) {
        Problem p = {random_normal(n, 1, 0.02), random_normal(n, 2), random_normal(n, 3), random_normal(n, 4, 2),
                     Numbers(size_t(ceil_div(n, 64)))};
        p.w = with_master ? rounded<float>(p.w) : rounded<P>(p.w);
        p.m = rounded<float>(p.m), p.dw = rounded<float>(p.dw);
        for (double& x : p.v) x = 1 + x * x;
        p.v = rounded<float>(p.v);
        for (size_t i = 0; i < p.groups.size(); i++) p.groups[i] = double(philox(5, 6, i).v[0] % 4);
        return p;
    }
};

// The device arrays of one step.
template <class P> struct State {
    Array<P> w;
    Array<float> master, m, v, dw;
    Array<uint8_t> groups;
    bool with_master;
    State(Memory mem, const Problem& p, bool has_master)
        : w(mem, p.w), master(mem, p.w), m(mem, p.m), v(mem, p.v), dw(mem, p.dw), groups(mem, p.groups),
          with_master(has_master) {}
    template <class T> void run(const Ops<T, P>& op, const Step& s, uint64_t seed, OptimizerParams a = ADAM) {
        DeviceStep step(Memory(op), s);
        op.adamw(w, with_master ? static_cast<float*>(master) : nullptr, m, v, dw, groups, w.size(), step, a, seed);
    }
    std::vector<unsigned char> bits() const {
        auto all = w.bits();
        for (const Array<float>* a : {&master, &m, &v}) {
            auto more = a->bits();
            all.insert(all.end(), more.begin(), more.end());
        }
        return all;
    }
};

// Checks stochastic rounding: each number of got (bf16) must be `exact` or a neighbour of it, and
// the sum of the roundings must be within 4 standard deviations of 0. w holds the weights before
// the step.
void expect_unbiased(Check& check, const Numbers& got, const Numbers& exact, const Numbers& w) {
    double drift = 0, variance = 0;
    for (size_t i = 0; i < got.size(); i++) {
        const float x = float(exact[i]), g = float(got[i]);
        uint32_t xb, gb;
        memcpy(&xb, &x, 4);
        memcpy(&gb, &g, 4);
        const double part = double(xb & 0xffff) / 65536, up = double(int64_t(gb >> 16) - int64_t(xb >> 16));
        // The new weight is computed in float, with an error of up to about 2^-22 |w|. In steps of
        // bf16, 2^-8 of the new weight, that is much where w and its change nearly cancel.
        const double slack = 2e-3 + 0x1p-22 * std::fabs(w[i]) / (0x1p-8 * std::fabs(exact[i]) + 1e-30);
        demand(check, up - part > -1 - slack && up - part < 1 + slack, "a neighbour");
        drift += up - part;
        variance += part * (1 - part);
    }
    demand(check, std::fabs(drift) <= 4 * std::sqrt(variance) + 1, "the mean");
}

template <class T, class P>
void check_stochastic(Check& check, const Ops<T, P>& op, const Problem& p, const Numbers& exact) {
    const Step s = step_of(7, 1);
    auto run = [&](int64_t updates, uint64_t seed) {
        State<P> state(Memory(op), p, false);
        Step other = s;
        other.updates = updates;
        state.run(op, other, seed);
        return state.w.bits();
    };
    State<P> state(Memory(op), p, false);
    state.run(op, s, 11);
    expect_unbiased(check, state.w.read(), exact, p.w);
    demand(check, state.w.intact(), "w");
    demand(check, run(7, 11) == state.w.bits(), "the same again");
    if (exact.size() < 64) return;
    demand(check, run(8, 11) != state.w.bits(), "another step, other bits");
    demand(check, run(7, 12) != state.w.bits(), "another seed, other bits");
}

// Checks the random bits of stochastic rounding. Without a gradient, and with powers of two, a step
// before rounding is exact: w - w / 512, or w without decay.
template <class T, class P> void check_random_bits(Check& check, const Ops<T, P>& op, Problem p) {
    const uint64_t seed = 12345678901, updates = 77;
    for (Numbers* zeros : {&p.m, &p.v, &p.dw}) std::fill(zeros->begin(), zeros->end(), 0);
    Step s = {};
    s.updates = int64_t(updates), s.scale = s.m_correction = s.v_correction = 1;
    State<P> state(Memory(op), p, false);
    state.run(op, s, seed, {0x1p-4f, 0.9f, 0.95f, 1e-8f, 0x1p-5f});
    const Numbers got = state.w.read();
    bool promised = true;
    for (size_t i = 0; i < got.size(); i++) {
        const float x = float(int(p.groups[i / 64]) % 2 == 0 ? p.w[i] : p.w[i] - p.w[i] / 512);
        uint32_t bits;
        memcpy(&bits, &x, 4);
        bits += philox(seed, updates, i / 4).v[i % 4] >> 16;
        promised = promised && got[i] == double(to_float(bf16{uint16_t(bits >> 16)}));
    }
    demand(check, promised, "the bits that are promised");
}
}    // namespace

template <class T, class P> Check check_adamw(const Ops<T, P>& op, int64_t n, bool with_master) {
    const Memory mem(op);
    Check check("adamw", {{"n", n}});
    check.shape += with_master ? " with master" : "";
    const Problem p = Problem::of<P>(n, with_master);
    for (float scale : {0.37f, 1.0f}) {
        const Step s = step_of(7, scale);
        Numbers w = p.w;
        std::vector<float> m(p.m.begin(), p.m.end()), v(p.v.begin(), p.v.end());
        std::vector<uint8_t> groups(p.groups.begin(), p.groups.end());
        reference_ops().adamw(w.data(), nullptr, m.data(), v.data(), p.dw.data(), groups.data(), n, &s, ADAM, 0);
        State<P> state(mem, p, with_master);
        state.run(op, s, 11);
        check.expect("m", state.m, Numbers(m.begin(), m.end()), ROUNDING<float>);
        check.expect("v", state.v, Numbers(v.begin(), v.end()), ROUNDING<float>);
        if (with_master) {
            check.expect("master", state.master, w, ROUNDING<float>);
            const bool copied = state.w.read() == rounded<P>(state.master.read());
            demand(check, copied && state.w.intact(), "w, the rounded master");
        } else if (sizeof(P) == 4) {
            check.expect("w", state.w, w, ROUNDING<float>);
        } else if (scale == 1) {
            check_stochastic(check, op, p, w);
            check_random_bits(check, op, p);
        }
    }
    State<P> state(mem, p, with_master);
    const auto before = state.bits();
    Step skipped = step_of(7, 1);
    skipped.skipped = 1;
    state.run(op, skipped, 11);
    demand(check, state.bits() == before, "a skipped step");
    return check;
}

template <class T, class P> Check check_sum_of_squares(const Ops<T, P>& op, int64_t n) {
    const Memory m(op);
    Check check("sum_of_squares", {{"n", n}});
    Numbers x = random_normal(n, 1);
    x[size_t(n / 2)] = 1e15, x[size_t(n - 1)] = 1e25;    // squares and their sum overflow float
    x = rounded<Grad<P>>(x);
    double sum = 0;
    reference_ops().sum_of_squares(&sum, x.data(), n);
    Array<double> out(m, 1);
    Array<Grad<P>> ax(m, x);
    op.sum_of_squares(out, ax, n);
    check.expect("sum", out, {sum}, 1e-12);
    x[size_t(n / 2)] = x[size_t(n - 1)] = 1;
    sum = 0;
    reference_ops().sum_of_squares(&sum, x.data(), n);
    Array<Grad<P>> ones(m, x);
    op.sum_of_squares(out, ones, n);
    check.expect("sum without large ones", out, {sum}, 1e-12);
    return check;
}

template <class T, class P> Check check_add_losses(const Ops<T, P>& op, int64_t n) {
    const Memory m(op);
    Check check("add_losses", {{"n", n}});
    const Numbers loss = rounded<float>(random_normal(n, 1, 10));
    const std::vector<float> floats(loss.begin(), loss.end());
    double sum = 1234.5;
    Array<double> total(m, Numbers{sum});
    Array<float> al(m, loss);
    reference_ops().add_losses(&sum, floats.data(), n);
    op.add_losses(total, al, n);
    check.expect("total", total, {sum}, 1e-12);
    return check;
}

template <class T, class P> Check check_step_verdict(const Ops<T, P>& op, int n) {
    const Memory m(op);
    Check check("step_verdict", {{"n", n}});
    Numbers squares = random_normal(n, 1);
    for (double& x : squares) x = x * x + 0.1;
    struct Case {
        double loss, square;
        Limits limits;
        int64_t updates;
    };
    for (const Case& c : {Case{3, 1, {}, 0},
                          {3, 1, {1}, 1},
                          {3, 1, {1e9}, 2000},
                          {3, 1, {1, 0.1}, 3},
                          {3, 1, {0, 10, 0.1}, 4},
                          {NAN, 1, {}, 5},
                          {INFINITY, 1, {1}, 6},
                          {3, NAN, {1}, 7},
                          {3, INFINITY, {1}, 0}}) {
        squares[size_t(n / 2)] = c.square;
        Step expected = {};
        expected.updates = c.updates;
        DeviceStep step(m, expected);
        Array<double> loss(m, Numbers{c.loss}), as(m, squares);
        reference_ops().step_verdict(&expected, &c.loss, 0.25, squares.data(), n, ADAM, c.limits);
        op.step_verdict(step, loss, 0.25, as, n, ADAM, c.limits);
        const Step got = step.read();
        demand(check, got.updates == expected.updates && got.skipped == expected.skipped && step.memory.intact(),
               "updates, skipped");
        auto near = [](double a, double b, double limit) {
            return a == b || (std::isnan(a) && std::isnan(b)) || std::fabs(a - b) <= limit * std::fabs(b);
        };
        demand(check, near(got.loss, expected.loss, 0) && near(got.norm, expected.norm, 1e-13), "loss, norm");
        demand(check, near(got.scale, expected.scale, 1e-6), "scale");
        demand(
            check,
            near(got.m_correction, expected.m_correction, 1e-6) && near(got.v_correction, expected.v_correction, 1e-6),
            "m_correction, v_correction");
    }
    return check;
}

template <class T, class P> Check check_casts(const Ops<T, P>& op, int64_t n, int at) {
    const Memory m(op);
    Check check("from_floats, to_floats", {{"n", n}, {"at", at}});
    std::vector<float> floats(static_cast<size_t>(at + n));    // random bits: NaN, infinities, ties, denormals
    std::vector<P> expected(floats.size());
    Numbers numbers(floats.size());
    for (size_t i = 0; i < floats.size(); i++) {
        const Philox4 random = philox(9, 1, i);
        uint32_t bits = random.v[0];
        if (random.v[1] % 4 == 0) bits = (bits & 0xffff0000) | 0x8000;         // halfway between two bf16 values
        if (random.v[1] % 16 == 1) bits = (bits & 0x80000000) | 0x7f800000;    // infinite
        memcpy(&floats[i], &bits, 4);
        if (std::isnan(floats[i])) floats[i] = NAN;    // canonical NaN, because values pass through double here
        expected[i] = from_float<P>(floats[i]);
        numbers[i] = double(floats[i]);
    }
    Array<float> from(m, numbers), back(m, at + n);
    Array<P> to(m, at + n);
    op.from_floats(to + at, from + at, n);
    auto same = [at](const std::vector<unsigned char>& got, const auto& want) {
        const auto first = got.begin() + int64_t(size_t(at) * sizeof want[0]);
        return std::all_of(got.begin(), first, [](unsigned char byte) { return byte == 0xff; }) &&    // unchanged
               memcmp(&*first, &want[size_t(at)], size_t(got.end() - first)) == 0;
    };
    demand(check, same(to.bits(), expected) && to.intact(), "from_floats");
    for (size_t i = 0; i < floats.size(); i++) floats[i] = to_float(expected[i]);
    op.to_floats(back + at, to + at, n);
    demand(check, same(back.bits(), floats) && back.intact(), "to_floats");
    return check;
}

FOR_EACH_TABLE(check_adamw, int64_t, bool)
FOR_EACH_TABLE(check_sum_of_squares, int64_t)
FOR_EACH_TABLE(check_add_losses, int64_t)
FOR_EACH_TABLE(check_step_verdict, int)
FOR_EACH_TABLE(check_casts, int64_t, int)

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    test.row("add_losses", [&] { return check_add_losses(op, 1 << 16); });
    test.row("sum_of_squares", [&] { return check_sum_of_squares(op, gpt2.C * gpt2.F + 1); });
    test.row("step_verdict", [&] { return check_step_verdict(op, 148); });    // GPT-2's number of tensors
    for (bool with_master : {false, true})
        if (sizeof(P) == 2 || !with_master)
            test.row("adamw", [&] { return check_adamw(op, gpt2.C * gpt2.F + 64, with_master); });
    test.row("from_floats, to_floats", [&] { return check_casts(op, gpt2.C * gpt2.F); });
});
