// checks.h - one function per operation: runs it at these sizes against the reference. Instantiated for float and bf16.
#pragma once
#include "check.h"

