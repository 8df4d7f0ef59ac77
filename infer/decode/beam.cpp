// beam.cpp - beam search over forked cache pages. The beams use one half of the cache's sequences;
// a step forks them into the other half, where they share all pages but the last.
#include "beam.h"

#include <algorithm>

#include "check_logits.h"
#include "cached_sequences.h"

namespace {
struct Beam {
    std::vector<int> tokens;
    double sum = 0;              // sum of log-probabilities
    double score = -INFINITY;    // set when the beam ends
};
struct Next {
    double sum;
    int beam, rank, id;    // rank: among this beam's candidates
};
bool better(const Next& a, const Next& b) {
    return a.sum != b.sum ? a.sum > b.sum : a.beam != b.beam ? a.beam < b.beam : a.rank < b.rank;
}

class Search {
  public:
    Search(Model& g, const Tokenizer& tokenizer, const GenerationOptions& o, const BeamSearch& search)
        : model(g), options(o), beam_options(search), choices(std::min(model.c.V, tokenizer.vocab_size())),
          sequences(model) {
        if (options.end_of_text) ends = ends_of_text(tokenizer);
    }
    Status open(const std::vector<int>& prompt, const std::vector<int>* source);
    Result<std::vector<Beam>> run();    // best beam first; exit 6: non-finite logits

  private:
    std::vector<Next> likeliest() const;
    bool step();
    void finish(Beam beam);
    double score(double sum, size_t length) const {
        return sum / std::pow(double(length), beam_options.length_penalty);
    }

    Model& model;
    const GenerationOptions& options;
    const BeamSearch& beam_options;
    const int choices;
    std::vector<int> ends;
    int tokens = 0;    // largest number of new tokens
    CachedSequences sequences;
    int half = 0;    // cache sequence of the first beam
    std::vector<Beam> beams = {{}}, finished;
    std::vector<float> logits;    // (beams,V)
};

// Allocates the cache, prefills the prompt and computes its last logits. source: null without an
// encoder.
Status Search::open(const std::vector<int>& prompt, const std::vector<int>* source) {
    const int all = int(prompt.size());
    tokens = options.tokens;
    CacheLimits limits = TRY(cache_limits(model.c, options.cache, int64_t(all) + tokens));
    if (limits.evicts ? !limits.lossless : int64_t(all) + tokens > limits.positions) {
        const int most = options.cache.positions ? options.cache.positions : model.c.T;
        if (all >= most)
            return fail(Exit::usage,
                        "--beams %d: the prompt has %d tokens, the context %d: nothing is left for the "
                        "text",
                        beam_options.beams, all, most);
        tokens = most - all;
        limits = TRY(cache_limits(model.c, options.cache, most));
        if (options.note) options.note(formatted("the context of %d tokens ends the text after %d", most, tokens));
    }
    CacheOptions kind = {TRY(cache_type(model.c, options.cache.type, model.op.activation, has_narrow_weights(model))),
                         limits.evicts, limits.sinks, 0, limits.lossless};
    const int shared = all / Pages::SIZE;
    if (!limits.evicts) kind.pages = shared + beam_options.beams * (pages_for(all + tokens) - shared + 1);
    if (source) kind.source = int(source->size());
    TRY(sequences.open(2 * beam_options.beams, limits.positions, kind));
    if (source) sequences.read_source(0, *source);
    logits.resize(size_t(beam_options.beams) * size_t(model.c.V));
    sequences.prefill({0}, {prompt}, logits.data());
    return {};
}

// Returns the 2 * beams most probable continuations of all beams, best first: enough even if half
// of them end. They are kept in a heap with the worst at its root.
std::vector<Next> Search::likeliest() const {
    std::vector<Next> best;
    const size_t most = size_t(2 * beam_options.beams);
    for (size_t b = 0; b < beams.size(); b++) {
        const std::vector<TokenLogprob> row =
            logprobs(&logits[b * size_t(model.c.V)], choices, 0, std::min(choices, 2 * beam_options.beams));
        for (size_t i = 1; i < row.size() && std::isfinite(row[i].logprob); i++) {    // most probable first
            const Next next = {beams[b].sum + row[i].logprob, int(b), int(i), row[i].id};
            if (best.size() == most) {
                if (!better(next, best[0])) break;
                std::pop_heap(best.begin(), best.end(), better);
                best.pop_back();
            }
            best.push_back(next);
            std::push_heap(best.begin(), best.end(), better);
        }
    }
    std::sort_heap(best.begin(), best.end(), better);
    return best;
}
void Search::finish(Beam beam) {
    beam.score = score(beam.sum, beam.tokens.size());
    const auto at = std::upper_bound(finished.begin(), finished.end(), beam,
                                     [](const Beam& a, const Beam& b) { return a.score > b.score; });
    finished.insert(at, std::move(beam));
    finished.resize(std::min(finished.size(), size_t(beam_options.beams)));
}

// Extends the beams by one token. Returns false if no better text, or no text at all, can follow.
bool Search::step() {
    const std::vector<Next> next = likeliest();
    std::vector<Beam> grown;
    std::vector<int> parents;
    for (size_t rank = 0; rank < next.size(); rank++) {
        const Next& n = next[rank];
        Beam beam = {beams[size_t(n.beam)].tokens, n.sum};
        beam.tokens.push_back(n.id);
        if (std::find(ends.begin(), ends.end(), n.id) != ends.end()) {
            if (rank < size_t(beam_options.beams)) finish(std::move(beam));
        } else if (grown.size() < size_t(beam_options.beams)) {
            grown.push_back(std::move(beam));
            parents.push_back(n.beam);
        }
    }
    const bool full = finished.size() == size_t(beam_options.beams);
    if (!next.empty() && full && finished.back().score >= score(next[0].sum, beams[0].tokens.size() + 1)) {
        beams.clear();
        return false;
    }
    const int other = beam_options.beams - half;
    for (size_t i = 0; i < parents.size(); i++) sequences.copy(half + parents[i], other + int(i));
    for (int b = 0; b < beam_options.beams; b++) sequences.empty(half + b);
    half = other;
    beams = std::move(grown);
    return !beams.empty();
}

Result<std::vector<Beam>> Search::run() {
    for (int n = 0; n < tokens; n++) {
        TRY(check_logits(logits));
        if (!step() || n + 1 == tokens) break;
        std::vector<int> seqs;
        std::vector<Ids> last;
        for (size_t b = 0; b < beams.size(); b++) {
            last.push_back({beams[b].tokens.back()});
            seqs.push_back(half + int(b));
        }
        sequences.step(seqs, last, logits.data());
    }
    for (Beam& beam : beams)
        if (!beam.tokens.empty()) finish(std::move(beam));
    return std::move(finished);
}
}    // namespace

