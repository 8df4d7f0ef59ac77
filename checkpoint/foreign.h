// foreign.h - recognises model formats that flatgpt does not read, and tells how to convert them.
#pragma once
#include <string>

#include "base/common.h"

// Exit 3: path has a recognised format, with a hint. Files are recognised by first bytes or name,
// directories by content. Ok: not recognised, so that the caller's own message applies.
Status check_foreign(const std::string& path);
