// pairs.cpp - see pairs.h.
#include "pairs.h"

void upload_batch(Model& g, const Seq2SeqBatch& b) {
    g.upload_pairs(b.source.data(), b.source_lengths.data(), b.source_S, b.tokens.data(), b.targets.data(), b.B, b.S);
}

UploadRows upload_pairs(Model& g, const Seq2Seq& seq2seq) {
    return [&g, seq2seq](int64_t first, int rows, std::vector<int>& tokens, std::vector<int>& targets,
                         const std::vector<std::vector<Text>>& texts) {
        Seq2SeqBatch b = seq2seq.batch(first, tokens.data(), targets.data(), texts, rows, g.op.on_host());
        upload_batch(g, b);
        return std::move(b.targets);
    };
}
