// grammar_rules.h - what a grammar's rules can become: nothing, a text that ends, themselves.
#pragma once
#include "grammar.h"

// By rule: whether it can become the empty text, or with `bytes`, any text that ends.
std::vector<char> derivable(const Grammar& g, bool bytes);

// A rule that can come to itself again before any byte, with something to come back to, would need endless stacks. The
// rules that each begins with form a graph; none of its cycles may have such an edge.
// The first such rule; -1: there is none.
int left_recursive(const Grammar& g);
