// dedup.h - documents that occurred before: equal ones (exact), or nearly equal ones (MinHash).
//
//   text --sketch (any thread)--> Sketch --add (in the documents' order)--> match or new document
//
// exact: documents repeat each other if a 128-bit hash of their bytes is equal. minhash compares
// this hash first, too, so that equal documents are always found.
//
// minhash: a document is the set of its n-grams of words (lower-case runs of letters and digits; a
// CJK character is a word). Each of num_perm hash functions has a minimum over that set. For two
// documents such a minimum is equal with a probability that is their Jaccard similarity (Broder
// 1997), so the equal ones among all minima estimate it. To compare few pairs, the minima are cut
// into bands of several rows: documents with one band equal are candidates (Indyk & Motwani 1998).
// A candidate is a match if the estimate reaches the threshold. To save memory, the estimate
// compares only 8 bits of each minimum (Li & König 2010).
//
// The first of similar documents is kept, so the result depends on the documents' order alone.
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/common.h"

enum class Dedup { none, exact, minhash };
inline const std::vector<std::string> DEDUP_KINDS = {"none", "exact", "minhash"};

struct DedupConfig {
    Dedup kind = Dedup::none;
    double threshold = 0.8;               // Jaccard similarity from which on a document is dropped
    int ngram = 5;                        // words
    int num_perm = 128;                   // hash functions
    int64_t memory = int64_t(4) << 30;    // bytes of all tables
    bool origins = false;                 // keep where each document was found, for Match
};

// Documents of similarity s are candidates with the probability 1 - (1 - s^rows)^bands.
struct Bands {
    int bands = 0, rows = 0;
};
// Chooses bands and rows, whose product is at most num_perm, for the smallest error. The error is
// 0.1 times the area under the candidates' probability below the threshold (wrong candidates), plus
// 0.9 times the area above that curve from the threshold on (missed ones). The library datasketch
// has this as MinHashLSH(threshold, num_perm, weights=(0.1, 0.9)).
Bands lsh_bands(double threshold, int num_perm);

struct Sketch {
    std::array<uint64_t, 2> hash = {};    // 128-bit hash of the bytes
    std::vector<uint32_t> minima;         // minhash, one for each function
};

struct Origin {
    int file = 0;        // index in CorpusConfig::files
    int64_t line = 0;    // Segment::line
};

// Elements that never move, in blocks: growth does not need twice the memory.
template <class T> class Blocks {
  public:
    explicit Blocks(size_t of_item = 1) : stride(of_item) {}
    T* add() {    // the next item, `stride` elements
        if (count % PER_BLOCK == 0) blocks.push_back(std::make_unique<T[]>(PER_BLOCK * stride));
        return (*this)[count++];
    }
    T* operator[](size_t i) const { return &blocks[i / PER_BLOCK][i % PER_BLOCK * stride]; }
    size_t size() const { return count; }
    int64_t bytes() const { return int64_t(blocks.size()) * block_bytes(); }
    int64_t bytes_of_add() const { return count % PER_BLOCK ? 0 : block_bytes(); }

  private:
    static constexpr size_t PER_BLOCK = 4096;
    int64_t block_bytes() const { return int64_t(PER_BLOCK * stride * sizeof(T)); }
    size_t stride, count = 0;
    std::vector<std::unique_ptr<T[]>> blocks;
};

// Document numbers by a 32-bit key; several may share a key. Linear probing; grows by doubling.
class KeyTable {
  public:
    // Calls f(document) for the documents of the key, oldest first, until it returns true.
    template <class F> bool find(uint32_t key, F f) const {
        if (slots.empty()) return false;
        for (size_t i = first(key); slots[i].document; i = (i + 1) & (slots.size() - 1))
            if (slots[i].key == key && f(size_t(slots[i].document - 1))) return true;
        return false;
    }
    void add(uint32_t key, size_t document);
    int64_t bytes() const { return int64_t(slots.size() * sizeof(Slot)); }
    int64_t bytes_after_add() const;    // if the table must grow, the larger one's

  private:
    struct Slot {
        uint32_t key = 0, document = 0;    // document + 1; 0: empty
    };
    std::vector<Slot> slots;
    size_t used = 0;
    size_t first(uint32_t key) const { return size_t(uint64_t(key) * slots.size() >> 32); }
};

class Deduplicator {
  public:
    explicit Deduplicator(const DedupConfig& config);
    // Computes what `add` compares, in any thread.
    Sketch sketch(std::string_view text) const;
    struct Match {
        double similarity = 1;    // estimate from the minima; exact: 1
        Origin origin;            // place of the kept document, if config.origins
    };
    // Returns the document that this one repeats, or keeps it. Exit 3: the tables need more than
    // config.memory.
    Result<std::optional<Match>> add(const Sketch& sketch, Origin origin);

    int64_t kept() const { return int64_t(hashes.size()); }
    int64_t bytes() const;                        // memory of all tables
    int64_t candidates() const { return met; }    // documents that had a candidate, similar or not
    Bands bands() const { return lsh; }

  private:
    DedupConfig c;
    Bands lsh;
    std::vector<uint32_t> factors, offsets;    // parameters of the hash functions
    Blocks<uint64_t> hashes;                   // two words of a document
    Blocks<uint8_t> minima;                    // minhash: the minima's low 8 bits
    Blocks<uint64_t> origins;                  // file and line
    KeyTable exact;                            // by hash
    std::vector<KeyTable> tables;              // minhash: one for each band
    int64_t met = 0;

    int64_t bytes_to_add() const;
    std::optional<size_t> find_exact(const Sketch& s) const;
    std::optional<size_t> find_similar(const Sketch& s, double* similarity);
    uint32_t band_key(const Sketch& s, size_t band) const;
    void keep(const Sketch& s, Origin origin);
};
