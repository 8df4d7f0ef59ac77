// grammar_rules.h - properties of a grammar's rules: nullable, productive, left-recursive.
#pragma once
#include "grammar.h"

// Returns for each rule whether it derives the empty text; if `bytes` is set, whether it derives
// any finite text.
std::vector<char> derivable(const Grammar& g, bool bytes);

// Returns the first left-recursive rule; -1: none. A rule is left-recursive if it derives itself
// before any byte, with elements left on the stack: expansion would never end. So the graph of
// "begins with" edges may have no cycle with an edge that leaves elements.
int left_recursive(const Grammar& g);
