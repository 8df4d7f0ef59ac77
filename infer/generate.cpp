// generate.cpp - generation with a key/value cache, loss over shards.
#include "generate.h"

#include <algorithm>
#include <cstring>

#include "base/console.h"

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

int piece_length(const Model& g, const Cache& cache, size_t running) {
    const int all = int(std::min<int64_t>(int64_t(g.plan.B) * g.plan.S, INT32_MAX));
    const int room = std::max(1, all / int(running)), same = std::min({all, g.c.T, LONGEST_PIECE / 2});
    const bool states = g.c.linear != Linear::none;
    if (!cache.kind.rolls) return states ? same : room;
    if (cache.kind.exact) return states ? same : std::min(room, LONGEST_PIECE);
    return std::min(same, (cache.positions - (cache.sink_pages + 1) * Pages::SIZE) / 2);
}

namespace {
struct Sequence {
    std::vector<int> tokens;
    StreamedText text = {};
    bool done = false;
    TextOut out = {};
    Sampler sampler = {};
    std::vector<std::vector<TokenLogprob>> logprobs = {};
    int row = 0;    // where its logits are
};

class Generator {
  public:
    Generator(Model& g, const Tokenizer& tokenizer, const Generation& what)
        : g(g), tokenizer(tokenizer), what(what), choices(std::min(g.c.V, tokenizer.vocab_size())),
          ends(ends_of_text(tokenizer)) {}
    Result<Generated> run();

  private:
    Status open();
    Status open_cache(int longest, const std::vector<size_t>& lengths);
    bool fits(const std::vector<std::vector<int>>& tokens) const;
    void feed(const std::vector<int>& which, const std::vector<std::vector<int>>& tokens, float* rows);
    bool take(Sequence& s, const Sampler::Choice& next, Generated& out);
    void go_on();
    int total() const { return int(what.prompts.size()) * what.num; }
    void note(const std::string& text) const { if (what.note) what.note(text); }

