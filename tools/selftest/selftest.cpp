// selftest.cpp - `flatgpt selftest`: each operation of a device against the reference in double, at GPT-2's sizes.
//
// The reference's plain loops set the sizes: all checks of one type are 18 s of one core (Zen 5, 2026-11-21).
#include "selftest.h"

#include <memory>

#include "base/console.h"
#include "files/json.h"
#include "layers/cuda.h"
#include "model/device.h"

namespace {
constexpr int C = 768, F = 3072, NH = 12, HS = 64;    // GPT-2 124M

template <class T, class P> void memory_bound(Selftest& test, const Ops<T, P>& op, int V, int VP) {
    test.row("embedding_forward", [&] { return check_embedding_forward(op, 4, 500, C, V, 500); });
    test.row("embedding_backward", [&] { return check_embedding_backward(op, 4, 1024, C, V, 0.3); });
    for (int width : {C, 1600}) {    // GPT-2 XL's
        test.row("layernorm_forward", [&] { return check_layernorm_forward(op, 1024, width); });
        test.row("layernorm_backward", [&] { return check_layernorm_backward(op, 1024, width); });
    }
    test.row("gelu_forward", [&] { return check_gelu_forward(op, 1024 * F); });
    for (bool in_place : {false, true})
        test.row("gelu_backward", [&] { return check_gelu_backward(op, 512 * F, in_place); });
    for (bool train : {true, false})
        test.row("cross_entropy", [&] { return check_cross_entropy(op, 64, V, VP, train, train); });
    test.row("add_losses", [&] { return check_add_losses(op, 1 << 16); });
    test.row("sum_of_squares", [&] { return check_sum_of_squares(op, C * F + 1); });
    test.row("gate", [&] { return check_gate(op, 148); });    // GPT-2's tensors
    for (bool with_master : {false, true})
        if (sizeof(P) == 2 || !with_master)
            test.row("adamw", [&] { return check_adamw(op, C * F + 64, with_master); });
    test.row("from_floats, to_floats", [&] { return check_casts(op, C * F); });
}

template <class T, class P> void products(Selftest& test, const Ops<T, P>& op, Dtype dtype, int VP) {
    auto forward = [&](int N, int in, int out, bool bias, Residual residual) {
        test.row("linear_forward", [&] { return check_linear_forward(op, N, in, out, bias, residual, dtype); });
    };
    auto backward = [&](int N, int in, int out, bool bias) {
        test.row("linear_backward", [&] { return check_linear_backward(op, N, in, out, true, bias, dtype); });
    };
    for (int N : {256, 64, 3, 1}) forward(N, C, 3 * C, true, Residual::none);    // training, then generation
    forward(256, C, C, true, Residual::apart);
    forward(256, F, C, true, Residual::in_y);
    forward(16, C, VP, false, Residual::none);
    backward(256, C, 3 * C, true);
    backward(256, F, C, true);
    backward(8192, 128, 256, true);    // a long sum
    backward(64, 256, VP, false);
    if (op.linear_gelu_forward)
        test.row("linear_gelu_forward", [&] { return check_linear_gelu_forward(op, 256, C, F, dtype); });
    if (op.linear_gelu_backward)
        test.row("linear_gelu_backward", [&] { return check_linear_gelu_backward(op, 256, F, C, dtype); });
}

template <class T, class P> void attention(Selftest& test, const Ops<T, P>& op) {
    auto add = [&](int B, int S, Heads h, int document) {
        test.row("attention_forward", [&] { return check_attention_forward(op, B, S, h, document); });
        test.row("attention_backward", [&] { return check_attention_backward(op, B, S, h, document); });
    };
    auto cached = [&](int B, int S, int pos, Heads h) {
        test.row("attention_cached", [&] { return check_attention_cached(op, B, S, pos, 1024, h); });
    };
    add(4, 256, {NH, NH, HS}, 0);
    add(1, 1024, {2, 2, HS}, 0);
    add(1, 1024, {4, 1, HS, 200}, 0);
    add(2, 1024, {2, 1, HS}, 100);
    add(1, 500, {2, 2, 128}, 0);
    cached(4, 1, 1000, {NH, NH, HS});
    cached(2, 100, 900, {4, 2, HS, 300});
}
}   // namespace

