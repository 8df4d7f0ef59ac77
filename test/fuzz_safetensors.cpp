// fuzz_safetensors.cpp - libFuzzer: the bytes as a safetensors file; its tensors do not overlap.
#include "files/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    std::string_view file(reinterpret_cast<const char*>(data), size);
    // The bytes are the whole file, or the beginning of a longer one.
    for (int64_t more : {int64_t(0), int64_t(8), INT64_MAX - int64_t(size)}) {
        Result<std::vector<TensorEntry>> r = safetensors_parse(file, int64_t(size) + more, "fuzz");
        CHECK(r.ok() || (r.status.code == Exit::input && !r.status.message.empty()));
        int64_t end = 0;
        for (const TensorEntry& e : r.value) {
            int64_t bytes = e.type == TensorType::f32 ? 4 : 2;
            for (int64_t d : e.shape) CHECK(mul_checked(bytes, d, &bytes));
            CHECK(e.begin >= end && e.end - e.begin == bytes && e.end <= int64_t(size) + more);
            end = e.end;
        }
    }
    return 0;
}
