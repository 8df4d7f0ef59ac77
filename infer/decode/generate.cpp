// generate.cpp - text generation with a key/value cache.
#include "generate.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "device_sampler.h"
#include "base/console.h"
#include "base/pool.h"
#include "check_logits.h"
#include "layers/quant/quant.h"

// ---- sequences ----------------------------------------------------------------------------------

// Marks the text up to `end` as final and passes its new part to `out`.
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
    int number, seq = 0;
    Ids tokens;
    Sampler sampler;
    StreamedText text = {};
    TextOut out = {};
    bool done = false, ended = false;    // ended: by an end token
    int step_index = 0;                  // number of tokens generated
    bool counts_uploaded = false;        // as in DeviceSampler::Row
    size_t row = 0;                      // row of its logits; drafted tokens' rows follow
    Ids draft = {};                      // tokens drafted for the last step
    VerifiedDraft next = {};             // tokens chosen from the last step's logits
    int64_t drafted = 0, accepted = 0;
    std::vector<std::vector<TokenLogprob>> logprobs = {};
};

class Generator {
  public:
    Generator(Model& g, const Tokenizer& t, const GenerationOptions& o)
        : model(g), tokenizer(t), options(o), choices(std::min(model.c.V, tokenizer.vocab_size())),
          ends(ends_of_text(tokenizer)), sequences(model), V(size_t(model.c.V)) {}
    Result<GenerationResult> run();

  private:
    Status open();
    Status open_cache(size_t longest);
    int64_t total() const { return int64_t(options.prompts.size()) * options.num; }
    Sequence next_sequence();
    int acquire_seq(int wish);
    bool admit();
    void prefill(std::vector<Sequence>& waiting, size_t& row);
    void decode_step();
    void draft(const std::vector<Sequence*>& on);
    void choose(Sequence& sequence) const;
    Status choose_all(size_t from);
    int64_t steps_on_device() const;
    Status decode_on_device(int64_t steps);
    Status retire();
    bool accept(Sequence& sequence, int id);
    Status report(Sequence& sequence);
    void note(const std::string& text) const {
        if (options.note) options.note(text);
    }

    Model& model;
    const Tokenizer& tokenizer;
    const GenerationOptions& options;
    const int choices;    // tokens to choose from; the model may have more
    const std::vector<int> ends;
    CachedSequences sequences;
    const size_t V;
    std::optional<DraftModel> draft_model;
    std::optional<DeviceSampler> device_sampler;    // empty: the host samples
    Sampler sampler;
    std::vector<bool> busy;    // by cache sequence
    std::vector<Sequence> running;
    int64_t next = 0;                  // number of the sequence to admit next
    std::vector<float> logits;         // (rows,V)
    std::map<int, Sample> finished;    // by number; wait for earlier samples to end
    int reported = 0, ended = 0;
    GenerationResult out;
    bool context_full_noted = false, no_token_noted = false;
};

// ---- allocation ---------------------------------------------------------------------------------

Status Generator::open() {
    CHECK(!options.prompts.empty() && total() < INT32_MAX, "%zu prompts", options.prompts.size());
    CHECK(!model.encoder || options.sources.size() == options.prompts.size(), "%zu sources", options.sources.size());
    TRY(can_speculate(model, options.speculation));
    sampler = TRY(Sampler::open(options.sampling, tokenizer, choices, ends));
    size_t longest = 0;
    for (const Ids& prompt : options.prompts) {
        CHECK(!prompt.empty(), "an empty prompt");
        longest = std::max(longest, prompt.size());
    }
    return open_cache(longest);
}

Status Generator::open_cache(size_t longest) {
    const int64_t length = int64_t(longest) + options.tokens;
    const CacheLimits limits = TRY(cache_limits(model.c, options.cache, length));
    CacheOptions kind = {TRY(cache_type(model.c, options.cache.type, model.op.activation, has_narrow_weights(model))),
                         limits.evicts, limits.sinks, 0, limits.lossless};
    const int count = int(std::min({total(), int64_t(options.batch), model.plan.max_tokens()}));
    // Pages for the worst case, in which the longest sequences run together. Full pages of the
    // prefix that all prompts share count once, if the model can share them. They count for each
    // sequence if the context can become full: feeding its last half again needs pages of its own.
    size_t common = options.prompts[0].size() - 1;
    std::vector<int> needs;
    for (const Ids& prompt : options.prompts) {
        common = std::min(common, common_length(prompt, options.prompts[0]));
        needs.push_back(pages_for(int(std::min<int64_t>(limits.positions, int64_t(prompt.size()) + options.tokens))));
    }
    std::sort(needs.begin(), needs.end(), std::greater());
    const bool once = length <= limits.positions && model.c.linear == LinearAttention::none &&
                      model.c.mask_kind == MaskKind::causal;
    const int shared = once ? int(common) / Pages::SIZE : 0;
    int pages = shared;
    for (int i = 0; i < count; i++) pages += needs[size_t(i / options.num)] - shared;
    if (!limits.evicts) kind.pages = pages;
    for (const Ids& source : options.sources) kind.source = std::max(kind.source, int(source.size()));
    kind.sources = count;
    TRY(sequences.open(count, limits.positions, kind));
    busy.resize(size_t(count));
    if (Model* other = options.speculation.draft) {
        draft_model.emplace(*other);
        TRY(draft_model->open(count, int(std::min<int64_t>(other->c.T, length))));
    }
    if (options.speculation.any() || options.logprobs || !DeviceSampler::supports(model, sampler)) return {};
    if (!device_sampler.emplace(model, sequences.cache).open(sampler, choices)) {
        device_sampler.reset();
        note(std::string(DeviceSampler::NO_MEMORY) + "; a smaller --batch needs less");
    }
    return {};
}

