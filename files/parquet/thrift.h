// thrift.h - reads Thrift's compact protocol, in which Parquet writes its footer and page headers.
//
// Source: the specification doc/specs/thrift-compact-protocol.md of Apache Thrift. Nothing here
// allocates; nesting and lengths are bounded by the bytes that exist.
#pragma once
#include <string_view>

#include "base/common.h"

class ThriftReader {
  public:
    explicit ThriftReader(std::string_view bytes) : data(bytes) {}
    // Types of fields and of list elements. A field's boolean value is part of its type.
    enum Type { stop, yes, no, byte, i16, i32, i64, real, binary, list, set, map, structure };
    struct Field {
        int id = 0;
        Type type = stop;
    };
    // Reads the next field's header in a structure; false at the structure's end or after an error.
    // field: the previous field, at first the default one.
    bool next(Field& field);
    // A value of the given type; 0 or empty, and ok() is false, if the field has another type.
    int64_t integer(const Field& field);
    int32_t small(const Field& field);    // a number that is neither negative nor beyond 31 bits
    bool boolean(const Field& field);
    std::string_view bytes(const Field& field);
    // Begins a list of structures, integers or binaries: returns its length. Each element takes at
    // least a byte, so the length is bounded by the bytes left.
    uint64_t elements(const Field& field, Type* type);
    void skip(Type type);
    bool is(const Field& field, Type type);    // false: also ends reading
    bool ok() const { return good; }
    bool ended_early() const { return short_of_bytes; }    // more bytes might have helped
    size_t at() const { return pos; }

  private:
    std::string_view data;
    size_t pos = 0;
    bool good = true, short_of_bytes = false;

    uint64_t varint();
    int64_t zigzag();
    std::string_view take(uint64_t n);
    void run_out();    // ends reading: the bytes end before the value
    bool fail_here() { return good = false; }
};
