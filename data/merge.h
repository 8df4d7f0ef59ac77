// merge.h - byte-pair encoding of one piece: while any pair can merge, the pair that is first in
// the merge order is merged, of equal pairs the leftmost.
//
// Most pieces have occurred before and cost one look-up in a cache of their ids (PieceCache). New
// pieces that are tokens themselves cost one more, in a table of these. Other short pieces are
// merged in an array on the stack, in O(n^2) time; long ones with a heap, in O(n log n) for any
// text.
#pragma once
#include <algorithm>
#include <array>
#include <bitset>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer_models/piece_model.h"
#include "vocabulary.h"

inline uint64_t mix(uint64_t a, uint64_t b) {
    a = (a ^ 0x9E3779B97F4A7C15u) * ((b + 0xD6E8FEB86659FD93u) | 1);
    return a ^ a >> 32;
}

// A piece of up to 15 bytes and its length in two words, so that it is hashed and compared at once.
struct PieceKey {
    static constexpr size_t LONGEST = 15;
    uint64_t low = 0, high = 0;
    bool operator==(const PieceKey& o) const { return low == o.low && high == o.high; }
    uint64_t hash() const { return mix(low, high); }
};

template <class T> uint64_t load_as(const char* p) {
    T value;
    memcpy(&value, p, sizeof value);
    return value;
}
// Returns the key of a piece that has 16 readable bytes from its beginning on: loads both words and
// clears the bytes behind the piece, without a branch on its length.
inline PieceKey padded_key_of(std::string_view piece) {
    static constexpr auto KEPT = [] {
        std::array<PieceKey, PieceKey::LONGEST + 1> kept{};
        for (size_t n = 0; n < kept.size(); n++) {
            kept[n].low = n < 8 ? (uint64_t(1) << 8 * n) - 1 : UINT64_MAX;
            kept[n].high = n > 8 ? (uint64_t(1) << 8 * (n - 8)) - 1 : 0;
        }
        return kept;
    }();
    const size_t n = piece.size();
    return {load_as<uint64_t>(piece.data()) & KEPT[n].low,
            (load_as<uint64_t>(piece.data() + 8) & KEPT[n].high) | uint64_t(n) << 56};
}
inline PieceKey key_of(std::string_view piece) {    // overlapping loads of fixed size, no byte loop
    PieceKey k;
    const char* p = piece.data();
    size_t n = piece.size();
    if (n > 8) {
        k = {load_as<uint64_t>(p), load_as<uint64_t>(p + n - 8) >> (128 - 8 * n)};
    } else if (n >= 4) {
        k.low = load_as<uint32_t>(p) | load_as<uint32_t>(p + n - 4) << 8 * (n - 4);
    } else {
        for (size_t i : {size_t(0), n / 2, n - 1}) k.low |= load_as<uint8_t>(p + i) << 8 * i;
    }
    k.high |= uint64_t(n) << 56;
    return k;
}

// Maps a pair (left, right) to its rank in the merge order.
class PairTable {
  public:
    static constexpr uint32_t NONE = UINT32_MAX;
    explicit PairTable(const std::vector<Merge>& merges);
    uint32_t rank(int left, int right) const { return slots[bucket(uint32_t(left), uint32_t(right))].rank; }

  private:
    struct Slot {
        uint32_t left = NONE, right = NONE, rank = NONE;
    };
    std::vector<Slot> slots;
    size_t mask;
    size_t bucket(uint32_t left, uint32_t right) const {
        size_t i = mix(left, right) & mask;
        while (slots[i].left != NONE && (slots[i].left != left || slots[i].right != right)) i = (i + 1) & mask;
        return i;
    }
};

// Maps texts to ids: texts of up to 15 bytes by PieceKey, longer ones by a map of views, which do
// not own the texts.
class TextTable {
  public:
    explicit TextTable(size_t entries);
    void add(std::string_view text, int id);
    int find(std::string_view text) const {    // -1: text is not in the table
        if (text.size() <= PieceKey::LONGEST) return slots[bucket(key_of(text))].id;
        auto it = longer.find(text);
        return it == longer.end() ? -1 : it->second;
    }

  private:
    struct Slot {
        PieceKey key;
        int id = -1;
    };
    std::vector<Slot> slots;
    size_t mask;
    std::unordered_map<std::string_view, int> longer;
    size_t bucket(const PieceKey& k) const {
        size_t i = k.hash() & mask;
        while (slots[i].id >= 0 && !(slots[i].key == k)) i = (i + 1) & mask;
        return i;
    }
};

