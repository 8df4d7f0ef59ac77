#include "base/philox.h"
#include "layers/optimizer/muon.h"
#include "layers/optimizer/optimizer_state.h"
#include "layers/optimizer/step_verdict.h"
#include "update.h"

#include "selftest.h"

std::vector<UpdateKind> update_kinds(bool with_master) {
    constexpr Element F = Element::f32, H = Element::bf16, Q = Element::uint8;
    return {{UpdateRule::adamw, with_master},
            {UpdateRule::adamw, with_master, H, H, true},
            {UpdateRule::adamw, with_master, Q, Q},
            {UpdateRule::adamw, with_master, H, Q},
            {UpdateRule::lion, with_master, F, F, true},
            {UpdateRule::lion, with_master, Q},
            {UpdateRule::signum, with_master},
            {UpdateRule::given, with_master},
            {UpdateRule::given, with_master, F, F, true}};
}

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

// Groups: without and with decay, then both with three times the rate.
constexpr OptimizerParams PARAMS = {.lr = 0.01f,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.95f,
                                    .eps = 1e-8f,
                                    .weight_decay = 0.1f,
                                    .momentum = 0.9f,
                                    .groups = {{{1, 0}, {1, 1}, {3, 0}, {3, 1}}}};
Step step_of(int64_t updates, float scale) {
    Step s = {};
    decide_step(&s, 1, 1, nullptr, PARAMS, {});
    s.updates = updates;
    s.scale = scale;
    s.m_correction = float(1 / (1 - std::pow(double(PARAMS.beta1), double(updates))));
    s.v_correction = float(1 / (1 - std::pow(double(PARAMS.beta2), double(updates))));
    return s;
}

