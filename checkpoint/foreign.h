// foreign.h - recognises model formats that flatgpt does not read, and tells how to convert them.
#pragma once
#include <string>

#include "base/common.h"

// Recognises known files and directories that flatgpt cannot read as a model. Exit 3: `path` is one
// of these; the message has a hint. Files are recognised by their first bytes or name, directories
// by content. Ok: the format is unknown, so that the caller's own message applies.
Status check_foreign(const std::string& path);
