// spans.h - attention masks of packed sequences, as spans of keys and of queries (layers/ops.h).
#pragma once
#include <vector>

#include "model/config.h"

// A text within a sequence: from `from` to the next text's begin. Its prefix ends before `prefix`.
struct Text {
    int from = 0, prefix = 0;
};
struct Spans {
    std::vector<Span> keys, queries;    // (B,S)
    // Adds a sequence of S positions that consists of these texts, the first from 0 on. A query
    // attends within its text only: to positions up to its own; with MaskKind::prefix also to the
    // whole prefix; with MaskKind::all to the whole text.
    void add(const std::vector<Text>& texts, int S, MaskKind mask_kind);
};
