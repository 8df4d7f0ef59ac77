// grammar_rules.h - properties of a grammar's rules: nullable, productive, left-recursive.
#pragma once
#include "grammar.h"

// By rule: whether it derives the empty text (bytes: any finite text).
std::vector<char> derivable(const Grammar& g, bool bytes);

// Finds a left-recursive rule: one that derives itself before any byte, with a nonempty rest on the
// stack, would need endless stacks. The graph of "begins with" edges may have no cycle with such an
// edge. Returns the first such rule; -1: none.
int left_recursive(const Grammar& g);
