// safetensors.cpp - see safetensors.h.
#include "safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/pool.h"
#include "base/element.h"
#include "base/half.h"
#include "json.h"
#include "torch_archive.h"

static_assert(std::endian::native == std::endian::little, "the format is little-endian, and so is all our reading");

namespace {
using nlohmann::json;
constexpr int64_t MAX_HEADER = 100000000;    // the format's own limit
constexpr size_t MAX_RANK = 8;
constexpr int64_t MAX_DIM = int64_t(1) << 31;

struct TypeRow {
    const char* name;
    int bytes;
    bool readable;
    TensorType type;
};
constexpr TypeRow TYPES[] = {
    {"F32", 4, true, TensorType::f32},
    {"BF16", 2, true, TensorType::bf16},
    {"F16", 2, true, TensorType::f16},
    {"F64", 8, false, {}},
    {"I64", 8, false, {}},
    {"U64", 8, false, {}},
    {"I32", 4, false, {}},
    {"U32", 4, false, {}},
    {"I16", 2, false, {}},
    {"U16", 2, false, {}},
    {"I8", 1, false, {}},
    {"U8", 1, false, {}},
    {"BOOL", 1, false, {}},
    {"F8_E4M3", 1, false, {}},
    {"F8_E5M2", 1, false, {}},
};
const TypeRow& row_of(TensorType type) { return TYPES[int(type)]; }

bool non_negative(const json& j, int64_t max, int64_t* out) {
    if (!j.is_number_unsigned() || j.get<uint64_t>() > uint64_t(max)) return false;
    *out = j.get<int64_t>();
    return true;
}

// Parses one tensor's entry in the header. *readable: whether the tensor's type is supported.
Status entry_parse(const json& j, int64_t data_bytes, const std::string& name, TensorEntry* e, bool* readable) {
    auto bad = [&](const char* field, const std::string& expected, const json& found) {
        return fail(Exit::input, "%s: tensor \"%s\": %s: expected %s, found %s", name.c_str(), e->name.c_str(), field,
                    expected.c_str(), found.dump(-1, ' ', true).substr(0, 80).c_str());
    };
    if (!j.is_object() || j.size() != 3 || !j.contains("dtype") || !j.contains("shape") || !j.contains("data_offsets"))
        return bad("header", "{dtype, shape, data_offsets}", j);
    const json &dtype = j["dtype"], &shape = j["shape"], &offsets = j["data_offsets"];

    auto is_named = [&](const TypeRow& row) { return dtype.is_string() && dtype == row.name; };
    auto type = std::find_if(std::begin(TYPES), std::end(TYPES), is_named);
    if (type == std::end(TYPES)) return bad("dtype", "a safetensors type", dtype);
    e->type = type->type;
    *readable = type->readable;

    int64_t bytes = type->bytes;
    if (!shape.is_array() || shape.size() > MAX_RANK) return bad("shape", "at most 8 sizes", shape);
    for (const json& d : shape) {
        int64_t size = 0;
        if (!non_negative(d, MAX_DIM, &size)) return bad("shape", "sizes from 0 to 2^31", shape);
        if (!mul_checked(bytes, size, &bytes)) return bad("shape", "a product below 2^63", shape);
        e->shape.push_back(size);
    }
    if (!offsets.is_array() || offsets.size() != 2 || !non_negative(offsets[0], data_bytes, &e->begin) ||
        !non_negative(offsets[1], data_bytes, &e->end) || e->end < e->begin)
        return bad("data_offsets", "[begin, end] within " + std::to_string(data_bytes) + " bytes", offsets);
    if (e->end - e->begin != bytes) return bad("data_offsets", std::to_string(bytes) + " bytes for its shape", offsets);
    return {};
}

Status metadata_check(const json& j, const std::string& name) {
    bool strings = j.is_object() && std::all_of(j.begin(), j.end(), [](const json& v) { return v.is_string(); });
    if (!strings) return fail(Exit::input, "%s: __metadata__: expected an object of strings", name.c_str());
    return {};
}

int64_t elements(const std::vector<int64_t>& shape) {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
}
}    // namespace

