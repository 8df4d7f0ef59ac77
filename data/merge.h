// merge.h - byte-pair encoding of one piece: while any pair can merge, the pair that is first in
// the merge order is merged, of equal pairs the leftmost.
//
// Most pieces are tokens themselves and cost one look-up in a hash table. Other short pieces are
// merged in an array on the stack, in O(n^2) time; long ones with a heap, in O(n log n) for any
// text.
#pragma once
#include <array>
#include <bitset>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <vector>

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

class PieceMerger {
  public:
    explicit PieceMerger(const Vocabulary& v);    // v must outlive the PieceMerger
    void encode(std::string_view piece, std::vector<int>& out) const {
        const int id = whole.find(piece);
        id >= 0 ? out.push_back(id) : merge(piece, out);
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
    PairTable pairs;
    TextTable character, whole;           // tokens of one character; ids of whole pieces
    std::array<int, 256> byte_id;         // bytes: the byte's token; characters: <0xAB>
    std::array<int, 128> ascii;           // tokens of the characters below 0x80
    bool marks = false, words = false;    // there is a space mark; unknown characters are not fused
    std::bitset<256> joined;              // [a]: some merge crosses byte a, then a mark
    std::vector<char> beside;             // [256 a + b]: some merge crosses bytes a, b
    std::vector<char> outside;            // by id: added token that no merge produces

    void read_symbols();
    void find_words();
    void merge(std::string_view piece, std::vector<int>& out) const;
    void merge_short(int* id, size_t n, std::vector<int>& out) const;
    void merge_long(std::vector<int>& cell, std::vector<int>& out) const;    // cell: symbols, overwritten
};
bool is_byte_token(std::string_view name);    // <0x00> to <0xFF>
char byte_of_token(std::string_view name);