void Selftest::row(const char* op, const std::function<Check()>& run) {
    if (std::string(op).find(filter) == std::string::npos) return;
    const Check c = run();
    checks++;
    failed += !c.ok();
    if (json)
        fprintf(out, "{\"table\":%s,\"op\":%s,\"shape\":%s,\"error_over_limit\":%s,\"output\":%s,\"ok\":%s}\n",
                json_string(table).c_str(), json_string(c.op).c_str(), json_string(c.shape).c_str(),
                json_number(c.worst).c_str(), json_string(c.output).c_str(), c.ok() ? "true" : "false");
    else
        fprintf(out, "%-7s %8.3f  %-20s  %s (%s)\n", c.ok() ? "ok" : "FAILED", c.worst, c.op.c_str(), c.shape.c_str(),
                c.output.c_str());
    fflush(out);
}

template <class T, class P> void Selftest::run(const Ops<T, P>& op, Dtype dtype) {
    table = op.name;
    const int VP = int(round_up(V, 128));
    memory_bound(*this, op, V, VP);
    products(*this, op, dtype, VP);
    attention(*this, op);
}
template void Selftest::run(const Ops<float>&, Dtype);
template void Selftest::run(const Ops<bf16>&, Dtype);
template void Selftest::run(const Ops<float, bf16>&, Dtype);

Status Selftest::close(double seconds) const {
    if (checks == 0) return fail(Exit::usage, "--filter %s: no operation has this in its name", filter.c_str());
    if (json) fprintf(out, "{\"checks\":%d,\"failed\":%d,\"seconds\":%.1f}\n", checks, failed, seconds);
    else fprintf(out, "%d checks, %d failed, %.1f s\n", checks, failed, seconds);
    return failed ? fail(Exit::run, "%d of %d checks failed", failed, checks) : Status{};
}

namespace {
struct Options {
    Selftest test;
    DeviceOptions device;
};

Status run_type(Options& o, const std::string& type) {
    DeviceOptions device = o.device;
    device.dtype = type;
    Result<Device> opened = open_device(device, true);
    TRY(opened.status);
    if (!o.test.json) fprintf(o.test.out, "%s\n", opened.value.text.c_str());
    const Dtype dtype = opened.value.dtype;
    const bool half = dtype == Dtype::bf16;
    if (opened.value.gpu) half ? o.test.run(cuda_ops<bf16>(dtype), dtype) : o.test.run(cuda_ops<float>(dtype), dtype);
    else half ? o.test.run(cpu_ops<bf16>(), dtype) : o.test.run(cpu_ops<float>(), dtype);
    return {};
}

Status selftest(Options& o) {
    const double start = now_seconds();
    std::vector<std::string> types = {o.device.dtype};
    if (o.device.dtype == "auto") {
        Result<Device> any = open_device(o.device, false);
        TRY(any.status);
        types = {"fp32"};
        if (any.value.gpu) types.push_back("tf32");
        if (any.value.gpu || cpu_has_bf16()) types.push_back("bf16");
    }
    for (const std::string& type : types) TRY(run_type(o, type));
    return o.test.close(now_seconds() - start);
}
}   // namespace

Command selftest_command() {
    auto o = std::make_shared<Options>();
    Command c{"selftest",
              "Compare every operation of a device with the reference.",
              "flatgpt selftest --device cuda --filter attention",
              {},
              {},
              nullptr};
    c.flags = flag_groups({
        {"Common",
         {{"--filter", &o->test.filter, "only operations with this text in their name"},
          {"--json", &o->test.json, "one JSON object per check on standard output"}}},
        {"Device", device_flags(o->device, "all types that the device has, one after the other")},
    });
    c.run = [o] { return selftest(*o); };
    return c;
}
