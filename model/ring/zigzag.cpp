// zigzag.cpp - see zigzag.h.
#include "model/ring/zigzag.h"

#include <algorithm>

int Zigzag::before(int p) const {
    if (ranks == 1) return std::clamp(p, 0, S);
    const int half = S / 2, later = (2 * ranks - 1 - rank) * half;
    return std::clamp(p - rank * half, 0, half) + std::clamp(p - later, 0, half);
}

void Zigzag::cut(int* to, const int* x, int B) const {
    for (int b = 0; b < B; b++)
        for (int s = 0; s < S; s++) to[int64_t(b) * S + s] = x[int64_t(b) * whole_S() + position(s)];
}

bool Zigzag::mask(Span* keys, Span* queries, int source, const Spans* whole, int window, int B) const {
    const Zigzag theirs = of(source);
    bool any = false;
    for (int b = 0; b < B; b++)
        for (int s = 0; s < S; s++) {
            const int64_t row = int64_t(b) * whole_S(), n = int64_t(b) * S + s;
            const int query = position(s), key = theirs.position(s);
            Span seen = whole ? whole->keys[size_t(row + query)] : Span{0, query + 1};
            Span by = whole ? whole->queries[size_t(row + key)] : Span{key, whole_S()};
            if (window) {
                seen.from = std::max(seen.from, query - window + 1);
                by.to = std::min(by.to, key + window);
            }
            keys[n] = {theirs.before(seen.from), theirs.before(seen.to)};
            queries[n] = {before(by.from), before(by.to)};
            any |= keys[n].from < keys[n].to;
        }
    return any;
}
