// chat.cpp - `flatgpt train --chat`: the chat template, the conversations, and a preview of them.
#include <unistd.h>

#include <algorithm>

#include "base/draw.h"
#include "base/file.h"
#include "train.h"

Status Trainer::check_chat_model() const {
    if (config.mask_kind != MaskKind::causal)
        return fail(Exit::usage, "%s: the model is trained with --objective %s; expected causal (--objective causal)",
                    task->flag, objective_row({}, config).name);
    if (!tokenizer.vocab_size()) return fail(Exit::usage, "%s: the run has no tokenizer; give --tokenizer", task->flag);
    return {};
}

// A resumed run has its template from its checkpoint, since --chat-template's file may be gone.
Status Trainer::choose_chat_template() {
    TRY(check_chat_model());
    for (auto [value, name] : {std::pair{config.stride, "--stride"}, {config.global_tokens, "--global-tokens"}})
        if (o.pack && value)
            return fail(Exit::usage, "%s %d, --pack: what is seen beyond the window counts from the sequence's start",
                        name, value);
    if (o.pack && config.recurrent_layers_below(config.L))
        return fail(Exit::usage,
                    "--pack: the model has layers without softmax, whose state would pass from one conversation to the "
                    "next; leave it out");
    const std::string kept = tokenizer.vocabulary().chat_template;
    const std::string named = resuming && !kept.empty() ? "" : o.chat_template;
    if (named.empty() && kept.empty())
        return fail(Exit::usage, "%s: %s has no chat template; give --chat-template a file, or --chat-template chatml",
                    task->flag, start.empty() ? "the tokenizer" : start.c_str());
    ChatFormat format = TRY(chat_format(start.empty() ? "the tokenizer" : start, named, tokenizer));
    if (resuming && !kept.empty() && !o.chat_template.empty()) {
        const Result<ChatFormat> given = chat_format(start, o.chat_template, tokenizer);
        const bool gone = !given.ok() && TRY(as_before("chat-template"));
        if (!gone) TRY(given);
        if (!gone && given.value.chat_template != kept)
            return fail(Exit::usage, "--chat-template %s is not the one that %s was trained with; leave it out",
                        o.chat_template.c_str(), start.c_str());
    }
    Result<ChatTemplate> parsed = ChatTemplate::parse(format.chat_template);
    if (!parsed.ok()) return fail(parsed.status.code, "%s: %s", format.name.c_str(), parsed.status.message.c_str());
    // The run keeps the template, and the tokens that end its answers, for `sample` and
    // transformers.
    tokenizer = tokenizer.with_chat_template(format.chat_template, format.ends);
    chat_encoder.emplace(tokenizer, parsed.value, format, ChatEncoder::TRAINING_DATE);
    for (const std::string& text : format.stop)
        progress.note("note: the tokenizer has no token " + text + ", which ends an answer: it is written as text");
    return {};
}

Result<std::shared_ptr<LineSource>> Trainer::read_conversations(const std::string& pattern, const std::string& flag) {
    const ConversationOptions options = {.pattern = pattern,
                                         .flag = flag,
                                         .train_on = train_on_named(o.train_on).value,
                                         .pack = o.pack,
                                         .drop = o.too_long == "drop",
                                         .S = o.seq_len,
                                         .vocab = config.V,
                                         .pad = std::max(0, tokenizer.vocabulary().pad)};
    return std::shared_ptr<LineSource>(TRY(Conversations::read(options, *chat_encoder)));
}

void Trainer::note_padding() {
    const double filled = static_cast<const Conversations&>(*source).filled();
    if (filled >= 0.5) return;
    progress.note(
        formatted("note: --chat: all of a sequence's %d positions are computed, and %.0f %% of them have "
                  "tokens: %s no batch is cut; --pack fills more",
                  o.seq_len, 100 * filled, device.gpu ? "on a GPU" : "with experts or dropout"));
}

// Returns the text of some tokens, with what is learnt in colour or in brackets.
std::string Trainer::preview_text(const EncodedChat& e) const {
    const bool colors = stdout_has_colors();
    const std::string begin = colors ? "\033[32m" : "[[", end = colors ? "\033[0m" : "]]";
    StreamDecoder decoder;    // several tokens may make a character
    std::string text;
    for (size_t k = 0; k < e.ids.size(); k++) {
        const bool before = k > 0 && e.trained[k - 1];
        if (before != e.trained[k]) text += escape_control(decoder.finish()) + (before ? end : begin);
        text += escape_control(decoder.push(tokenizer.token(e.ids[k])));
    }
    text += escape_control(decoder.finish());
    if (!e.ids.empty() && e.trained.back()) text += end;
    return text + (text.ends_with('\n') ? "" : "\n");
}

Status Trainer::preview_conversations() const {
    const Conversations& all = static_cast<const Conversations&>(*source);
    const int64_t shown = std::min<int64_t>(o.preview, all.conversations());
    for (int64_t i = 0; i < shown; i++) {
        const EncodedChat e = all.conversation(i);
        printf("--- conversation %lld: %s, %lld learnt ---\n", (long long)i + 1,
               counted(int64_t(e.ids.size()), "token").c_str(),
               (long long)std::count(e.trained.begin(), e.trained.end(), true));
        printf("%s", preview_text(e).c_str());
    }
    const Conversations::Counts& n = all.counts;
    printf("lines          %lld\n", (long long)n.lines);
    printf("conversations  %lld, %s, %lld learnt\n", (long long)all.conversations(),
           counted(all.tokens(), "token").c_str(), (long long)n.trained);
    printf("cut            %s, %s\n", counted(n.cut, "conversation").c_str(), counted(n.cut_tokens, "token").c_str());
    printf("left out       %lld too long (%s), %lld without anything to learn\n", (long long)n.dropped,
           counted(n.dropped_tokens, "token").c_str(), (long long)n.untrained);
    printf("samples        %lld of %d tokens, %.1f %% filled%s\n", (long long)all.samples(), o.seq_len,
           100 * all.filled(), o.pack ? "" : " (--pack fills more)");
    printf("steps          %lld of %s\n", (long long)o.steps, counted(o.total_batch, "token").c_str());
    return fflush(stdout) == 0 ? Status{} : output_failed();
}
