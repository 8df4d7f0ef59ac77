// values.cpp - decodes levels and texts of a Parquet page. See parquet.h.
//
// Source: Encodings.md of apache/parquet-format. The delta encodings hold lengths as blocks of
// bit-packed differences.
#include <algorithm>
#include <cstring>

#include "parquet.h"

namespace {
constexpr uint64_t MOST_VALUES = 1 << 23;    // lengths in a page

// ULEB128; false: the bytes end, or the number exceeds 64 bits.
bool read_varint(std::string_view data, size_t& pos, uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (pos == data.size()) return false;
        const auto bits = static_cast<unsigned char>(data[pos++]);
        if (shift == 63 && bits > 1) return false;
        *value |= uint64_t(bits & 0x7F) << shift;
        if (!(bits & 0x80)) return true;
    }
    return false;
}
int64_t from_zigzag(uint64_t n) { return int64_t(n >> 1) ^ -int64_t(n & 1); }
// `width` bits from bit `bit` on, least significant first. The bytes must exist.
uint64_t bits_at(const char* bytes, size_t bit, int width) {
    unsigned __int128 value = 0;
    const size_t first = bit / 8, last = (bit + size_t(width) + 7) / 8;
    for (size_t i = first; i < last; i++)
        value |= static_cast<unsigned __int128>(static_cast<unsigned char>(bytes[i])) << (8 * (i - first));
    return uint64_t(value >> (bit % 8)) & (width == 64 ? ~0ull : (1ull << width) - 1);
}

// Reads DELTA_BINARY_PACKED numbers: at most `most` lengths, each of at most `largest`.
bool read_lengths(std::string_view data, size_t& pos, uint64_t most, uint64_t largest, std::vector<uint32_t>& out) {
    uint64_t block = 0, miniblocks = 0, total = 0, zigzag = 0;
    if (!read_varint(data, pos, &block) || !read_varint(data, pos, &miniblocks) || !read_varint(data, pos, &total) ||
        !read_varint(data, pos, &zigzag))
        return false;
    if (total > std::min(most, MOST_VALUES) || miniblocks == 0 || miniblocks > 1024 || block == 0 ||
        block > (1 << 20) || block % miniblocks || (block / miniblocks) % 8)
        return false;
    const size_t each = size_t(block / miniblocks), expected = size_t(total);
    out.clear();
    int64_t value = from_zigzag(zigzag);
    auto push = [&] {
        if (value < 0 || uint64_t(value) > largest) return false;
        out.push_back(uint32_t(value));
        return true;
    };
    if (expected && !push()) return false;
    while (out.size() < expected) {
        if (!read_varint(data, pos, &zigzag) || miniblocks > data.size() - pos) return false;
        const int64_t smallest = from_zigzag(zigzag);
        const char* widths = data.data() + pos;
        pos += size_t(miniblocks);
        for (size_t m = 0; m < miniblocks && out.size() < expected; m++) {
            const int width = static_cast<unsigned char>(widths[m]);
            if (width > 64 || each * size_t(width) / 8 > data.size() - pos) return false;
            for (size_t i = 0; i < each && out.size() < expected; i++) {
                const uint64_t delta = bits_at(data.data() + pos, i * size_t(width), width) + uint64_t(smallest);
                value = int64_t(uint64_t(value) + delta);
                if (!push()) return false;
            }
            pos += each * size_t(width) / 8;
        }
    }
    return true;
}
Status damaged(const char* what) { return {Exit::input, std::string("the page is damaged: ") + what}; }
}    // namespace

// ---- hybrid -------------------------------------------------------------------------------------