    Model& g;
    const Tokenizer& tokenizer;
    const Generation& what;
    const int choices;    // a model may have more tokens than its tokenizer
    const std::vector<int> ends;
    Cache cache;
    std::vector<Sequence> sequences;
    std::vector<int> running;
    std::vector<float> logits;    // (running, V)
    bool said = false;            // that the context is full
};

// The prompts' last tokens that the context holds, and a cache for them and what follows.
Status Generator::open() {
    const int V = g.c.V;
    CHECK(!what.prompts.empty() && int64_t(total()) <= int64_t(g.plan.B) * g.plan.S, "num=%d", total());
    std::vector<size_t> lengths;
    size_t longest = 0;
    for (const std::vector<int>& prompt : what.prompts) {
        CHECK(!prompt.empty(), "an empty prompt");
        lengths.push_back(prompt.size());
        longest = std::max(longest, prompt.size());
    }
    TRY(open_cache(int(longest), lengths));
    std::vector<int> first;
    std::vector<std::vector<int>> prompts;
    for (size_t p = 0; p < what.prompts.size(); p++) {
        const std::vector<int>& all = what.prompts[p];
        const size_t most = cache.kind.rolls ? all.size() : std::min(all.size(), size_t(cache.positions));
        if (most < all.size())
            note("the prompt has " + std::to_string(all.size()) + " tokens, the context " + std::to_string(most) +
                 ": only its last " + std::to_string(most) + " are read");
        prompts.push_back({all.end() - ptrdiff_t(most), all.end()});
        first.push_back(int(p) * what.num);
    }
    const Sampler sampler = TRY(Sampler::open(what.sampling, tokenizer, choices, ends));
    logits.resize(size_t(total()) * size_t(V));
    feed(first, prompts, logits.data());
    sequences.resize(size_t(total()));
    for (int b = 0; b < total(); b++) {
        Sequence& s = sequences[size_t(b)];
        s.tokens = prompts[size_t(b / what.num)], s.row = b / what.num;
        s.sampler = sampler.of(uint64_t(b % what.num));
        s.sampler.see(s.tokens);
        if (b % what.num) cache.table.fork(b - b % what.num, b);
        if (what.text) s.out = [this, b](std::string_view text) { return what.text(b, text); };
        running.push_back(b);
    }
    return {};
}

Status Generator::open_cache(int longest, const std::vector<size_t>& lengths) {
    const CacheChoice& choice = what.cache;
    const CacheRoom room = TRY(cache_room(g.c, choice, int64_t(longest) + what.tokens));
    CacheKind kind = {TRY(cache_type(g.c, choice.type, g.op.activation)), room.rolls, room.sinks, 0, room.exact};
    // A sequence shares the prompt's full pages, unless its context is fed again.
    int64_t pages = 0;
    for (size_t n : lengths) {
        const int64_t all = int64_t(n) + what.tokens;
        const int end = int(std::min<int64_t>(room.positions, all));
        const int shared = room.rolls || all > room.positions ? 0 : int(n) / Pages::SIZE;
        pages += shared + int64_t(what.num) * (pages_for(end) - shared);
    }
    if (!room.rolls) kind.pages = int(pages);
    return g.cache_allocate(cache, total(), room.positions, kind);
}

// Whether a piece of each fits the activations.
bool Generator::fits(const std::vector<std::vector<int>>& tokens) const {
    size_t longest = 0;
    for (const std::vector<int>& t : tokens) longest = std::max(longest, t.size());
    const int64_t each = std::min<int64_t>(piece_length(g, cache, tokens.size()), int64_t(longest));
    return each * int64_t(tokens.size()) <= int64_t(g.plan.B) * g.plan.S;
}

// Feeds each of these sequences its tokens, in pieces that the activations can hold. rows (which,V): the logits of each
// one's last token
void Generator::feed(const std::vector<int>& which, const std::vector<std::vector<int>>& tokens, float* rows) {
    const int V = g.c.V;
    if (const size_t half = which.size() / 2; half > 0 && !fits(tokens)) {
        const auto which_half = which.begin() + ptrdiff_t(half);
        const auto tokens_half = tokens.begin() + ptrdiff_t(half);
        feed({which.begin(), which_half}, {tokens.begin(), tokens_half}, rows);
        return feed({which_half, which.end()}, {tokens_half, tokens.end()}, rows + half * size_t(V));
    }
    std::vector<size_t> left(which.size());    // into which
    for (size_t i = 0; i < which.size(); i++) left[i] = i;
    std::vector<float> some;
    for (size_t from = 0; !left.empty();) {
        const int most = piece_length(g, cache, left.size());
        int S = 0;
        std::vector<int> now, lengths, piece;
        for (size_t i : left) {
            now.push_back(which[i]);
            lengths.push_back(int(std::min(size_t(most), tokens[i].size() - from)));
            S = std::max(S, lengths.back());
        }
        for (size_t i = 0; i < left.size(); i++) {
            const auto at = tokens[left[i]].begin() + ptrdiff_t(from);
            piece.insert(piece.end(), at, at + lengths[i]);
            piece.resize((i + 1) * size_t(S));    // padding
        }
        g.extend(cache, piece.data(), S, now, lengths);
        from += size_t(most);
        auto ends = [&](size_t i) { return tokens[i].size() <= from; };
        if (left.size() == which.size() && std::all_of(left.begin(), left.end(), ends)) return g.logits(rows);
        if (std::any_of(left.begin(), left.end(), ends)) {
            some.resize(left.size() * size_t(V));
            g.logits(some.data());
            for (size_t i = 0; i < left.size(); i++)
                if (ends(left[i])) std::copy_n(&some[i * size_t(V)], V, rows + left[i] * size_t(V));
        }
        std::erase_if(left, ends);
    }
}

// False: the output was closed.
bool Generator::take(Sequence& s, const Sampler::Choice& next, Generated& out) {
    const int id = next.id;
    s.tokens.push_back(id);
    s.sampler.take(next);
    out.tokens++;
    const bool end = what.end_of_text && std::find(ends.begin(), ends.end(), id) != ends.end();
    const bool open = end ? s.text.finish(what.stop, s.out) : s.text.push(tokenizer.token(id), what.stop, s.out);
    s.done = end || s.text.stopped || s.sampler.done();
    if (s.sampler.broken()) note(NO_TOKEN);
    return open;
}

// The next logits of all that run.
void Generator::go_on() {
    const int keep = std::max(1, cache.positions / 2);    // where the context is full
    std::vector<int> on, full;
    std::vector<std::vector<int>> next, again;
    bool is_full = false;
    for (int b : running) {
        const std::vector<int>& tokens = sequences[size_t(b)].tokens;
        is_full |= cache.table[b].length() == cache.positions;
        if (cache.kind.rolls || cache.table[b].length() < cache.positions) {
            on.push_back(b), next.push_back({tokens.back()});
        } else {
            cache.table.rewind(b, 0);
            full.push_back(b), again.push_back({tokens.end() - keep, tokens.end()});
        }
    }
    if (is_full && !said && !cache.kind.exact) {
        note("the context of " + std::to_string(cache.positions) + " tokens is full: going on " +
             (cache.kind.rolls ? "without its oldest ones" : "from its last " + std::to_string(keep)));
        said = true;
    }
    if (!on.empty()) feed(on, next, logits.data());
    if (!full.empty()) feed(full, again, logits.data() + on.size() * size_t(g.c.V));
    on.insert(on.end(), full.begin(), full.end());
    for (size_t i = 0; i < on.size(); i++) sequences[size_t(on[i])].row = int(i);
}

Result<Generated> Generator::run() {
    TRY(open());
    Generated out;
    std::vector<Sampler::Choice> next(sequences.size());
    for (int place = 0; place < what.tokens && !running.empty(); place++) {
#pragma omp parallel for schedule(static) if (running.size() > 1)
        for (size_t i = 0; i < running.size(); i++) {
            Sequence& s = sequences[size_t(running[i])];
            const float* row = logits.data() + int64_t(s.row) * g.c.V;
            next[i] = s.sampler.choose(row, uint64_t(place));
            if (what.logprobs) s.logprobs.push_back(logprobs(row, choices, next[i].id, what.logprobs));
        }
        for (size_t i = 0; i < running.size(); i++)
            if (!take(sequences[size_t(running[i])], next[i], out)) return fail(Exit::io, "the output was closed");
        std::erase_if(running, [&](int b) {
            if (sequences[size_t(b)].done) cache.table.rewind(b, 0);
            return sequences[size_t(b)].done;
        });
        if (!running.empty() && place + 1 < what.tokens) go_on();
    }
    for (Sequence& s : sequences) {
        if (!s.text.finish(what.stop, s.out)) return fail(Exit::io, "the output was closed");
        out.texts.push_back(s.text.text);
        out.logprobs.push_back(std::move(s.logprobs));
    }
    return out;
}
}    // namespace

