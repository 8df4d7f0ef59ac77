// bpe_train.cpp - learns the merges of a byte-pair encoding. A WordPiece vocabulary is learnt by
// the same merges, of characters; symbols within a word have the prefix "##".
//
// While the text is read, all cores count its distinct pieces; only these are kept. They are then
// stored one after the other, a symbol for each byte or character, and merged in place. Each pair
// has the list of its offsets, so a merge costs time in proportion to its occurrences.
#include <algorithm>
#include <queue>
#include <unordered_map>

#include "base/console.h"
#include "tokenizer_models/training.h"

namespace {
constexpr int MAX_VOCAB = 1 << 20, MOST_CHARACTERS = 1000;
const std::vector<std::string> BERT_SPECIAL = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};

class Merger {
  public:
    explicit Merger(const WordCounts& counts);    // symbols are bytes
    // Symbols are the `most` most frequent characters; words are cut at others.
    Merger(const WordCounts& counts, size_t most);
    // Merges the next pair, in the order that bpe.h defines, into a new token; false: no pair is
    // left.
    bool step(std::pair<int, int>& merged);
    size_t tokens() const { return token.size(); }
    std::string spelled(size_t id) const { return (inside[id] ? "##" : "") + token[id]; }

  private:
    struct Pair {
        int64_t count = 0;
        std::vector<uint32_t> offsets;    // left symbols, ascending; some are stale
    };
    struct Candidate {
        int64_t count;
        uint64_t pair;
        bool operator<(const Candidate& o) const { return count != o.count ? count < o.count : pair > o.pair; }
    };
    static constexpr int END = -1, INSIDE = -2;
    static uint64_t key(int left, int right) { return uint64_t(left) << 32 | uint32_t(right); }

    // symbol[i] belongs to byte i. The first byte of a symbol holds its id. If the symbol has
    // several bytes, the last one holds -2 - (offset of the first, at least 1), and those between
    // hold INSIDE. END stands before, between and after pieces.
    std::vector<int> symbol;
    std::vector<uint32_t> piece;       // index of the piece, by offset
    std::vector<int64_t> weight;       // by piece: its number of occurrences
    std::vector<std::string> token;    // by id
    // WordPiece: whether a token continues a word, by id; ids of all tokens as they are spelled.
    // Two merges may give one token.
    std::vector<char> inside;
    std::unordered_map<std::string, int> ids;
    std::unordered_map<uint64_t, Pair> pairs;
    std::priority_queue<Candidate> queue;

    size_t after(size_t at) const { return at + token[size_t(symbol[at])].size(); }
    size_t before(size_t at) const { return symbol[at - 1] < END ? size_t(-2 - symbol[at - 1]) : at - 1; }
    void merge_at(size_t at, int left, int right, int id, std::vector<uint64_t>& created);
    void count_pairs();
    int new_token(std::string text, bool continues);
};

Merger::Merger(const WordCounts& counts) {
    auto order = gpt2_byte_order();
    int id_of[256];
    for (int i = 0; i < 256; i++) {
        id_of[order[size_t(i)]] = i;
        token.emplace_back(1, char(order[size_t(i)]));
    }
    symbol.push_back(END);
    piece.push_back(0);
    for (auto& [text, n] : counts) {    // order does not matter for the merges
        for (char c : text) symbol.push_back(id_of[static_cast<unsigned char>(c)]);
        symbol.push_back(END);
        piece.resize(symbol.size(), uint32_t(weight.size()));
        weight.push_back(n);
    }
    count_pairs();
}