// A state in device memory, of any type. Its first numbers are rounded to the type.
template <int BITS> struct TypedState {
    Element type;
    std::vector<uint8_t> first_codes;
    Numbers first;
    Array<float> floats, scales;
    Array<bf16> halves;
    Array<uint8_t> codes;
    TypedState(Memory mem, const Numbers& x, Element t)
        : type(t), first(rounded_to_type(x)), floats(mem, first), scales(mem, scales_of(x)), halves(mem, first),
          codes(mem, first_codes) {}
    StateArray array() {
        if (type == Element::f32) return {static_cast<float*>(floats)};
        if (type == Element::bf16) return {static_cast<bf16*>(halves), nullptr, type};
        return {static_cast<uint8_t*>(codes), scales, type};
    }
    Numbers read() const {
        if (type == Element::f32) return floats.read();
        if (type == Element::bf16) return halves.read();
        const Numbers scale = scales.read();
        Numbers x;
        for (const unsigned char code : codes.bits()) x.push_back(scale[x.size() / STATE_BLOCK] * number_of(code));
        return x;
    }
    std::vector<unsigned char> bits() const {
        std::vector<unsigned char> all = codes.bits();
        for (const auto& more : {floats.bits(), scales.bits(), halves.bits()})
            all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    // Compares with exact numbers, within the rounding of the type.
    void expect(Check& check, const char* what, const Numbers& exact) {
        const Numbers got = read(), scale = scales_of(exact);
        demand(check, floats.intact() && halves.intact() && codes.intact() && scales.intact(), what);
        if (type == Element::f32) return check.expect(what, floats, exact, ROUNDING<float>);
        for (size_t i = 0; i < got.size(); i++) {
            const double error = std::fabs(got[i] - exact[i]), of = scale[i / STATE_BLOCK];
            const double limit = type == Element::bf16 ? 0x1.02p-7 * std::fabs(exact[i]) + 1e-6
                                                       : of * (1.02 * step(std::fabs(exact[i]) / of) + 1e-6);
            demand(check, error <= limit, what);
        }
        if (type != Element::uint8) return;
        const Numbers got_scale = scales.read();
        for (size_t i = 0; i < scale.size(); i++)
            demand(check, std::fabs(got_scale[i] - scale[i]) <= 1e-6 * scale[i], "scale");
        for (size_t i = 0; i < got.size() && BITS == 8; i++)
            demand(check, (got[i] > 0) == (exact[i] > 0), "v is 0 only where it is 0");
    }

  private:
    typedef StateCode<BITS> Code;
    static double number_of(int code) {
        return BITS == 7 && code & 128 ? -double(Code::value(code & 127)) : double(Code::value(code));
    }
    // Largest error of a code for x in 0..1: half the distance of codes, and all of it below 1.
    static double step(double x) {
        int e = BITS - 1;
        while (e > 0 && x < Code::decade_end(e - 1)) e--;
        return (x > 0.97 ? 1 : 0.5) * 0.9 * Code::decade_end(e) / (1 << e) + 0.1 * Code::decade_end(0);
    }
    static Numbers scales_of(const Numbers& x) {
        Numbers scale(x.size() / STATE_BLOCK);
        for (size_t i = 0; i < x.size(); i++)
            scale[i / STATE_BLOCK] = std::max(scale[i / STATE_BLOCK], double(float(std::fabs(x[i]))));
        return scale;
    }
    Numbers rounded_to_type(const Numbers& x) {
        first_codes.assign(x.size(), 0);
        if (type != Element::uint8) return type == Element::bf16 ? rounded<bf16>(x) : rounded<float>(x);
        Numbers to;
        const Numbers scale = scales_of(x);
        for (size_t i = 0; i < x.size(); i++) {
            const double of = scale[i / STATE_BLOCK];
            int code = 0;    // the last one that is not above x; codes rise with their numbers
            for (int bit = 1 << (BITS - 1); bit > 0; bit /= 2)
                if (of * number_of(code | bit) <= std::fabs(x[i])) code |= bit;
            code |= BITS == 7 && code && x[i] < 0 ? 128 : 0;
            first_codes[i] = uint8_t(code);
            to.push_back(double(float(of) * float(number_of(code))));
        }
        return to;
    }
};

// Inputs of a step. Weights (0.02) are about as large as their change (0.01), and second moments
// are at least 1, so that an error in either term of the new weight shows.
struct Problem {
    Numbers w, m, v, dw, groups;
    template <class P> static Problem of(int64_t n, bool with_master) {
        Problem p = {random_normal(n, 1, 0.02), random_normal(n, 2), random_normal(n, 3), random_normal(n, 4, 2),
                     Numbers(size_t(ceil_div(n, 64)))};
        p.w = with_master ? rounded<float>(p.w) : rounded<P>(p.w);
        p.dw = rounded<float>(p.dw);
        for (double& x : p.v) x = 1 + x * x;
        for (size_t i = 0; i < p.groups.size(); i++) p.groups[i] = double(philox(5, 6, i).v[0] % 4);
        return p;
    }
};

// The device arrays of one step.
template <class P> struct State {
    UpdateKind kind;
    Array<P> w;
    Array<float> master, dw;
    TypedState<7> m;
    TypedState<8> v;
    Array<uint8_t> groups;
    State(Memory mem, const Problem& p, const UpdateKind& k)
        : kind(k), w(mem, p.w), master(mem, p.w), dw(mem, p.dw), m(mem, p.m, k.m), v(mem, p.v, k.v),
          groups(mem, p.groups) {}
    template <class T> void run(const Ops<T, P>& op, const Step& s, uint64_t seed, OptimizerParams a = PARAMS) {
        DeviceStep step(Memory(op), s);
        a.cautious = kind.cautious;
        op.update_weights(w, kind.master ? static_cast<float*>(master) : nullptr,
                          kind.rule == UpdateRule::given ? StateArray{} : m.array(),
                          kind.rule == UpdateRule::adamw ? v.array() : StateArray{}, dw, groups, w.size(), step,
                          kind.rule, a, seed);
    }
    std::vector<unsigned char> bits() const {
        auto all = w.bits();
        for (const auto& more : {master.bits(), m.bits(), v.bits()}) all.insert(all.end(), more.begin(), more.end());
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

template <class T, class P> void check_stochastic(Check& check, const Ops<T, P>& op, const Problem& p,
                                                  const UpdateKind& kind, const Numbers& exact) {
    Step s = step_of(7, 1);
    s.groups.of[2] = 2;
    auto run = [&](int64_t updates, uint64_t seed) {
        State<P> state(Memory(op), p, kind);
        Step other = s;
        other.updates = updates;
        state.run(op, other, seed);
        return state.w.bits();
    };
    State<P> state(Memory(op), p, kind);
    state.run(op, s, 11);
    expect_unbiased(check, state.w.read(), exact, p.w);
    demand(check, state.w.intact(), "w");
    demand(check, run(7, 11) == state.w.bits(), "the same again");
    demand(check, run(8, 11) != state.w.bits(), "another step, other bits");
    demand(check, run(7, 12) != state.w.bits(), "another seed, other bits");
}

// The bf16 that a number becomes with these 16 random bits.
double at_random(float x, uint32_t random) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return double(to_float(bf16{uint16_t((bits + random) >> 16)}));
}
// Checks the random bits of stochastic rounding. Without a gradient, and with powers of two, a step
// before rounding is exact: w - w / 512, or w without decay, and three quarters of m and v.
template <class T, class P> void check_random_bits(Check& check, const Ops<T, P>& op, Problem p, UpdateKind kind) {
    const uint64_t seed = 12345678901, updates = 77;
    kind.rule = UpdateRule::adamw, kind.cautious = false, kind.m = kind.v = Element::bf16;
    std::fill(p.dw.begin(), p.dw.end(), 0);
    Step s = {};
    s.updates = int64_t(updates), s.scale = s.v_correction = 1;    // m_correction 0: m does not move w
    State<P> state(Memory(op), p, kind);
    const OptimizerParams a = {.lr = 0x1p-4f,
                               .beta1 = 0.75f,
                               .beta2 = 0.75f,
                               .eps = 1e-8f,
                               .weight_decay = 0x1p-5f,
                               .groups = {{{1, 0}, {1, 1}, {1, 0}, {1, 1}}}};
    state.run(op, s, seed, a);
    const Numbers got = state.w.read(), m = state.m.read(), v = state.v.read();
    bool promised = true;
    for (size_t i = 0; i < got.size(); i++) {
        const float x = float(int(p.groups[i / 64]) % 2 == 0 ? p.w[i] : p.w[i] - p.w[i] / 512);
        const uint32_t word = philox(seed, updates, i / 4).v[i % 4], other = philox(seed + 1, updates, i / 4).v[i % 4];
        promised &= sizeof(P) == 4 || kind.master || got[i] == at_random(x, word >> 16);
        promised &= m[i] == at_random(0.75f * float(state.m.first[i]), other >> 16);
        promised &= v[i] == at_random(0.75f * float(state.v.first[i]), other & 0xffff);
    }
    demand(check, promised, "the bits that are promised");
}
}    // namespace

template <class T, class P> Check check_update(const Ops<T, P>& op, int64_t n, UpdateKind kind) {
    const Memory mem(op);
    Check check("update_weights", {{"n", n}, {"rule", int(kind.rule)}, {"m", int(kind.m)}, {"v", int(kind.v)}});
    check.shape += std::string(kind.master ? " with master" : "") + (kind.cautious ? " cautious" : "");
    const Problem p = Problem::of<P>(n, kind.master);
    OptimizerParams a = PARAMS;
    a.cautious = kind.cautious;
    const bool has_m = kind.rule != UpdateRule::given, has_v = kind.rule == UpdateRule::adamw;
    for (float scale : {0.37f, 1.0f}) {
        Step s = step_of(7, scale);
        s.groups.of[2] = 2;
        State<P> state(mem, p, kind);
        Numbers w = p.w;
        std::vector<float> m(state.m.first.begin(), state.m.first.end()), v(state.v.first.begin(), state.v.first.end());
        std::vector<uint8_t> groups(p.groups.begin(), p.groups.end());
        reference_ops().update_weights(w.data(), nullptr, has_m ? StateArray{m.data()} : StateArray{},
                                       has_v ? StateArray{v.data()} : StateArray{}, p.dw.data(), groups.data(), n, &s,
                                       kind.rule, a, 0);
        state.run(op, s, 11);
        state.m.expect(check, "m", Numbers(m.begin(), m.end()));
        state.v.expect(check, "v", Numbers(v.begin(), v.end()));
        if (kind.master) {
            check.expect("master", state.master, w, ROUNDING<float>);
            const bool copied = state.w.read() == rounded<P>(state.master.read());
            demand(check, copied && state.w.intact(), "w, the rounded master");
        } else if (sizeof(P) == 4) {
            check.expect("w", state.w, w, ROUNDING<float>);
        } else if (scale == 1) {
            check_stochastic(check, op, p, kind, w);
        }
    }
    check_random_bits(check, op, p, kind);
    State<P> state(mem, p, kind);
    const auto before = state.bits();
    Step skipped = step_of(7, 1);
    skipped.skipped = 1;
    state.run(op, skipped, 11);
    demand(check, state.bits() == before, "a skipped step");
    return check;
}

template <class T, class P> Check check_momentum(const Ops<T, P>& op, int64_t n, Element type) {
    const Memory mem(op);
    Check check("nesterov_momentum", {{"n", n}, {"m", int(type)}});
    const Problem p = Problem::of<P>(n, false);
    TypedState<7> state(mem, p.m, type);
    std::vector<float> m(state.first.begin(), state.first.end());
    Numbers dw = p.dw;
    Array<float> own(mem, p.dw);
    Step s = step_of(7, 0.37f);
    s.groups.of[1] = 0.5f;
    std::vector<uint8_t> bytes(p.groups.begin(), p.groups.end());
    Array<uint8_t> groups(mem, p.groups);
    reference_ops().nesterov_momentum(dw.data(), {m.data()}, bytes.data(), n, &s, PARAMS, 5);
    op.nesterov_momentum(own, state.array(), groups, n, DeviceStep(mem, s), PARAMS, 5);
    check.expect("dw", own, dw, ROUNDING<float>);
    state.expect(check, "m", Numbers(m.begin(), m.end()));
    const auto bits = state.bits();
    OptimizerParams keeps = PARAMS;
    keeps.momentum = 1;    // m stays
    op.nesterov_momentum(own, state.array(), groups, n, DeviceStep(mem, s), keeps, 6);
    demand(check, state.bits() == bits, "decoded and encoded again, the same bits");
    s.skipped = 1;
    const auto before = own.bits();
    op.nesterov_momentum(own, state.array(), groups, n, DeviceStep(mem, s), PARAMS, 5);
    demand(check, state.bits() == bits && own.bits() == before, "a skipped step");
    return check;
}

template <class T, class P> Check check_average(const Ops<T, P>& op, int64_t n, bool master) {
    const Memory mem(op);
    Check check("average_weights", {{"n", n}, {"master", master}});
    const Numbers w = master ? rounded<float>(random_normal(n, 1)) : rounded<P>(random_normal(n, 1));
    const Numbers before = rounded<float>(random_normal(n, 2));
    std::vector<float> expected(before.begin(), before.end());
    Array<P> own(mem, w);
    Array<float> copy(mem, w), average(mem, before);
    Step s = step_of(7, 0.37f);
    auto run = [&] { op.average_weights(average, own, or_null(master, copy), 0.3f, n, DeviceStep(mem, s)); };
    reference_ops().average_weights(expected.data(), w.data(), nullptr, 0.3f, n, &s);
    run();
    check.expect("average", average, Numbers(expected.begin(), expected.end()), ROUNDING<float>);
    s.skipped = 1;
    const auto bits = average.bits();
    run();
    demand(check, average.bits() == bits, "a skipped step");
    return check;
}
template <class T, class P> Check check_orthogonalize(const Ops<T, P>& op, int rows, int cols) {
    const Memory mem(op);
    Check check("orthogonalize", {{"rows", rows}, {"cols", cols}});
    const Numbers x = rounded<float>(random_normal(int64_t(rows) * cols, 1, 3));
    Numbers expected = x;
    Array<float> own(mem, x), work(mem, orthogonalize_work(rows, cols));
    reference_ops().orthogonalize(expected.data(), nullptr, 0.7f, rows, cols);
    op.orthogonalize(own, work, 0.7f, rows, cols);
    demand(check, work.intact(), "work");
    // Small singular values grow 485 times, and so do their errors.
    check.expect("x", own, expected, sizeof(P) == 2 ? 0.08 : 2e-4);
    return check;
}
template <class T, class P> Check check_normalize_rows(const Ops<T, P>& op, int rows, int cols) {
    const Memory mem(op);
    Check check("normalize_rows", {{"rows", rows}, {"cols", cols}});
    const int64_t n = int64_t(rows) * cols;
    Numbers x = rounded<float>(random_normal(n, 1)), v = random_normal(rows, 2);
    for (double& y : v) y = y * y;
    std::vector<float> expected_v(v.begin(), v.end());
    Array<float> own(mem, x), own_v(mem, v);
    Step s = step_of(7, 0.37f);
    reference_ops().normalize_rows(x.data(), expected_v.data(), 0.2f, &s, PARAMS, rows, cols);
    op.normalize_rows(own, own_v, 0.2f, DeviceStep(mem, s), PARAMS, rows, cols);
    check.expect("x", own, x, ROUNDING<float>);
    check.expect("v", own_v, Numbers(expected_v.begin(), expected_v.end()), ROUNDING<float>);
    s.skipped = 1;
    const auto before = own.bits();
    op.normalize_rows(own, own_v, 0.2f, DeviceStep(mem, s), PARAMS, rows, cols);
    demand(check, own.bits() == before, "a skipped step");
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
        const bool by_group = c.updates % 2;
        std::vector<uint8_t> groups;
        for (int i = 0; i < n; i++) groups.push_back(uint8_t(i % 5));
        Array<uint8_t> own_groups(m, groups);
        Step expected = {};
        expected.updates = c.updates;
        DeviceStep step(m, expected);
        Array<double> loss(m, Numbers{c.loss}), as(m, squares);
        reference_ops().step_verdict(&expected, &c.loss, 0.25, squares.data(), by_group ? groups.data() : nullptr, n,
                                     PARAMS, c.limits);
        op.step_verdict(step, loss, 0.25, as, or_null(by_group, own_groups), n, PARAMS, c.limits);
        const Step got = step.read();
        demand(check, got.updates == expected.updates && got.skipped == expected.skipped && step.memory.intact(),
               "updates, skipped");
        auto near = [](double a, double b, double limit) {
            return a == b || (std::isnan(a) && std::isnan(b)) || std::fabs(a - b) <= limit * std::fabs(b);
        };
        demand(check, near(got.loss, expected.loss, 0) && near(got.norm, expected.norm, 1e-13), "loss, norm");
        demand(check, near(got.scale, expected.scale, 1e-6), "scale");
        for (int g = 0; g < GroupFactors::MOST; g++)
            demand(check, near(got.groups.of[g], expected.groups.of[g], 1e-6), "a group's scale");
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

FOR_EACH_TABLE(check_update, int64_t, UpdateKind)
FOR_EACH_TABLE(check_momentum, int64_t, Element)
FOR_EACH_TABLE(check_average, int64_t, bool)
FOR_EACH_TABLE(check_orthogonalize, int, int)
FOR_EACH_TABLE(check_normalize_rows, int, int)
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
            for (const UpdateKind& kind : update_kinds(with_master))
                test.row("update_weights", [&] { return check_update(op, gpt2.C * 256 + 64, kind); });
    for (const Element type : STATE_ELEMENTS)
        test.row("nesterov_momentum", [&] { return check_momentum(op, gpt2.C * gpt2.F + 64, type); });
    test.row("average_weights", [&] { return check_average(op, gpt2.C * gpt2.F + 64, false); });
    test.row("orthogonalize", [&] { return check_orthogonalize(op, gpt2.C, 256); });
    test.row("normalize_rows", [&] { return check_normalize_rows(op, gpt2.F, gpt2.C); });
    test.row("from_floats, to_floats", [&] { return check_casts(op, gpt2.C * gpt2.F); });
});