bool HybridReader::begin() {
    for (left = 0; left == 0;) {
        uint64_t header = 0;
        if (!read_varint(data, pos, &header)) return false;
        packed = header & 1;
        const uint64_t n = header >> 1;
        if (packed) {    // groups of 8 numbers, each group of `width` bytes
            if (width && n > (data.size() - pos) / size_t(width)) {
                // The last group may be cut short by writers that drop its unused bytes.
                left = int64_t((data.size() - pos) * 8 / size_t(width));
                if (left == 0) return false;
            } else if (n > uint64_t(INT64_MAX) / 8) {
                return false;
            } else {
                left = int64_t(n * 8);
            }
            packed_bit = pos * 8;
            pos = std::min(data.size(), pos + size_t(width) * size_t(std::min<uint64_t>(n, data.size())));
        } else {
            const size_t bytes = size_t(width + 7) / 8;
            if (n > uint64_t(INT64_MAX) || bytes > data.size() - pos) return false;
            left = int64_t(n);
            value_of_run = uint32_t(bits_at(data.data() + pos, 0, int(bytes) * 8));
            pos += bytes;
        }
    }
    return true;
}
bool HybridReader::peek(uint32_t* value, int64_t* run) {
    if (left == 0 && !begin()) return false;
    *value = packed ? uint32_t(bits_at(data.data(), packed_bit, width)) : value_of_run;
    *run = packed ? 1 : left;
    return true;
}
void HybridReader::consume(int64_t n) {
    left -= n;
    if (packed) packed_bit += size_t(n) * size_t(width);
}

// ---- texts --------------------------------------------------------------------------------------

Status PageValues::start(std::string_view bytes, int encoding, int64_t n, const std::vector<std::string_view>* from) {
    data = bytes;
    pos = count = 0;
    words = from;
    previous.clear();
    // Nulls have no lengths, so there may be fewer than n.
    auto read = [&](std::vector<uint32_t>& to, uint64_t largest) {
        return read_lengths(data, pos, uint64_t(n), largest, to);
    };
    switch (encoding) {
        case 0: kind = Kind::plain; return {};
        case 2:
        case 8: {
            kind = Kind::dictionary;
            // A page of nulls alone may have no indices, and an empty dictionary.
            const int width = bytes.empty() ? 0 : static_cast<unsigned char>(bytes[0]);
            if (width > 32) return damaged("indices of more than 32 bits");
            indices = HybridReader(bytes.substr(bytes.empty() ? 0 : 1), width);
            return {};
        }
        case 6: kind = Kind::lengths; return read(lengths, data.size()) ? Status{} : damaged("its lengths");
        case 7:
            kind = Kind::prefixes;
            if (read(prefixes, UINT32_MAX) && read(lengths, data.size()) && prefixes.size() == lengths.size())
                return {};
            return damaged("its lengths");
        default:
            return {Exit::input,
                    "expected an encoding of texts (PLAIN, a dictionary, DELTA_LENGTH_BYTE_ARRAY, "
                    "DELTA_BYTE_ARRAY), found encoding " +
                        std::to_string(encoding)};
    }
}

Result<std::string_view> PageValues::next(size_t longest) {
    if (kind == Kind::dictionary) {
        uint32_t index = 0;
        int64_t run = 0;
        if (!indices.peek(&index, &run)) return damaged("its indices end early");
        indices.consume(1);
        if (index >= words->size()) return damaged("an index beyond its dictionary");
        return (*words)[index];
    }
    size_t length = 0;
    if (kind == Kind::plain) {
        uint32_t bytes = 0;
        if (data.size() - pos < 4) return damaged("it ends early");
        memcpy(&bytes, data.data() + pos, 4);
        pos += 4;
        length = bytes;
    } else {
        if (count == lengths.size()) return damaged("it ends early");
        length = lengths[count];
    }
    if (length > data.size() - pos) return damaged("a text ends behind it");
    const std::string_view text = data.substr(pos, length);
    pos += length;
    if (kind != Kind::prefixes) {
        count++;
        return text;
    }
    const size_t prefix = prefixes[count++];
    if (prefix > previous.size()) return damaged("a prefix longer than the text before");
    if (prefix + length > longest) return std::string_view(nullptr, longest + 1);    // too long: never read
    previous.resize(prefix);
    previous += text;
    return std::string_view(previous);
}
