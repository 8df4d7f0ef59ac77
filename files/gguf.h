// gguf.h - read and write GGUF (versions 2 and 3): typed metadata, tensor names, shapes and blocks.
//
// Layout: "GGUF", u32 version, u64 tensors, u64 keys; per key a string, a u32 type and a value; per
// tensor a string, u32 rank, u64 sizes (the fastest first), u32 ggml type, u64 offset into the
// data; then the data, aligned to general.alignment (32). Strings and arrays begin with their u64
// length. All is little-endian.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/block_format.h"
#include "base/file.h"

enum class GgufType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, text, array, u64, i64, f64 };

// One value, or an array of values of one type, in the vector that fits the type.
struct GgufValue {
    GgufType type = GgufType::u32;    // an array's element type
    bool array = false;
    std::vector<int64_t> integers;    // booleans as well; u64 from 2^63 on as negative numbers
    std::vector<double> numbers;      // f32, f64
    std::vector<std::string> texts;

    static GgufValue integer(int64_t v) { return {GgufType::u32, false, {v}, {}, {}}; }    // u32, for llama.cpp
    static GgufValue number(float v) { return {GgufType::f32, false, {}, {v}, {}}; }
    static GgufValue boolean(bool v) { return {GgufType::boolean, false, {v}, {}, {}}; }
    static GgufValue text(std::string v) { return {GgufType::text, false, {}, {}, {std::move(v)}}; }
    static GgufValue text_array(std::vector<std::string> v) { return {GgufType::text, true, {}, {}, std::move(v)}; }
    static GgufValue integer_array(std::vector<int64_t> v) { return {GgufType::i32, true, std::move(v), {}, {}}; }
    static GgufValue number_array(std::vector<double> v) { return {GgufType::f32, true, {}, std::move(v), {}}; }
};

// Values by key. A getter fails with exit 3, naming file and key, if the key is missing, of another
// type or out of [min, max]. Integers of any width are accepted, as the specification requires. The
// getter of one double accepts an integer, too.
struct GgufMetadata {
    std::string name;    // the file, for messages
    std::map<std::string, GgufValue> values;

    const GgufValue* find(const std::string& key) const;    // null: absent
    bool has(const std::string& key) const { return find(key) != nullptr; }
    Status get(const std::string& key, int64_t* out, int64_t min, int64_t max) const;
    Status get(const std::string& key, int* out, int min, int max) const;
    Status get(const std::string& key, double* out, double min, double max) const;
    Status get(const std::string& key, bool* out) const;
    Status get(const std::string& key, std::string* out) const;
    Status get(const std::string& key, std::vector<int64_t>* out) const;
    Status get(const std::string& key, std::vector<double>* out) const;
    Status get(const std::string& key, std::vector<std::string>* out) const;

  private:
    Result<const GgufValue*> typed(const std::string& key, bool array, const char* expected,
                                   bool (*fits)(GgufType)) const;
};

typedef std::vector<std::pair<std::string, GgufValue>> GgufKeys;    // keys and values in file order

struct GgufTensor {
    std::string name;
    const BlockFormat* format;
    std::vector<int64_t> shape;    // fastest dimension last, as everywhere in flatgpt; whole blocks
    int64_t at, bytes;             // offset and length in the file
    int64_t numbers() const;
};

struct GgufHeader {
    GgufMetadata metadata;
    std::vector<GgufTensor> tensors;    // in file order
    int64_t data = 0;                   // offset of the data section
};

// Parses and checks a header: magic, version, unique keys and names, types, rank, whole blocks,
// alignment, tensors inside the file without overlap. read(at, to, bytes) reads the file's bytes.
// Every count, length, size and offset is compared with file_bytes before any allocation. Exit 3
// naming `name` and offset or key.
typedef std::function<Status(int64_t at, void* to, int64_t bytes)> GgufRead;
Result<GgufHeader> gguf_parse(const GgufRead& read, int64_t file_bytes, const std::string& name);

bool is_gguf(const std::string& path);    // whether the file begins with GGUF's magic

class GgufFile {
  public:
    static Result<GgufFile> open(const std::string& path);
    const GgufMetadata& metadata() const { return header.metadata; }
    const std::vector<GgufTensor>& tensors() const { return header.tensors; }
    const GgufTensor* find(const std::string& tensor) const;    // null: absent
    // Thread-safe. Exit 3: the file has become shorter; 4: the disk fails.
    Status read_bytes(int64_t at, void* to, int64_t bytes) const { return file.read(at, to, bytes); }
    int64_t bytes() const { return file.bytes(); }
    std::shared_ptr<const char> map() const { return file.map(); }

  private:
    File file;
    GgufHeader header;
};

// ---- writing ------------------------------------------------------------------------------------

typedef std::function<Status(const void* data, int64_t bytes)> FileSink;
struct GgufSource {
    std::string name;
    const BlockFormat* format;
    std::vector<int64_t> shape;                            // fastest dimension last
    std::function<Status(const FileSink& sink)> blocks;    // writes all bytes in pieces of any size
};
// Writes a version 3 file with alignment 32, in the given order. Fails only if sink or source
// fails.
Status gguf_write(const std::vector<std::pair<std::string, GgufValue>>& metadata,
                  const std::vector<GgufSource>& tensors, const FileSink& sink);