Result<GenerationResult> beam_search(Model& model, const Tokenizer& tokenizer, const GenerationOptions& options,
                                     const BeamSearch& beam_options) {
    CHECK(beam_options.beams >= options.num && int64_t(beam_options.beams) <= model.plan.max_tokens(), "beams=%d",
          beam_options.beams);
    GenerationResult out;
    const std::vector<int> ends = options.end_of_text ? ends_of_text(tokenizer) : std::vector<int>{};
    for (size_t i = 0; i < options.prompts.size(); i++) {
        Search search(model, tokenizer, options, beam_options);
        TRY(search.open(options.prompts[i], model.encoder ? &options.sources[i] : nullptr));
        std::vector<Beam> best = TRY(search.run());
        best.resize(size_t(options.num));    // a tiny vocabulary may give fewer: empty texts
        for (const Beam& beam : best) {
            StreamedText text;
            TextOut to;
            if (options.text) to = [&](std::string_view piece) { return options.text(int(out.texts.size()), piece); };
            bool open = true, ended = false;
            for (int id : beam.tokens)
                if (open && !text.stopped && !(ended = std::find(ends.begin(), ends.end(), id) != ends.end()))
                    open = text.push(tokenizer.token(id), options.stop, to);
            if (!open || !text.finish(options.stop, to)) return output_failed();
            out.tokens += int64_t(beam.tokens.size());
            out.texts.push_back(text.text);
            out.scores.push_back(beam.score);
            out.finish_reasons.push_back(ended || text.stopped ? "stop" : "length");
        }
    }
    return out;
}
