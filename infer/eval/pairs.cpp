// pairs.cpp - see pairs.h.
#include "pairs.h"

#include <algorithm>

Seq2SeqBatch pairs_batch(const PairsFile& file, const Seq2Seq& seq2seq, const std::vector<int64_t>& numbers, bool cut) {
    const size_t B = numbers.size(), width = size_t(seq2seq.width());
    std::vector<int> tokens(B * width), targets(B * width);
    std::vector<std::vector<Text>> texts(B);
    for (size_t b = 0; b < B; b++) {
        const Status s = file.read(numbers[b], &tokens[b * width], &targets[b * width], &texts[b]);
        CHECK(s.ok(), "pair %lld: %s", (long long)numbers[b], s.message.c_str());
    }
    return seq2seq.batch(0, tokens.data(), targets.data(), texts, int(B), cut);
}
void upload_batch(Model& g, const Seq2SeqBatch& b) {
    g.upload_pairs(b.source.data(), b.source_lengths.data(), b.source_S, b.tokens.data(), b.targets.data(), b.B, b.S);
}

PairsLoss pairs_loss(Model& g, const PairsFile& file, const Seq2Seq& seq2seq, int64_t most) {
    std::vector<int64_t> order(size_t(std::min(most, file.samples())));
    for (size_t i = 0; i < order.size(); i++) order[i] = int64_t(i) * file.samples() / int64_t(order.size());
    std::ranges::stable_sort(order, {}, [&](int64_t i) { return file.length(i); });
    PairsLoss all;
    for (size_t first = 0; first < order.size();) {
        const size_t n = std::min(order.size() - first, size_t(g.plan.B));
        const auto from = order.begin() + ptrdiff_t(first);
        upload_batch(g, pairs_batch(file, seq2seq, {from, from + ptrdiff_t(n)}, g.op.on_host()));
        g.forward();
        g.loss(false, 0);
        all.loss += g.mean_loss() * double(g.pass.targets);
        all.targets += g.pass.targets;
        first += n;
    }
    all.loss /= double(std::max<int64_t>(1, all.targets));
    return all;
}
