// fuzz_gguf_config.cpp - libFuzzer: an accepted GGUF model is runnable and written or refused.
#include "checkpoint/gguf.h"
#include "test/memory_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const Result<GgufFile> file = GgufFile::open(memory_file(data, size));
    if (!file.ok()) return 0;
    const Result<Config> c = gguf_config(file.value);
    CHECK(c.ok() || (c.status.code == Exit::input && !c.status.message.empty()));
    if (!c.ok()) return 0;
    CHECK(config_check(c.value).ok());
    CHECK(config_parameters(c.value) > 0 && config_parameters(c.value) / 8 <= int64_t(size));
    const Status s = gguf_architecture_for(c.value).status;
    CHECK(s.ok() || s.code == Exit::usage);
    return 0;
}
