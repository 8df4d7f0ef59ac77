// bpe_train.cpp - learns the merges of a byte-pair encoding.
//
// While the text is read, all cores count its distinct pieces; only these are kept. They are then
// stored one after the other, a symbol for each byte, and merged in place. Each pair has the list
// of its offsets, so a merge costs time in proportion to its occurrences.
#include <optional>
#include <queue>
#include <span>
#include <unordered_map>

#include "base/console.h"
#include "base/pool.h"
#include "bpe.h"

namespace {
constexpr size_t CHUNK = 1 << 20;      // bytes of text per counting task
constexpr int64_t BATCH = 32 << 20;    // bytes of text that wait for the threads
constexpr int MAX_VOCAB = 1 << 20;

struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
};
using Counts = std::unordered_map<std::string, int64_t, Hash, std::equal_to<>>;

void count_pieces(Splitter& pieces, std::string_view text, Counts& counts) {
    pieces.start(text);
    std::string_view some[256];
    while (const size_t n = pieces.next(some, std::size(some)))
        for (std::string_view piece : std::span(some, n)) {
            auto it = counts.find(piece);
            if (it == counts.end()) it = counts.emplace(piece, 0).first;
            it->second++;
        }
}

// Counts how often each distinct piece occurs in the whole text.
Result<Counts> count_all(const BpeTraining& training) {
    auto threads = size_t(pool_threads());
    Counts all;
    std::vector<Counts> counts(threads);    // current batch's, by worker
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
            for (size_t cut = 1; text.size() > CHUNK && (cut = safe_cut(training.pattern, text, CHUNK)) > 0;) {
                batch.push_back(text.substr(0, cut));
                text.erase(0, cut);
            }
            batch.push_back(std::move(text));
        }
        each_chunk(int64_t(batch.size()), [&](int64_t i, int worker) {
            std::optional<Splitter>& pieces = splitters[size_t(worker)];
            if (!pieces) pieces.emplace(training.pattern);
            count_pieces(*pieces, batch[size_t(i)], counts[size_t(worker)]);
        });
        for (Counts& some : counts) {
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
    return all;
}

class Merger {
  public:
    explicit Merger(const Counts& counts);
    // Merges the next pair, in the order that bpe.h defines, into a new token; false: no pair is
    // left.
    bool step(std::pair<int, int>& merged);

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
    std::unordered_map<uint64_t, Pair> pairs;
    std::priority_queue<Candidate> queue;

    size_t after(size_t at) const { return at + token[size_t(symbol[at])].size(); }
    size_t before(size_t at) const { return symbol[at - 1] < END ? size_t(-2 - symbol[at - 1]) : at - 1; }
    void merge_at(size_t at, int left, int right, int id, std::vector<uint64_t>& created);
};

Merger::Merger(const Counts& counts) {
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
    for (size_t i = 1; i + 1 < symbol.size(); i++) {
        if (symbol[i] == END || symbol[i + 1] == END) continue;
        Pair& p = pairs[key(symbol[i], symbol[i + 1])];
        p.count += weight[piece[i]];
        p.offsets.push_back(uint32_t(i));
    }
    for (auto& [pair, p] : pairs) queue.push({p.count, pair});
}

// Merges the pair at `at`, unless it was merged away, and updates the counts of adjacent pairs.
void Merger::merge_at(size_t at, int left, int right, int id, std::vector<uint64_t>& created) {
    if (symbol[at] != left) return;
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
        if (p.offsets.empty()) created.push_back(key(new_left, new_right));
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
        token.push_back(token[size_t(left)] + token[size_t(right)]);
        std::vector<uint32_t> offsets = std::move(it->second.offsets);
        pairs.erase(it);
        std::vector<uint64_t> created;
        for (uint32_t at : offsets) merge_at(at, left, right, id, created);    // from the left: aaa becomes (aa)a
        pairs.erase(pair);
        for (uint64_t p : created) queue.push({pairs[p].count, p});
        merged = {left, right};
        return true;
    }
    return false;
}
}    // namespace

Result<Tokenizer> bpe_train(const BpeTraining& training) {
    int64_t fixed = 256 + int64_t(training.special.size());
    if (training.vocab <= fixed || training.vocab > MAX_VOCAB)
        return fail(Exit::usage, "vocabulary: expected %lld (bytes and special tokens) < size <= %d, found %d",
                    (long long)fixed, MAX_VOCAB, training.vocab);
    Counts counts = TRY(count_all(training));
    int64_t symbols = 1;
    for (auto& [piece, n] : counts) symbols += int64_t(piece.size()) + 1;
    if (counts.empty()) return fail(Exit::input, "expected text to train a tokenizer on, found none");
    if (symbols >= INT32_MAX)
        return fail(Exit::input, "expected less than 2 GiB of distinct words, found %lld bytes", (long long)symbols);
    Merger merger(counts);
    Counts().swap(counts);
    auto wanted = int64_t(training.vocab) - fixed;
    std::vector<std::pair<int, int>> merges;
    for (std::pair<int, int> m; int64_t(merges.size()) < wanted && merger.step(m);) {
        merges.push_back(m);
        if (training.progress) training.progress("merge", int64_t(merges.size()), wanted);
    }
    return Tokenizer::from_merges(merges, training.pattern, training.special);
}