Merger::Merger(const WordCounts& counts, size_t most) {
    std::unordered_map<std::string_view, int64_t> occurrences, within;    // by character
    for (auto& [text, n] : counts) {
        const std::vector<std::string_view> characters = characters_of(text);
        for (size_t i = 0; i < characters.size(); i++) {
            occurrences[characters[i]] += n;
            if (i) within[characters[i]] += n;
        }
    }
    std::vector<std::pair<int64_t, std::string_view>> kept;
    for (auto& [character, n] : occurrences) kept.push_back({-n, character});
    std::sort(kept.begin(), kept.end());
    kept.resize(std::min(kept.size(), most));
    std::sort(kept.begin(), kept.end(), [](auto& a, auto& b) { return a.second < b.second; });
    for (auto& [n, character] : kept) new_token(std::string(character), false);
    for (auto& [n, character] : kept)
        if (within.contains(character)) new_token(std::string(character), true);
    symbol.push_back(END);
    piece.push_back(0);
    for (auto& [text, n] : counts) {
        bool first = true;
        for (std::string_view c : characters_of(text)) {
            const auto id = ids.find((first ? "" : "##") + std::string(c));
            first = false;
            if (id == ids.end() && symbol.back() != END) symbol.push_back(END);
            if (id == ids.end()) continue;
            const size_t at = symbol.size();
            symbol.resize(at + c.size(), INSIDE);
            symbol[at] = id->second;
            if (c.size() > 1) symbol.back() = -2 - int(at);
        }
        if (symbol.back() != END) symbol.push_back(END);
        piece.resize(symbol.size(), uint32_t(weight.size()));
        weight.push_back(n);
    }
    count_pairs();
}

int Merger::new_token(std::string text, bool continues) {
    const auto id = int(token.size());
    const auto [known, added] = ids.emplace((continues ? "##" : "") + text, id);
    if (!added) return known->second;
    token.push_back(std::move(text));
    inside.push_back(continues);
    return id;
}

void Merger::count_pairs() {
    for (size_t i = 1; i + 1 < symbol.size(); i++) {
        if (symbol[i] < 0) continue;
        const size_t next = after(i);
        if (symbol[next] == END) continue;
        Pair& p = pairs[key(symbol[i], symbol[next])];
        p.count += weight[piece[i]];
        p.offsets.push_back(uint32_t(i));
    }
    for (auto& [pair, p] : pairs) queue.push({p.count, pair});
}

// Merges the pair at `at`, unless it was merged away, and updates the counts of adjacent pairs.
void Merger::merge_at(size_t at, int left, int right, int id, std::vector<uint64_t>& created) {
    const bool known = size_t(id) + 1 < token.size();    // pairs with id may have counts
    if (symbol[at] != left) return;                      // merged away
    size_t middle = after(at);
    if (symbol[middle] != right) return;
    size_t end = after(middle);
    int64_t n = weight[piece[at]];
    symbol[middle - 1] = symbol[middle] = INSIDE;
    symbol[at] = id;
    symbol[end - 1] = -2 - int(at);
    auto change = [&](size_t offset, int old_left, int old_right, int new_left, int new_right) {
        pairs[key(old_left, old_right)].count -= n;
        Pair& p = pairs[key(new_left, new_right)];
        if (p.offsets.empty() || known) created.push_back(key(new_left, new_right));
        p.count += n;
        p.offsets.push_back(uint32_t(offset));
    };
    if (symbol[at - 1] != END) {
        size_t previous = before(at);
        change(previous, symbol[previous], left, symbol[previous], id);
    }
    if (symbol[end] != END) change(at, right, symbol[end], id, symbol[end]);
}

bool Merger::step(std::pair<int, int>& merged) {
    while (!queue.empty()) {
        auto [count, pair] = queue.top();
        queue.pop();
        auto it = pairs.find(pair);
        if (it == pairs.end() || it->second.count < 2) continue;
        if (it->second.count != count) {    // stale entry; counts only fall after the pair is created
            queue.push({it->second.count, pair});
            continue;
        }
        int left = int(pair >> 32), right = int(uint32_t(pair));
        auto id = int(token.size());
        if (inside.empty()) token.push_back(token[size_t(left)] + token[size_t(right)]);
        else id = new_token(token[size_t(left)] + token[size_t(right)], inside[size_t(left)]);
        std::vector<uint32_t> offsets = std::move(it->second.offsets);
        pairs.erase(it);
        std::vector<uint64_t> created;
        if (!inside.empty()) std::sort(offsets.begin(), offsets.end());
        for (uint32_t at : offsets) merge_at(at, left, right, id, created);    // from the left: aaa becomes (aa)a
        pairs.erase(pair);
        for (uint64_t p : created) queue.push({pairs[p].count, p});
        merged = {left, right};
        return true;
    }
    return false;
}

