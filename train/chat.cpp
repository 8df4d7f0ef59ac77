// chat.cpp - `flatgpt train --chat`: the chat template, the conversations, and a preview of them.
#include <unistd.h>

#include <algorithm>

#include "base/draw.h"
#include "base/file.h"
#include "train.h"

// A resumed run has its template from its checkpoint, since --chat-template's file may be gone.
Status Trainer::choose_chat_template() {
    if (o.chat.empty()) return {};
    if (config.mask_kind != MaskKind::causal)
        return fail(Exit::usage,
                    "--chat: the model is trained with --objective %s; expected causal (--objective causal)",
                    Objective{.mask_kind = config.mask_kind}.name());
    for (auto [value, name] : {std::pair{config.stride, "--stride"}, {config.global_tokens, "--global-tokens"}})
        if (o.pack && value)
            return fail(Exit::usage, "%s %d, --pack: what is seen beyond the window counts from the sequence's start",
                        name, value);
    if (o.pack && config.recurrent_layers_below(config.L))
        return fail(Exit::usage,
                    "--pack: the model has layers without softmax, whose state would pass from one conversation to the "
                    "next; leave it out");
    if (o.pack && (config.position == Position::learned || config.position == Position::sinusoidal))
        progress.note(
            "note: --pack: the model's positions are a table, in which only a sequence's first conversation begins "
            "at 0, as each does in chat; without --pack all do");
    if (!tokenizer.vocab_size()) return fail(Exit::usage, "--chat: the run has no tokenizer; give --tokenizer");
    const std::string kept = tokenizer.vocabulary().chat_template;
    const std::string named = resuming && !kept.empty() ? "" : o.chat_template;
    if (named.empty() && kept.empty())
        return fail(Exit::usage,
                    "--chat: %s has no chat template; give --chat-template a file, or --chat-template chatml",
                    start.empty() ? "the tokenizer" : start.c_str());
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

static ConversationOptions conversation_options(const TrainOptions& o, const Tokenizer& tokenizer, int vocab) {
    return {.pattern = o.chat,
            .flag = "--chat",
            .train_on = train_on_named(o.train_on).value,
            .pack = o.pack,
            .drop = o.too_long == "drop",
            .S = o.seq_len,
            .vocab = vocab,
            .pad = std::max(0, tokenizer.vocabulary().pad)};
}
void Trainer::note_conversations(const Conversations& read, const char* flag) {
    if (const std::string note = read.note(); !note.empty() && !o.preview)
        progress.note(
            formatted("note: %s: %s%s", flag, counted(read.conversations(), "conversation").c_str(), note.c_str()));
}

Status Trainer::read_conversations() {
    if (o.chat.empty()) return {};
    ConversationOptions c = conversation_options(o, tokenizer, config.V);
    conversations = TRY(Conversations::read(c, *chat_encoder));
    note_conversations(*conversations, "--chat");
    c.pattern = o.chat_val;
    c.flag = "--chat-val";
    if (!o.chat_val.empty()) {
        val_conversations = TRY(Conversations::read(c, *chat_encoder));
        note_conversations(*val_conversations, "--chat-val");
    }
    // A total batch that is given is a multiple of the usual length.
    if (length_given || o.pack || o.total_batch) return {};
    const int longest = std::max(conversations->longest(), val_conversations ? val_conversations->longest() : 0);
    resolve("seq-len", "0", std::to_string(o.seq_len = std::min(o.seq_len, int(round_up(longest, 16)))));
    conversations->shorten(o.seq_len);
    if (val_conversations) val_conversations->shorten(o.seq_len);
    return {};
}

Status Trainer::open_conversations() {
    LoaderConfig l = loader_config();
    data = TRY(Loader::open(conversations, l));
    if (!val_conversations) return {};
    l.shuffle = false;
    l.max_tokens = o.eval_tokens;
    val = TRY(Loader::open(val_conversations, l));
    if (val.fingerprint() == data.fingerprint())
        progress.note("note: --chat-val has the conversations of --chat: its loss says nothing about new ones");
    return {};
}

Status Trainer::preview() const {
    const Conversations& all = *conversations;
    const bool colors = stdout_has_colors();
    const std::string begin = colors ? "\033[32m" : "[[", end = colors ? "\033[0m" : "]]";
    const int64_t shown = std::min<int64_t>(o.preview, all.conversations());
    for (int64_t i = 0; i < shown; i++) {
        const EncodedChat e = all.conversation(i);
        printf("--- conversation %lld: %s, %lld learnt ---\n", (long long)i + 1,
               counted(int64_t(e.ids.size()), "token").c_str(),
               (long long)std::count(e.trained.begin(), e.trained.end(), true));
        StreamDecoder decoder;    // several tokens may make a character
        std::string text;
        for (size_t k = 0; k < e.ids.size(); k++) {
            const bool before = k > 0 && e.trained[k - 1];
            if (before != e.trained[k]) text += escape_control(decoder.finish()) + (before ? end : begin);
            text += escape_control(decoder.push(tokenizer.token(e.ids[k])));
        }
        text += escape_control(decoder.finish());
        if (!e.ids.empty() && e.trained.back()) text += end;
        printf("%s%s", text.c_str(), text.ends_with('\n') ? "" : "\n");
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