// Ids of pieces that one thread has met. A bucket has the last two pieces with its hash. The key of
// a piece of more than 15 bytes has a hash instead of the bytes, which `more` then holds.
class PieceCache {
  public:
    static constexpr size_t IDS = 3, LONGEST = 128;    // ids of an entry; bytes of the longest piece
    struct Entry {
        PieceKey key;
        int ids[IDS];    // if more: ids[0] is their offset in `more`
        int count = 0;
    };
    // Returns the piece's entry. If `found` is false, its ids are to be set.
    Entry& entry(const PieceKey& key, bool& found) {
        Bucket& bucket = buckets[key.hash() % BUCKETS];
        found = bucket.last.key == key;
        if (found) return bucket.last;
        std::swap(bucket.last, bucket.older);
        found = bucket.last.key == key;
        return bucket.last;
    }
    static PieceKey long_key(std::string_view piece);
    bool holds(const Entry& entry, std::string_view piece) const {    // a long piece
        return memcmp(&more[size_t(entry.ids[0] + entry.count)], piece.data(), piece.size()) == 0;
    }
    const int* ids_of(const Entry& entry) const { return &more[size_t(entry.ids[0])]; }
    void set(Entry& entry, const PieceKey& key, std::string_view piece, const std::vector<int>& ids);
    std::vector<int> scratch;    // for PieceMerger

  private:
    static constexpr size_t BUCKETS = 1 << 16, MOST = 1 << 20;    // MOST: ids in `more`
    struct alignas(64) Bucket {
        Entry last, older;
    };
    std::vector<Bucket> buckets = std::vector<Bucket>(BUCKETS);
    std::vector<int> more;
};

class PieceMerger {
  public:
    explicit PieceMerger(const Vocabulary& v);    // v must outlive the PieceMerger
    // Writes a piece's ids and returns their end. `out` has room for piece.size() + IDS ids;
    // `readable`: end of the bytes after the piece that may be read.
    int* encode(std::string_view piece, const char* readable, PieceCache& cache, int* out) const {
        if (piece.size() > PieceKey::LONGEST) return encode_long(piece, cache, out);
        const bool padded = readable - piece.data() >= 16;
        const PieceKey key = padded ? padded_key_of(piece) : key_of(piece);
        bool found = false;
        PieceCache::Entry& entry = cache.entry(key, found);
        if (!found) return encode_new(piece, key, cache, &entry, out);
        if (entry.count > int(PieceCache::IDS)) return std::copy_n(cache.ids_of(entry), entry.count, out);
        memcpy(out, entry.ids, sizeof entry.ids);
        return out + entry.count;
    }
    // Splits a piece into its first symbols, without merging.
    void symbols(std::string_view piece, std::vector<int>& out) const;
    // For Symbols::characters: returns the length of a prefix of text whose end no merge crosses. A
    // cut is safe between two neighbouring bytes that no merge joins.
    size_t word(std::string_view text) const;
    // Whether a space mark that follows byte `before` begins a word, which no merge crosses.
    bool mark_ends(unsigned char before) const { return marks && !joined[before]; }

  private:
    const Vocabulary& v;
    std::unique_ptr<PieceModel> model;    // null: merges
    PairTable pairs;
    TextTable character, whole;           // tokens of one character; ids of whole pieces
    std::array<int, 256> byte_id;         // bytes: the byte's token; characters: <0xAB>
    std::vector<uint32_t> byte_ranks;     // bytes: [256 a + b]: rank of the bytes' tokens
    std::array<int, 128> ascii;           // tokens of the characters below 0x80
    bool marks = false, words = false;    // there is a space mark; unknown characters are not fused
    std::bitset<256> joined;              // [a]: some merge crosses byte a, then a mark
    std::vector<char> beside;             // [256 a + b]: some merge crosses bytes a, b
    std::vector<char> outside;            // by id: added token that no merge produces

    void read_symbols();
    void find_words();
    int* encode_new(std::string_view piece, const PieceKey& key, PieceCache& cache, PieceCache::Entry* entry,
                    int* out) const;
    int* encode_long(std::string_view piece, PieceCache& cache, int* out) const;
    void merge(std::string_view piece, std::vector<int>& out) const;
    void merge_short(uint64_t* cell, size_t n, std::vector<int>& out) const;    // cell: overwritten
    void merge_long(std::vector<int>& cell, std::vector<int>& out) const;       // cell: symbols, overwritten
};
bool is_byte_token(std::string_view name);    // <0x00> to <0xFF>
char byte_of_token(std::string_view name);
