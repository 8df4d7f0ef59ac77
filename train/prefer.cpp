// prefer.cpp - `flatgpt train --prefer`: the chat template, if there is one, the pairs, and their
// preview.
#include <algorithm>

#include "train/pairs.h"
#include "train/train.h"

// Texts need no template, so a model without one is an error only if a line has messages.
Status Trainer::choose_preference() {
    const bool none = tokenizer.vocabulary().chat_template.empty() && o.chat_template.empty();
    return none ? check_chat_model() : choose_chat_template();
}

Result<std::shared_ptr<LineSource>> Trainer::read_pairs(const std::string& pattern, const std::string& flag) {
    const PairOptions options = {.pattern = pattern,
                                 .flag = flag,
                                 .drop = o.too_long == "drop",
                                 .S = o.seq_len,
                                 .vocab = config.V,
                                 .pad = std::max(0, tokenizer.vocabulary().pad)};
    const ChatEncoder* encoder = chat_encoder ? &*chat_encoder : nullptr;
    return std::shared_ptr<LineSource>(TRY(Pairs::read(options, tokenizer, encoder)));
}

Status Trainer::preview_pairs() const {
    const Pairs& all = static_cast<const Pairs&>(*source);
    for (int64_t i = 0; i < 2 * std::min<int64_t>(o.preview, all.samples()); i++) {
        const EncodedChat e = all.sequence(i);
        printf("--- pair %lld, %s: %s, %lld learnt ---\n", (long long)i / 2 + 1, i % 2 ? "rejected" : "chosen",
               counted(int64_t(e.ids.size()), "token").c_str(),
               (long long)std::count(e.trained.begin(), e.trained.end(), true));
        printf("%s", preview_text(e).c_str());
    }
    const Pairs::Counts& n = all.counts;
    printf("lines          %lld\n", (long long)n.lines);
    printf("pairs          %lld, %s, %lld learnt\n", (long long)all.samples(), counted(all.tokens(), "token").c_str(),
           (long long)n.trained);
    printf("cut            %s, %s\n", counted(n.cut, "sequence").c_str(), counted(n.cut_tokens, "token").c_str());
    printf("left out       %lld too long (%s), %lld without an answer, %lld of equal answers\n", (long long)n.dropped,
           counted(n.dropped_tokens, "token").c_str(), (long long)n.untrained, (long long)n.equal);
    printf("sequences      two a pair, of %d tokens\n", o.seq_len);
    printf("steps          %lld of %s\n", (long long)o.steps, counted(o.total_batch, "token").c_str());
    return fflush(stdout) == 0 ? Status{} : output_failed();
}
