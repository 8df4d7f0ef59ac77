// zigzag.h - context parallelism: the positions of a sequence that each rank of a ring has.
#pragma once
#include <vector>

#include "model/spans.h"

// A sequence has 2 * ranks equal chunks. Rank r has chunk r and then chunk 2 * ranks - 1 - r, so
// that with a causal mask all ranks see equally many pairs of positions. The order of a rank's
// positions, its local order, is that of the sequence. So an interval of the sequence is an
// interval of the local order, too, and causal masks with windows and documents are spans.
struct Zigzag {
    int rank = 0, ranks = 1;
    int S = 1;    // positions of a rank; even if there are several ranks

    int whole_S() const { return S * ranks; }
    // Positions at which this rank's chunks begin; with one rank, its only chunk.
    std::vector<int> starts() const {
        return ranks == 1 ? std::vector{0} : std::vector{rank * S / 2, (2 * ranks - 1 - rank) * S / 2};
    }
    int position(int local) const {
        return ranks == 1 || local < S / 2 ? rank * S / 2 + local : (2 * ranks - 2 - rank) * S / 2 + local;
    }
    // Number of this rank's positions that lie before position p of the sequence.
    int before(int p) const;
    Zigzag of(int other) const { return {other, ranks, S}; }
    // Copies this rank's part of the rows x (B,whole_S) to `to` (B,S).
    void cut(int* to, const int* x, int B) const;
    // The causal mask between this rank's queries and the keys of rank `source`, in local orders:
    // the range of keys that each query attends to, keys (B,S), and the range of queries that
    // attend to each key, queries (B,S). Both may be empty. whole: spans of whole sequences; null:
    // each sequence is one text. window 0: no limit. Returns whether there is a visible pair.
    bool mask(Span* keys, Span* queries, int source, const Spans* whole, int window, int B) const;
};
