// word_counts.cpp - see training.h: counts the distinct words of a text on all cores.
#include <algorithm>
#include <optional>
#include <span>

#include "base/console.h"
#include "base/pool.h"
#include "data/normalize.h"
#include "training.h"

namespace {
constexpr size_t CHUNK = 1 << 20;      // bytes of text per counting task
constexpr int64_t BATCH = 32 << 20;    // bytes of text that wait for the threads

void count_pieces(const Vocabulary& v, Splitter& pieces, const std::string& text, WordCounts& counts) {
    std::string prepared = v.normalization.empty() ? text : normalized(text, v.normalization, true);
    if (v.spaces != Spaces::kept) prepared = marked(prepared, v.spaces, true, false);
    pieces.start(prepared);
    std::string_view some[256];
    while (const size_t n = pieces.next(some, std::size(some)))
        for (std::string_view piece : std::span(some, n)) {
            auto it = counts.find(piece);
            if (it == counts.end()) it = counts.emplace(piece, 0).first;
            it->second++;
        }
}

}    // namespace

size_t training_cut(const TokenizerTraining& training, std::string_view text, size_t limit) {
    return safe_cut(training.kind == ModelKind::bpe ? training.pattern : Pattern::bert, text, limit);
}

Result<WordCounts> count_words(const TokenizerTraining& training, const Vocabulary& v) {
    auto threads = size_t(pool_threads());
    WordCounts all;
    std::vector<WordCounts> counts(threads);    // current batch's, by worker
    std::vector<std::optional<Splitter>> splitters(threads);
    std::vector<std::string> batch;
    int64_t done = 0, bytes = 0;    // bytes: lengths of the pieces in `all`
    for (bool more = true; more;) {
        batch.clear();
        const int64_t full = done + BATCH;
        for (std::string text; batch.size() < 8 * threads && done < full;) {
            more = TRY(training.read(text));
            if (!more) break;
            done += int64_t(text.size());
            for (size_t cut = 1; text.size() > CHUNK && (cut = training_cut(training, text, CHUNK)) > 0;) {
                batch.push_back(text.substr(0, cut));
                text.erase(0, cut);
            }
            batch.push_back(std::move(text));
        }
        each_chunk(int64_t(batch.size()), [&](int64_t i, int worker) {
            std::optional<Splitter>& pieces = splitters[size_t(worker)];
            if (!pieces) pieces.emplace(v.pattern);
            count_pieces(v, *pieces, batch[size_t(i)], counts[size_t(worker)]);
        });
        for (WordCounts& some : counts) {
            for (auto& [piece, n] : some) bytes += int64_t(piece.size());
            all.merge(some);    // moves nodes without allocating
            for (auto& [piece, n] : some) {
                all.find(piece)->second += n;
                bytes -= int64_t(piece.size());
            }
            some.clear();
        }
        if (bytes > training.most_bytes)
            return fail(Exit::input,
                        "expected at most %lld MiB of distinct words, found more in the first %s of text; "
                        "give less text, or a larger --distinct-words",
                        (long long)(training.most_bytes >> 20), human_bytes(double(done)).c_str());
        if (training.progress) training.progress("count", done, 0);
    }
    if (all.empty()) return fail(Exit::input, "expected text to train a tokenizer on, found none");
    return all;
}

std::vector<std::string_view> characters_of(std::string_view word) {
    std::vector<std::string_view> all;
    for (size_t i = 0, n = 0; i < word.size(); i += n) {
        bool whole = true;
        n = utf8_character(word.substr(i), whole);
        if (!whole) n = 1;
        all.push_back(word.substr(i, n));
    }
    return all;
}

Result<Tokenizer> train_tokenizer(const TokenizerTraining& training) {
    constexpr Result<Tokenizer> (*TRAIN[])(const TokenizerTraining&) = {bpe_train, wordpiece_train, unigram_train};
    if (training.special.empty()) return TRAIN[size_t(training.kind)](training);
    TokenizerTraining learnt = training;
    learnt.vocab -= int(training.special.size());
    Result<Tokenizer> without = TRAIN[size_t(training.kind)](learnt);
    if (!without.ok())
        return fail(without.status.code, "%s (%zu special tokens besides)", without.status.message.c_str(),
                    training.special.size());
    Vocabulary v = without.value.vocabulary();
    for (const std::string& name : training.special) {
        if (name.empty()) return fail(Exit::usage, "special token: expected a name, found an empty one");
        if (std::find(v.tokens.begin(), v.tokens.end(), name) != v.tokens.end())
            return fail(Exit::usage, "special token %s: expected a name that is no token, found one", name.c_str());
        v.added.push_back({.id = int(v.tokens.size()), .special = true});
        v.tokens.push_back(name);
        if (!v.scores.empty()) v.scores.push_back(0);
    }
    Tokenizer all(std::move(v));
    // In a file bytes have names, too, which another token's name may equal.
    if (const Status s = Tokenizer::parse(all.to_json(), "the tokenizer").status; !s.ok())
        return fail(Exit::usage, "special tokens: expected other names: %s", s.message.c_str());
    return all;
}
