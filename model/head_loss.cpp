// head_loss.cpp - the loss of a chunk of logits: on tokens, or on a teacher's probabilities, too.
#include "gpt.h"

void Gpt::head_loss(int n, int rows, bool train, float scale, bool weighted) {
    Input* to = train ? dhead : nullptr;
    if (!teacher)
        return op.cross_entropy(losses + n, to, head, batch.target() + n, weighted ? position_weights + n : nullptr,
                                scale, c.logits_of(), rows, c.V, c.Vp());
    CHECK(!weighted, "a teacher beside weights of positions");
    Gpt& from = *teacher;
    from.head_forward(from.head, from.op.at(from.lnf, int64_t(n) * from.c.C), rows);
    op.distill_loss(losses + n, to, head, from.head, batch.target() + n, scale, distillation, c.logits_of(),
                    from.c.logits_of(), rows, c.V, c.Vp());
}
