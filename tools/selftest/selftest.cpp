// selftest.cpp - `flatgpt selftest`: compares operations with the reference in double, at real
// models' sizes, most of them GPT-2's.
//
// The reference's plain loops limit the sizes: one type takes 18 s of one core (Zen 5, 2026-11-21).
#include "selftest.h"

#include <memory>

#include "base/console.h"
#include "files/json_write.h"
#include "layers/cuda.h"
#include "model/device.h"

void Selftest::run(AnyOps any, Dtype dtype) {
    table = std::visit([](auto* op) { return op->name; }, any);
    for (const SelftestRows::Rows& rows : SelftestRows::all()) rows(*this, any, dtype);
}

Status Selftest::close(double seconds) const {
    if (checks == 0) return fail(Exit::usage, "--filter %s: no operation has this in its name", filter.c_str());
    const Json sum = Json::object("checks", checks, "failed", failed, "seconds", std::round(10 * seconds) / 10);
    if (json) fprintf(out, "%s\n", sum.text().c_str());
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
    const bool half = dtype == Dtype::bf16 || is_fp8(dtype);
    if (opened.value.gpu) half ? o.test.run(&cuda_ops<bf16>(dtype), dtype) : o.test.run(&cuda_ops<float>(dtype), dtype);
    else half ? o.test.run(&cpu_ops<bf16>(), dtype) : o.test.run(&cpu_ops<float>(), dtype);
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
        const CudaDevice& gpu = cuda_device();
        for (const Dtype fp8 : {Dtype::fp8, Dtype::fp8_block})
            if (any.value.gpu && check_dtype(fp8, gpu.name, 10 * gpu.major + gpu.minor, {}).ok())
                types.push_back(dtype_name(fp8));
    }
    for (const std::string& type : types) TRY(run_type(o, type));
    return o.test.close(now_seconds() - start);
}
}    // namespace

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
