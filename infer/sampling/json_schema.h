// json_schema.h - translates a JSON Schema into a grammar of the texts that it allows.
//
// Supported: type; properties, required, additionalProperties (members come in the order of
// properties; if absent, only members of properties and required are allowed); items, prefixItems,
// minItems, maxItems; enum, const; minimum, maximum (exclusive or not); minLength, maxLength,
// pattern (ECMA-262, without lookaround and backreferences); format date, time, date-time, uuid,
// hostname, email, ipv4 and uri; anyOf, allOf, $ref within the file, also beside other keywords;
// oneOf if no text can match two of its schemas. Annotations such as title are ignored.
#pragma once
#include <string>
#include <string_view>

#include "base/common.h"

// Returns GBNF. Untrusted input. exit 3: path in the schema, expected and found; an unknown keyword
Result<std::string> json_schema_grammar(std::string_view schema, const std::string& name);
