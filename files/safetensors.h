// safetensors.h - safetensors, both ways: u64 header length, a JSON header, contiguous tensor
// bytes.
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

// Parses and checks a header: its length, JSON, unique names, types, shape * size == end - begin
// (without overflow), order without holes, the last end == the file's end. file: the file's first
// bytes, at least the header; file_bytes: the whole file's size, compared with every size before
// any allocation. Tensors of other types (ints, bools, doubles) are checked and left out. Returns
// the tensors in file order. Exit 3 naming `name`, field and offset.
Result<std::vector<TensorEntry>> safetensors_parse(std::string_view file, int64_t file_bytes, const std::string& name);

// Reads tensors on demand. The file is not mapped, because the mapped pages would count as memory
// beside the copy of the weights.
class SafetensorsFile {
  public:
    static Result<SafetensorsFile> open(const std::string& path);
    const std::vector<TensorEntry>& entries() const { return tensors; }
    // Unconverted bytes at a file offset; thread-safe. Exit 3: the file has become shorter; 4: the
    // disk fails.
    Status read_bytes(int64_t at, void* to, int64_t bytes) const { return file.read(at, to, bytes); }
    static void convert(TensorType type, const void* from, int64_t count, float* out);
    static int element_bytes(TensorType type);
    const std::string& path() const { return file.path(); }
    int64_t bytes() const { return file.bytes(); }    // size of the whole file
    std::shared_ptr<const char> map() const { return file.map(); }
    int64_t data_begin() const { return data; }    // offset after the header

  private:
    File file;
    int64_t data = 0;
    std::vector<TensorEntry> tensors;
};

struct TensorSource {
    std::string name;
    TensorType type;    // f32 or bf16 (rounded to nearest even)
    std::vector<int64_t> shape;
    std::function<Status(int64_t first, int64_t count, float* out)> fill;    // elements [first, first+count)
    bool in_order = false;    // fill must be called in the elements' order
};
int64_t tensor_bytes(const TensorSource& t);                            // in the file
int64_t safetensors_bytes(const std::vector<TensorSource>& tensors);    // the whole file
// Passes the file's bytes to `sink` in pieces (a checkpoint writes and checksums them at once).
// Fails only if the sink or a source fails.
Status safetensors_write(const std::vector<TensorSource>& tensors, const FileSink& sink);
// Writes these bytes to memory, `to` (safetensors_bytes), if `parallel` on the pool's threads:
// pieces of tensors side by side, and tensors that are filled in order.
Status safetensors_copy(const std::vector<TensorSource>& tensors, char* to, bool parallel);
