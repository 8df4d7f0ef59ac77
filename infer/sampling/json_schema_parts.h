// json_schema_parts.h - parts of a JSON Schema's grammar: number ranges, patterns; joins.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "base/common.h"

// ---- GBNF bodies ----------------------------------------------------------------------------------------------------

std::string gbnf_quoted(const std::string& text);    // a GBNF literal

// A decimal number: a schema's bound.
struct Decimal {
    bool negative = false;
    std::string whole = "0", fraction;    // no leading or trailing zeros
    bool exclusive = false;               // as a bound: the number itself is excluded
};
std::optional<Decimal> decimal(const nlohmann::ordered_json& number);    // none: over 15 digits
// Numbers in [least, most]; an absent bound is open. Without exponents, and with few enough digits
// that none rounds to an excluded bound. "": no such number.
std::string decimals_between(const std::optional<Decimal>& least, const std::optional<Decimal>& most);
std::string integers_between(int64_t least, int64_t most);

// Rules for a JSON string's content that an ECMA-262 pattern matches somewhere, `least` to `most`
// characters long (-1: unbounded). Appends rules whose names begin with `prefix`; they use the rule
// `char`. first: the start rule's name, "" if no text matches. error: the unsupported part.
struct PatternRules {
    std::string first, error;
};
PatternRules pattern_rules(const std::string& pattern, int64_t least, int64_t most, const std::string& prefix,
                           std::string* rules);

// A quoted JSON string without escapes that is none of `taken`. The appended rules use the rule
// `plain`.
std::string other_strings(const std::set<std::string>& taken, const std::string& prefix, std::string* rules);

// ---- schemas --------------------------------------------------------------------------------------------------------

extern const char* const JSON_TYPES[7];
const char* implied_type(const nlohmann::ordered_json& schema);    // from its keywords if it has no type; null: any
bool is_annotation(const std::string& keyword);                    // such as title: allows and forbids nothing

class Schemas {
  public:
    explicit Schemas(const nlohmann::ordered_json& root) : root(root) {}
    // The schema that a $ref points to, or an error.
    struct Found {
        const nlohmann::ordered_json* schema = nullptr;
        std::string error;
    };
    Found find(const nlohmann::ordered_json& ref) const;
    // One schema without $ref and allOf, equivalent to all that they and the keywords beside them
    // demand.
    struct Flat {
        nlohmann::ordered_json schema;
        std::string error;    // keywords that cannot be joined
    };
    Flat flat(const nlohmann::ordered_json& schema, int depth = 0) const;
    Flat joined(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b) const;    // both are flat
    // True if no text of a's grammar is valid by b; false if unproven.
    bool apart(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b, int depth = 0) const;

  private:
    bool apart_of_type(const std::string& type, const nlohmann::ordered_json& a, const nlohmann::ordered_json& b,
                       int depth) const;
    bool may_hold(const nlohmann::ordered_json& value, const nlohmann::ordered_json& schema, int depth) const;
    const nlohmann::ordered_json& root;
    // Remaining steps: schemas that refer to each other take exponentially many.
    mutable int flat_left = 200000, apart_left = 20000;
};