// ---- admission ----------------------------------------------------------------------------------

// Makes the next sequence. If a prompt is longer than the context, only its last tokens are kept.
Sequence Generator::next_sequence() {
    const int n = int(next++), sample = n % options.num;
    const Ids& prompt = options.prompts[size_t(n / options.num)];
    const bool evicts = sequences.cache.kind.evicts;
    const size_t most = evicts ? prompt.size() : std::min(prompt.size(), size_t(sequences.cache.positions));
    if (most < prompt.size() && sample == 0)
        note("the prompt has " + std::to_string(prompt.size()) + " tokens, the context " + std::to_string(most) +
             ": only its last " + std::to_string(most) + " are read");
    Sequence sequence = {
        .number = n,
        .tokens = {prompt.end() - ptrdiff_t(most), prompt.end()},
        .sampler = sampler.for_sequence(uint64_t(options.first_sequence ? *options.first_sequence + n : sample))};
    sequence.sampler.accept_prompt(sequence.tokens);
    if (options.text) sequence.out = [this, n](std::string_view text) { return options.text(n, text); };
    return sequence;
}

// Reserves a free cache sequence: `wish`, if that one is free.
int Generator::acquire_seq(int wish) {
    const bool granted = wish >= 0 && !busy[size_t(wish)];
    const int seq = granted ? wish : int(std::find(busy.begin(), busy.end(), false) - busy.begin());
    busy[size_t(seq)] = true;
    return seq;
}

// Prefills new sequences while cache sequences are free. Returns false if there was no new
// sequence.
bool Generator::admit() {
    std::vector<Sequence> waiting;
    while (next < total() && running.size() + waiting.size() < busy.size()) waiting.push_back(next_sequence());
    logits.resize(waiting.size() * V);
    const bool any = !waiting.empty();
    for (size_t row = 0; !waiting.empty();) prefill(waiting, row);
    return any;
}

// Prefills sequences of `waiting`, whose logits go to rows `row` and following. If a sequence
// shares at least a page more with another sequence of this call than with any cached one, it stays
// in `waiting`, and the next call reuses that prefix. The first sequence never stays, so each call
// makes progress. Further samples of a prompt copy the first sample's cache.
void Generator::prefill(std::vector<Sequence>& waiting, size_t& row) {
    const size_t first = running.size(), first_row = row;
    std::vector<Sequence> later;
    std::vector<int> seqs;
    std::vector<Ids> rest;
    std::vector<std::pair<int, int>> copies;
    for (Sequence& sequence : waiting) {
        const CachedSequences::Prefix from = sequences.longest_prefix(sequence.tokens);
        const Sequence* sibling = nullptr;
        size_t common = 0;
        for (size_t i = first; i < running.size(); i++) {
            if (running[i].number / options.num == sequence.number / options.num) sibling = &running[i];
            common = std::max(common, common_length(running[i].tokens, sequence.tokens));
        }
        if (sibling) {
            sequence.seq = acquire_seq(-1);
            sequence.row = sibling->row;
            copies.push_back({sibling->seq, sequence.seq});
        } else if (sequences.can_share_prefix() &&
                   std::min(common, sequence.tokens.size() - 1) >= from.length + Pages::SIZE) {
            later.push_back(std::move(sequence));
            continue;
        } else {
            sequence.seq = acquire_seq(from.seq);
            sequence.row = row++;
            sequences.begin(sequence.seq, from);
            if (model.encoder)
                sequences.read_source(sequence.seq, options.sources[size_t(sequence.number / options.num)]);
            seqs.push_back(sequence.seq);
            rest.push_back({sequence.tokens.begin() + ptrdiff_t(from.length), sequence.tokens.end()});
        }
        running.push_back(std::move(sequence));
    }
    sequences.prefill(seqs, rest, &logits[first_row * V]);
    for (auto [from, to] : copies) sequences.copy(from, to);
    waiting = std::move(later);
}

