// generate.cpp - sampling, generation with a key/value cache, loss over shards.
#include "generate.h"

#include <algorithm>
#include <cstring>

#include "base/console.h"

// ---- one token ------------------------------------------------------------------------------------------------------

namespace {
struct Candidate {
    double score;
    int id;
};
bool likelier(const Candidate& a, const Candidate& b) { return a.score != b.score ? a.score > b.score : a.id < b.id; }

// Calls f(score, id) for all tokens, in order. NaN becomes the least likely score.
template <class F> void each_score(const float* logits, int V, const Sampling& s, const std::vector<int>& seen, F f) {
    std::vector<int> once;
    if (s.repetition_penalty != 1) once = seen;
    std::sort(once.begin(), once.end());
    once.erase(std::unique(once.begin(), once.end()), once.end());
    once.push_back(V);
    int v = 0;
    for (int stop : once) {
        for (; v < std::min(stop, V); v++) f(std::isnan(logits[v]) ? -INFINITY : double(logits[v]), v);
        if (v == V) return;
        const double x = std::isnan(logits[v]) ? -INFINITY : double(logits[v]);
        f(x > 0 ? x / s.repetition_penalty : x * s.repetition_penalty, v++);
    }
}

// The k likeliest, likeliest first, by a heap whose root is the least likely of them: nearly every token fails its one
// comparison. Takes a fifth of nth_element's time for 50 of 50,257.
std::vector<Candidate> likeliest(int k, const float* logits, int V, const Sampling& s, const std::vector<int>& seen) {
    std::vector<Candidate> best;
    best.reserve(size_t(k));
    each_score(logits, V, s, seen, [&](double score, int id) {
        if (best.size() == size_t(k)) {
            if (score <= best[0].score) return;
            std::pop_heap(best.begin(), best.end(), likelier);
            best.pop_back();
        }
        best.push_back({score, id});
        std::push_heap(best.begin(), best.end(), likelier);
    });
    std::sort_heap(best.begin(), best.end(), likelier);
    return best;
}
}    // namespace

int sample_token(const float* logits, int V, const Sampling& s, const std::vector<int>& seen, uint64_t sequence,
                 uint64_t place) {
    if (s.temperature == 0) return likeliest(1, logits, V, s, seen)[0].id;
    std::vector<Candidate> all;
    if (s.top_k > 0 && s.top_k < V) {
        all = likeliest(s.top_k, logits, V, s, seen);
    } else {
        all.reserve(size_t(V));
        each_score(logits, V, s, seen, [&](double score, int id) { all.push_back({score, id}); });
    }
    if (s.top_p < 1) std::sort(all.begin(), all.end(), likelier);
    double top = std::min_element(all.begin(), all.end(), likelier)->score, sum = 0;
    if (!std::isfinite(top)) return std::min_element(all.begin(), all.end(), likelier)->id;
    for (Candidate& c : all) sum += c.score = std::exp((c.score - top) / s.temperature);
    if (s.top_p < 1) {
        double covered = 0;
        size_t keep = 0;
        while (keep < all.size() && covered < s.top_p * sum) covered += all[keep++].score;
        all.resize(std::max<size_t>(keep, 1));
    }
    if (s.min_p > 0)
        std::erase_if(all, [&](const Candidate& c) { return c.score < s.min_p; });    // the likeliest has 1
    sum = 0;
    for (const Candidate& c : all) sum += c.score;
    Philox4 r = philox(s.seed, sequence, place);
    double u = (double(r.v[0]) * 0x1p32 + double(r.v[1])) * 0x1p-64 * sum;
    for (const Candidate& c : all)
        if ((u -= c.score) < 0) return c.id;
    return std::min_element(all.begin(), all.end(), [](auto& a, auto& b) { return a.score > b.score; })->id;
}

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

namespace {
// Feeds n tokens of each of the cache's sequences, rows (B,n), in pieces that the activations can hold.
void feed(Model& g, Cache& cache, const std::vector<int>& rows, int n, float* logits) {
    const int B = cache.B, most = std::max(1, int(int64_t(g.plan.B) * g.plan.S / B));
    std::vector<int> piece;
    for (int s = 0; s < n; s += most) {
        const int len = std::min(most, n - s);
        piece.clear();
        for (int b = 0; b < B; b++) piece.insert(piece.end(), rows.begin() + b * n + s, rows.begin() + b * n + s + len);
        g.extend(cache, piece.data(), len);
        if (s + len == n) g.logits(logits);
    }
}
// The prompt's last tokens that the context holds.
std::vector<int> last_of(const Generation& what, int maxT) {
    if (int(what.prompt.size()) <= maxT) return what.prompt;
    if (what.note)
        what.note("the prompt has " + std::to_string(what.prompt.size()) + " tokens, the context " +
                  std::to_string(maxT) + ": only its last " + std::to_string(maxT) + " are read");
    return {what.prompt.end() - maxT, what.prompt.end()};
}
}    // namespace

