// bpe.cpp - encode and decode.
//
// Most pieces are tokens as a whole and cost one probe of a hash table. The others are merged: short ones in an array,
// O(n^2) in registers and one cache line; long ones with a linked list and a heap, O(n log n) for any text.
#include "bpe.h"

#include <algorithm>
#include <cstring>
#include <queue>
#include <unordered_map>

#include "base/console.h"

extern "C" const uint16_t gpt2_merges[100000];

namespace {
constexpr uint32_t NONE = UINT32_MAX;
constexpr size_t SHORT = 48;            // bytes of a piece that is merged in an array
constexpr size_t CHUNK = 128 << 10;     // bytes of text that a thread takes at a time
constexpr size_t KEY = 15;              // bytes that fit into a Key

uint64_t mix(uint64_t a, uint64_t b) {
    a = (a ^ 0x9E3779B97F4A7C15u) * ((b + 0xD6E8FEB86659FD93u) | 1);
    return a ^ a >> 32;
}

// A piece of up to 15 bytes with its length: two words, compared and hashed at once.
struct Key {
    uint64_t low = 0, high = 0;
    bool operator==(const Key& o) const { return low == o.low && high == o.high; }
    uint64_t hash() const { return mix(low, high); }
};
template <class T> uint64_t load(const char* p) {
    T value;
    memcpy(&value, p, sizeof value);
    return value;
}
Key key_of(std::string_view piece) {    // from loads of fixed sizes that overlap: no loop over the bytes
    Key k;
    const char* p = piece.data();
    size_t n = piece.size();
    if (n > 8) {
        k = {load<uint64_t>(p), load<uint64_t>(p + n - 8) >> (128 - 8 * n)};
    } else if (n >= 4) {
        k.low = load<uint32_t>(p) | load<uint32_t>(p + n - 4) << 8 * (n - 4);
    } else {
        for (size_t i : {size_t(0), n / 2, n - 1}) k.low |= load<uint8_t>(p + i) << 8 * i;
    }
    k.high |= uint64_t(n) << 56;
    return k;
}

// Open addressing, never more than half full.
size_t slots_for(size_t entries) {
    size_t n = 16;
    while (n < 2 * entries) n *= 2;
    return n;
}

// (left, right) -> place in the merge order.
class PairTable {
  public:
    explicit PairTable(const std::vector<Merge>& merges) : slots(slots_for(merges.size())), mask(slots.size() - 1) {
        for (size_t i = 0; i < merges.size(); i++) {    // the last of equal pairs counts, as in Hugging Face
            Slot& s = slots[place(uint32_t(merges[i].left), uint32_t(merges[i].right))];
            s = {uint32_t(merges[i].left), uint32_t(merges[i].right), uint32_t(i)};
        }
    }
    uint32_t rank(int left, int right) const { return slots[place(uint32_t(left), uint32_t(right))].rank; }

  private:
    struct Slot { uint32_t left = NONE, right = NONE, rank = NONE; };
    std::vector<Slot> slots;
    size_t mask;
    size_t place(uint32_t left, uint32_t right) const {
        size_t i = mix(left, right) & mask;
        while (slots[i].left != NONE && (slots[i].left != left || slots[i].right != right)) i = (i + 1) & mask;
        return i;
    }
};

// Pieces that are one token: those of up to KEY bytes by key, the few longer ones by an ordinary map.
class WholeTable {
  public:
    explicit WholeTable(size_t entries) : slots(slots_for(entries)), mask(slots.size() - 1) {}
    void add(std::string_view token, int id) {
        if (token.size() <= KEY) {
            Key k = key_of(token);
            slots[place(k)] = {k, id};
        } else {
            longer.emplace(token, id);
        }
    }
    int find(const Key& k) const { return slots[place(k)].id; }
    int find_longer(std::string_view piece) const {
        auto it = longer.find(piece);
        return it == longer.end() ? -1 : it->second;
    }

  private:
    struct Slot { Key key; int id = -1; };
    std::vector<Slot> slots;
    size_t mask;
    std::unordered_map<std::string_view, int> longer;
    size_t place(const Key& k) const {
        size_t i = k.hash() & mask;
        while (slots[i].id >= 0 && !(slots[i].key == k)) i = (i + 1) & mask;
        return i;
    }
};
}   // namespace

