// gguf_parts.h - GGUF files that tests take apart, edit and write again; models loaded from and
// saved to GGUF. Include it after doctest.
#pragma once
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf.h"
#include "layers/quant/quant.h"
#include "test.h"

inline const std::string FAMILIES = "test/golden/families/";

// A GGUF file as its keys and tensors, which a test edits before written() makes a file of them.
struct Parts {
    GgufKeys keys;
    std::vector<GgufSource> tensors;
    GgufValue& operator[](const std::string& key) {
        for (auto& [name, value] : keys)
            if (name == key) return value;
        keys.push_back({key, {}});
        return keys.back().second;
    }
    GgufSource& tensor(const std::string& name) {
        for (GgufSource& t : tensors)
            if (t.name == name) return t;
        FAIL("no tensor " << name);
        return tensors[0];
    }
    std::string written() const {
        std::string file;
        const Status s = gguf_write(keys, tensors, [&](const void* data, int64_t bytes) -> Status {
            file.append(static_cast<const char*>(data), size_t(bytes));
            return {};
        });
        REQUIRE(s.ok());
        return file;
    }
};
inline GgufSource source(const std::string& name, BlockType type, const std::vector<int64_t>& shape,
                         const std::string& raw) {
    auto blocks = [raw](const FileSink& to) { return to(raw.data(), int64_t(raw.size())); };
    return {name, &block_format(type), shape, blocks};
}
inline std::string bytes_of(const GgufFile& f, const GgufTensor& t) {
    std::string raw(size_t(t.bytes), '\0');
    REQUIRE(f.read_bytes(t.at, raw.data(), t.bytes).ok());
    return raw;
}
inline Parts parts_of(const std::string& path) {
    const Result<GgufFile> f = GgufFile::open(path);
    REQUIRE_MESSAGE(f.ok(), f.status.message);
    Parts p;
    p.keys.assign(f.value.metadata().values.begin(), f.value.metadata().values.end());
    for (const GgufTensor& t : f.value.tensors())
        p.tensors.push_back(source(t.name, t.format->type, t.shape, bytes_of(f.value, t)));
    return p;
}

struct Loaded {
    std::unique_ptr<Model> g = std::make_unique<Model>(cpu_ops<float>());
    std::vector<float> weights() const {
        std::vector<float> all;
        for (const Tensor& t : g->tensors) {
            const size_t at = all.size();
            all.resize(at + size_t(t.size()));
            g->read(StateKind::weights, t.offset, t.size(), all.data() + at);
        }
        return all;
    }
};
inline Loaded load(const std::string& path) {
    Loaded m;
    const Result<Config> c = checkpoint_config(path);
    REQUIRE_MESSAGE(c.ok(), c.status.message);
    REQUIRE(m.g->allocate(gguf_model(c.value), {.mode = RunMode::infer, .B = 1, .S = 1, .spans = true}).ok());
    const Status s = checkpoint_weights(path, *m.g);
    REQUIRE_MESSAGE(s.ok(), s.message);
    return m;
}
inline Status save(const Model& g, const char* type, const std::string& path) {
    std::string file;
    const GgufFileType& format = *find_gguf_file_type(type);
    TRY(gguf_save(weights_reader(g), format, "toy", {}, [&](const void* data, int64_t bytes) -> Status {
        file.append(static_cast<const char*>(data), size_t(bytes));
        return {};
    }));
    write_file(path, file);
    return {};
}
