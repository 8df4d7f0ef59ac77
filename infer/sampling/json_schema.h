// json_schema.h - a JSON Schema as a grammar of the texts that it allows.
//
// Known: type; properties, required, additionalProperties (members come in the order of properties;
// where it is not said, only those of properties and of required); items, prefixItems, minItems,
// maxItems; enum, const; minimum, maximum (exclusive or not); minLength, maxLength, pattern (of
// ECMA-262, without looks around and references back); format date, time, date-time, uuid,
// hostname, email, ipv4 and uri; anyOf, allOf, $ref to a place in the same file, beside other
// keywords, too; oneOf where no text can be valid by two of its schemas. Titles and the like are
// passed over.
#pragma once
#include <string>
#include <string_view>

#include "base/common.h"

// GBNF. Hostile until checked. exit 3: the place in the schema, what was expected and found; an unknown keyword
Result<std::string> json_schema_grammar(std::string_view schema, const std::string& name);
