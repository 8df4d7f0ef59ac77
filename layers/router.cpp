// router.cpp - the choice of experts for each position, and the order of rows by expert.
//
// Positions are processed in pieces of a sequence. Each piece counts its rows of every expert
// (Routes); the counts of all pieces, in order, give each piece its first permuted rows: a counting
// sort whose result does not depend on threads. Bound by E exps and K E comparisons a position:
// negligible compared with the experts.
#include "layers/simd/activation_vec.h"

namespace ISA {
constexpr int PIECE = 64;    // positions of a sequence

namespace {
// A position's scores. A score times to_share is its share of the sum of all scores.
struct Scores {
    float score[Router::MAX_EXPERTS], to_share, lse;
    INLINE_MEMBER Scores(const float* z, const Router& r) {
        vf most = set1(-__builtin_inff());
        each_vector(r.E, [&](int64_t i, auto at) { most = max(at.fill_rest(at.get(z + i), -__builtin_inff()), most); });
        const float top = max(most);
        vf total = {}, gates = {};
        each_vector(r.E, [&](int64_t i, auto at) {
            const vf e = at.fill_rest(exp(at.get(z + i) - top), 0);
            total += e;
            if (!r.sigmoid) return at.put(score + i, e);
            const vf s = at.fill_rest(sigmoid(at.get(z + i)).s, 0);
            gates += s;
            at.put(score + i, s);
        });
        const float all = sum(total);
        lse = top + __builtin_logf(all);
        to_share = 1 / (r.sigmoid ? sum(gates) : all);
        if (r.sigmoid) return;
        each_vector(r.E, [&](int64_t i, auto at) { at.put(score + i, at.get(score + i) * to_share); });
        to_share = 1;
    }
    INLINE_MEMBER float of_chosen(const int* expert, const Router& r) const {
        float s = 0;
        for (int k = 0; k < r.K; k++) s += score[expert[k]];
        return s;
    }
};
}    // namespace

// Chooses K different experts for any logits, even if some are NaN.
static void choose(int* expert, const float* z, const Router& r) {
    bool taken[Router::MAX_EXPERTS] = {};
    for (int k = 0; k < r.K; k++) {
        int best = -1;
        for (int i = 0; i < r.E; i++)
            if (!taken[i] && (best < 0 || z[i] > z[best])) best = i;
        taken[best] = true;
        expert[k] = best;
    }
}

// Sums over a piece of a sequence: lse^2, each expert's shares, and in `slots` each expert's number
// of rows, which later becomes the first permuted row of these rows.
struct SequencePiece {
    double* lse;
    float* shares;    // (E)
    int* slots;       // (E)
    static INLINE_MEMBER int64_t bytes(const Router& r) { return 8 + 8 * int64_t(padded(r.E)); }
    INLINE_MEMBER SequencePiece(void* room, int64_t piece, const Router& r) {
        char* p = static_cast<char*>(room) + piece * bytes(r);
        lse = reinterpret_cast<double*>(p);
        shares = reinterpret_cast<float*>(p + 8);
        slots = reinterpret_cast<int*>(p + 8 + 4 * int64_t(padded(r.E)));
    }
};
INLINE int pieces_of(int S) { return (S + PIECE - 1) / PIECE; }

// Adds a sequence's counts, balance and lse^2 to `totals` (operations.inc: router_forward).
static void add_totals(double* totals, void* room, const int* counts, int b, int S, const Router& r) {
    const int pieces = pieces_of(S);
    for (int i = 0; i < r.E; i++) {
        double shares = 0;
        for (int k = 0; k < pieces; k++) shares += double(SequencePiece(room, int64_t(b) * pieces + k, r).shares[i]);
        totals[i] += counts[i];
        totals[r.E] += double(r.E) / r.K * (double(counts[i]) / S) * (shares / S);
    }
    for (int k = 0; k < pieces; k++) totals[r.E + 1] += *SequencePiece(room, int64_t(b) * pieces + k, r).lse;
}

static void forward(float* factors, Routes to, double* totals, const float* logits, Router r, int B, int S) {
    const int pieces = pieces_of(S), all = B * pieces;
    void* room = cpu_scratch(all * SequencePiece::bytes(r));
    auto each_row = [&](int piece, auto f) {
        const int s = piece % pieces * PIECE, first = piece / pieces * S + s;
        for (int n = first; n < first + least(PIECE, S - s); n++) f(int64_t(n));
    };
    each_item(all, int64_t(B) * S * r.E * r.K, [&](int64_t i) {
        const SequencePiece piece(room, i, r);
        *piece.lse = 0;
        for (int k = 0; k < r.E; k++) piece.shares[k] = 0, piece.slots[k] = 0;
        each_row(i, [&](int64_t n) {
            const Scores s(logits + n * r.E, r);
            int* expert = to.expert + n * r.K;
            choose(expert, logits + n * r.E, r);
            const float factor = r.normalise ? 1 / s.of_chosen(expert, r) : 1;
            for (int k = 0; k < r.K; k++) {
                factors[n * r.K + k] = s.score[expert[k]] * factor;
                piece.slots[expert[k]]++;
            }
            each_vector(r.E, [&](int64_t k, auto at) {
                at.put(piece.shares + k, at.get(piece.shares + k) + at.get(s.score + k) * s.to_share);
            });
            *piece.lse += double(s.lse) * double(s.lse);
        });
    });
    for (int b = 0; b < B; b++) {
        int* counts = to.counts + int64_t(b) * r.E;
        for (int i = 0; i < r.E; i++) {
            counts[i] = 0;
            for (int k = 0; k < pieces; k++) counts[i] += SequencePiece(room, int64_t(b) * pieces + k, r).slots[i];
        }
        if (totals) add_totals(totals, room, counts, b, S, r);
    }
    int at = 0;
    for (int i = 0; i < r.E; i++) {
        to.offsets[i] = at;
        for (int k = 0; k < all; k++) {
            int& slots = SequencePiece(room, k, r).slots[i];
            const int n = slots;
            slots = at;
            at += n;
        }
    }
    to.offsets[r.E] = at;
    each_item(all, int64_t(B) * S * r.K, [&](int64_t i) {
        const SequencePiece piece(room, i, r);
        each_row(i, [&](int64_t n) {
            for (int64_t row = n * r.K; row < (n + 1) * r.K; row++)
                to.row[to.permuted_row[row] = piece.slots[to.expert[row]]++] = int(row);
        });
    });
}
static int64_t forward_workspace(const CallSizes& c) {
    Router r;
    r.E = c.in;
    return c.B * pieces_of(c.S) * SequencePiece::bytes(r);
}

static void backward(float* dlogits, const float* dfactors, Routes routes, const float* logits, Router r, float balance,
                     float z, int B, int S) {
    const float balance_slope = balance * float(r.E) / float(r.K) / float(S);
    each_item(int64_t(B) * S, int64_t(B) * S * r.E, [&](int64_t n) {
        const float *logit = logits + n * r.E, *dw = dfactors + n * r.K;
        const int *expert = routes.expert + n * r.K, *counts = routes.counts + n / S * r.E;
        float* d = dlogits + n * r.E;
        const Scores s(logit, r);
        float mean_share = 0, mean = 0;
        for (int i = 0; i < r.E; i++) mean_share += s.score[i] * s.to_share * (balance_slope * float(counts[i]));
        for (int i = 0; i < r.E; i++) d[i] = (balance_slope * float(counts[i]) - mean_share) * s.to_share;
        const float factor = r.normalise ? 1 / s.of_chosen(expert, r) : 1;
        for (int k = 0; k < r.K && r.normalise; k++) mean += s.score[expert[k]] * factor * dw[k];
        for (int k = 0; k < r.K; k++) d[expert[k]] += (dw[k] - mean) * factor;
        float mean_score = 0;
        for (int i = 0; i < r.E; i++) mean_score += s.score[i] * d[i];
        each_vector(r.E, [&](int64_t i, auto at) {
            const vf x = at.get(logit + i), score = at.get(s.score + i), slope = at.get(d + i);
            const vf of_score = r.sigmoid ? sigmoid(x).slope * slope : score * (slope - mean_score);
            at.put(d + i, of_score + 2 * z * s.lse * exp(x - s.lse));
        });
    });
}

REGISTER_CPU_WITH_SCRATCH(router_forward, forward, forward_workspace)
REGISTER_CPU(router_backward, backward)
}    // namespace ISA
