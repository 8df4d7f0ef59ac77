// fuzz_gguf.cpp - libFuzzer: the bytes as a GGUF file, whose tensors lie within it without overlap.
#include <cstring>

#include "files/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    auto read = [&](int64_t at, void* to, int64_t bytes) -> Status {
        if (at < 0 || bytes < 0 || at + bytes > int64_t(size)) return fail(Exit::input, "fuzz: the file ends");
        memcpy(to, data + at, size_t(bytes));
        return {};
    };
    // The bytes are the whole file, or the beginning of a longer one.
    for (int64_t more : {int64_t(0), int64_t(64), INT64_MAX - int64_t(size)}) {
        const int64_t file_bytes = int64_t(size) + more;
        const Result<GgufHeader> r = gguf_parse(read, file_bytes, "fuzz");
        CHECK(r.ok() || (r.status.code == Exit::input && !r.status.message.empty()));
        int64_t end = r.value.data;
        for (const GgufTensor& t : r.value.tensors) {
            int64_t numbers = 1;
            for (int64_t d : t.shape) CHECK(mul_checked(numbers, d, &numbers));
            CHECK(t.numbers() == numbers && t.at >= end && t.bytes >= 0 && t.at <= file_bytes - t.bytes);
            end = t.at + t.bytes;
        }
        for (auto& [key, value] : r.value.metadata.values) {
            int64_t i;
            double x;
            std::string s;
            r.value.metadata.get(key, &i, 0, 100).take();
            r.value.metadata.get(key, &x, 0, 100).take();
            r.value.metadata.get(key, &s).take();
        }
    }
    return 0;
}
