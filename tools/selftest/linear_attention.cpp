#include "linear_attention.h"

#include <algorithm>
#include <memory>

#include "attention.h"
#include "selftest.h"

namespace {
template <class T> constexpr double LIMIT = sizeof(T) == 2 ? 1e-2 : 1e-5;
const char* const KINDS[] = {"none", "elu", "retention", "gated"};

Check named(const char* op, int B, int S, Heads h, int pos = 0) {
    return Check(op, {{"B", B}, {"S", S}, {"NH", h.NH}, {"NKV", h.NKV}, {"HS", h.HS}, {"pos", pos}},
                 std::string(" ") + KINDS[int(h.linear)] + (h.keys ? " spans" : ""));
}
// Inputs of all three operations, and the table's heads.
template <class T> struct Inputs {
    Numbers qkv, gates;
    Array<T> device_qkv, device_gates;
    std::unique_ptr<TableSpans> spans;
    Heads device;
    Inputs(Memory m, int B, int S, Heads h, double deviation)
        : qkv(rounded<T>(random_normal(int64_t(B) * S * h.qkv_width(), 1))),
          gates(rounded<T>(random_normal(int64_t(B) * S * h.gates(), 2, deviation))), device_qkv(m, qkv),
          device_gates(m, gates), device(h) {
        if (!h.keys) return;
        TrueSpans both(1, {{}});
        const size_t N = size_t(B) * size_t(S);
        both.keys.assign(h.keys, h.keys + N), both.queries.assign(h.queries, h.queries + N);
        spans = std::make_unique<TableSpans>(m, both);
        device = spans->in(h);
    }
    T* device_or_null(const Heads& h) { return or_null(h.gates() > 0, device_gates); }
};
// The columns from..from+n of rows of `width`.
Numbers columns(const Numbers& x, int width, int from, int n) {
    Numbers out;
    for (size_t i = 0; i < x.size(); i += size_t(width))
        out.insert(out.end(), x.begin() + ptrdiff_t(i) + from, x.begin() + ptrdiff_t(i) + from + n);
    return out;
}
}    // namespace

template <class T, class P>
Check check_linear_attention_forward(const Ops<T, P>& op, int B, int S, Heads h, double gates) {
    const Memory m(op);
    Check check = named("linear_attention_forward", B, S, h);
    Inputs<T> in(m, B, S, h, gates);
    Numbers y(size_t(int64_t(B) * S * h.width()));
    std::vector<float> norms(size_t(B) * size_t(S) * size_t(h.NH));
    reference_ops().linear_attention_forward(y.data(), norms.data(), in.qkv.data(), in.gates.data(), B, S, h);
    Array<InputType<T, P>> out(m, int64_t(y.size()));
    Array<float> statistics(m, int64_t(norms.size()));
    op.linear_attention_forward(out, statistics, in.device_qkv, in.device_or_null(h), B, S, in.device);
    check.expect("y", out, y, LIMIT<InputType<T, P>>);
    // Each relative to itself: they differ by orders of magnitude.
    Numbers parts = statistics.read();
    for (size_t i = 0; i < parts.size(); i++) parts[i] /= double(norms[i]);
    check.note("norms",
               statistics.intact() ? Check::error_over_limit(parts, Numbers(parts.size(), 1), 1e-5) : INFINITY);
    return check;
}

