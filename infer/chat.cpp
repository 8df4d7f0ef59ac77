// chat.cpp - a conversation: commands, turns, the cache.
//
// Each turn renders the whole conversation and encodes it. What agrees with the tokens in the cache stays there, the
// rest is computed: usually the new message alone. A template that rewrites old turns costs time, never correctness.
#include "chat.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "base/console.h"
#include "base/file.h"
#include "finite.h"

using nlohmann::ordered_json;

// ---- commands -------------------------------------------------------------------------------------------------------

Chat::Chat(Model& g, const Tokenizer& tokenizer, ChatTemplate look, ChatOptions options)
    : options(std::move(options)), g(g), tokenizer(tokenizer), look(std::move(look)) {}

Status Chat::open() {
    int& context = options.context;
    if (context == 0) context = std::min(g.c.T, 8192);
    if (context > g.c.T) return fail(Exit::usage, "--context %d: the model's context has %d positions", context, g.c.T);
    logits.resize(size_t(g.c.V));
    TRY(Sampler::open(options.sampling, tokenizer, std::min(g.c.V, tokenizer.vocab_size())));    // are they possible?
    CacheKind kind = {TRY(cache_type(g.c, options.cache_type, g.op.activation))};
    TRY(can_speculate(g, options.speculation));
    if (Model* other = options.speculation.draft)
        TRY(draft_model.emplace(*other).open(1, std::min(other->c.T, context)));
    states = g.c.linear != Linear::none;
    if (states) kind.pages = pages_for(context) + 1;    // the copy shares all but the page that the answer goes on in
    return allocate_cache(g, cache, states ? 2 : 1, context, kind);
}

