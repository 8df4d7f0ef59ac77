// unigram_train.cpp - learns a Unigram vocabulary (Kudo 2018).
//
// 1. Seeds: all characters, and of the texts within words that occur at least twice those with the
//    largest product of length and number of occurrences. Suffixes of the distinct words are
//    sorted; neighbours that begin alike give each text once.
// 2. Until VOCAB * 1.1 pieces are left: two rounds of expectation and maximization, then the
//    quarter of the pieces goes without which the best segmentations' likelihood falls least.
// 3. The pieces with the largest scores, and all characters, are the vocabulary.
//
// Expected counts are added as integers, so the sums do not depend on the threads.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/pool.h"
#include "training.h"
#include "trie.h"

namespace {
constexpr int MAX_VOCAB = 1 << 20;
constexpr size_t SEEDS = 1'000'000, LONGEST = 16;    // pieces; characters of a piece
constexpr size_t LONGEST_WORD = 64;                  // characters; longer words are cut
constexpr double COVERED = 0.9995, KEPT = 0.75, SLACK = 1.1;
constexpr double UNIT = 1 << 20;    // an expected count of 1
// exp(-score) grows with a segmentation's characters. This factor for each one keeps products of
// probabilities within the range of doubles.
const double PER_CHARACTER = std::exp(4.0);

double digamma(double x) {
    double sum = 0;
    for (; x < 7; x++) sum -= 1 / x;
    x -= 0.5;
    const double y = 1 / (x * x);
    return sum + std::log(x) + y * (1.0 / 24 - y * (7.0 / 960 - y * (31.0 / 8064 - y * 127.0 / 30720)));
}

struct Word {
    std::string text;
    int64_t count;
};
struct Piece {
    std::string text;
    double score;
    bool single;    // one character, which stays
};

// Splits words where characters are rarer than the coverage demands. The order does not depend on
// the counts' table.
std::vector<Word> covered_words(const WordCounts& counts, std::unordered_map<std::string, int64_t>& characters) {
    std::unordered_map<std::string, int64_t> all;
    int64_t total = 0;
    for (auto& [text, n] : counts)
        for (std::string_view c : characters_of(text)) all[std::string(c)] += n, total += n;
    std::vector<std::pair<int64_t, std::string>> order;
    for (auto& [c, n] : all) order.push_back({-n, c});
    std::sort(order.begin(), order.end());
    int64_t sum = 0;
    for (auto& [n, c] : order) {
        if (double(sum) >= COVERED * double(total)) break;
        sum -= n;
        characters[c] = -n;
    }
    std::unordered_map<std::string, int64_t> parts;
    for (auto& [text, n] : counts) {
        std::string part;
        size_t length = 0;
        auto end = [&, n = n] {    // clang 14 captures no structured binding by itself
            if (!part.empty()) parts[part] += n;
            part.clear();
            length = 0;
        };
        for (std::string_view c : characters_of(text)) {
            if (!characters.contains(std::string(c)) || length == LONGEST_WORD) end();
            if (!characters.contains(std::string(c))) continue;
            part += c;
            length++;
        }
        end();
    }
    std::vector<Word> words;
    for (auto& [text, n] : parts) words.push_back({text, n});
    std::sort(words.begin(), words.end(), [](const Word& a, const Word& b) { return a.text < b.text; });
    return words;
}

// Texts that occur twice or more, found by sorting the words' suffixes.
class Seeds {
  public:
    explicit Seeds(const std::vector<Word>& all_words);
    std::vector<std::pair<std::string_view, int64_t>> best(size_t most);    // texts and occurrences

  private:
    struct Suffix {
        uint32_t word, at;
    };
    struct Candidate {
        std::string_view text;
        int64_t count;
        size_t length;    // in characters
    };
    const std::vector<Word>& words;
    std::vector<Suffix> suffixes;
    std::vector<Candidate> found;