template <class T, class P>
Check check_linear_attention_backward(const Ops<T, P>& op, int B, int S, Heads h, double gates) {
    const Memory m(op);
    Check check = named("linear_attention_backward", B, S, h);
    Inputs<T> in(m, B, S, h, gates);
    Numbers y(size_t(int64_t(B) * S * h.width())), dqkv(in.qkv.size()), dgates(in.gates.size());
    std::vector<float> norms(size_t(B) * size_t(S) * size_t(h.NH));
    const Numbers dy = rounded<T>(random_normal(int64_t(y.size()), 3));
    reference_ops().linear_attention_forward(y.data(), norms.data(), in.qkv.data(), in.gates.data(), B, S, h);
    y = rounded<InputType<T, P>>(y);    // n's gradient uses the rounded y
    reference_ops().linear_attention_backward(dqkv.data(), dgates.data(), dy.data(), y.data(), in.qkv.data(),
                                              in.gates.data(), norms.data(), B, S, h);
    Array<T> out(m, int64_t(dqkv.size())), gates_out(m, int64_t(dgates.size())), device_dy(m, dy);
    Array<InputType<T, P>> device_y(m, y);
    Array<float> statistics(m, Numbers(norms.begin(), norms.end()));
    op.linear_attention_backward(out, or_null(h.gates() > 0, gates_out), device_dy, device_y, in.device_qkv,
                                 in.device_or_null(h), statistics, B, S, in.device);
    const Numbers got = out.read();
    const int q = h.NH * h.HS, kv = h.NKV * h.HS, row = h.qkv_width();
    for (auto [name, from, n] : {std::tuple{"dq", 0, q}, {"dk", q, kv}, {"dv", q + kv, kv}})
        check.note(name, out.intact() ? Check::error_over_limit(columns(got, row, from, n), columns(dqkv, row, from, n),
                                                                2 * LIMIT<T>, 1e-2)
                                      : INFINITY);
    if (h.gates()) check.expect("dgates", gates_out, dgates, 4 * LIMIT<T>, 1e-3);
    return check;
}

template <class T, class P>
Check check_linear_attention_cached(const Ops<T, P>& op, int B, int S, int pos, Heads h, double gates) {
    const Memory m(op);
    Check check = named("linear_attention_cached", B, S, h, pos);
    Inputs<T> in(m, B, S, h, gates);
    std::vector<int> at, of;
    for (int b = 0; b < B; b++) {
        of.push_back(B - 1 - b);
        for (int s = 0; s < S; s++) at.push_back(s < std::max(1, S - 3 * b) ? pos + s : -1);
    }
    // At pos 0 the state must not be read, so it is NaN. elu's weights must not be near 0.
    const int64_t stride = h.state() + 3;
    Numbers states = rounded<float>(random_normal(B * stride, 4));
    for (double& x : states) x = pos == 0 ? NAN : h.linear == LinearAttention::elu ? std::abs(x) : x;
    Array<float> device_states(m, states);
    Array<int> p(m, Numbers(at.begin(), at.end())), device_of(m, Numbers(of.begin(), of.end()));
    Array<InputType<T, P>> out(m, int64_t(B) * S * h.width());
    Numbers y(size_t(out.size()));
    reference_ops().linear_attention_cached(y.data(), {states.data(), stride, of.data()}, in.qkv.data(),
                                            in.gates.data(), B, S, at.data(), h);
    op.linear_attention_cached(out, {static_cast<float*>(device_states), stride, device_of}, in.device_qkv,
                               in.device_or_null(h), B, S, p, h);
    Numbers got_states = device_states.read();
    for (size_t i = 0; i < states.size(); i++)    // gaps between the states
        if (int64_t(i) % stride >= h.state() &&
            (std::isnan(states[i]) ? std::isnan(got_states[i]) : states[i] == got_states[i]))
            got_states[i] = states[i] = 0;
    check.note("y", out.intact() ? Check::error_over_limit(out.read(), y, LIMIT<InputType<T, P>>) : INFINITY,
               sizeof(InputType<T, P>) == 2);
    check.note("states", device_states.intact() ? Check::error_over_limit(got_states, states, LIMIT<float>) : INFINITY);
    return check;
}

FOR_EACH_TABLE(check_linear_attention_forward, int, int, Heads, double)
FOR_EACH_TABLE(check_linear_attention_backward, int, int, Heads, double)
FOR_EACH_TABLE(check_linear_attention_cached, int, int, int, Heads, double)

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    for (LinearAttention kind : {LinearAttention::elu, LinearAttention::retention, LinearAttention::gated}) {
        const Heads h = {.NH = 4, .NKV = 2, .HS = gpt2.HS, .linear = kind};
        test.row("linear_attention_forward", [&] { return check_linear_attention_forward(op, 1, 200, h); });
        test.row("linear_attention_backward", [&] { return check_linear_attention_backward(op, 1, 200, h); });
        for (int S : {1, 100})
            test.row("linear_attention_cached", [&] { return check_linear_attention_cached(op, 3, S, 500, h); });
    }
});
