// gguf.cpp - see gguf.h.
#include "gguf.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>
#include <cstring>
#include <set>

static_assert(std::endian::native == std::endian::little, "the format is little-endian, and so is all our reading");

namespace {
constexpr int64_t MAX_HEADER = 256 << 20;    // bytes; the largest vocabularies take 20 MB
constexpr int64_t MAX_NAME = 1 << 10, MAX_RANK = 4, MAX_SIZE = int64_t(1) << 40, MAX_ALIGNMENT = 1 << 20;

struct TypeRow {
    const char* name;
    int bytes;
};    // size 0: values have their own length
constexpr TypeRow TYPES[] = {{"u8", 1},   {"i8", 1},     {"u16", 2},   {"i16", 2}, {"u32", 4}, {"i32", 4}, {"f32", 4},
                             {"bool", 1}, {"string", 0}, {"array", 0}, {"u64", 8}, {"i64", 8}, {"f64", 8}};
const TypeRow& row_of(GgufType t) { return TYPES[int(t)]; }
bool is_number(GgufType t) { return t == GgufType::f32 || t == GgufType::f64; }
bool is_text(GgufType t) { return t == GgufType::text; }
bool is_boolean(GgufType t) { return t == GgufType::boolean; }
bool is_integer(GgufType t) { return !is_number(t) && !is_text(t) && !is_boolean(t) && t != GgufType::array; }
bool is_numeric(GgufType t) { return is_integer(t) || is_number(t); }

// Returns the name of a ggml format that flatgpt does not read, for messages.
const char* ggml_name(uint32_t type) {
    static const std::map<uint32_t, const char*> names = {
        {9, "Q8_1"},   {15, "Q8_K"},   {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {21, "IQ3_S"},
        {22, "IQ2_S"}, {23, "IQ4_XS"}, {24, "I8"},      {25, "I16"},    {26, "I32"},     {27, "I64"},   {28, "F64"},
        {29, "IQ1_M"}, {34, "TQ1_0"},  {35, "TQ2_0"},   {39, "MXFP4"},  {40, "NVFP4"}};
    const auto it = names.find(type);
    return it == names.end() ? "unknown" : it->second;
}

// Reads sequentially from the file's beginning; tracks the remaining bytes.
class Cursor {
  public:
    Cursor(const GgufRead& reader, int64_t bytes, const std::string& file)
        : read(reader), file_bytes(std::min(bytes, MAX_HEADER)), name(file) {}
    int64_t offset() const { return at; }
    int64_t left() const { return file_bytes - at; }
    Status bad(const char* what, const std::string& expected, const std::string& found) const {
        return fail(Exit::input, "%s: offset %lld: %s: expected %s, found %s", name.c_str(), (long long)at, what,
                    expected.c_str(), found.c_str());
    }
    Status bytes(const char* what, void* to, int64_t n) {
        if (n > left())
            return bad(what, std::to_string(n) + " bytes", std::to_string(left()) + " before the end of the header");
        for (auto* p = static_cast<char*>(to); n > 0;) {
            if (at - begin >= int64_t(buffer.size())) {
                begin = at;
                buffer.resize(size_t(std::min<int64_t>(left(), 1 << 18)));
                TRY(read(begin, buffer.data(), int64_t(buffer.size())));
            }
            const int64_t some = std::min(n, begin + int64_t(buffer.size()) - at);
            memcpy(p, buffer.data() + (at - begin), size_t(some));
            p += some, at += some, n -= some;
        }
        return {};
    }
    template <class T> Result<T> value(const char* what) {
        T v{};
        TRY(bytes(what, &v, sizeof v));
        return v;
    }
    // Reads a count of items that take at least `least` bytes each. Fails if the remaining bytes
    // cannot hold so many.
    Result<int64_t> count(const char* what, int64_t least) {
        const uint64_t n = TRY(value<uint64_t>(what));
        if (n > uint64_t(left() / least))
            return bad(what, "at most " + std::to_string(left() / least) + " in the bytes that are left",
                       std::to_string(n));
        return int64_t(n);
    }
    Result<std::string> text(const char* what, int64_t most = MAX_HEADER) {
        const int64_t length = TRY(count(what, 1));
        if (length > most) return bad(what, "at most " + std::to_string(most) + " bytes", std::to_string(length));
        std::string s(size_t(length), '\0');
        TRY(bytes(what, s.data(), length));
        return s;
    }

  private:
    const GgufRead& read;
    const int64_t file_bytes;
    const std::string& name;
    std::string buffer;
    int64_t begin = 0;    // file offset of the buffer
    int64_t at = 0;       // file offset of the next byte
};

// ---- metadata -----------------------------------------------------------------------------------

template <class T> Status read_numbers(Cursor& c, const char* key, int64_t n, GgufValue* v) {
    std::vector<T> raw(static_cast<size_t>(n));
    TRY(c.bytes(key, raw.data(), n * int64_t(sizeof(T))));
    if constexpr (std::is_floating_point_v<T>) v->numbers.assign(raw.begin(), raw.end());
    else v->integers.assign(raw.begin(), raw.end());
    return {};
}

Status read_values(Cursor& c, const char* key, int64_t n, GgufValue* v) {
    switch (v->type) {
        case GgufType::u8: return read_numbers<uint8_t>(c, key, n, v);
        case GgufType::i8: return read_numbers<int8_t>(c, key, n, v);
        case GgufType::u16: return read_numbers<uint16_t>(c, key, n, v);
        case GgufType::i16: return read_numbers<int16_t>(c, key, n, v);
        case GgufType::u32: return read_numbers<uint32_t>(c, key, n, v);
        case GgufType::i32: return read_numbers<int32_t>(c, key, n, v);
        case GgufType::u64: return read_numbers<uint64_t>(c, key, n, v);
        case GgufType::i64: return read_numbers<int64_t>(c, key, n, v);
        case GgufType::f32: return read_numbers<float>(c, key, n, v);
        case GgufType::f64: return read_numbers<double>(c, key, n, v);
        case GgufType::boolean:
            TRY(read_numbers<uint8_t>(c, key, n, v));
            for (int64_t b : v->integers)
                if (b > 1) return c.bad(key, "booleans of 0 or 1", std::to_string(b));
            return {};
        case GgufType::text:
            v->texts.reserve(size_t(n));
            for (int64_t i = 0; i < n; i++) v->texts.push_back(TRY(c.text(key)));
            return {};
        case GgufType::array: return c.bad(key, "an array of values", "an array of arrays");
    }
    return {};
}

Result<GgufType> read_type(Cursor& c, const char* key) {
    const uint32_t type = TRY(c.value<uint32_t>(key));
    if (type >= std::size(TYPES)) return c.bad(key, "a value's type from 0 to 12", std::to_string(type));
    return GgufType(type);
}

Status read_metadata(Cursor& c, int64_t keys, GgufMetadata* m) {
    for (int64_t i = 0; i < keys; i++) {
        const std::string key = TRY(c.text("a key", MAX_NAME));
        GgufValue v;
        v.type = TRY(read_type(c, key.c_str()));
        v.array = v.type == GgufType::array;
        int64_t n = 1;
        if (v.array) {
            v.type = TRY(read_type(c, key.c_str()));
            n = TRY(c.count(key.c_str(), std::max(row_of(v.type).bytes, row_of(v.type).bytes ? 1 : 8)));
        }
        TRY(read_values(c, key.c_str(), n, &v));
        if (!m->values.emplace(key, std::move(v)).second)
            return fail(Exit::input, "%s: key \"%s\" occurs twice", m->name.c_str(), key.c_str());
    }
    return {};
}

// ---- tensors ------------------------------------------------------------------------------------

Result<GgufTensor> read_tensor(Cursor& c) {
    GgufTensor t;
    t.name = TRY(c.text("a tensor's name", MAX_NAME));
    const char* name = t.name.c_str();
    const uint32_t rank = TRY(c.value<uint32_t>(name));
    if (rank > MAX_RANK) return c.bad(name, "at most 4 dimensions", std::to_string(rank));
    int64_t numbers = 1;
    for (uint32_t i = 0; i < rank; i++) {
        const uint64_t size = TRY(c.value<uint64_t>(name));
        if (size > uint64_t(MAX_SIZE) || !mul_checked(numbers, int64_t(size), &numbers))
            return c.bad(name, "sizes up to 2^40 with a product below 2^63", std::to_string(size));
        t.shape.insert(t.shape.begin(), int64_t(size));
    }
    const uint32_t type = TRY(c.value<uint32_t>(name));
    t.format = find_block_format(type);
    if (!t.format) {
        std::string known;
        for (const BlockFormat& f : BLOCK_FORMATS) known += (known.empty() ? "" : ", ") + std::string(f.name);
        return c.bad(name, "a format that flatgpt reads (" + known + ")", formatted("%s (%u)", ggml_name(type), type));
    }
    const int64_t row = rank ? t.shape.back() : 1;
    if (row % t.format->numbers || !mul_checked(numbers / t.format->numbers, t.format->bytes, &t.bytes))
        return c.bad(name, formatted("rows of whole %s blocks of %d numbers", t.format->name, t.format->numbers),
                     "rows of " + std::to_string(row));
    const uint64_t offset = TRY(c.value<uint64_t>(name));
    t.at = int64_t(std::min(offset, uint64_t(INT64_MAX)));
    return t;
}

// Checks the tensors' offsets, which count from the data section, and turns them into file offsets.
Status place_tensors(GgufHeader* h, int64_t alignment, int64_t file_bytes) {
    std::set<std::string> names;
    auto key = [](const GgufTensor& t) { return std::pair(t.at, t.bytes); };
    std::stable_sort(h->tensors.begin(), h->tensors.end(),
                     [&](const GgufTensor& a, const GgufTensor& b) { return key(a) < key(b); });
    const int64_t data_bytes = std::max<int64_t>(file_bytes - h->data, 0);
    int64_t end = 0;
    for (GgufTensor& t : h->tensors) {
        auto bad = [&](const char* what, int64_t found) {
            return fail(Exit::input, "%s: tensor \"%s\": %s, found offset %lld and %lld bytes",
                        h->metadata.name.c_str(), t.name.c_str(), what, (long long)found, (long long)t.bytes);
        };
        if (!names.insert(t.name).second)
            return fail(Exit::input, "%s: tensor \"%s\" occurs twice", h->metadata.name.c_str(), t.name.c_str());
        if (t.at % alignment) return bad(formatted("expected a multiple of %lld", (long long)alignment).c_str(), t.at);
        if (t.at > data_bytes || t.bytes > data_bytes - t.at)
            return bad(formatted("expected its end within %lld bytes of data", (long long)data_bytes).c_str(), t.at);
        if (t.at < end) return bad(formatted("expected an offset from %lld on", (long long)end).c_str(), t.at);
        end = t.at + t.bytes;
        t.at += h->data;
    }
    return {};
}
}    // namespace

int64_t GgufTensor::numbers() const { return bytes / format->bytes * format->numbers; }

Result<GgufHeader> gguf_parse(const GgufRead& read, int64_t file_bytes, const std::string& name) {
    Cursor c(read, file_bytes, name);
    GgufHeader h;
    h.metadata.name = name;
    char magic[4] = {};
    if (file_bytes >= 4) TRY(c.bytes("magic", magic, 4));
    if (memcmp(magic, "GGUF", 4) != 0)
        return fail(Exit::input,
                    "%s: offset 0: expected \"GGUF\", found another file; a model is a GGUF file or a directory (a "
                    "run, a checkpoint, a Hugging Face model)",
                    name.c_str());
    const uint32_t version = TRY(c.value<uint32_t>("version"));
    if (version != 2 && version != 3) return c.bad("version", "2 or 3, little-endian", std::to_string(version));
    const int64_t tensors = TRY(c.count("tensors", 24)), keys = TRY(c.count("keys", 13));
    TRY(read_metadata(c, keys, &h.metadata));
    int64_t alignment = 32;
    if (h.metadata.has("general.alignment")) TRY(h.metadata.get("general.alignment", &alignment, 1, MAX_ALIGNMENT));
    if (alignment & (alignment - 1))
        return fail(Exit::input, "%s: general.alignment: expected a power of two, found %lld", name.c_str(),
                    (long long)alignment);
    for (int64_t i = 0; i < tensors; i++) h.tensors.push_back(TRY(read_tensor(c)));
    h.data = round_up(c.offset(), alignment);
    TRY(place_tensors(&h, alignment, file_bytes));
    return h;
}

bool is_gguf(const std::string& path) {
    char magic[4];
    const Result<File> file = File::open(path);
    return file.ok() && file.value.read(0, magic, 4).ok() && memcmp(magic, "GGUF", 4) == 0;
}

Result<GgufFile> GgufFile::open(const std::string& path) {
    GgufFile f;
    f.file = TRY(File::open(path));
    auto read = [&](int64_t at, void* to, int64_t bytes) { return f.file.read(at, to, bytes); };
    f.header = TRY(gguf_parse(read, f.bytes(), path));
    return f;
}

const GgufTensor* GgufFile::find(const std::string& tensor) const {
    for (const GgufTensor& t : header.tensors)
        if (t.name == tensor) return &t;
    return nullptr;
}

// ---- getters ------------------------------------------------------------------------------------

const GgufValue* GgufMetadata::find(const std::string& key) const {
    const auto it = values.find(key);
    return it == values.end() ? nullptr : &it->second;
}

Result<const GgufValue*> GgufMetadata::typed(const std::string& key, bool array, const char* expected,
                                             bool (*fits)(GgufType)) const {
    const GgufValue* v = find(key);
    if (!v) return fail(Exit::input, "%s: %s: expected %s, found no such key", name.c_str(), key.c_str(), expected);
    if (v->array != array || !fits(v->type))
        return fail(Exit::input, "%s: %s: expected %s, found %s%s", name.c_str(), key.c_str(), expected,
                    v->array ? "an array of " : "", row_of(v->type).name);
    return v;
}

Status GgufMetadata::get(const std::string& key, int64_t* out, int64_t min, int64_t max) const {
    const std::string expected = formatted("an integer from %lld to %lld", (long long)min, (long long)max);
    const GgufValue* v = TRY(typed(key, false, expected.c_str(), is_integer));
    *out = v->integers[0];
    if ((v->type == GgufType::u64 && *out < 0) || *out < min || *out > max)
        return fail(Exit::input, "%s: %s: expected %s, found %lld", name.c_str(), key.c_str(), expected.c_str(),
                    (long long)*out);
    return {};
}
Status GgufMetadata::get(const std::string& key, int* out, int min, int max) const {
    int64_t wide = 0;
    TRY(get(key, &wide, int64_t(min), int64_t(max)));
    *out = int(wide);
    return {};
}
Status GgufMetadata::get(const std::string& key, double* out, double min, double max) const {
    const std::string expected = formatted("a number from %g to %g", min, max);
    const GgufValue* v = TRY(typed(key, false, expected.c_str(), is_numeric));
    *out = is_number(v->type) ? v->numbers[0] : double(v->integers[0]);
    if (!(*out >= min && *out <= max))
        return fail(Exit::input, "%s: %s: expected %s, found %g", name.c_str(), key.c_str(), expected.c_str(), *out);
    return {};
}
Status GgufMetadata::get(const std::string& key, bool* out) const {
    *out = TRY(typed(key, false, "a boolean", is_boolean))->integers[0] != 0;
    return {};
}
Status GgufMetadata::get(const std::string& key, std::string* out) const {
    *out = TRY(typed(key, false, "a string", is_text))->texts[0];
    return {};
}
Status GgufMetadata::get(const std::string& key, std::vector<int64_t>* out) const {
    auto fits = [](GgufType t) { return is_integer(t) || is_boolean(t); };
    *out = TRY(typed(key, true, "an array of integers", fits))->integers;
    return {};
}
Status GgufMetadata::get(const std::string& key, std::vector<double>* out) const {
    *out = TRY(typed(key, true, "an array of numbers", is_number))->numbers;
    return {};
}
Status GgufMetadata::get(const std::string& key, std::vector<std::string>* out) const {
    *out = TRY(typed(key, true, "an array of strings", is_text))->texts;
    return {};
}