Result<std::vector<TensorEntry>> safetensors_parse(std::string_view file, int64_t file_bytes, const std::string& name) {
    uint64_t length = 0;
    if (file.size() < 8 || file_bytes < 8)
        return fail(Exit::input, "%s: offset 0: expected 8 bytes of header length, the file ends at %lld", name.c_str(),
                    (long long)file_bytes);
    memcpy(&length, file.data(), 8);
    if (length > uint64_t(MAX_HEADER) || length > uint64_t(file_bytes) - 8 || length > file.size() - 8)
        return fail(Exit::input, "%s: offset 0: a header of %llu bytes, but the file has %lld and %lld is the limit",
                    name.c_str(), (unsigned long long)length, (long long)file_bytes, (long long)MAX_HEADER);
    std::string_view text = file.substr(8, length);
    if (text.empty() || text[0] != '{')
        return fail(Exit::input, "%s: offset 8: expected a header that begins with '{'", name.c_str());
    const json header = TRY(json_parse(text, name, 3));

    int64_t data_bytes = file_bytes - 8 - int64_t(length), end = 0;
    struct Row {
        TensorEntry entry;
        bool readable = false;
    };
    std::vector<Row> rows;
    for (const auto& [key, value] : header.items()) {
        if (key == "__metadata__") {
            TRY(metadata_check(value, name));
            continue;
        }
        if (key.empty()) return fail(Exit::input, "%s: a tensor without a name", name.c_str());
        rows.emplace_back();
        rows.back().entry.name = key;
        TRY(entry_parse(value, data_bytes, name, &rows.back().entry, &rows.back().readable));
    }
    auto key = [](const Row& r) { return std::pair(r.entry.begin, r.entry.end); };
    std::sort(rows.begin(), rows.end(), [&](const Row& a, const Row& b) { return key(a) < key(b); });
    std::vector<TensorEntry> entries;
    for (Row& r : rows) {
        if (r.entry.begin != end)
            return fail(Exit::input, "%s: tensor \"%s\" begins at %lld: expected %lld, the end of the one before",
                        name.c_str(), r.entry.name.c_str(), (long long)r.entry.begin, (long long)end);
        end = r.entry.end;
        if (r.readable) entries.push_back(std::move(r.entry));
    }
    if (end != data_bytes)
        return fail(Exit::input, "%s: the tensors end at %lld of %lld bytes of data", name.c_str(), (long long)end,
                    (long long)data_bytes);
    return entries;
}

// ---- reading ------------------------------------------------------------------------------------

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
    SafetensorsFile f;
    f.file = TRY(File::open(path));
    if (is_torch_archive(f.file)) return f.tensors = TRY(torch_entries(f.file)), std::move(f);
    uint64_t length = 0;
    if (f.bytes() >= 8) TRY(f.file.read(0, &length, 8));
    f.data = std::min(f.bytes(), 8 + int64_t(std::min(length, uint64_t(MAX_HEADER))));
    std::string head(size_t(f.data), '\0');
    TRY(f.file.read(0, head.data(), f.data));
    f.tensors = TRY(safetensors_parse(head, f.bytes(), path));
    return f;
}

int SafetensorsFile::element_bytes(TensorType type) { return row_of(type).bytes; }
void SafetensorsFile::convert(TensorType type, const void* from, int64_t count, float* out) {
    if (type == TensorType::f32) {
        memcpy(out, from, size_t(count) * 4);
        return;
    }
    auto each = [&](auto to_float) {
        for (int64_t i = 0; i < count; i++) {
            uint16_t h;    // copied, because `from` may be unaligned
            memcpy(&h, static_cast<const char*>(from) + 2 * i, 2);
            out[i] = to_float(h);
        }
    };
    if (type == TensorType::f16) each(half_to_float);
    else each([](uint16_t h) { return to_float(bf16{h}); });
}

// ---- writing ------------------------------------------------------------------------------------