// ---- decoding -----------------------------------------------------------------------------------

// Computes the next logits of all running sequences. If a context is full and cannot evict, its
// last half is fed again.
void Generator::decode_step() {
    const int positions = sequences.cache.positions,
              keep = std::max(1, positions / 2);    // tokens that a full context keeps
    std::vector<Sequence*> on, full;
    bool is_full = false;
    for (Sequence& sequence : running) {
        const bool at_end = sequences.length(sequence.seq) == positions;
        is_full |= at_end;
        (at_end && !sequences.cache.kind.evicts ? full : on).push_back(&sequence);
    }
    if (is_full && !context_full_noted && !sequences.cache.kind.lossless) {
        note("the context of " + std::to_string(positions) + " tokens is full: going on " +
             (sequences.cache.kind.evicts ? "without its oldest ones" : "from its last " + std::to_string(keep)));
        context_full_noted = true;
    }
    draft(on);
    std::vector<int> seqs;
    std::vector<Ids> more;
    size_t rows = 0;
    for (Sequence* sequence : on) {
        seqs.push_back(sequence->seq);
        more.push_back({sequence->tokens.back()});
        more.back().insert(more.back().end(), sequence->draft.begin(), sequence->draft.end());
        sequence->row = rows;
        rows += more.back().size();
    }
    const size_t of_full = rows;
    logits.resize((rows + full.size()) * V);
    if (!on.empty()) sequences.step(seqs, more, logits.data());
    seqs.clear();
    more.clear();
    for (Sequence* sequence : full) {
        sequences.empty(sequence->seq);
        seqs.push_back(sequence->seq);
        more.push_back({sequence->tokens.end() - keep, sequence->tokens.end()});
        sequence->row = rows++;
    }
    if (!full.empty()) sequences.prefill(seqs, more, &logits[of_full * V]);
}

// Drafts tokens for these sequences. The draft's length is limited by the activations (all
// sequences are padded to the longest draft) and by the cache, which must not evict for tokens that
// may be rejected.
void Generator::draft(const std::vector<Sequence*>& on) {
    const Speculation& speculation = options.speculation;
    std::vector<DraftModel::Request> requests;
    for (Sequence* sequence : on) {
        const int64_t available = std::min<int64_t>(model.plan.max_tokens() / int64_t(on.size()),
                                                    sequences.cache.positions - sequences.length(sequence->seq)) -
                                  1;
        const int most =
            int(std::min({available, int64_t(options.tokens - sequence->step_index - 1), int64_t(speculation.most())}));
        if (most <= 0) continue;
        if (speculation.draft)
            requests.push_back(
                {sequence->seq, &sequence->tokens, sequence->sampler, sequence->step_index, most, &sequence->draft});
        else sequence->draft = lookup_draft(sequence->tokens, most);
    }
    if (draft_model) draft_model->propose(std::move(requests));
    for (Sequence* sequence : on) sequence->drafted += int64_t(sequence->draft.size());
}

void Generator::choose(Sequence& sequence) const {
    const float* rows = &logits[sequence.row * V];
    sequence.counts_uploaded = false;
    sequence.next = verify_draft(sequence.sampler, rows, int(V), sequence.step_index, sequence.draft);
    for (size_t k = 0; k < sequence.next.chosen.size() && options.logprobs; k++)
        if (const int id = sequence.next.chosen[k].id; id >= 0)
            sequence.logprobs.push_back(logprobs(rows + k * V, choices, id, options.logprobs));
}

// Appends a token to the sequence. False: the output was closed.
bool Generator::accept(Sequence& sequence, int id) {
    if (id < 0) return sequence.done = true;    // grammar allows no token
    sequence.tokens.push_back(id);
    sequence.step_index++;
    out.tokens++;
    const bool end = options.end_of_text && std::find(ends.begin(), ends.end(), id) != ends.end();
    if (!end && !sequence.text.push(tokenizer.token(id), options.stop, sequence.out)) return false;
    sequence.ended = end;
    sequence.done = end || sequence.text.stopped || sequence.step_index == options.tokens;
    return true;
}

// Chooses the next tokens of running[from] and all later sequences.
Status Generator::choose_all(size_t from) {
    TRY(check_logits(logits));
    each_chunk(int64_t(running.size() - from), [&](int64_t i, int) { choose(running[from + size_t(i)]); });
    for (size_t i = from; i < running.size(); i++) {
        Sequence& sequence = running[i];
        sequence.accepted += int64_t(sequence.next.accepted);
        sequences.drop_last(sequence.seq, int(sequence.draft.size() - sequence.next.accepted));
        sequence.draft.clear();
        for (size_t k = 0; k < sequence.next.chosen.size() && !sequence.done; k++)
            if (!accept(sequence, sequence.next.chosen[k].id)) return output_failed();
        sequence.done |= sequence.sampler.done();
        if (sequence.sampler.broken() && !sequence.text.stopped && !std::exchange(no_token_noted, true)) note(NO_TOKEN);
    }
    return retire();
}