Result<Generated> generate(Model& g, const Tokenizer& tokenizer, const Generation& what) {
    return Generator(g, tokenizer, what).run();
}

// ---- loss over shards -----------------------------------------------------------------------------------------------

namespace {
struct Window {    // sums over its targets, and how many count
    double loss = 0, bytes = 0;
    int64_t targets = 0;
};

// All ranks' windows in the loader's order, on every rank. The ranks have taken batches of B windows in turn.
std::vector<Window> of_all_ranks(const std::vector<Window>& mine, int64_t windows, int B, Watch& watch) {
    const std::vector<std::string> parts =
        watch.gather({reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(Window)});
    std::string all;
    std::vector<size_t> taken(parts.size());    // bytes read so far; empty except on rank 0
    for (int64_t first = 0; first < windows && !parts.empty(); first += B) {
        const size_t rank = size_t(first / B) % parts.size();
        const size_t bytes = size_t(std::min<int64_t>(B, windows - first)) * sizeof(Window);
        all += parts[rank].substr(taken[rank], bytes);
        taken[rank] += bytes;
    }
    all = watch.broadcast(all);
    std::vector<Window> sums(all.size() / sizeof(Window));
    memcpy(sums.data(), all.data(), all.size());
    return sums;
}
}    // namespace

Result<Evaluation> evaluate(Model& g, Loader& loader, const Tokenizer& tokenizer, int B, int S,
                            const std::function<void(int64_t done, int64_t windows)>& progress, Watch* watch,
                            const Objective& objective,
                            const std::function<void(int rows, const float* losses, const int* targets)>& each) {
    loader.seek({0, 0});
    const int64_t windows = loader.samples();
    const int rank = watch ? watch->rank() : 0, ranks = watch ? watch->ranks() : 1;
    std::vector<int> tokens(size_t(B) * size_t(S)), targets(tokens.size());
    std::vector<float> losses(tokens.size());
    std::vector<Window> sums;
    for (int64_t done = int64_t(rank) * B; done < windows; done += int64_t(ranks) * B) {
        TRY(loader.next(tokens.data(), targets.data()));
        const int rows = int(std::min<int64_t>(B, windows - done));    // the last batch runs into the next epoch
        Spans spans;
        for (int b = 0; b < rows; b++) objective.apply(done + b, &tokens[size_t(b * S)], &targets[size_t(b * S)], S, S,
                                                       &spans);
        g.batch(tokens.data(), targets.data(), rows, S, objective.plain() ? nullptr : &spans);
        g.forward();
        g.loss(false, 0);
        (void)g.mean_loss(losses.data());
        if (each) each(rows, losses.data(), targets.data());
        for (int n = 0; n < rows * S; n++) {
            if (n % S == 0) sums.emplace_back();
            sums.back().loss += double(losses[size_t(n)]);
            const int id = targets[size_t(n)];
            if (id < 0) continue;
            sums.back().targets++;
            if (id < tokenizer.vocab_size() && !tokenizer.is_special(id))
                sums.back().bytes += double(tokenizer.token(id).size());
        }
        if (progress) progress(done + rows, windows);
    }
    if (watch) sums = of_all_ranks(sums, windows, B, *watch);
    Window all;
    for (const Window& w : sums) all.loss += w.loss, all.bytes += w.bytes, all.targets += w.targets;
    Evaluation e;
    e.tokens = all.targets;
    e.loss = all.loss / double(e.tokens);
    e.bits_per_byte = all.bytes > 0 ? all.loss / std::log(2.0) / all.bytes : 0;
    return e;
}
