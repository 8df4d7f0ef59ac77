// json_text.h - the text in a field of a JSON object, as JSON lines have it.
#pragma once
#include <string>
#include <string_view>

#include "base/common.h"

// No tree is built: memory grows with the field and the object's keys alone. Exit 3 naming the byte; or
// where text is no object, or the field is no string or missing: the message names the others.
Result<std::string> json_text_field(std::string_view text, const std::string& name, const std::string& field,
                                    int max_depth);
