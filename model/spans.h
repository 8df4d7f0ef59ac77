// spans.h - who sees whom in a sequence, as spans of keys and of queries (layers/ops.h).
#pragma once
#include <vector>

#include "model/config.h"

// A text within a sequence: it begins at `from` and ends where the next one begins. Its prefix ends before `prefix`.
struct Text {
    int from = 0, prefix = 0;
};
struct Spans {
    std::vector<Span> keys, queries;    // (B,S)
    // One more sequence of S positions, of these texts: the first one begins at 0. Positions of different texts do not
    // see each other. Within one, a position sees those before it and itself; with MaskKind::prefix those of the
    // prefix, too; with MaskKind::all the whole text.
    void add(const std::vector<Text>& texts, int S, MaskKind mask_kind);
};
