// json_schema.h - a JSON Schema as a grammar of the texts that it allows.
//
// Known: type; properties, required, additionalProperties (members come in the order of properties; where it is not
// said, only those of properties); items, minItems, maxItems; enum, const; anyOf, oneOf (any of them), allOf of one;
// $ref to a place in the same file; minimum, maximum (exclusive or not) of integers; minLength, maxLength;
// format date, time, date-time and uuid. Titles and the like
// are passed over.
#pragma once
#include <string>
#include <string_view>

#include "base/common.h"

// GBNF. Hostile until checked. exit 3: the place in the schema, what was expected and found; an unknown keyword
Result<std::string> json_schema_grammar(std::string_view schema, const std::string& name);
