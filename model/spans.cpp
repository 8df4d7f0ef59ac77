#include "spans.h"

#include <algorithm>

void Spans::add(const std::vector<Text>& texts, int S, MaskKind mask_kind) {
    CHECK(!texts.empty() && texts[0].from == 0, "%zu texts", texts.size());
    for (size_t i = 0; i < texts.size(); i++) {
        const int from = texts[i].from, to = i + 1 < texts.size() ? texts[i + 1].from : S;
        CHECK(from < to && to <= S, "a text at %d..%d of %d", from, to, S);
        // In this text, a position before `whole` attends to all positions before `whole`, and a
        // later one to those up to its own.
        const int whole = mask_kind == MaskKind::all      ? to
                          : mask_kind == MaskKind::prefix ? std::min(texts[i].prefix, to)
                                                          : from;
        for (int s = from; s < to; s++) {
            keys.push_back({from, std::max(s + 1, whole)});
            queries.push_back({s < whole ? from : s, to});
            labels.push_back(s == from ? texts[i].label : -1);
            segments.push_back(texts[i].second > 0 && s >= texts[i].second);
        }
    }
}