    std::string_view text_of(const Suffix& s) const {    // the suffix's first LONGEST characters
        const std::string_view rest = std::string_view(words[s.word].text).substr(s.at);
        size_t end = 0;
        for (size_t n = 0; end < rest.size() && n < LONGEST; n++) do
                end++;
            while (end < rest.size() && (rest[end] & 0xC0) == 0x80);
        return rest.substr(0, end);
    }
    void walk();
};

size_t length_of(std::string_view text) {
    return size_t(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

Seeds::Seeds(const std::vector<Word>& all_words) : words(all_words) {
    for (size_t w = 0; w < words.size(); w++)
        for (size_t at = 0; at < words[w].text.size(); at++)
            if ((words[w].text[at] & 0xC0) != 0x80) suffixes.push_back({uint32_t(w), uint32_t(at)});
    // A chunk for each first byte: when all are sorted, the suffixes are sorted as a whole.
    auto first = [&](const Suffix& s) { return static_cast<unsigned char>(words[s.word].text[s.at]); };
    std::vector<size_t> begin(257);
    for (const Suffix& s : suffixes) begin[first(s) + 1u]++;
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    std::vector<Suffix> grouped(suffixes.size());
    std::vector<size_t> next(begin.begin(), begin.end() - 1);
    for (const Suffix& s : suffixes) grouped[next[first(s)]++] = s;
    suffixes = std::move(grouped);
    each_chunk(256, [&](int64_t c, int) {
        std::sort(suffixes.begin() + int64_t(begin[size_t(c)]), suffixes.begin() + int64_t(begin[size_t(c) + 1]),
                  [&](const Suffix& a, const Suffix& b) { return text_of(a) < text_of(b); });
    });
    walk();
}

// Goes over the sorted suffixes with a stack of the texts that the last one begins with and that
// others may begin with, too. A text leaves the stack when no further suffix begins with it.
void Seeds::walk() {
    struct Open {
        size_t bytes;
        int64_t before;    // occurrences of earlier suffixes
        std::string_view text;
    };
    std::vector<Open> open;
    int64_t sum = 0;
    auto close = [&](size_t bytes) {    // texts longer than `bytes`
        int64_t before = sum;
        while (!open.empty() && open.back().bytes > bytes) {
            before = open.back().before;
            const std::string_view text = open.back().text.substr(0, open.back().bytes);
            const size_t length = length_of(text);
            if (length > 1 && sum - before > 1) found.push_back({text, sum - before, length});
            open.pop_back();
        }
        return before;
    };
    std::string_view last;
    for (const Suffix& s : suffixes) {
        const std::string_view text = text_of(s);
        size_t shared = 0;
        while (shared < last.size() && shared < text.size() && last[shared] == text[shared]) shared++;
        while (shared > 0 && shared < text.size() && (text[shared] & 0xC0) == 0x80) shared--;
        const int64_t before = close(shared);
        if (shared && (open.empty() || open.back().bytes < shared)) open.push_back({shared, before, text});
        if (open.empty() || open.back().bytes < text.size()) open.push_back({text.size(), sum, text});
        sum += words[s.word].count;
        last = text;
    }
    close(0);
}

std::vector<std::pair<std::string_view, int64_t>> Seeds::best(size_t most) {
    auto better = [](const Candidate& a, const Candidate& b) {
        const double x = double(a.count) * double(a.length), y = double(b.count) * double(b.length);
        return x != y ? x > y : a.text < b.text;
    };
    std::sort(found.begin(), found.end(), better);
    found.resize(std::min(found.size(), most));
    std::vector<std::pair<std::string_view, int64_t>> texts;
    for (const Candidate& c : found) texts.push_back({c.text, c.count});
    return texts;
}

class Trainer {
  public:
    Trainer(const std::vector<Word>& all_words, std::vector<Piece> seeds)
        : words(all_words), pieces(std::move(seeds)) {}
    void fit();                   // one round of expectation and maximization
    void prune(size_t wanted);    // leaves this many pieces, or three quarters
    std::vector<Piece> all() const { return pieces; }
    size_t size() const { return pieces.size(); }

  private:
    static constexpr int64_t CHUNKS = 256;
    const std::vector<Word>& words;
    std::vector<Piece> pieces;
    struct Edge {
        int begin, end, id;
    };
    // The pieces in a text, by their beginnings.
    static void edges_of(const Trie& trie, std::string_view text, std::vector<Edge>& edges) {
        edges.clear();
        for (size_t at = 0; at < text.size(); at++) {
            if ((text[at] & 0xC0) == 0x80) continue;
            Trie::Node n{Trie::ROOT, -1};
            for (size_t i = at; i < text.size() && n.at != Trie::NONE; i++) {
                n = trie.step(n.at, text[i]);
                if (n.id >= 0) edges.push_back({int(at), int(i + 1), n.id});
            }
        }
    }
    Trie trie() const {
        std::vector<std::string_view> texts;
        for (const Piece& p : pieces) texts.push_back(p.text);
        return Trie(texts);
    }
    // Sums up step(word, counts) over all words, in counts by piece.
    template <class Step> std::vector<int64_t> sum_over_words(const Step& step) const {
        const auto threads = size_t(pool_threads());
        std::vector<std::vector<int64_t>> counts(threads);    // by worker
        each_chunk(CHUNKS, [&](int64_t c, int worker) {
            std::vector<int64_t>& mine = counts[size_t(worker)];
            mine.resize(pieces.size());
            const auto n = int64_t(words.size());
            for (int64_t i = c * n / CHUNKS; i < (c + 1) * n / CHUNKS; i++) step(words[size_t(i)], mine);
        });
        std::vector<int64_t> sum(pieces.size());
        for (const auto& part : counts)
            for (size_t i = 0; i < part.size(); i++) sum[i] += part[i];
        return sum;
    }
    std::vector<int> best(const std::vector<Edge>& edges, size_t size, int without) const;
};

void Trainer::fit() {
    const Trie tree = trie();
    std::vector<double> weight;    // probability * PER_CHARACTER ^ length
    for (const Piece& p : pieces)
        weight.push_back(std::exp(p.score) * std::pow(PER_CHARACTER, double(length_of(p.text))));
    const std::vector<int64_t> counts = sum_over_words([&](const Word& word, std::vector<int64_t>& sums) {
        thread_local std::vector<Edge> edges;
        thread_local std::vector<double> before, after;    // sums over segmentations, by offset
        edges_of(tree, word.text, edges);
        before.assign(word.text.size() + 1, 0);
        after.assign(word.text.size() + 1, 0);
        before[0] = after.back() = 1;
        for (const Edge& e : edges) before[size_t(e.end)] += before[size_t(e.begin)] * weight[size_t(e.id)];
        for (auto e = edges.rbegin(); e != edges.rend(); ++e)
            after[size_t(e->begin)] += after[size_t(e->end)] * weight[size_t(e->id)];
        const double scale = double(word.count) * UNIT / before.back();
        if (!std::isfinite(scale)) return;    // beyond the range of doubles
        for (const Edge& e : edges)
            sums[size_t(e.id)] +=
                std::llround(before[size_t(e.begin)] * weight[size_t(e.id)] * after[size_t(e.end)] * scale);
    });
    std::vector<Piece> kept;
    std::vector<double> expected;
    double sum = 0;
    for (size_t i = 0; i < pieces.size(); i++) {
        const double count = double(counts[i]) / UNIT;
        if (count < 0.5 && !pieces[i].single) continue;
        kept.push_back(std::move(pieces[i]));
        expected.push_back(std::max(count, 0.5));
        sum += expected.back();
    }
    for (size_t i = 0; i < kept.size(); i++) kept[i].score = digamma(expected[i]) - digamma(sum);
    pieces = std::move(kept);
}

// Returns the best segmentation of a text of `size` bytes, without piece `without`; empty: none.
std::vector<int> Trainer::best(const std::vector<Edge>& edges, size_t size, int without) const {
    std::vector<std::pair<double, const Edge*>> at(size + 1, {0, nullptr});
    for (const Edge& e : edges) {
        if (e.id == without || (e.begin && !at[size_t(e.begin)].second)) continue;
        const double score = at[size_t(e.begin)].first + pieces[size_t(e.id)].score;
        auto& to = at[size_t(e.end)];
        if (!to.second || score > to.first) to = {score, &e};
    }
    std::vector<int> ids;
    if (!at[size].second) return ids;
    for (size_t end = size; end > 0; end = size_t(at[end].second->begin)) ids.push_back(at[end].second->id);
    return ids;
}

void Trainer::prune(size_t wanted) {
    const Trie tree = trie();
    const std::vector<int64_t> used = sum_over_words([&](const Word& word, std::vector<int64_t>& sums) {
        thread_local std::vector<Edge> edges;
        edges_of(tree, word.text, edges);
        for (int id : best(edges, word.text.size(), -1)) sums[size_t(id)] += word.count;
    });
    const double sum = double(std::accumulate(used.begin(), used.end(), int64_t(0)));
    // By piece: how much the likelihood falls if its best segmentation into others replaces it.
    std::vector<double> loss(pieces.size());
    each_chunk(CHUNKS, [&](int64_t c, int) {
        std::vector<Edge> edges;
        const auto n = int64_t(pieces.size());
        for (auto i = size_t(c * n / CHUNKS); i < size_t((c + 1) * n / CHUNKS); i++) {
            loss[i] = pieces[i].single ? INFINITY : -INFINITY;
            if (pieces[i].single || used[i] == 0) continue;
            edges_of(tree, pieces[i].text, edges);
            const std::vector<int> others = best(edges, pieces[i].text.size(), int(i));
            const double count = double(used[i]), whole = std::log(count) - std::log(sum);
            const double more = std::log(sum + count * (double(others.size()) - 1));
            double apart = 0;
            for (int id : others) apart += std::log(double(used[size_t(id)]) + count) - more;
            loss[i] = count * (whole - apart);
        }
    });
    std::vector<size_t> order;
    for (size_t i = 0; i < pieces.size(); i++)
        if (loss[i] != -INFINITY) order.push_back(i);
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return loss[a] != loss[b] ? loss[a] > loss[b] : a < b; });
    order.resize(std::min(order.size(), std::max(wanted, size_t(KEPT * double(pieces.size())))));
    std::sort(order.begin(), order.end());
    std::vector<Piece> kept;
    for (size_t i : order) kept.push_back(std::move(pieces[i]));
    pieces = std::move(kept);
}

// T5's special tokens; text is normalized by NFKC, and white space between words is one space.
Vocabulary unigram_vocabulary() {
    Vocabulary v;
    v.model = ModelKind::unigram;
    v.symbols = Symbols::characters;
    v.pattern = Pattern::metaspace;
    v.spaces = Spaces::marked_words;
    v.normalization = {{Normalization::Kind::nfkc, "", ""}};
    v.strip = Strip::first_marks;
    for (const char* name : {"<pad>", "</s>", "<unk>"}) {
        v.added.push_back({.id = int(v.tokens.size()), .special = true});
        v.tokens.push_back(name);
    }
    v.pad = 0, v.eos = 1, v.unknown = 2;
    v.after = {v.eos};
    v.pair = {{TemplatePart::FIRST, 0}, {v.eos, 0}, {TemplatePart::SECOND, 0}, {v.eos, 0}};
    v.scores.resize(v.tokens.size());
    return v;
}
}    // namespace

