// json.h - hostile JSON: no exceptions, no duplicate keys, bounded depth, typed fields with ranges.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/common.h"

// Parses JSON. max_depth: limit on nested objects and arrays. Exit 3 naming `name` and the byte.
Result<nlohmann::json> json_parse(std::string_view text, const std::string& name, int max_depth);

Result<nlohmann::ordered_json> json_parse_ordered(std::string_view text, const std::string& name, int max_depth);

// Reads the fields of one object. A getter fails with exit 3 if the field is missing, of another
// type or out of [min, max].
template <class J> struct FieldsOf {
    const J& object;                    // must be a JSON object
    std::string name;                   // the file, for messages
    bool has(const char* key) const;    // present and not null
    Status get(const char* key, int64_t* out, int64_t min, int64_t max) const;
    Status get(const char* key, int* out, int min, int max) const;
    Status get(const char* key, uint64_t* out) const;
    Status get(const char* key, double* out, double min, double max) const;
    Status get(const char* key, std::string* out) const;

  private:
    template <class V> Status take(const char* key, bool fits, const std::string& expected, V* out) const;
};
typedef FieldsOf<nlohmann::json> JsonFields;
typedef FieldsOf<nlohmann::ordered_json> OrderedFields;
