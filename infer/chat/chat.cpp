// chat.cpp - a conversation: commands, turns, the cache.
//
// Each turn renders and encodes the whole conversation. The prefix that equals the cached tokens is
// reused. The rest, usually only the new message, is computed. If a template rewrites old turns, a
// shorter prefix is reused, which costs time but is correct.
#include "chat.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "base/console.h"
#include "base/file.h"
#include "infer/chat/chat_encoder.h"
#include "infer/decode/check_logits.h"

// ---- commands -----------------------------------------------------------------------------------

Chat::Chat(Model& g, const Tokenizer& t, ChatTemplate form, ChatOptions o)
    : options(std::move(o)), model(g), tokenizer(t), chat_template(std::move(form)) {}

Status Chat::open() {
    int& context = options.context;
    if (context == 0) context = std::min(model.c.T, 8192);
    if (context > model.c.T)
        return fail(Exit::usage, "--context %d: the model's context has %d positions", context, model.c.T);
    logits.resize(size_t(model.c.V));
    // This sampler is discarded: opening it checks options.sampling.
    TRY(Sampler::open(options.sampling, tokenizer, std::min(model.c.V, tokenizer.vocab_size())));
    CacheOptions kind = {TRY(cache_type(model.c, options.cache_type, model.op.activation, has_narrow_weights(model)))};
    TRY(can_speculate(model, options.speculation));
    if (Model* other = options.speculation.draft)
        TRY(draft_model.emplace(*other).open(1, std::min(other->c.T, context)));
    states = model.c.linear != LinearAttention::none;
    if (states) kind.pages = pages_for(context) + 1;    // the snapshot shares all pages but the last
    return allocate_cache(model, cache, states ? 2 : 1, context, kind);
}

const std::vector<Chat::SlashCommand>& Chat::slash_commands() {
    static const std::vector<SlashCommand> all = {
        {"/help", "", "these commands", &Chat::help},
        {"/reset", "", "forget the conversation; the system prompt stays", &Chat::reset},
        {"/system", "TEXT", "another system prompt from the next answer on; without TEXT: none", &Chat::set_system},
        {"/params", "[NAME VALUE]", "show how tokens are chosen, or change it: /params temperature 0.5", &Chat::params},
        {"/save", "FILE", "write the conversation as JSON", &Chat::save},
        {"/load", "FILE", "go on with a conversation that was saved", &Chat::load},
        {"/exit", "", "end; as Ctrl-D does", &Chat::leave}};
    return all;
}

Result<bool> Chat::line(const std::string& text) {
    static const char* const LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-";
    auto word_end = std::min(text.find_first_of(" \t\n"), text.size());
    const std::string word = text.substr(0, word_end);
    std::string rest = text.substr(word_end);
    rest.erase(0, std::min(rest.find_first_not_of(" \t\n"), rest.size()));
    rest.erase(rest.find_last_not_of(" \t\n") + 1);
    for (const SlashCommand& command : slash_commands()) {
        if (word != command.name) continue;
        if (command.argument == std::string("FILE") && rest.empty())
            return fail(Exit::usage, "%s: expected a file's name", command.name);
        return (this->*command.run)(rest);
    }
    if (word.size() > 1 && word[0] == '/' &&
        word.find_first_not_of(LETTERS, 1) == word.npos) {    // neither a path nor //
        std::vector<std::string> known;
        for (const SlashCommand& command : slash_commands()) known.push_back(command.name);
        return fail(Exit::usage, "%s: no such command%s; /help shows all. A message may begin so behind a space",
                    word.substr(0, 60).c_str(), did_you_mean(word, known).c_str());
    }
    if (text.find_first_not_of(" \t\n") != std::string::npos) TRY(respond(text));
    return true;
}

Result<bool> Chat::help(const std::string&) {
    std::string all;
    const int width = text_width(stderr), left = 23;    // column of a command's help text
    for (const SlashCommand& v : slash_commands()) {
        all += formatted("%-*s", left, (v.name + std::string(" ") + v.argument).c_str());
        for (char c : wrap_line(v.help, std::max(width - left, 20)))
            all += c == '\n' ? "\n" + std::string(left, ' ') : std::string(1, c);
        all += "\n";
    }
    notify(all +
           wrap_line("Ctrl-C stops an answer. A message of several lines: \\ at the end of each line but the last, "
                     "or \"\"\" before and after it. Any other line is a message.",
                     width));
    return true;
}
Result<bool> Chat::leave(const std::string&) { return false; }
Result<bool> Chat::reset(const std::string&) {
    messages.clear();
    first = 0;
    notify("a new conversation");
    return true;
}
Result<bool> Chat::set_system(const std::string& text) {
    options.system = text;
    notify(text.empty() ? "no system prompt" : "a new system prompt");
    return true;
}

