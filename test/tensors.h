// tensors.h - a tensor of a safetensors file by its name, and its elements as floats.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "files/safetensors.h"

inline const TensorEntry* find_tensor(const SafetensorsFile& file, const std::string& name) {
    auto& all = file.entries();
    auto it = std::find_if(all.begin(), all.end(), [&](auto& e) { return e.name == name; });
    return it == all.end() ? nullptr : &*it;
}
inline Status read_tensor(const SafetensorsFile& file, const TensorEntry& e, int64_t first, int64_t count, float* out) {
    const int bytes = SafetensorsFile::element_bytes(e.type);
    std::vector<char> raw(size_t(count * bytes));
    TRY(file.read_bytes(file.data_begin() + e.begin + first * bytes, raw.data(), count * bytes));
    SafetensorsFile::convert(e.type, raw.data(), count, out);
    return {};
}
