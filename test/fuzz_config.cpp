// fuzz_config.cpp - libFuzzer: an accepted config.json is runnable, and survives write and read.
#include "checkpoint/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Result<Config> c = config_parse({reinterpret_cast<const char*>(data), size}, "fuzz");
    CHECK(c.ok() || (c.status.code == Exit::input && !c.status.message.empty()));
    if (!c.ok()) return 0;
    CHECK(config_check(c.value).ok());
    CHECK(config_parameters(c.value) > 0 && config_flat_size(c.value) < INT64_MAX / 64);
    Result<Config> again = config_parse(config_json(c.value, {0}), "again");
    CHECK(again.ok() && again.value == c.value);
    return 0;
}