std::vector<Flag> Chat::rows(ChatOptions& o) const {
    std::vector<Flag> rows = sampling_flags(o.sampling);
    for (Flag& row : penalty_flags(o.sampling.penalties)) rows.push_back(row);
    rows.push_back({"--seed", &o.seed, "seed of the first answer; each later answer adds 1", 0, 9e18});
    rows.push_back({"--tokens", &o.tokens, "most tokens of an answer; 0: until the context is full", 0, 1e9});
    rows.push_back({"--stop", &o.stop, "texts that end an answer"});
    for (Flag& row : speculation_flags(o.speculation))    // the draft model cannot be changed here
        if (row.name == (draft_model ? "--draft-tokens" : "--lookup")) rows.push_back(row);
    rows.push_back({"--stats", &o.stats, "tokens and times after each answer"});
    return rows;
}
Result<bool> Chat::params(const std::string& setting) {
    const std::vector<Flag> all = rows(options);
    if (setting.empty()) {
        std::string text = command_write_toml({"params", "", "", all});
        text.pop_back();
        notify(text);
        return true;
    }
    const size_t end = std::min(setting.find_first_of(" \t="), setting.size());
    const size_t from = std::min(setting.find_first_not_of(" \t=", end), setting.size());
    std::string name = setting.substr(0, end), value = setting.substr(from);
    std::replace(name.begin(), name.end(), '_', '-');
    std::vector<std::string> known;
    for (const Flag& row : all) {
        known.push_back(row.name.substr(2));
        if (known.back() != name) continue;
        if (from == setting.size()) return fail(Exit::usage, "/params %s: a value is missing", name.c_str());
        const ChatOptions before = options;
        Status s = flag_set(row, {value});
        ChatOptions usual;
        if (s.ok()) s = check_rules(all, flag_values(rows(usual)), &row);
        if (s.ok()) s = can_speculate(model, options.speculation);
        if (s.ok()) s = Sampler::open(options.sampling, tokenizer, std::min(model.c.V, tokenizer.vocab_size())).status;
        if (!s.ok()) return options = before, s;
        return true;
    }
    return fail(Exit::usage, "/params: expected one of %s, found '%s'%s", join(known, ", ").c_str(),
                name.substr(0, 60).c_str(), did_you_mean(name, known).c_str());
}

std::vector<ChatMessage> Chat::with_system_prompt() const {
    std::vector<ChatMessage> all;
    if (!options.system.empty()) all.push_back({"system", options.system});
    all.insert(all.end(), messages.begin(), messages.end());
    return all;
}
Result<bool> Chat::save(const std::string& path) {
    TRY(replace_file(path, messages_text(with_system_prompt())));
    notify(counted(int64_t(messages.size()), "message") + " written to " + path);
    return true;
}
Result<bool> Chat::load(const std::string& path) {
    std::vector<ChatMessage> loaded = TRY(messages_parse(TRY(read_file(path, 64 << 20)), path));
    options.system.clear();
    if (!loaded.empty() && loaded[0].role == "system") {
        options.system = loaded[0].content;
        loaded.erase(loaded.begin());
    }
    messages = std::move(loaded);
    first = 0;
    notify(counted(int64_t(messages.size()), "message") + " read from " + path);
    return true;
}

// ---- turns --------------------------------------------------------------------------------------

Result<std::vector<int>> Chat::render(size_t from) {
    std::vector<ChatMessage> shown = with_system_prompt();
    const auto after_system = shown.begin() + (options.system.empty() ? 0 : 1);
    shown.erase(after_system, after_system + ptrdiff_t(from));
    const ChatEncoder encoder(tokenizer, chat_template, {.bos = options.bos, .eos = options.eos},
                              int64_t(time(nullptr)));
    return encoder.prompt(shown);
}

