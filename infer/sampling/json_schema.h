// json_schema.h - translates a JSON Schema to a grammar of the valid JSON texts.
//
// Supported keywords: type; properties, required, additionalProperties (members come in the order
// of properties; without additionalProperties, only members of properties and required are
// allowed); items, prefixItems, minItems, maxItems; enum, const; minimum, maximum (exclusive or
// not); minLength, maxLength, pattern (ECMA-262, without lookaround and backreferences); format
// date, time, date-time, uuid, hostname, email, ipv4 and uri; anyOf, allOf, $ref within the file,
// also beside other keywords; oneOf if no text is valid by two of its schemas. Annotations are
// ignored.
#pragma once
#include <string>
#include <string_view>

#include "base/common.h"

// Returns the grammar as GBNF. The schema may be untrusted. On exit 3 the message gives the path in
// the schema, what was expected and what was found.
Result<std::string> json_schema_grammar(std::string_view schema, const std::string& name);
