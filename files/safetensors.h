// safetensors.h - read and write safetensors: u64 header length, a JSON header, the tensors' bytes without holes.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/block_format.h"
#include "base/file.h"

enum class TensorType { f32, bf16, f16 };
constexpr BlockType block_type(TensorType type) {
    return type == TensorType::f16 ? BlockType::f16 : type == TensorType::bf16 ? BlockType::bf16 : BlockType::f32;
}

struct TensorEntry {
    std::string name;
    TensorType type;
    std::vector<int64_t> shape;
    int64_t begin, end;    // bytes, from the end of the header
};

// file: the file's first bytes, header included (more may follow); file_bytes: the whole file's size, with which every
// size is compared before anything is allocated. Checked: header length, JSON, unique names, types, shape * size ==
// end - begin (without overflow), order without holes, the last end == the file's end. Tensors of types we do not read
// (ints, bools, doubles) are checked and left out. In the order of their bytes. Exit 3 naming `name`, field and offset.
Result<std::vector<TensorEntry>> safetensors_parse(std::string_view file, int64_t file_bytes, const std::string& name);

// Reads what is asked for, when it is asked for: where weights are copied, a mapping would count in this process's
// memory beside the copy.
class SafetensorsFile {
  public:
    static Result<SafetensorsFile> open(const std::string& path);
    const std::vector<TensorEntry>& entries() const { return tensors; }
    // Bytes as the file has them, of any place in it; threads may read at once. Exit 3: it has become shorter; 4.
    Status read_bytes(int64_t at, void* to, int64_t bytes) const { return file.read(at, to, bytes); }
    static void convert(TensorType type, const void* from, int64_t count, float* out);
    static int element_bytes(TensorType type);
    const std::string& path() const { return file.path(); }
    int64_t bytes() const { return file.bytes(); }    // the whole file
    std::shared_ptr<const char> map() const { return file.map(); }
    int64_t data_begin() const { return data; }    // after the header

  private:
    File file;
    int64_t data = 0;
    std::vector<TensorEntry> tensors;
};

struct TensorSource {
    std::string name;
    TensorType type;    // f32 or bf16 (rounded to nearest even)
    std::vector<int64_t> shape;
    std::function<Status(int64_t first, int64_t count, float* out)> fill;    // elements [first, first+count), in order
};
// The file's bytes, piece by piece, to `sink` (which a checkpoint uses to write and checksum at once). Fails only where
// the sink or a source does.
Status safetensors_write(const std::vector<TensorSource>& tensors,
                         const std::function<Status(const void*, int64_t)>& sink);
