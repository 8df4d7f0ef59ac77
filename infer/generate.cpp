// generate.cpp - generation with a key/value cache.
#include "generate.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "ahead.h"
#include "base/console.h"
#include "finite.h"
#include "layers/quantised.h"

// ---- sequences ------------------------------------------------------------------------------------------------------

// Takes the text up to `end` as final and hands out its new part.
bool StreamedText::give(size_t end, const TextOut& out) {
    std::string_view fresh = std::string_view(text).substr(given, end - given);
    given = end;
    return fresh.empty() || !out || out(fresh);
}
bool StreamedText::append(const std::string& piece, const std::vector<std::string>& stop, const TextOut& out) {
    text += piece;
    size_t end = std::string::npos, hold = 0;
    for (const std::string& s : stop)
        if (!s.empty()) end = std::min(end, text.find(s, given));
    if (end != std::string::npos) {
        text.resize(end);
        stopped = true;
        return give(end, out);
    }
    for (const std::string& s : stop)
        for (size_t n = std::min(s.size(), text.size() - given + 1); n-- > hold + 1;)
            if (text.compare(text.size() - n, n, s, 0, n) == 0) {
                hold = n;
                break;
            }
    return give(text.size() - hold, out);
}
bool StreamedText::push(std::string_view bytes, const std::vector<std::string>& stop, const TextOut& out) {
    return append(decoder.push(bytes), stop, out);
}
bool StreamedText::finish(const std::vector<std::string>& stop, const TextOut& out) {
    return stopped || (append(decoder.finish(), stop, out) && give(text.size(), out));
}

std::vector<int> ends_of_text(const Tokenizer& tokenizer) {
    const Vocabulary& v = tokenizer.vocabulary();
    std::vector<int> ends = {tokenizer.end_of_text(), v.eos};
    ends.insert(ends.end(), v.ends.begin(), v.ends.end());
    return ends;
}
std::vector<int> beginning_of_text(const Tokenizer& tokenizer, int64_t documents) {
    if (tokenizer.end_of_text() >= 0 && (documents < 0 || documents >= 16)) return {tokenizer.end_of_text()};
    std::vector<int> line = tokenizer.encode("\n");
    return line.empty() ? std::vector<int>{0} : line;
}

Status check_logits(const std::vector<float>& logits) {
    if (all_finite(block_format(BlockType::f32), logits.data(), int64_t(logits.size()))) return {};
    return fail(Exit::diverged,
                "the logits are not finite: the model's numbers have grown beyond what its activations "
                "hold; its training has diverged, or it was made for another type: try --dtype fp32");
}

Status output_failed() {
    if (errno == EPIPE || errno == 0) return fail(Exit::io, "the output was closed");
    return fail(Exit::io, "the text cannot be written: %s", strerror(errno));
}

namespace {
struct Sequence {
    int number, slot = 0;
    Ids tokens;
    Sampler sampler;
    StreamedText text = {};
    TextOut out = {};
    bool done = false, ended = false;    // ended: by a token that ends a text
    int place = 0;                       // tokens generated
    bool counted = false;                // Ahead::Text's
    size_t row = 0;                      // its next token's logits; those after each drafted token follow
    Ids draft = {};                      // what the model was run over after the last token
    Checked next = {};                   // by these logits
    int64_t drafted = 0, accepted = 0;
    std::vector<std::vector<TokenLogprob>> logprobs = {};
};

class Generator {
  public:
    Generator(Model& g, const Tokenizer& tokenizer, const Generation& what)
        : g(g), tokenizer(tokenizer), what(what), choices(std::min(g.c.V, tokenizer.vocab_size())),
          ends(ends_of_text(tokenizer)), slots(g), V(size_t(g.c.V)) {}
    Result<Generated> run();

  private:
    Status open();
    Status open_cache(size_t longest);
    int64_t total() const { return int64_t(what.prompts.size()) * what.num; }
    Sequence newcomer();
    int claim(int wish);
    bool join();
    void feed_some(std::vector<Sequence>& waiting, size_t& row);
    void go_on();
    void draft(const std::vector<Sequence*>& on);
    void choose(Sequence& s) const;
    Status choose_all(size_t from);
    int64_t steps_ahead() const;
    Status go_ahead(int64_t steps);
    Status end_done();
    bool take(Sequence& s, int id);
    Status report(Sequence& s);
    void note(const std::string& text) const {
        if (what.note) what.note(text);
    }

