// foreign.h - recognises model formats that flatgpt does not read, and tells how to convert them.
#pragma once
#include <string>

#include "base/common.h"

// Recognises what is no model in a form that flatgpt reads. Exit 3: `path` is such; the message has
// a hint. Files are recognised by their first bytes or name, directories by content. Ok: the format
// is unknown, so that the caller's own message applies.
Status check_foreign(const std::string& path);