namespace {
// The file's bytes before the tensors: the header's length, then the header.
std::string header_text(const std::vector<TensorSource>& tensors) {
    nlohmann::ordered_json header;
    header["__metadata__"]["format"] = "pt";    // required by transformers
    int64_t end = 0;
    for (const TensorSource& t : tensors) {
        CHECK(t.type != TensorType::f16 && !header.contains(t.name), "tensor %s", t.name.c_str());
        const int64_t begin = end;
        end += tensor_bytes(t);
        header[t.name] = {{"dtype", row_of(t.type).name}, {"shape", t.shape}, {"data_offsets", {begin, end}}};
    }
    std::string text = header.dump();
    text.resize(size_t(round_up(int64_t(text.size()), 8)), ' ');
    const uint64_t length = text.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + text;
}

constexpr int64_t PIECE = 1 << 18;    // elements

// Passes the bytes of elements [first, end) to `sink`.
Status write_elements(const TensorSource& t, int64_t first, int64_t end, const FileSink& sink) {
    std::vector<float> wide(size_t(std::min(PIECE, end - first)));
    std::vector<bf16> as_bf16(t.type == TensorType::f32 ? 0 : wide.size());
    for (int64_t count; first < end; first += count) {
        count = std::min(PIECE, end - first);
        TRY(t.fill(first, count, wide.data()));
        if (t.type == TensorType::f32) {
            TRY(sink(wide.data(), count * 4));
        } else {
            std::transform(wide.begin(), wide.begin() + count, as_bf16.begin(), to_bf16);
            TRY(sink(as_bf16.data(), count * 2));
        }
    }
    return {};
}
// Writes the bytes of elements [first, end) to memory.
Status copy_elements(const TensorSource& t, int64_t first, int64_t end, char* to) {
    if (t.type == TensorType::f32 && reinterpret_cast<uintptr_t>(to) % alignof(float) == 0)
        return t.fill(first, end - first, reinterpret_cast<float*>(to));
    return write_elements(t, first, end, [&](const void* data, int64_t bytes) {
        memcpy(to, data, size_t(bytes));
        to += bytes;
        return Status{};
    });
}
}    // namespace

int64_t tensor_bytes(const TensorSource& t) { return elements(t.shape) * row_of(t.type).bytes; }
int64_t safetensors_bytes(const std::vector<TensorSource>& tensors) {
    int64_t bytes = int64_t(header_text(tensors).size());
    for (const TensorSource& t : tensors) bytes += tensor_bytes(t);
    return bytes;
}

Status safetensors_write(const std::vector<TensorSource>& tensors, const FileSink& sink) {
    const std::string header = header_text(tensors);
    TRY(sink(header.data(), int64_t(header.size())));
    for (const TensorSource& t : tensors) TRY(write_elements(t, 0, elements(t.shape), sink));
    return {};
}

Status safetensors_copy(const std::vector<TensorSource>& tensors, char* to, bool parallel) {
    const std::string header = header_text(tensors);
    to = std::copy(header.begin(), header.end(), to);
    struct Part {
        const TensorSource* tensor;
        int64_t first, end;    // elements
        char* to;
    };
    constexpr int64_t PART = 1 << 22;    // elements: a GPU copies large pieces fastest
    std::vector<Part> parts;
    for (const TensorSource& t : tensors) {
        const int64_t n = elements(t.shape), part = t.in_order ? std::max<int64_t>(n, 1) : PART;
        for (int64_t first = 0; first < n; first += part)
            parts.push_back({&t, first, std::min(n, first + part), to + first * row_of(t.type).bytes});
        to += tensor_bytes(t);
    }
    std::vector<Status> done(parts.size());
    each_chunk_if(parallel, int64_t(parts.size()), [&](int64_t i, int) {
        const Part& p = parts[size_t(i)];
        done[size_t(i)] = copy_elements(*p.tensor, p.first, p.end, p.to);
    });
    for (const Status& s : done) TRY(s);
    return {};
}
