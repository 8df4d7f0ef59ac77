// spans.h - attention masks of sequences packed from several texts, as spans (layers/ops.h).
#pragma once
#include <vector>

#include "model/config.h"

// A text in a packed sequence: it ends where the next one begins. Its prefix is from..prefix-1. Of
// a pair of texts, the second one begins at `second`; 0: none.
struct Text {
    int from = 0, prefix = 0, second = 0;
    int label = -1;    // class that the text's first position has as target (Spans::labels); -1: none
};
struct Spans {
    std::vector<Span> keys, queries;    // (B,S)
    std::vector<int> segments;          // (B,S): 1 from a text's `second` on, else 0
    std::vector<int> labels;            // (B,S): a text's label at its first position, else -1
    // Adds a sequence of S positions that consists of these texts; the first begins at 0. A query
    // attends within its own text: to positions up to its own; with MaskKind::prefix also to the
    // whole prefix; with MaskKind::all to the whole text.
    void add(const std::vector<Text>& texts, int S, MaskKind mask_kind);
};
