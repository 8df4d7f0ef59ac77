// embedding.h - checks of the embedding.
#pragma once
#include "base/philox.h"
#include "check.h"

// Returns positions for B sequences of S tokens. Sequence b begins at pos + b, and the very last of
// several positions is padding. If pos is below 0, every sequence begins at 0, without padding.
inline std::vector<int> positions_from(int pos, int B, int S) {
    std::vector<int> all;
    for (int n = 0; n < B * S; n++) all.push_back(pos < 0 ? n % S : pos + n / S + n % S);
    if (pos >= 0 && B * S > 1) all.back() = -1;
    return all;
}

// If pos is below 0, the operation's pos is null. Without has_wpe, its wpe is null.
template <class T, class P>
Check check_embedding_forward(const Ops<T, P>& op, int B, int S, int C, int V, int pos, bool has_wpe = true) {
    Check check("embedding_forward", {{"B", B}, {"S", S}, {"C", C}, {"V", V}, {"pos", pos}}, has_wpe ? "" : " no wpe");
    Integers tok(op, random_tokens(int64_t(B) * S, V, 3)), positions(op, positions_from(pos, B, S));
    Dual<P> wte(op, random_normal(int64_t(V) * C, 1));
    Dual<P> wpe(op, random_normal(int64_t(std::max(0, pos) + B + S) * C, 2));
    Dual<T> x(op, int64_t(B) * S * C);
    both(op, [&](auto& table, auto at) {
        table.embedding_forward(at(x), at(tok), at(wte), at(wpe, has_wpe), B, S, C, at(positions, pos >= 0));
    });
    check.expect("x", x, ROUNDING<T>);
    return check;
}

// Returns positions of B sequences, each of so many texts; text t has lengths that depend on b and
// t.
inline std::vector<int> positions_in_texts(int texts, int B, int S) {
    std::vector<int> all;
    for (int b = 0; b < B; b++)
        for (int s = 0, pos = 0; s < S; s++, pos++) {
            if (pos > S / texts + b % 3) pos = 0;
            all.push_back(pos);
        }
    return all;
}

// texts: number of texts in a sequence, about; 0: pos is null. A fraction `hot` of the positions
// has the same token, so its gradient is a long sum.
template <class T, class P> Check check_embedding_backward(const Ops<T, P>& op, int B, int S, int C, int V, double hot,
                                                           bool has_wpe = true, int texts = 0) {
    Check check("embedding_backward", {{"B", B}, {"S", S}, {"C", C}, {"V", V}, {"texts", texts}},
                " hot=" + std::to_string(hot) + (has_wpe ? "" : " no wpe"));
    const int64_t N = int64_t(B) * S;
    std::vector<int> tokens = random_tokens(N, V, 1);
    for (int64_t n = 0; n < N; n++)
        if (double(philox_uniform(philox(1, 2, uint64_t(n)).v[0])) < hot) tokens[size_t(n)] = V / 2;
    // Gradients are around 1, because a long sum of numbers around 0 would be small against its
    // terms and their errors.
    Numbers around_1 = random_normal(N * C, 3);
    for (double& d : around_1) d += 1;
    Integers tok(op, tokens), positions(op, positions_in_texts(std::max(1, texts), B, S));
    Dual<T> dx(op, around_1);
    Dual<Grad<P>> dwte(op, random_normal(int64_t(V) * C, 4)), dwpe(op, random_normal(int64_t(S) * C, 5));
    both(op, [&](auto& table, auto at) {
        table.embedding_backward(at(dwte), at(dwpe, has_wpe), at(dx), at(tok), B, S, C, V, at(positions, texts > 0));
    });
    check.expect("dwte", dwte, ROUNDING<float>);
    check.expect("dwpe", dwpe, ROUNDING<float>);
    return check;
}
