// json_schema_parts.h - for json_schema.cpp: GBNF of number ranges and patterns; joined schemas.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "base/common.h"

// ---- GBNF bodies --------------------------------------------------------------------------------

std::string gbnf_quoted(const std::string& text);    // the text as a GBNF literal

// A decimal number that bounds a schema's values.
struct Decimal {
    bool negative = false;
    std::string whole = "0", fraction;    // without leading or trailing zeros
    bool exclusive = false;               // the bound itself is excluded
};
std::optional<Decimal> decimal(const nlohmann::ordered_json& number);    // empty: more than 15 digits
// GBNF for numbers in [least, most]; an absent bound is open. They have no exponents, and few
// enough digits that none rounds to an excluded bound. "": there is no such number.
std::string decimals_between(const std::optional<Decimal>& least, const std::optional<Decimal>& most);
std::string integers_between(int64_t least, int64_t most);

// Rules for the content of JSON strings in which an ECMA-262 pattern matches somewhere, `least` to
// `most` characters long (-1: unbounded). Appends rules, with names that begin with `prefix`, which
// use the rule `char`. first: the start rule, "" if no text matches. error: unsupported part.
struct PatternRules {
    std::string first, error;
};
PatternRules pattern_rules(const std::string& pattern, int64_t least, int64_t most, const std::string& prefix,
                           std::string* rules);

// GBNF for a quoted JSON string without escapes that is none of `taken`. Appends its rules, with
// names that begin with prefix; they use the grammar's rule `plain` (one unescaped character).
std::string other_strings(const std::set<std::string>& taken, const std::string& prefix, std::string* rules);

// ---- schemas ------------------------------------------------------------------------------------

extern const char* const JSON_TYPES[7];
const char* implied_type(const nlohmann::ordered_json& schema);    // by its keywords, if it has no `type`; null: any
bool is_annotation(const std::string& keyword);                    // keywords like title, which restrict nothing

class Schemas {
  public:
    explicit Schemas(const nlohmann::ordered_json& whole) : root(whole) {}
    // The schema to which a $ref points, or an error.
    struct Found {
        const nlohmann::ordered_json* schema = nullptr;
        std::string error;
    };
    Found find(const nlohmann::ordered_json& ref) const;
    // An equivalent schema without $ref and allOf, joined with the keywords beside them.
    struct Flat {
        nlohmann::ordered_json schema;
        std::string error;    // names keywords that cannot be joined
    };
    Flat flat(const nlohmann::ordered_json& schema, int depth = 0) const;
    Flat joined(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b) const;    // a, b: from flat()
    // Whether no text of a's grammar is valid by b; false if that is not proven.
    bool apart(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b, int depth = 0) const;

  private:
    bool apart_of_type(const std::string& type, const nlohmann::ordered_json& a, const nlohmann::ordered_json& b,
                       int depth) const;
    bool may_hold(const nlohmann::ordered_json& value, const nlohmann::ordered_json& schema, int depth) const;
    const nlohmann::ordered_json& root;
    // Remaining steps. They are limited, because schemas that refer to each other can take
    // exponentially many.
    mutable int flat_left = 200000, apart_left = 20000;
};