std::vector<int> beginning_of_text(const Tokenizer& tokenizer, int64_t documents) {
    if (tokenizer.end_of_text() >= 0 && (documents < 0 || documents >= 16)) return {tokenizer.end_of_text()};
    std::vector<int> line = tokenizer.encode("\n");
    return line.empty() ? std::vector<int>{0} : line;
}

Result<Generated> generate(Model& g, const Tokenizer& tokenizer, const Generation& what) {
    const int V = g.c.V, maxT = g.c.T, num = what.num;
    CHECK(!what.prompt.empty() && num > 0 && int64_t(num) <= int64_t(g.plan.B) * g.plan.S, "num=%d", num);
    const int full = std::max(1, maxT / 2);                     // what is kept when the context is full
    const int choices = std::min(V, tokenizer.vocab_size());    // a model may have more tokens than its tokenizer
    const std::vector<int> prompt = last_of(what, maxT);
    Cache one, all;
    const int room = int(std::min<int64_t>(maxT, int64_t(prompt.size()) + what.tokens));    // positions of the cache
    TRY(g.cache_allocate(one, 1, room));
    std::vector<float> logits(size_t(num) * size_t(V));
    feed(g, one, prompt, int(prompt.size()), logits.data());
    for (int b = 1; b < num; b++) std::copy_n(logits.begin(), V, logits.begin() + int64_t(b) * V);
    if (num > 1) {
        TRY(g.cache_allocate(all, num, room));
        g.cache_spread(one, all);
    }
    Cache& cache = num > 1 ? all : one;

    struct Sequence {
        std::vector<int> tokens;
        StreamedText text = {};
        bool done = false;
        TextOut out = {};
    };
    std::vector<Sequence> sequences(static_cast<size_t>(num), {prompt});
    for (int b = 0; what.text && b < num; b++)
        sequences[size_t(b)].out = [&what, b](std::string_view text) { return what.text(b, text); };
    Generated out;
    std::vector<int> next(static_cast<size_t>(num));
    bool slid = false;
    for (int place = 0; place < what.tokens; place++) {
        bool any = false;
#pragma omp parallel for schedule(static) if (num > 1)
        for (int b = 0; b < num; b++)
            next[size_t(b)] = sample_token(logits.data() + int64_t(b) * V, choices, what.sampling,
                                           sequences[size_t(b)].tokens, uint64_t(b), uint64_t(place));
        for (int b = 0; b < num; b++) {
            Sequence& s = sequences[size_t(b)];
            const int id = next[size_t(b)];
            s.tokens.push_back(id);
            if (s.done) continue;
            out.tokens++;
            const Vocabulary& v = tokenizer.vocabulary();
            const bool end = what.end_of_text && (id == tokenizer.end_of_text() || id == v.eos ||
                                                  std::find(v.ends.begin(), v.ends.end(), id) != v.ends.end());
            if (!(end ? s.text.finish(what.stop, s.out) : s.text.push(tokenizer.token(id), what.stop, s.out)))
                return fail(Exit::io, "the output was closed");
            s.done = end || s.text.stopped;
            any |= !s.done;
        }
        if (!any || place + 1 == what.tokens) break;
        if (cache.pos == maxT) {
            if (!slid && what.note)
                what.note("the context of " + std::to_string(maxT) + " tokens is full: going on from its last " +
                          std::to_string(full));
            slid = true;
            cache.pos = 0;
            std::vector<int> rows;
            for (Sequence& s : sequences) rows.insert(rows.end(), s.tokens.end() - full, s.tokens.end());
            feed(g, cache, rows, full, logits.data());
        } else {
            feed(g, cache, next, 1, logits.data());
        }
    }
    for (Sequence& s : sequences) {
        if (!s.text.finish(what.stop, s.out)) return fail(Exit::io, "the output was closed");
        out.texts.push_back(s.text.text);
    }
    return out;
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
                            const Objective& objective) {
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

std::string evaluation_progress(const char* what, int64_t done, int64_t windows, double seconds) {
    return std::string(what) + ": " + std::to_string(done) + " of " + std::to_string(windows) + " windows  ETA " +
           human_time(seconds / double(done) * double(windows - done));
}
