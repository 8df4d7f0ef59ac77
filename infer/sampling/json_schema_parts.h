// json_schema_parts.h - what a JSON Schema's grammar is made of: ranges of numbers, patterns; and schemas joined,
// or compared.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "base/common.h"

// ---- GBNF bodies ----------------------------------------------------------------------------------------------------

std::string gbnf_quoted(const std::string& text);    // a literal

// A number in decimals, as a schema's bound has it.
struct Decimal {
    bool negative = false;
    std::string whole = "0", fraction;    // no zeros before the one or after the other
    bool exclusive = false;               // as a bound: the number itself lies outside
};
std::optional<Decimal> decimal(const nlohmann::ordered_json& number);    // none: more than 15 digits
// Numbers from `least` to `most`, where there is one; without exponents, and with so few digits that none rounds to a
// bound that is outside. "": there is none.
std::string decimals_between(const std::optional<Decimal>& least, const std::optional<Decimal>& most);
std::string integers_between(int64_t least, int64_t most);

// What a string in JSON holds between its quotes if an expression of ECMA-262 finds something in it, and its length in
// characters is from `least` to `most` (-1: any). Rules are added, which begin with `prefix` and name the rule `char`.
// The first one's name, "" where no text is found; an error is the part of a message that says what is not known.
struct PatternRules {
    std::string first, error;
};
PatternRules pattern_rules(const std::string& pattern, int64_t least, int64_t most, const std::string& prefix,
                           std::string* rules);

// A string in JSON, quotes and all, without escapes, that is none of these. The rules that are added name one: `plain`.
std::string other_strings(const std::set<std::string>& taken, const std::string& prefix, std::string* rules);

// ---- schemas --------------------------------------------------------------------------------------------------------

extern const char* const JSON_TYPES[7];
const char* implied_type(const nlohmann::ordered_json& schema);    // by its keywords, where it names none; null: any
bool is_annotation(const std::string& keyword);    // titles and the like, which allow and forbid nothing

class Schemas {
  public:
    explicit Schemas(const nlohmann::ordered_json& root) : root(root) {}
    // What a $ref leads to, or a message.
    struct Found {
        const nlohmann::ordered_json* schema = nullptr;
        std::string error;
    };
    Found find(const nlohmann::ordered_json& ref) const;
    // One schema for all that $ref, allOf and the keywords beside them demand together: without $ref and allOf.
    struct Flat {
        nlohmann::ordered_json schema;
        std::string error;    // what cannot be joined
    };
    Flat flat(const nlohmann::ordered_json& schema, int depth = 0) const;
    Flat joined(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b) const;    // both are flat
    // No text that the grammar of `a` writes is valid by `b`; false where that is not certain.
    bool apart(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b, int depth = 0) const;

  private:
    bool apart_of_type(const std::string& type, const nlohmann::ordered_json& a, const nlohmann::ordered_json& b,
                       int depth) const;
    bool may_hold(const nlohmann::ordered_json& value, const nlohmann::ordered_json& schema, int depth) const;
    const nlohmann::ordered_json& root;
    // Steps that are left: schemas that name each other take exponentially many.
    mutable int flat_left = 200000, apart_left = 20000;
};
