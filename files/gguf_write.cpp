// gguf_write.cpp - writes a GGUF file. See gguf.h.
#include <cstring>

#include "gguf.h"

namespace {
constexpr int64_t ALIGNMENT = 32;

struct Header {
    std::string bytes;
    template <class T> void put(T v) { bytes.append(reinterpret_cast<const char*>(&v), sizeof v); }
    void put(const std::string& s) {
        put(uint64_t(s.size()));
        bytes += s;
    }
    void put_integer(GgufType type, int64_t v) {
        switch (type) {
            case GgufType::u8:
            case GgufType::i8:
            case GgufType::boolean: return put(uint8_t(v));
            case GgufType::u16:
            case GgufType::i16: return put(uint16_t(v));
            case GgufType::u32:
            case GgufType::i32: return put(uint32_t(v));
            default: return put(v);
        }
    }
    void put(const GgufValue& v) {
        const size_t n = v.integers.size() + v.numbers.size() + v.texts.size();
        CHECK(v.array || n == 1, "%zu values", n);
        if (v.array) put(uint32_t(GgufType::array));
        put(uint32_t(v.type));
        if (v.array) put(uint64_t(n));
        for (int64_t i : v.integers) put_integer(v.type, i);
        for (double d : v.numbers) v.type == GgufType::f32 ? put(float(d)) : put(d);
        for (const std::string& s : v.texts) put(s);
    }
};
}    // namespace

Status gguf_write(const std::vector<std::pair<std::string, GgufValue>>& metadata,
                  const std::vector<GgufSource>& tensors, const FileSink& sink) {
    Header h;
    h.bytes = "GGUF";
    h.put(uint32_t(3));
    h.put(uint64_t(tensors.size()));
    h.put(uint64_t(metadata.size()));
    for (auto& [key, value] : metadata) {
        h.put(key);
        h.put(value);
    }
    int64_t offset = 0;
    std::vector<int64_t> sizes;
    for (const GgufSource& t : tensors) {
        h.put(t.name);
        h.put(uint32_t(t.shape.size()));
        int64_t numbers = 1;
        for (auto d = t.shape.rbegin(); d != t.shape.rend(); ++d) {
            h.put(uint64_t(*d));
            numbers *= *d;
        }
        CHECK(t.shape.empty() || t.shape.back() % t.format->numbers == 0, "%s", t.name.c_str());
        h.put(uint32_t(t.format->ggml_type));
        h.put(uint64_t(offset));
        sizes.push_back(numbers / t.format->numbers * t.format->bytes);
        offset = round_up(offset + sizes.back(), ALIGNMENT);
    }
    h.bytes.resize(size_t(round_up(int64_t(h.bytes.size()), ALIGNMENT)));
    TRY(sink(h.bytes.data(), int64_t(h.bytes.size())));
    for (size_t i = 0; i < tensors.size(); i++) {
        int64_t written = 0;
        TRY(tensors[i].blocks([&](const void* data, int64_t bytes) {
            written += bytes;
            return sink(data, bytes);
        }));
        CHECK(written == sizes[i], "%s: %lld bytes", tensors[i].name.c_str(), (long long)written);
        const char zeros[ALIGNMENT] = {};
        if (const int64_t gap = round_up(written, ALIGNMENT) - written) TRY(sink(zeros, gap));
    }
    return {};
}