// Reports finished sequences and frees their cache sequences, whose prefixes can still be reused.
Status Generator::retire() {
    for (Sequence& sequence : running) {
        if (!sequence.done) continue;
        busy[size_t(sequence.seq)] = false;
        if (!sequences.can_share_prefix()) sequences.empty(sequence.seq);
        TRY(report(sequence));
    }
    std::erase_if(running, [](const Sequence& sequence) { return sequence.done; });
    return {};
}

// ---- decoding on the device ---------------------------------------------------------------------

// Number of steps that can run without the host: until a sequence reaches its last token or a full
// context. 0: the host must sample.
int64_t Generator::steps_on_device() const {
    int64_t steps = device_sampler ? options.tokens : 0;
    const bool stops_at_full = !sequences.cache.kind.evicts || (!context_full_noted && !sequences.cache.kind.lossless);
    for (const Sequence& sequence : running) {
        steps = std::min<int64_t>(steps, options.tokens - sequence.step_index);
        if (stops_at_full) steps = std::min<int64_t>(steps, sequences.cache.positions - sequences.length(sequence.seq));
    }
    return steps;
}

// Runs at most `steps` steps of all sequences. After a sequence has ended, no further step starts,
// and the step in flight is the last. Its position stays in the ended sequence's cache, which is
// harmless: only prompts are reused.
Status Generator::decode_on_device(int64_t steps) {
    std::vector<DeviceSampler::Row> rows;
    for (Sequence& sequence : running) {
        rows.push_back(
            {sequence.seq, sequence.tokens.back(), sequence.step_index, &sequence.sampler, sequence.counts_uploaded});
        sequence.counts_uploaded = true;
    }
    device_sampler->begin(rows);
    do {
        const bool goes_on = std::none_of(running.begin(), running.end(), [](auto& sequence) { return sequence.done; });
        for (; goes_on && steps > 0 && device_sampler->in_flight() < 2; steps--) device_sampler->step();
        const int* ids = device_sampler->next();
        for (size_t i = 0; i < running.size(); i++) {
            Sequence& sequence = running[i];
            if (sequence.done) continue;
            sequence.sampler.accept({ids[i]});
            if (!accept(sequence, ids[i])) return output_failed();
        }
    } while (device_sampler->in_flight() > 0);
    return retire();
}

Status Generator::report(Sequence& sequence) {
    if (!sequence.text.finish(options.stop, sequence.out)) return output_failed();
    const bool whole = sequence.ended || sequence.text.stopped || sequence.sampler.done();
    const char* reason = whole ? "stop" : sequence.sampler.broken() ? "no_token" : "length";
    out.drafted += sequence.drafted;
    out.accepted += sequence.accepted;
    // Drops tokens that were chosen after the end.
    sequence.logprobs.resize(std::min(sequence.logprobs.size(), size_t(sequence.step_index)));
    finished[sequence.number] = {sequence.number,
                                 std::move(sequence.text.text),
                                 sequence.step_index,
                                 sequence.drafted,
                                 sequence.accepted,
                                 std::move(sequence.logprobs),
                                 0,
                                 reason,
                                 {sequence.tokens.end() - sequence.step_index, sequence.tokens.end()}};
    while (!finished.empty() && finished.begin()->first == reported) {
        Sample& sample = finished.begin()->second;
        if (options.each && !options.each(sample)) return output_failed();
        if (!options.each) {
            out.texts.push_back(std::move(sample.text));
            out.logprobs.push_back(std::move(sample.logprobs));
            out.finish_reasons.push_back(sample.finish_reason);
            out.ids.push_back(std::move(sample.ids));
        }
        finished.erase(finished.begin());
        reported++;
    }
    if (options.progress) options.progress(++ended, total());
    return {};
}

Result<GenerationResult> Generator::run() {
    TRY(open());
    for (;;) {
        for (size_t before = running.size(); admit(); before = running.size()) TRY(choose_all(before));
        if (running.empty()) return std::move(out);
        if (const int64_t steps = steps_on_device(); steps > 0) {
            TRY(decode_on_device(steps));
            continue;
        }
        decode_step();
        TRY(choose_all(0));
    }
}
}    // namespace

Result<GenerationResult> generate(Model& model, const Tokenizer& tokenizer, const GenerationOptions& options) {
    return Generator(model, tokenizer, options).run();
}
