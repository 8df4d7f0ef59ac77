// foreign.h - models that others keep in a form flatgpt does not read: what a path is, and how it becomes one that it
// does.
#pragma once
#include <string>

#include "base/common.h"

// Exit 3 with a line for what it recognises: a file by its first bytes or its name, a directory by what lies in it. Ok:
// it is nothing that is known, and the caller's own message stands.
Status check_foreign(const std::string& path);