// When the context is full, the oldest turns are dropped until half of it is free, so that the
// following turns can reuse the cached rest.
Result<std::vector<int>> Chat::trim_to_context() {
    const int reserved = std::max(1, std::min(options.tokens ? options.tokens : options.context, options.context / 4));
    std::vector<int> prompt = TRY(render(first));
    size_t from = first;
    int limit = options.context - reserved;
    while (int(prompt.size()) > limit) {
        size_t next = from + 1;
        while (next < messages.size() && messages[next].role != "user") next++;
        if (next >= messages.size()) break;
        from = next;
        limit = std::min(limit, options.context / 2);
        prompt = TRY(render(from));
    }
    if (int(prompt.size()) > options.context - reserved)
        return fail(Exit::usage,
                    "the message and the system prompt have %zu tokens, the context %d, with %d kept for the answer: "
                    "shorten them",
                    prompt.size(), options.context, reserved);
    if (from > first)
        notify(formatted("the context of %d tokens is full: the oldest %s left out from now on", options.context,
                         from - first == 1 ? "message is" : formatted("%zu messages are", from - first).c_str()));
    first = from;
    if (prompt.empty()) return fail(Exit::input, "the chat template makes no text of this conversation");
    return prompt;
}

bool Chat::prefill(const std::vector<int>& prompt) {
    const size_t most = states ? size_t(chunk_length(model, cache, 1)) : size_t(model.plan.max_tokens());
    size_t common = size_t(std::mismatch(ids.begin(), ids.end(), prompt.begin(), prompt.end()).first - ids.begin());
    if (model.c.mask_kind == MaskKind::prefix) common = 0;    // prefix tokens attend to later ones
    common = std::min(common, prompt.size() - 1);             // the last token is needed for the logits
    if (states && common < ids.size()) common = rewind(common);
    ids.resize(common);
    cache.table.rewind(0, int(ids.size()));
    PendingHead head;
    while (ids.size() < prompt.size()) {
        if (interrupted()) return false;
        const size_t n = std::min(most, prompt.size() - ids.size());
        head = extend(model, cache, prompt.data() + ids.size(), int(n), {0}, {}, Pages::SumOrder::prefill);
        computed += int64_t(n);
        ids.insert(ids.end(), prompt.begin() + ptrdiff_t(ids.size()), prompt.begin() + ptrdiff_t(ids.size() + n));
    }
    compute_logits(model, head, logits.data());
    if (states) cache.table.fork(0, 1);
    return true;
}
// A recurrent state can return only to the snapshot (sequence 1) taken at the last prompt's end.
// common: number of tokens that may be kept. Restores the snapshot and returns its position. If it
// lies after `common`, it is dropped and 0 is returned.
size_t Chat::rewind(size_t common) {
    const size_t copy = size_t(cache.table[1].pos);
    if (copy > common) return cache.table.rewind(1, 0), 0;
    cache.table.fork(1, 0);
    return copy;
}

// Computes the logits after the last token and after each drafted token, and returns the drafted
// tokens. left: number of tokens that the answer may still have. At most left - 1 are drafted,
// because no logits are needed after the answer's last token.
Ids Chat::decode_step(const Ids& sequence, const Sampler& sampler, int step_index, int left) {
    const int most = int(std::min<int64_t>({model.plan.max_tokens() - 1, left - 1, options.speculation.most()}));
    Ids draft, more = {sequence.back()};
    if (draft_model) draft_model->propose({{0, &sequence, sampler, step_index, most, &draft}});
    else if (most > 0) draft = lookup_draft(sequence, most);
    more.insert(more.end(), draft.begin(), draft.end());
    const PendingHead head = extend(model, cache, more.data(), int(more.size()), {0}, {}, Pages::SumOrder::decode);
    std::vector<int> rows;
    for (size_t i = 0; i < more.size(); i++) rows.push_back(int(i));
    logits.resize(more.size() * size_t(model.c.V));
    compute_logits(model, head, logits.data(), rows);
    ids.insert(ids.end(), more.begin(), more.end());
    computed += int64_t(more.size());
    drafted += int64_t(draft.size());
    return draft;
}

// Returns the next token, sampled on the device. The following step is enqueued first if the answer
// may need it. left: see decode_step.
Sampler::Choice Chat::next_token(DeviceSampler& device_sampler, const Ids& sequence, int left) {
    for (; device_sampler.in_flight() < std::min(2, left); computed++) device_sampler.step();
    const Sampler::Choice choice = {*device_sampler.next()};
    ids = sequence;
    uncommitted_token = device_sampler.in_flight() > 0;
    if (uncommitted_token) ids.push_back(choice.id);    // already fed
    return choice;
}