    Model& g;
    const Tokenizer& tokenizer;
    const Generation& what;
    const int choices;    // a model may have more tokens than its tokenizer
    const std::vector<int> ends;
    Slots slots;
    const size_t V;
    std::optional<DraftModel> draft_model;
    std::optional<Ahead> ahead;    // none: the host chooses all tokens
    Sampler sampler;
    std::vector<bool> busy;    // slots of those that run
    std::vector<Sequence> running;
    int64_t next = 0;                  // who joins
    std::vector<float> logits;         // (rows,V)
    std::map<int, Sample> finished;    // whose turn to be reported has not come
    int reported = 0, ended = 0;
    Generated out;
    bool said = false, said_broken = false;    // that the context is full; NO_TOKEN
};

// ---- room -----------------------------------------------------------------------------------------------------------

Status Generator::open() {
    CHECK(!what.prompts.empty() && total() < INT32_MAX, "%zu prompts", what.prompts.size());
    TRY(can_speculate(g, what.speculation));
    sampler = TRY(Sampler::open(what.sampling, tokenizer, choices, ends));
    size_t longest = 0;
    for (const Ids& prompt : what.prompts) {
        CHECK(!prompt.empty(), "an empty prompt");
        longest = std::max(longest, prompt.size());
    }
    return open_cache(longest);
}

Status Generator::open_cache(size_t longest) {
    const int64_t length = int64_t(longest) + what.tokens;
    const CacheRoom room = TRY(cache_room(g.c, what.cache, length));
    CacheKind kind = {TRY(cache_type(g.c, what.cache.type, g.op.activation)), room.rolls, room.sinks, 0, room.exact};
    const int count = int(std::min({total(), int64_t(what.batch), g.plan.max_tokens()}));
    // At worst the longest ones run at the same time. The full pages of what all prompts begin with are held once,
    // unless a context is fed again.
    size_t common = what.prompts[0].size() - 1;
    std::vector<int> needs;
    for (const Ids& prompt : what.prompts) {
        common = std::min(common, common_length(prompt, what.prompts[0]));
        needs.push_back(pages_for(int(std::min<int64_t>(room.positions, int64_t(prompt.size()) + what.tokens))));
    }
    std::sort(needs.begin(), needs.end(), std::greater());
    const bool once = length <= room.positions && g.c.linear == Linear::none && g.c.sees == Sees::causal;
    const int shared = once ? int(common) / Pages::SIZE : 0;
    int pages = shared;
    for (int i = 0; i < count; i++) pages += needs[size_t(i / what.num)] - shared;
    if (!room.rolls) kind.pages = pages;
    TRY(slots.open(count, room.positions, kind));
    busy.resize(size_t(count));
    if (Model* other = what.speculation.draft) {
        draft_model.emplace(*other);
        TRY(draft_model->open(count, int(std::min<int64_t>(other->c.T, length))));
    }
    if (what.speculation.any() || what.logprobs || !Ahead::can(g, sampler)) return {};
    if (!ahead.emplace(g, slots.cache).open(sampler, choices)) {
        ahead.reset();
        note(std::string(Ahead::NO_MEMORY) + "; a smaller --batch needs less");
    }
    return {};
}

// ---- who joins ------------------------------------------------------------------------------------------------------

// The next sequence, with as much of its prompt's end as the context holds.
Sequence Generator::newcomer() {
    const int n = int(next++), sample = n % what.num;
    const Ids& prompt = what.prompts[size_t(n / what.num)];
    const bool rolls = slots.cache.kind.rolls;
    const size_t most = rolls ? prompt.size() : std::min(prompt.size(), size_t(slots.cache.positions));
    if (most < prompt.size() && sample == 0)
        note("the prompt has " + std::to_string(prompt.size()) + " tokens, the context " + std::to_string(most) +
             ": only its last " + std::to_string(most) + " are read");
    Sequence s = {
        .number = n, .tokens = {prompt.end() - ptrdiff_t(most), prompt.end()}, .sampler = sampler.of(uint64_t(sample))};
    s.sampler.see(s.tokens);
    if (what.text) s.out = [this, n](std::string_view text) { return what.text(n, text); };
    return s;
}

// A free slot; this one, if it is free.
int Generator::claim(int wish) {
    const bool granted = wish >= 0 && !busy[size_t(wish)];
    const int slot = granted ? wish : int(std::find(busy.begin(), busy.end(), false) - busy.begin());
    busy[size_t(slot)] = true;
    return slot;
}

// Sequences take the free slots and are fed their prompts. False: none has joined.
bool Generator::join() {
    std::vector<Sequence> waiting;
    while (next < total() && running.size() + waiting.size() < busy.size()) waiting.push_back(newcomer());
    logits.resize(waiting.size() * V);
    const bool any = !waiting.empty();
    for (size_t row = 0; !waiting.empty();) feed_some(waiting, row);
    return any;
}

// Feeds those that wait, but for the ones that find more of their prompt once the others have been fed: they go on
// waiting. The first one never does. A prompt's next sample gets a copy.
void Generator::feed_some(std::vector<Sequence>& waiting, size_t& row) {
    const size_t first = running.size(), first_row = row;
    std::vector<Sequence> later;
    std::vector<int> which;
    std::vector<Ids> rest;
    std::vector<std::pair<int, int>> copies;
    for (Sequence& s : waiting) {
        const Slots::Beginning from = slots.longest(s.tokens);
        const Sequence* twin = nullptr;
        size_t common = 0;
        for (size_t i = first; i < running.size(); i++) {
            if (running[i].number / what.num == s.number / what.num) twin = &running[i];
            common = std::max(common, common_length(running[i].tokens, s.tokens));
        }
        if (twin) {
            s.slot = claim(-1), s.row = twin->row;
            copies.push_back({twin->slot, s.slot});
        } else if (slots.shares() && std::min(common, s.tokens.size() - 1) >= from.length + Pages::SIZE) {
            later.push_back(std::move(s));
            continue;
        } else {
            s.slot = claim(from.slot), s.row = row++;
            slots.begin(s.slot, from);
            which.push_back(s.slot);
            rest.push_back({s.tokens.begin() + ptrdiff_t(from.length), s.tokens.end()});
        }
        running.push_back(std::move(s));
    }
    slots.feed(which, rest, &logits[first_row * V]);
    for (auto [from, to] : copies) slots.copy(from, to);
    waiting = std::move(later);
}

// ---- a step ---------------------------------------------------------------------------------------------------------

// The next logits of all that run.
void Generator::go_on() {
    const int positions = slots.cache.positions, keep = std::max(1, positions / 2);    // where the context is full
    std::vector<Sequence*> on, full;
    bool is_full = false;
    for (Sequence& s : running) {
        const bool at_end = slots.length(s.slot) == positions;
        is_full |= at_end;
        (at_end && !slots.cache.kind.rolls ? full : on).push_back(&s);
    }
    if (is_full && !said && !slots.cache.kind.exact) {
        note("the context of " + std::to_string(positions) + " tokens is full: going on " +
             (slots.cache.kind.rolls ? "without its oldest ones" : "from its last " + std::to_string(keep)));
        said = true;
    }
    draft(on);
    std::vector<int> which;
    std::vector<Ids> more;
    size_t rows = 0;
    for (Sequence* s : on) {
        which.push_back(s->slot);
        more.push_back({s->tokens.back()});
        more.back().insert(more.back().end(), s->draft.begin(), s->draft.end());
        s->row = rows, rows += more.back().size();
    }
    const size_t of_full = rows;
    logits.resize((rows + full.size()) * V);
    if (!on.empty()) slots.step(which, more, logits.data());
    which.clear(), more.clear();
    for (Sequence* s : full) {
        slots.empty(s->slot);
        which.push_back(s->slot);
        more.push_back({s->tokens.end() - keep, s->tokens.end()});
        s->row = rows++;
    }
    if (!full.empty()) slots.feed(which, more, &logits[of_full * V]);
}

// Drafts for these sequences, as many tokens as have room: in the activations, where all are as long as the longest,
// and in the cache, which must not give anything up for a token that may be rejected.
void Generator::draft(const std::vector<Sequence*>& on) {
    const Speculation& how = what.speculation;
    std::vector<DraftModel::Asked> asked;
    for (Sequence* s : on) {
        const int64_t room =
            std::min<int64_t>(g.plan.max_tokens() / int64_t(on.size()), slots.cache.positions - slots.length(s->slot)) -
            1;
        const int most = int(std::min({room, int64_t(what.tokens - s->place - 1), int64_t(how.most())}));
        if (most <= 0) continue;
        if (how.draft) asked.push_back({s->slot, &s->tokens, s->sampler, s->place, most, &s->draft});
        else s->draft = lookup_draft(s->tokens, most);
    }
    if (draft_model) draft_model->propose(std::move(asked));
    for (Sequence* s : on) s->drafted += int64_t(s->draft.size());
}

void Generator::choose(Sequence& s) const {
    const float* rows = &logits[s.row * V];
    s.counted = false;
    s.next = check_draft(s.sampler, rows, int(V), s.place, s.draft);
    for (size_t k = 0; k < s.next.chosen.size() && what.logprobs; k++)
        if (const int id = s.next.chosen[k].id; id >= 0)
            s.logprobs.push_back(logprobs(rows + k * V, choices, id, what.logprobs));
}

// False: the output was closed.
bool Generator::take(Sequence& s, int id) {
    if (id < 0) return s.done = true;    // there is no token
    s.tokens.push_back(id);
    s.place++, out.tokens++;
    const bool end = what.end_of_text && std::find(ends.begin(), ends.end(), id) != ends.end();
    if (!end && !s.text.push(tokenizer.token(id), what.stop, s.out)) return false;
    s.ended = end;
    s.done = end || s.text.stopped || s.place == what.tokens;
    return true;
}

// The next tokens of running[from] and of all after it.
Status Generator::choose_all(size_t from) {
    TRY(check_logits(logits));
#pragma omp parallel for schedule(dynamic) if (running.size() > from + 1)
    for (size_t i = from; i < running.size(); i++) choose(running[i]);
    for (size_t i = from; i < running.size(); i++) {
        Sequence& s = running[i];
        s.accepted += int64_t(s.next.accepted);
        slots.forget(s.slot, int(s.draft.size() - s.next.accepted));
        s.draft.clear();
        for (size_t k = 0; k < s.next.chosen.size() && !s.done; k++)
            if (!take(s, s.next.chosen[k].id)) return output_failed();
        s.done |= s.sampler.done();
        if (s.sampler.broken() && !s.text.stopped && !std::exchange(said_broken, true)) note(NO_TOKEN);
    }
    return end_done();
}

// Who is done leaves its slot; what that holds others may share.
Status Generator::end_done() {
    for (Sequence& s : running) {
        if (!s.done) continue;
        busy[size_t(s.slot)] = false;
        if (!slots.shares()) slots.empty(s.slot);
        TRY(report(s));
    }
    std::erase_if(running, [](const Sequence& s) { return s.done; });
    return {};
}

// ---- steps whose tokens the device draws ----------------------------------------------------------------------------

// How many steps can run without the host: up to the first last token, or full context. 0: the host chooses.
int64_t Generator::steps_ahead() const {
    int64_t steps = ahead ? what.tokens : 0;
    const bool heeds_room = !slots.cache.kind.rolls || (!said && !slots.cache.kind.exact);
    for (const Sequence& s : running) {
        steps = std::min<int64_t>(steps, what.tokens - s.place);
        if (heeds_room) steps = std::min<int64_t>(steps, slots.cache.positions - slots.length(s.slot));
    }
    return steps;
}

// At most so many steps of all that run, and fewer where one ends: the step in flight is the last. An ended text's slot
// then holds one position too many, which no one reads: only prompts are shared.
Status Generator::go_ahead(int64_t steps) {
    std::vector<Ahead::Text> texts;
    for (Sequence& s : running) {
        texts.push_back({s.slot, s.tokens.back(), s.place, &s.sampler, s.counted});
        s.counted = true;
    }
    ahead->begin(texts);
    do {
        const bool goes_on = std::none_of(running.begin(), running.end(), [](auto& s) { return s.done; });
        for (; goes_on && steps > 0 && ahead->in_flight() < 2; steps--) ahead->step();
        const int* ids = ahead->next();
        for (size_t i = 0; i < running.size(); i++) {
            Sequence& s = running[i];
            if (s.done) continue;
            s.sampler.take({ids[i]});
            if (!take(s, ids[i])) return output_failed();
        }
    } while (ahead->in_flight() > 0);
    return end_done();
}

Status Generator::report(Sequence& s) {
    if (!s.text.finish(what.stop, s.out)) return output_failed();
    const bool whole = s.ended || s.text.stopped || s.sampler.done();
    const char* reason = whole ? "stop" : s.sampler.broken() ? "no_token" : "length";
    out.drafted += s.drafted, out.accepted += s.accepted;
    s.logprobs.resize(std::min(s.logprobs.size(), size_t(s.place)));    // without what was chosen beyond the end
    finished[s.number] = {s.number,   std::move(s.text.text), s.place, s.drafted,
                          s.accepted, std::move(s.logprobs),  0,       reason};
    while (!finished.empty() && finished.begin()->first == reported) {
        Sample& sample = finished.begin()->second;
        if (what.each && !what.each(sample)) return output_failed();
        if (!what.each) {
            out.texts.push_back(std::move(sample.text));
            out.logprobs.push_back(std::move(sample.logprobs));
            out.finish_reasons.push_back(sample.finish_reason);
        }
        finished.erase(finished.begin());
        reported++;
    }
    if (what.progress) what.progress(++ended, total());
    return {};
}

Result<Generated> Generator::run() {
    TRY(open());
    for (;;) {
        for (size_t before = running.size(); join(); before = running.size()) TRY(choose_all(before));
        if (running.empty()) return std::move(out);
        if (const int64_t steps = steps_ahead(); steps > 0) {
            TRY(go_ahead(steps));
            continue;
        }
        go_on();
        TRY(choose_all(0));
    }
}
}    // namespace

Result<Generated> generate(Model& g, const Tokenizer& tokenizer, const Generation& what) {
    return Generator(g, tokenizer, what).run();
}