const std::vector<Chat::Verb>& Chat::verbs() {
    static const std::vector<Verb> all = {
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
    for (const Verb& verb : verbs()) {
        if (word != verb.name) continue;
        if (verb.argument == std::string("FILE") && rest.empty())
            return fail(Exit::usage, "%s: expected a file's name", verb.name);
        return (this->*verb.run)(rest);
    }
    if (word.size() > 1 && word[0] == '/' && word.find_first_not_of(LETTERS, 1) == word.npos) {    // no path, no //
        std::vector<std::string> known;
        for (const Verb& verb : verbs()) known.push_back(verb.name);
        return fail(Exit::usage, "%s: no such command%s; /help shows all. A message may begin so behind a space",
                    word.substr(0, 60).c_str(), did_you_mean(word, known).c_str());
    }
    if (text.find_first_not_of(" \t\n") != std::string::npos) TRY(respond(text));
    return true;
}

Result<bool> Chat::help(const std::string&) {
    std::string all;
    const int width = text_width(stderr), left = 23;    // columns before a command's meaning
    for (const Verb& v : verbs()) {
        all += formatted("%-*s", left, (v.name + std::string(" ") + v.argument).c_str());
        for (char c : break_line(v.help, std::max(width - left, 20)))
            all += c == '\n' ? "\n" + std::string(left, ' ') : std::string(1, c);
        all += "\n";
    }
    say(all + break_line("Ctrl-C stops an answer. A message of several lines: \\ at the end of each line but the last, "
                         "or \"\"\" before and after it. Any other line is a message.",
                         width));
    return true;
}
Result<bool> Chat::leave(const std::string&) { return false; }
Result<bool> Chat::reset(const std::string&) {
    messages.clear();
    first = 0;
    say("a new conversation");
    return true;
}
Result<bool> Chat::set_system(const std::string& text) {
    options.system = text;
    say(text.empty() ? "no system prompt" : "a new system prompt");
    return true;
}

std::vector<Flag> Chat::rows() {
    std::vector<Flag> rows = sampling_flags(options.sampling);
    for (Flag& row : penalty_flags(options.sampling.penalties)) rows.push_back(row);
    rows.push_back({"--seed", &options.seed, "the first answer's; each later one has the next", 0, 9e18});
    rows.push_back({"--tokens", &options.tokens, "most tokens of an answer; 0: what the context holds", 0, 1e9});
    rows.push_back({"--stop", &options.stop, "texts that end an answer"});
    for (Flag& row : speculation_flags(options.speculation))    // a model that drafts stays the one that was opened
        if (row.name == (draft_model ? "--draft-tokens" : "--lookup")) rows.push_back(row);
    rows.push_back({"--stats", &options.stats, "tokens and times after each answer"});
    return rows;
}
Result<bool> Chat::params(const std::string& setting) {
    const std::vector<Flag> all = rows();
    if (setting.empty()) {
        std::string text = command_write_toml({"params", "", "", all});
        text.pop_back();
        say(text);
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
        std::vector<std::string> given;
        if (name == "mirostat") given = narrowing(options.sampling);    // what was set before it
        given.push_back(row.name);
        if (s.ok()) s = check_sampling(given, options.sampling);
        if (s.ok()) s = can_speculate(g, options.speculation);
        if (s.ok()) s = Sampler::open(options.sampling, tokenizer, std::min(g.c.V, tokenizer.vocab_size())).status;
        if (!s.ok()) return options = before, s;
        return true;
    }
    return fail(Exit::usage, "/params: expected one of %s, found '%s'%s", join(known, ", ").c_str(),
                name.substr(0, 60).c_str(), did_you_mean(name, known).c_str());
}

std::vector<ChatMessage> Chat::whole() const {
    std::vector<ChatMessage> all;
    if (!options.system.empty()) all.push_back({"system", options.system});
    all.insert(all.end(), messages.begin(), messages.end());
    return all;
}
Result<bool> Chat::save(const std::string& path) {
    TRY(replace_file(path, messages_text(whole())));
    say(counted(int64_t(messages.size()), "message") + " written to " + path);
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
    say(counted(int64_t(messages.size()), "message") + " read from " + path);
    return true;
}

// ---- turns ----------------------------------------------------------------------------------------------------------

Result<std::vector<int>> Chat::render(size_t from) {
    std::vector<ChatMessage> shown = whole();
    const auto after_system = shown.begin() + (options.system.empty() ? 0 : 1);
    shown.erase(after_system, after_system + ptrdiff_t(from));
    ordered_json context = {{"messages", messages_json(shown)},
                            {"add_generation_prompt", true},
                            {"tools", nullptr},
                            {"documents", nullptr}};
    if (!options.bos.empty()) context["bos_token"] = options.bos;
    if (!options.eos.empty()) context["eos_token"] = options.eos;
    return tokenizer.encode(TRY(look.render(context, int64_t(time(nullptr)))), true);
}

// When the context is full, the oldest turns go until half of it is free: then the next turns find the rest of the
// conversation in the cache again.
Result<std::vector<int>> Chat::fit() {
    const int room = std::max(1, std::min(options.tokens ? options.tokens : options.context, options.context / 4));
    std::vector<int> prompt = TRY(render(first));
    size_t from = first;
    int limit = options.context - room;
    while (int(prompt.size()) > limit) {
        size_t next = from + 1;
        while (next < messages.size() && messages[next].role != "user") next++;
        if (next >= messages.size()) break;
        from = next;
        limit = std::min(limit, options.context / 2);
        prompt = TRY(render(from));
    }
    if (int(prompt.size()) > options.context - room)
        return fail(Exit::usage,
                    "the message and the system prompt have %zu tokens, the context %d, with %d kept for the answer: "
                    "shorten them",
                    prompt.size(), options.context, room);
    if (from > first)
        say(formatted("the context of %d tokens is full: the oldest %s left out from now on", options.context,
                      from - first == 1 ? "message is" : formatted("%zu messages are", from - first).c_str()));
    first = from;
    if (prompt.empty()) return fail(Exit::input, "the chat template makes no text of this conversation");
    return prompt;
}

bool Chat::prefill(const std::vector<int>& prompt) {
    const size_t most = states ? size_t(piece_length(g, cache, 1)) : size_t(int64_t(g.plan.B) * g.plan.S);
    size_t same = size_t(std::mismatch(ids.begin(), ids.end(), prompt.begin(), prompt.end()).first - ids.begin());
    if (g.c.sees == Sees::prefix) same = 0;      // tokens of a prefix depend on those after them
    same = std::min(same, prompt.size() - 1);    // the last token gives the logits
    if (states && same < ids.size()) same = back_to(same);
    ids.resize(same);
    cache.table.rewind(0, int(ids.size()));
    PendingHead head;
    while (ids.size() < prompt.size()) {
        if (interrupted()) return false;
        const size_t n = std::min(most, prompt.size() - ids.size());
        head = extend(g, cache, prompt.data() + ids.size(), int(n), {0}, {}, Pages::Sums::prompt);
        computed += int64_t(n);
        ids.insert(ids.end(), prompt.begin() + ptrdiff_t(ids.size()), prompt.begin() + ptrdiff_t(ids.size() + n));
    }
    compute_logits(g, head, logits.data());
    if (states) cache.table.fork(0, 1);
    return true;
}
// A state goes back only to where there is a copy of it: the last prompt's end. Gives that place, or 0.
size_t Chat::back_to(size_t same) {
    const size_t copy = size_t(cache.table[1].pos);
    if (copy > same) return cache.table.rewind(1, 0), 0;
    cache.table.fork(1, 0);
    return copy;
}

// Computes the logits after the last token and after what is drafted to follow it, which is returned. left: tokens that
// the answer may yet have; the last one is never computed.
Ids Chat::go_on(const Ids& seen, const Sampler& sampler, int place, int left) {
    const int most = int(std::min<int64_t>({g.plan.max_tokens() - 1, left - 1, options.speculation.most()}));
    Ids draft, more = {seen.back()};
    if (draft_model) draft_model->propose({{0, &seen, sampler, place, most, &draft}});
    else if (most > 0) draft = lookup_draft(seen, most);
    more.insert(more.end(), draft.begin(), draft.end());
    const PendingHead head = extend(g, cache, more.data(), int(more.size()), {0}, {}, Pages::Sums::steps);
    std::vector<int> rows;
    for (size_t i = 0; i < more.size(); i++) rows.push_back(int(i));
    logits.resize(more.size() * size_t(g.c.V));
    compute_logits(g, head, logits.data(), rows);
    ids.insert(ids.end(), more.begin(), more.end());
    computed += int64_t(more.size());
    drafted += int64_t(draft.size());
    return draft;
}

// The next token, which the device draws; the step after it has begun, if the answer may have one. left: as above
Sampler::Choice Chat::hear(Ahead& ahead, const Ids& seen, int left) {
    for (; ahead.in_flight() < std::min(2, left); computed++) ahead.step();
    const Sampler::Choice choice = {*ahead.next()};
    ids = seen, spare = ahead.in_flight() > 0;
    if (spare) ids.push_back(choice.id);    // it is fed
    return choice;
}

// Gives out a token's text. True: the answer ends there.
Result<bool> Chat::speak(int id) {
    const bool end = std::find(options.ends.begin(), options.ends.end(), id) != options.ends.end();
    if (!end && tokenizer.is_special(id)) return false;    // a special token is no text
    if (!(end ? streamed.finish(options.stop, options.text)
              : streamed.push(tokenizer.token(id), options.stop, options.text)))
        return output_failed();
    return end || streamed.stopped;
}

Result<int> Chat::generate(std::vector<int> seen) {
    const int most = options.context - int(seen.size()) + 1, choices = std::min(g.c.V, tokenizer.vocab_size());
    const int limit = options.tokens ? std::min(options.tokens, most) : most;
    Sampling sampling = options.sampling;
    sampling.seed = uint64_t(options.seed + answers);
    Sampler sampler = TRY(Sampler::open(sampling, tokenizer, choices, options.ends));
    sampler.see(seen);
    std::optional<Ahead> ahead;    // draws all tokens but the first
    if (!options.speculation.any() && Ahead::can(g, sampler) && !ahead.emplace(g, cache).open(sampler, choices)) {
        ahead.reset();
        if (!std::exchange(said_host, true)) say(Ahead::NO_MEMORY);
    }
    int n = 0;
    for (bool ended = false; !ended && n < limit && !interrupted();) {
        const bool drawn = ahead && n > 0;
        if (drawn && n == 1) ahead->begin({{0, seen.back(), n, &sampler, false}});
        const Ids draft = n > 0 && !drawn ? go_on(seen, sampler, n, limit - n) : Ids();
        if (!drawn) TRY(check_logits(logits));
        const Checked next = drawn ? Checked{{hear(*ahead, seen, limit - n)}, 0}
                                   : check_draft(sampler, logits.data(), g.c.V, n, draft);
        accepted += int64_t(next.accepted);
        size_t keep = seen.size();
        for (size_t k = 0; k < next.chosen.size() && !ended; k++) {
            const bool last = k + 1 == next.chosen.size();
            if (last && sampler.broken()) say(NO_TOKEN);
            keep = seen.size();    // the newest token is computed with the next step or prompt, drafted or not
            if (next.chosen[k].id < 0) break;
            seen.push_back(next.chosen[k].id);
            n++;
            ended = TRY(speak(seen.back()));
            ended |= last && sampler.done();
        }
        ended |= next.chosen.back().id < 0;
        if (!drawn) ids.resize(std::min(ids.size(), keep));
        if (!draft.empty()) cache.table.rewind(0, int(ids.size()));
        if (!ended && n == most)
            say(formatted("the context of %d tokens is full: the answer ends here", options.context));
        else if (!ended && n == limit) say(formatted("the answer ends after %d tokens", n));
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
    Result<std::vector<int>> prompt = fit();
    if (!prompt.ok()) return forget(prompt.status);
    const double start = now_seconds();
    const int64_t before = computed, drafted_before = drafted, accepted_before = accepted;
    const bool read = prefill(prompt.value);
    const double middle = now_seconds();
    const int64_t fed = computed - before;
    const Result<int> generated = read ? generate(prompt.value) : Result<int>(0);
    const double seconds = now_seconds() - middle;
    // A state cannot go back: the next turn finds a token too many, and computes the answer again.
    if (std::exchange(spare, false) && !states) {
        ids.pop_back();
        cache.table.rewind(0, int(ids.size()));
    }
    if (!generated.ok()) return forget(generated.status);
    const int n = generated.value;
    if (n == 0) {
        say("the message was not answered and is forgotten");
        return forget({});
    }
    answers++;
    messages.push_back({"assistant", streamed.text});
    if (options.stats)
        say(formatted("prompt: %lld of %zu tokens new, %s; answer: %s in %s, %.1f tokens/s%s", (long long)fed,
                      prompt.value.size(), human_time(middle - start).c_str(), counted(n, "token").c_str(),
                      human_time(seconds).c_str(), n / seconds,
                      drafts_text(options.speculation, drafted - drafted_before, accepted - accepted_before).c_str()));
    return {};
}