Result<Tokenizer> unigram_train(const TokenizerTraining& training) {
    Vocabulary v = unigram_vocabulary();
    WordCounts counts = TRY(count_words(training, v));
    std::unordered_map<std::string, int64_t> characters;
    const std::vector<Word> words = covered_words(counts, characters);
    WordCounts().swap(counts);
    const size_t fixed = v.tokens.size() + characters.size();
    if (training.vocab <= int64_t(fixed) || training.vocab > MAX_VOCAB)
        return fail(Exit::usage, "vocabulary: expected %zu (special tokens and characters) < size <= %d, found %d",
                    fixed, MAX_VOCAB, training.vocab);
    std::vector<Piece> seeds;
    for (auto& [c, n] : characters) seeds.push_back({c, double(n), true});
    std::sort(seeds.begin(), seeds.end(), [](const Piece& a, const Piece& b) { return a.text < b.text; });
    for (auto& [text, n] : Seeds(words).best(SEEDS)) seeds.push_back({std::string(text), double(n), false});
    double sum = 0;
    for (const Piece& p : seeds) sum += p.score;
    for (Piece& p : seeds) p.score = std::log(p.score) - std::log(sum);
    Trainer trainer(words, std::move(seeds));
    const auto wanted = size_t(training.vocab) - v.tokens.size(), enough = size_t(SLACK * double(wanted));
    for (;;) {
        for (int i = 0; i < 2; i++) trainer.fit();
        if (training.progress) training.progress("prune", int64_t(trainer.size()), int64_t(enough));
        if (trainer.size() <= enough) break;
        trainer.prune(enough);
    }
    std::vector<Piece> pieces = trainer.all();
    auto by_score = [](const Piece& a, const Piece& b) {
        return a.score != b.score ? a.score > b.score : a.text < b.text;
    };
    std::sort(pieces.begin(), pieces.end(),
              [&](auto& a, auto& b) { return a.single != b.single ? a.single : by_score(a, b); });
    pieces.resize(std::min(pieces.size(), wanted));
    std::sort(pieces.begin(), pieces.end(), by_score);
    for (const Piece& p : pieces) {
        v.tokens.push_back(p.text);
        v.scores.push_back(p.score);
    }
    return Tokenizer(std::move(v));
}