struct Tokenizer::Tables {
    Vocabulary v;
    std::array<int, 256> byte_id;
    PairTable pairs;
    WholeTable whole;
    std::vector<int> added;             // ids by descending length of their names: the longest is tried first
    std::vector<char> kind;             // by id: 0 ordinary, 1 added, 2 special
    std::array<bool, 256> first = {};   // whether a name begins with this byte
    bool always = false;                // some added token is recognised in every text
    int end_of_text = -1;
    uint64_t fingerprint = 0;

    explicit Tables(Vocabulary vocabulary);
    void merge_short(std::string_view piece, std::vector<int>& out) const;
    void merge_long(std::string_view piece, std::vector<int>& out) const;
    void merge(std::string_view piece, std::vector<int>& out) const {
        piece.size() <= SHORT ? merge_short(piece, out) : merge_long(piece, out);
    }
    void encode_serial(std::string_view text, std::vector<int>& out) const;
    void encode_ordinary(std::string_view text, std::vector<int>& out) const;
    int added_at(std::string_view text, bool special) const;
};

namespace {
// Shards hold the result: it must never change.
uint64_t hash_vocabulary(const Vocabulary& v) {
    uint64_t h = HASH_START;
    auto add = [&h](uint64_t word) { h = mix(h ^ word, 0); };
    auto add_text = [&](std::string_view text) {
        add(text.size());
        for (size_t i = 0; i < text.size(); i += 8) {
            uint64_t word = 0;
            memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
            add(word);
        }
    };
    add_text(pattern_text(v.pattern));
    add(v.ignore_merges);
    add(v.tokens.size());
    for (const std::string& token : v.tokens) add_text(token);
    add(v.merges.size());
    for (const Merge& m : v.merges) add(uint64_t(m.left) << 32 | uint32_t(m.right)), add(uint64_t(m.id));
    std::vector<uint64_t> added;    // files list them in any order
    for (const AddedToken& a : v.added) added.push_back(uint64_t(a.id) << 1 | a.special);
    std::sort(added.begin(), added.end());
    for (uint64_t a : added) add(a);
    return h ? h : 1;
}
}   // namespace

Tokenizer::Tables::Tables(Vocabulary vocabulary)
    : v(std::move(vocabulary)), pairs(v.merges), whole(v.tokens.size()), kind(v.tokens.size()) {
    for (const AddedToken& a : v.added) {
        const std::string& name = v.tokens[size_t(a.id)];
        CHECK(!name.empty(), "added token %d", a.id);
        kind[size_t(a.id)] = a.special ? 2 : 1;
        first[static_cast<unsigned char>(name[0])] = true;
        always |= !a.special;
        added.push_back(a.id);
        if (name == "<|endoftext|>") end_of_text = a.id;
    }
    std::stable_sort(added.begin(), added.end(),
                     [&](int a, int b) { return v.tokens[size_t(a)].size() > v.tokens[size_t(b)].size(); });
    byte_id.fill(-1);
    for (size_t id = 0; id < v.tokens.size(); id++)
        if (v.tokens[id].size() == 1 && !kind[id]) byte_id[static_cast<unsigned char>(v.tokens[id][0])] = int(id);
    CHECK(std::count(byte_id.begin(), byte_id.end(), -1) == 0, "a byte has no token");
    for (const Merge& m : v.merges)
        CHECK(v.tokens[size_t(m.id)] == v.tokens[size_t(m.left)] + v.tokens[size_t(m.right)], "token %d", m.id);
    std::vector<int> ids;
    for (size_t id = 0; id < v.tokens.size(); id++) {
        if (kind[id] || v.tokens[id].empty()) continue;
        ids.clear();
        if (!v.ignore_merges) merge(v.tokens[id], ids);
        if (v.ignore_merges || (ids.size() == 1 && ids[0] == int(id))) whole.add(v.tokens[id], int(id));
    }
    fingerprint = hash_vocabulary(v);
}

