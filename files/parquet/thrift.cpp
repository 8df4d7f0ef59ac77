// thrift.cpp - see thrift.h.
#include "thrift.h"

namespace {
constexpr int DEPTH = 32;    // most nested structures and lists in a skipped value
}

void ThriftReader::run_out() {
    short_of_bytes = true;
    good = false;
}
std::string_view ThriftReader::take(uint64_t n) {
    if (good && n > data.size() - pos) run_out();
    if (!good) return {};
    pos += size_t(n);
    return data.substr(pos - size_t(n), size_t(n));
}

uint64_t ThriftReader::varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        const std::string_view one = take(1);
        if (one.empty()) return 0;
        const auto bits = static_cast<unsigned char>(one[0]);
        if (shift == 63 && bits > 1) break;
        value |= uint64_t(bits & 0x7F) << shift;
        if (!(bits & 0x80)) return value;
    }
    fail_here();
    return 0;
}
int64_t ThriftReader::zigzag() {
    const uint64_t n = varint();
    return int64_t(n >> 1) ^ -int64_t(n & 1);
}

bool ThriftReader::next(Field& field) {
    const std::string_view head = take(1);
    if (head.empty() || head[0] == 0) return false;
    const auto bits = static_cast<unsigned char>(head[0]);
    const int64_t id = bits >> 4 ? field.id + (bits >> 4) : zigzag();
    if (id < 0 || id > INT16_MAX || (bits & 15) > structure || (bits & 15) == stop) return fail_here();
    field = {int(id), Type(bits & 15)};
    return good;
}

bool ThriftReader::is(const Field& field, Type type) { return field.type == type ? good : fail_here(); }
int64_t ThriftReader::integer(const Field& field) {
    const bool integer = field.type == i16 || field.type == i32 || field.type == i64;
    return integer ? zigzag() : fail_here();
}
int32_t ThriftReader::small(const Field& field) {
    const int64_t n = integer(field);
    return n < 0 || n > INT32_MAX ? fail_here() : int32_t(n);
}
bool ThriftReader::boolean(const Field& field) {
    if (field.type != yes && field.type != no) return fail_here();
    return field.type == yes;
}
std::string_view ThriftReader::bytes(const Field& field) {
    return is(field, binary) ? take(varint()) : std::string_view();
}

uint64_t ThriftReader::elements(const Field& field, Type* type) {
    if (field.type != list && field.type != set) return uint64_t(fail_here());
    const std::string_view head = take(1);
    if (head.empty()) return 0;
    const auto bits = static_cast<unsigned char>(head[0]);
    const uint64_t n = bits >> 4 == 15 ? varint() : bits >> 4;
    *type = n ? Type(bits & 15) : byte;    // fastparquet gives empty lists no type
    if (*type > structure || *type == stop) return uint64_t(fail_here());
    if (good && n > data.size() - pos) run_out();
    return good ? n : 0;
}

// Skips without recursion: `left` has, for each open container, the number of values that follow.
void ThriftReader::skip(Type type) {
    struct Open {
        uint64_t left;         // elements; of a structure: unused
        Type first, second;    // elements' types, alternating; structure: fields follow
        Field field;
    } open[DEPTH];
    int depth = 0;
    for (bool element = false; good;) {    // element: booleans of lists take a byte
        switch (type) {
            case yes:
            case no:
                if (element) take(1);
                break;
            case byte: take(1); break;
            case i16:
            case i32:
            case i64: varint(); break;
            case real: take(8); break;
            case binary: take(varint()); break;
            case list:
            case set:
            case map:
            case structure: {
                if (depth == DEPTH) return void(fail_here());
                Open& inner = open[depth++];
                inner = {0, structure, stop, {}};
                if (type == list || type == set) {
                    inner.left = elements({0, type}, &inner.first);
                    inner.second = inner.first;
                } else if (type == map) {
                    const uint64_t pairs = varint();
                    if (pairs > data.size() - pos) run_out();
                    const std::string_view types = pairs && good ? take(1) : std::string_view();
                    inner.left = types.empty() ? 0 : 2 * pairs;
                    inner.first = types.empty() ? byte : Type((types[0] >> 4) & 15);
                    inner.second = types.empty() ? byte : Type(types[0] & 15);
                    if (inner.first == stop || inner.second == stop) return void(fail_here());
                }
                if (inner.first > structure || inner.second > structure) return void(fail_here());
                break;
            }
            case stop: return void(fail_here());
        }
        for (; depth; depth--) {    // the next value of the innermost container that has one
            Open& inner = open[depth - 1];
            if (inner.second == stop) {
                if (!next(inner.field)) continue;
                type = inner.field.type;
                element = false;
                break;
            }
            if (inner.left == 0) continue;
            inner.left--;
            type = inner.left % 2 ? inner.first : inner.second;
            element = true;
            break;
        }
        if (depth == 0) return;
    }
}
