// cache.h - generation's cache of keys and values: who holds which pages (layers/ops.h: Pages).
//
// A page holds the same positions of a sequence in every layer. Sequences grow by pages, without copying. A copy of a
// sequence shares its pages; who writes to a shared page takes a copy of its own first. Layers without softmax have a
// state of constant size for each sequence instead, which holds the positions so far and none of them by itself.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "layers/ops.h"

struct CacheKind {
    std::optional<Element> type = {};    // none: as activations. Not fp32 where these are bf16
    // What to do when a sequence is full: nothing more fits; or its oldest page goes, but for those that hold the first
    // `sinks` positions (attention sinks, Xiao et al. 2024). The positions that are left then count as neighbours.
    bool rolls = false;
    int sinks = 0;
    int pages = 0;    // in all; 0: enough for every sequence to be full
    bool exact = false;    // what goes, no position sees any more
};

// Page numbers of sequences, and how many hold each.
class PageTable {
  public:
    struct Sequence {
        std::vector<int> pages;    // in order of positions
        std::vector<int> first;    // the sinks' pages as they were, where `pages` has copies with turned keys
        int pos = 0, dropped = 0;  // positions seen, and given up again
        int length() const { return pos - dropped; }    // positions that it keeps
    };
    struct Copy { int to, from; };

    void resize(int sequences, int pages);    // no pages: only positions are counted
    const Sequence& operator[](int b) const { return all[size_t(b)]; }
    int sequences() const { return int(all.size()); }
    int free() const { return unused; }
    int users(int page) const { return holders[size_t(page)]; }

    bool changed = true;    // since somebody last cleared this
    bool states = false;    // sequences have states, too
    std::vector<Copy> forked;    // whose states are to be copied, in this order

    // Makes room for `more` positions; whose page it would write but shares it, gets a copy. The caller copies what is
    // in them.
    void grow(int b, int more, std::vector<Copy>& copies);
    void fork(int from, int to);      // `to` becomes a copy
    // Forgets what is at pos and after it. Nothing after pos may have been dropped, nor made others go. With states pos
    // is 0, or all there is.
    void rewind(int b, int pos);
    void drop(int b, int page);       // gives a page of the sequence up: its i-th
    // The first n pages get copies, whose keys the caller turns.
    void turn_first(int b, int n, std::vector<Copy>& copies);

  private:
    int take(int wish);
    void leave(int page);
    std::vector<Sequence> all;
    std::vector<int> holders;    // for each page: how many
    int unused = 0;
};

constexpr int pages_for(int positions) { return (positions + Pages::SIZE - 1) / Pages::SIZE; }
// The most tokens of a sequence that are fed to a cache at once, if it rolls.
constexpr int LONGEST_PIECE = 512;
struct Config;
// Why a model's cache cannot roll; null: it can.
const char* cache_cannot_roll(const Config& c);
// The most positions that a sequence's cache has to keep: the context's; or, where the cache rolls and each layer has a
// window, those that the widest one sees and a piece that is fed. The positions before are seen by nobody.
int cache_positions(const Config& c);
// The bytes of a page in all layers with softmax, of a model whose activations are of this type.
int64_t page_bytes(const Config& c, Element type);
// What a full sequence takes, its states included.
int64_t cache_bytes(const Config& c, Element type);
// The same: "36.0 MiB as fp32, 18.0 MiB as bf16, 9.6 MiB as fp8 or int8, for 1024 tokens".
std::string cache_text(const Config& c);