// The pair that comes first in the merge order, the leftmost of equal ones, until there is none.
void Tokenizer::Tables::merge_short(std::string_view piece, std::vector<int>& out) const {
    int id[SHORT];
    uint32_t rank[SHORT];    // rank[i]: of the pair (id[i], id[i+1])
    size_t n = piece.size();
    for (size_t i = 0; i < n; i++) id[i] = byte_id[static_cast<unsigned char>(piece[i])];
    for (size_t i = 0; i + 1 < n; i++) rank[i] = pairs.rank(id[i], id[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == NONE) break;
        id[best] = v.merges[rank[best]].id;
        n--;
        for (size_t i = best + 1; i < n; i++) id[i] = id[i + 1];
        for (size_t i = best; i + 1 < n; i++) rank[i] = rank[i + 1];
        if (best > 0) rank[best - 1] = pairs.rank(id[best - 1], id[best]);
        if (best + 1 < n) rank[best] = pairs.rank(id[best], id[best + 1]);
    }
    out.insert(out.end(), id, id + n);
}

// The same order from a heap of (rank, place). An entry whose pair has changed since is passed over.
void Tokenizer::Tables::merge_long(std::string_view piece, std::vector<int>& out) const {
    CHECK(piece.size() < NONE, "a piece of %zu bytes", piece.size());
    struct Node { int id; uint32_t previous, next, rank; };    // rank: of the pair with the next node
    auto n = uint32_t(piece.size());
    std::vector<Node> node(n);
    std::vector<uint64_t> entries;
    entries.reserve(n);
    for (uint32_t i = 0; i < n; i++)
        node[i] = {byte_id[static_cast<unsigned char>(piece[i])], i - 1, i + 1 < n ? i + 1 : NONE, NONE};
    for (uint32_t i = 0; i + 1 < n; i++) {
        node[i].rank = pairs.rank(node[i].id, node[i + 1].id);
        if (node[i].rank != NONE) entries.push_back(uint64_t(node[i].rank) << 32 | i);
    }
    std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> heap({}, std::move(entries));
    auto update = [&](uint32_t i) {
        Node& a = node[i];
        a.rank = a.next == NONE ? NONE : pairs.rank(a.id, node[a.next].id);
        if (a.rank != NONE) heap.push(uint64_t(a.rank) << 32 | i);
    };
    while (!heap.empty()) {
        auto rank = uint32_t(heap.top() >> 32), i = uint32_t(heap.top());
        heap.pop();
        Node& a = node[i];
        if (a.rank != rank) continue;
        Node& b = node[a.next];
        a.id = v.merges[rank].id;
        a.next = b.next;
        b.rank = NONE;
        if (a.next != NONE) node[a.next].previous = i;
        update(i);
        if (a.previous != NONE) update(a.previous);
    }
    for (uint32_t i = 0; i != NONE; i = node[i].next) out.push_back(node[i].id);
}

void Tokenizer::Tables::encode_serial(std::string_view text, std::vector<int>& out) const {
    Splitter pieces(v.pattern);
    pieces.start(text);
    for (std::string_view piece; pieces.next(piece);) {
        int id = piece.size() <= KEY ? whole.find(key_of(piece)) : whole.find_longer(piece);
        id >= 0 ? out.push_back(id) : merge(piece, out);
    }
}

// Text without added tokens, in chunks that end where a piece does. Inside a parallel region this one has one thread.
void Tokenizer::Tables::encode_ordinary(std::string_view text, std::vector<int>& out) const {
    if (text.size() < 2 * CHUNK) return encode_serial(text, out);
    std::vector<std::string_view> chunks;
    while (!text.empty()) {
        size_t cut = 0;
        for (size_t n = CHUNK; cut == 0; n *= 2) cut = n < text.size() ? ::safe_cut(v.pattern, text, n) : text.size();
        chunks.push_back(text.substr(0, cut));
        text.remove_prefix(cut);
    }
    std::vector<std::vector<int>> ids(chunks.size());
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < chunks.size(); i++) encode_serial(chunks[i], ids[i]);
    for (auto& part : ids) out.insert(out.end(), part.begin(), part.end());
}

// The longest added token that text begins with, or -1.
int Tokenizer::Tables::added_at(std::string_view text, bool special) const {
    if (!first[static_cast<unsigned char>(text[0])]) return -1;
    for (int id : added)
        if ((special || kind[size_t(id)] == 1) && text.starts_with(v.tokens[size_t(id)])) return id;
    return -1;
}

