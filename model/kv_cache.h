// kv_cache.h - generation's cache of keys and values: which pages each sequence holds (layers/ops.h: Pages), and their
// memory.
//
// A page holds the same positions of a sequence in every layer. Sequences grow by pages, without copying. A copy of a
// sequence shares its pages; who writes to a shared page takes a copy of its own first. Layers without softmax have a
// state of constant size for each sequence instead, which holds the positions so far and none of them by itself.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/config.h"

struct CacheOptions {
    std::optional<Element> type = {};    // none: as activations. Not fp32 where these are bf16
    // What to do when a sequence is full: nothing more fits; or its oldest page goes, but for those that hold the first
    // `sinks` positions (attention sinks, Xiao et al. 2024). The positions that are left then count as neighbours.
    bool evicts = false;
    int sinks = 0;
    int pages = 0;            // in all; 0: enough for every sequence to be full
    bool lossless = false;    // what goes, no position sees any more
};

// Page numbers of sequences, and how many hold each.
class PageTable {
  public:
    struct Sequence {
        std::vector<int> pages;      // in order of positions
        std::vector<int> first;      // the sinks' pages as they were, where `pages` has copies with turned keys
        int pos = 0, evicted = 0;    // positions seen, and given up again
        int length() const { return pos - evicted; }    // positions that it keeps
    };
    struct Copy {
        int to, from;
    };

    void resize(int sequences, int pages);    // no pages: only positions are counted
    const Sequence& operator[](int b) const { return all[size_t(b)]; }
    int sequences() const { return int(all.size()); }
    int free() const { return free_pages; }
    int ref_count(int page) const { return ref_counts[size_t(page)]; }

    bool changed = true;         // since somebody last cleared this
    bool states = false;         // sequences have states, too
    std::vector<Copy> forked;    // whose states are to be copied, in this order

    // Makes room for `more` positions; whose page it would write but shares it, gets a copy. The caller copies what is
    // in them.
    void grow(int b, int more, std::vector<Copy>& copies);
    void fork(int from, int to);    // `to` becomes a copy
    // Forgets what is at pos and after it. Nothing after pos may have been dropped, nor made others go. With states pos
    // is 0, or all there is.
    void rewind(int b, int pos);
    void evict(int b, int page);    // gives a page of the sequence up: its i-th
    // The first n pages get copies, whose keys the caller turns.
    void copy_sinks(int b, int n, std::vector<Copy>& copies);

  private:
    int allocate_page(int preferred);
    void release_page(int page);
    std::vector<Sequence> all;
    std::vector<int> ref_counts;    // for each page: how many
    int free_pages = 0;
};

constexpr int pages_for(int positions) { return (positions + Pages::SIZE - 1) / Pages::SIZE; }
// The most tokens of a sequence that are fed to a cache at once, if it rolls.
constexpr int MAX_CHUNK = 512;
// Why a model's cache cannot roll; null: it can.
const char* why_no_eviction(const Config& c);
// The most positions that a sequence's cache has to keep: the context's; or, where the cache rolls and each layer has a
// window, those that the widest one sees and a piece that is fed. The positions before are seen by nobody.
int cache_positions(const Config& c);
// The bytes of a page in all layers with softmax, of a model whose activations are of this type.
int64_t page_bytes(const Config& c, Element type);
// What a full sequence takes, its states included.
int64_t cache_bytes(const Config& c, Element type);
// The same: "36.0 MiB as fp32, 18.0 MiB as bf16, 9.6 MiB as fp8 or int8, for 1024 tokens".
std::string cache_text(const Config& c);

// How Ops::sample draws each text's next token, one of V, after its step. Pointers are to the device's memory.
struct SampleArgs {
    int* counts = nullptr;    // Ops::sample's `said`
    const double* bias = nullptr;
    SampleState* at = nullptr;
    SampleParams draw = {};
    int V = 0;
    bool operator==(const SampleArgs&) const = default;
};

// Keys and values of generation, and the last call's positions and tokens. It must end before the model.
struct KvCache {
    PageTable table;    // what each sequence holds; fork and rewind sequences there
    CacheOptions kind;
    Element type = {};
    int positions = 0, pages = 0;     // most that a sequence holds; in all
    int sink_pages = 0, width = 0;    // width: pages of a sequence, at most
    int64_t bytes = 0;                // all of it
    int64_t state_bytes = 0;          // a sequence's, of all layers without softmax

    // Memory for so many sequences of so many positions; calls of at most `most` tokens. exit 5: no memory
    Status allocate(const Table& op, const Config& c, int most, int sequences, int positions,
                    const CacheOptions& kind = {});
    Pages layer(int l) const;
    States states(int l) const;

    // The running sequences take lengths[i] more tokens each, S at most; padding fills up. Pages are evicted, copied
    // and rotated as that needs, and positions and tokens are uploaded.     tok (B,S), host; null: those that the last
    // step has drawn for the same sequences.     Returns each sequence's first position of the call.
    std::vector<int> grow(const int* tok, int S, std::vector<int> sequences, const std::vector<int>& lengths);

    // On the device. The pages of layer after layer; the states of sequence after sequence; angles as the model's, of
    // all positions, or, if the cache rolls, of the rows of this call; the sinks' turns.
    char *memory = nullptr, *state = nullptr;
    float *cos_sin[2] = {}, *sink_cos_sin[2] = {};
    int *ints = nullptr, *page_numbers = nullptr, *copies = nullptr;
    int* sequences = nullptr;                                    // (B): which run
    int *cache_pos = nullptr, *pos = nullptr, *tok = nullptr;    // (B,S): places in the cache; in `cos_sin` and wpe

    std::vector<int> running;          // the sequences of the last call
    Pages::SumOrder sum_order = {};    // the last call's
    bool from_start = false;           // the last call began all its sequences
    std::vector<int> on_device;        // the host's copy of slot and place: values after all queued work
    int steps = 0;                     // steps of one token in a row, of equally many sequences, drawn as the last one
    bool sampled = false;              // the last call drew tokens
    SampleArgs sample_args;            // the last one, which graphs have
    std::map<std::pair<int, bool>, void*> graphs;    // recorded steps, by the number of sequences, and if they draw
    int64_t max_rows = 0;                            // rows of the largest call so far
    void release_graphs();
    KvCache() = default;
    KvCache(const KvCache&) = delete;
    ~KvCache();

  private:
    const Table* op = nullptr;    // whose memory it is
    Config c;
    void evict_pages(const std::vector<int>& lengths);
    void rotate_sinks(const std::vector<PageTable::Copy>& copies, const std::vector<int>& evicted);
    void upload_copies(const std::vector<PageTable::Copy>& copies);
    void copy_pages(const std::vector<PageTable::Copy>& copies);
    void copy_states();
    void upload_table();
};