// Emits a token's text. True: the answer ends here.
Result<bool> Chat::emit(int id) {
    const bool end = std::find(options.ends.begin(), options.ends.end(), id) != options.ends.end();
    if (!end && tokenizer.is_special(id)) return false;    // special tokens are not text
    if (!(end ? streamed.finish(options.stop, options.text)
              : streamed.push(tokenizer.token(id), options.stop, options.text)))
        return output_failed();
    return end || streamed.stopped;
}

Result<int> Chat::generate(std::vector<int> sequence) {
    const int most = options.context - int(sequence.size()) + 1, choices = std::min(model.c.V, tokenizer.vocab_size());
    const int limit = options.tokens ? std::min(options.tokens, most) : most;
    Sampling sampling = options.sampling;
    sampling.seed = uint64_t(options.seed + answers);
    Sampler sampler = TRY(Sampler::open(sampling, tokenizer, choices, options.ends));
    sampler.accept_prompt(sequence);
    std::optional<DeviceSampler> device_sampler;    // samples all tokens but the first
    if (!options.speculation.any() && DeviceSampler::supports(model, sampler) &&
        !device_sampler.emplace(model, cache).open(sampler, choices)) {
        device_sampler.reset();
        if (!std::exchange(no_memory_noted, true)) notify(DeviceSampler::NO_MEMORY);
    }
    int n = 0;
    for (bool ended = false; !ended && n < limit && !interrupted();) {
        const bool drawn = device_sampler && n > 0;
        if (drawn && n == 1) device_sampler->begin({{0, sequence.back(), n, &sampler, false}});
        const Ids draft = n > 0 && !drawn ? decode_step(sequence, sampler, n, limit - n) : Ids();
        if (!drawn) TRY(check_logits(logits));
        const VerifiedDraft next = drawn ? VerifiedDraft{{next_token(*device_sampler, sequence, limit - n)}, 0}
                                         : verify_draft(sampler, logits.data(), model.c.V, n, draft);
        accepted += int64_t(next.accepted);
        size_t keep = sequence.size();
        for (size_t k = 0; k < next.chosen.size() && !ended; k++) {
            const bool last = k + 1 == next.chosen.size();
            if (last && sampler.broken()) notify(NO_TOKEN);
            keep = sequence.size();    // the newest token is not cached yet, even if drafted
            if (next.chosen[k].id < 0) break;
            sequence.push_back(next.chosen[k].id);
            n++;
            ended = TRY(emit(sequence.back()));
            ended |= last && sampler.done();
        }
        ended |= next.chosen.back().id < 0;
        if (!drawn) ids.resize(std::min(ids.size(), keep));
        if (!draft.empty()) cache.table.rewind(0, int(ids.size()));
        if (!ended && n == most)
            notify(formatted("the context of %d tokens is full: the answer ends here", options.context));
        else if (!ended && n == limit) notify(formatted("the answer ends after %d tokens", n));
    }
    if (!streamed.finish(options.stop, options.text)) return output_failed();
    return n;
}

Status Chat::respond(const std::string& user) {
    messages.push_back({"user", user});
    auto forget = [&](Status s) {
        messages.pop_back();
        return s;
    };
    streamed = {};
    Result<std::vector<int>> prompt = trim_to_context();
    if (!prompt.ok()) return forget(prompt.status);
    const double start = now_seconds();
    const int64_t before = computed, drafted_before = drafted, accepted_before = accepted;
    const bool read = prefill(prompt.value);
    const double middle = now_seconds();
    const int64_t prefilled = computed - before;
    const Result<int> generated = read ? generate(prompt.value) : Result<int>(0);
    const double seconds = now_seconds() - middle;
    // Drops the position of a token that ended the answer but was computed nevertheless. A
    // recurrent state cannot be rewound by one token, so there the next turn recomputes the answer.
    if (std::exchange(uncommitted_token, false) && !states) {
        ids.pop_back();
        cache.table.rewind(0, int(ids.size()));
    }
    if (!generated.ok()) return forget(generated.status);
    const int n = generated.value;
    if (n == 0) {
        notify("the message was not answered and is forgotten");
        return forget({});
    }
    answers++;
    messages.push_back({"assistant", streamed.text});
    if (options.stats)
        notify(
            formatted("prompt: %lld of %zu tokens new, %s; answer: %s in %s, %.1f tokens/s%s", (long long)prefilled,
                      prompt.value.size(), human_time(middle - start).c_str(), counted(n, "token").c_str(),
                      human_time(seconds).c_str(), n / seconds,
                      drafts_text(options.speculation, drafted - drafted_before, accepted - accepted_before).c_str()));
    return {};
}