Status check_size(const WordCounts& counts) {
    int64_t symbols = 1;
    for (auto& [piece, n] : counts) symbols += int64_t(piece.size()) + 1;
    if (symbols < INT32_MAX) return {};
    return fail(Exit::input, "expected less than 2 GiB of distinct words, found %lld bytes", (long long)symbols);
}
}    // namespace

Result<Tokenizer> bpe_train(const TokenizerTraining& training) {
    constexpr int FIXED = 256 + 1;
    if (training.vocab <= FIXED || training.vocab > MAX_VOCAB)
        return fail(Exit::usage, "vocabulary: expected %d (bytes and <|endoftext|>) < size <= %d, found %d", FIXED,
                    MAX_VOCAB, training.vocab);
    Vocabulary plain;
    plain.pattern = training.pattern;
    WordCounts counts = TRY(count_words(training, plain));
    TRY(check_size(counts));
    Merger merger(counts);
    WordCounts().swap(counts);
    const int64_t wanted = training.vocab - FIXED;
    std::vector<std::pair<int, int>> merges;
    for (std::pair<int, int> m; int64_t(merges.size()) < wanted && merger.step(m);) {
        merges.push_back(m);
        if (training.progress) training.progress("merge", int64_t(merges.size()), wanted);
    }
    return Tokenizer::from_merges(merges, training.pattern, {"<|endoftext|>"});
}

Result<Tokenizer> wordpiece_train(const TokenizerTraining& training) {
    Vocabulary v;
    v.model = ModelKind::wordpiece;
    v.symbols = Symbols::characters;
    v.pattern = Pattern::bert;
    const std::string steps = {BERT_CLEAN, BERT_CHINESE, BERT_ACCENTS, BERT_LOWERCASE};
    v.normalization = {{Normalization::Kind::bert, "", training.cased ? steps.substr(0, 2) : steps}};
    v.strip = Strip::words;
    v.cleanup = true;
    for (const std::string& name : BERT_SPECIAL) {
        v.added.push_back({.id = int(v.tokens.size()), .special = true});
        v.tokens.push_back(name);
    }
    v.pad = 0;
    v.unknown = 1;
    v.cls = v.bos = 2;
    v.sep = v.eos = 3;
    v.mask = 4;
    v.before = {v.cls};
    v.after = {v.sep};
    v.pair = {{v.cls, 0}, {TemplatePart::FIRST, 0}, {v.sep, 0}, {TemplatePart::SECOND, 1}, {v.sep, 1}};
    WordCounts counts = TRY(count_words(training, v));
    TRY(check_size(counts));
    Merger merger(counts, MOST_CHARACTERS);
    WordCounts().swap(counts);
    const int64_t fixed = std::ssize(v.tokens) + int64_t(merger.tokens());
    if (training.vocab <= fixed || training.vocab > MAX_VOCAB)
        return fail(Exit::usage, "vocabulary: expected %lld (special tokens and characters) < size <= %d, found %d",
                    (long long)fixed, MAX_VOCAB, training.vocab);
    const auto wanted = size_t(training.vocab) - v.tokens.size();
    for (std::pair<int, int> m; merger.tokens() < wanted && merger.step(m);)
        if (training.progress) training.progress("merge", int64_t(merger.tokens()) - fixed, training.vocab - fixed);
    for (size_t id = 0; id < merger.tokens(); id++) v.tokens.push_back(merger.spelled(id));
    return Tokenizer(std::move(v));
}
