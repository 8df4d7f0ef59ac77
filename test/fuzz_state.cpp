// fuzz_state.cpp - libFuzzer: an accepted state.json survives a write and a read, bit for bit.
#include "checkpoint/checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Result<TrainState> s = state_parse({reinterpret_cast<const char*>(data), size}, "fuzz");
    CHECK(s.ok() || (s.status.code == Exit::input && !s.status.message.empty()));
    if (!s.ok()) return 0;
    Result<TrainState> again = state_parse(state_json(s.value), "again");
    CHECK(again.ok() && again.value == s.value);
    return 0;
}
