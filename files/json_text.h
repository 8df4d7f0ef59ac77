// json_text.h - the text in a field of a JSON object, for JSON lines.
#pragma once
#include <string>
#include <string_view>

#include "base/common.h"

// Builds no tree: memory grows only with the field and the object's keys. Exit 3 naming the byte,
// or if text is no object, or if the field is missing or no string: the message lists the others.
Result<std::string> json_text_field(std::string_view text, const std::string& name, const std::string& field,
                                    int max_depth);
