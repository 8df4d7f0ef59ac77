// foreign.h - recognises model formats that flatgpt does not read, and names their conversion.
#pragma once
#include <string>

#include "base/common.h"

// Exit 3 with a hint for a recognised format: a file by its first bytes or name, a directory by its
// content. Ok: not recognised, so the caller's own message applies.
Status check_foreign(const std::string& path);