Tokenizer::Tokenizer() = default;
Tokenizer::Tokenizer(Vocabulary vocabulary) : t(std::make_shared<Tables>(std::move(vocabulary))) {}

std::array<unsigned char, 256> gpt2_byte_order() {
    std::array<unsigned char, 256> order;
    size_t n = 0;
    auto visible = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b != 173); };
    for (int pass = 0; pass < 2; pass++)
        for (int b = 0; b < 256; b++)
            if (visible(b) == (pass == 0)) order[n++] = static_cast<unsigned char>(b);
    return order;
}

Tokenizer Tokenizer::from_merges(const std::vector<std::pair<int, int>>& merges, Pattern pattern,
                                 const std::vector<std::string>& special) {
    Vocabulary v;
    v.pattern = pattern;
    for (unsigned char b : gpt2_byte_order()) v.tokens.emplace_back(1, char(b));
    for (auto [left, right] : merges) {
        auto id = int(v.tokens.size());
        CHECK(left >= 0 && right >= 0 && left < id && right < id, "merge %d: (%d, %d)", id - 256, left, right);
        v.merges.push_back({left, right, id});
        v.tokens.push_back(v.tokens[size_t(left)] + v.tokens[size_t(right)]);
    }
    for (const std::string& name : special) {
        v.added.push_back({int(v.tokens.size()), true});
        v.tokens.push_back(name);
    }
    return Tokenizer(std::move(v));
}

Tokenizer Tokenizer::gpt2() {
    std::vector<std::pair<int, int>> merges;
    for (int i = 0; i < 50000; i++) merges.emplace_back(gpt2_merges[2 * i], gpt2_merges[2 * i + 1]);
    return from_merges(merges, Pattern::gpt2, {"<|endoftext|>"});
}

const Vocabulary& Tokenizer::vocabulary() const {
    static const Vocabulary empty;
    return t ? t->v : empty;
}
int Tokenizer::vocab_size() const { return int(vocabulary().tokens.size()); }
int Tokenizer::end_of_text() const { return t ? t->end_of_text : -1; }
std::string_view Tokenizer::token(int id) const {
    CHECK(id >= 0 && id < vocab_size(), "token %d of %d", id, vocab_size());
    return t->v.tokens[size_t(id)];
}
uint64_t Tokenizer::fingerprint() const { return t ? t->fingerprint : 0; }
bool Tokenizer::is_special(int id) const { return id >= 0 && id < vocab_size() && t->kind[size_t(id)] == 2; }

std::vector<int> Tokenizer::encode(std::string_view text, bool special) const {
    std::vector<int> out;
    CHECK(t || text.empty(), "encode without a vocabulary");
    if (!t) return out;
    size_t from = 0;
    for (size_t i = 0; (special || t->always) && i < text.size();) {
        int id = t->added_at(text.substr(i), special);
        if (id < 0) { i++; continue; }
        t->encode_ordinary(text.substr(from, i - from), out);
        out.push_back(id);
        from = i += t->v.tokens[size_t(id)].size();
    }
    t->encode_ordinary(text.substr(from), out);
    return out;
}

std::string Tokenizer::decode(const std::vector<int>& ids) const {
    std::string text;
    for (int id : ids) text += token(id);
    return text;
}

size_t Tokenizer::safe_cut(std::string_view text, size_t limit) const {
    if (!t || t->always) return 0;    // an added token may contain spaces
    return ::safe_cut(t->v.pattern, text, limit);
}

// ---- streaming ------------------------------------------------------------------------------------------------------

namespace {
// Moves characters from `from` to the result; what a later byte could complete stays unless at the end.
std::string take(std::string& from, bool end) {
    std::string out;
    size_t at = 0;
    while (at < from.size()) {
        bool complete = false;
        size_t n = utf8_character(std::string_view(from).substr(at), complete);
        auto lead = static_cast<unsigned char>(from[at]);
        if (!complete && !end && at + n == from.size() && lead >= 0xC2 && lead <= 0xF4) break;
        complete ? out.append(from, at, n) : out.append("\xEF\xBF\xBD");
        at += n;
    }
    from.erase(0, at);
    return out;
}
}   // namespace

std::string StreamDecoder::push(std::string_view bytes) {
    waiting += bytes;
    return take(waiting, false);
}
std::string StreamDecoder::finish() { return take(waiting, true); }
