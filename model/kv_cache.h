// kv_cache.h - the key/value cache of generation: which pages each sequence holds (Pages in
// layers/ops.h), and their memory.
//
// A page holds the same positions of a sequence in every layer. Sequences grow by pages, without
// copying. A forked sequence shares its pages: copy on write. Layers with linear attention instead
// have a state of constant size per sequence; no position can be removed from it.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/config.h"

struct CacheOptions {
    std::optional<Element> type = {};    // none: the activations'; not fp32 if these are bf16
    // evicts: a full sequence loses its oldest page, except those of the first `sinks` positions
    // (attention sinks, Xiao et al. 2024); the remaining positions then count as consecutive.
    // Otherwise a full sequence cannot grow.
    bool evicts = false;
    int sinks = 0;
    int pages = 0;            // in all; 0: enough to fill every sequence
    bool lossless = false;    // evicted positions are outside all windows
};

// The page numbers of each sequence, and the reference count of each page.
class PageTable {
  public:
    struct Sequence {
        std::vector<int> pages;      // in order of positions
        std::vector<int> first;      // the sinks' original pages, if `pages` has rotated copies
        int pos = 0, evicted = 0;    // positions appended, evicted
        int length() const { return pos - evicted; }
    };
    struct Copy {
        int to, from;
    };

    void resize(int sequences, int pages);    // 0 pages: only counts positions
    const Sequence& operator[](int b) const { return all[size_t(b)]; }
    int sequences() const { return int(all.size()); }
    int free() const { return free_pages; }
    int ref_count(int page) const { return ref_counts[size_t(page)]; }

    bool changed = true;         // since upload_table
    bool states = false;         // sequences also have states
    std::vector<Copy> forked;    // states to copy, in this order

    // Allocates pages for `more` positions. If the last page is shared, a new one replaces it; the
    // caller copies the contents (`copies`).
    void grow(int b, int more, std::vector<Copy>& copies);
    void fork(int from, int to);    // `to` becomes a copy of `from`
    // Drops pos and all later positions. Invalid once a position after pos was evicted or caused an
    // eviction; with states, pos must be 0 or the present end.
    void rewind(int b, int pos);
    void evict(int b, int page);    // page: index in Sequence::pages
    // Replaces the first n pages by copies, whose keys the caller rotates.
    void copy_sinks(int b, int n, std::vector<Copy>& copies);

  private:
    int allocate_page(int preferred);
    void release_page(int page);
    std::vector<Sequence> all;
    std::vector<int> ref_counts;    // by page
    int free_pages = 0;
};

constexpr int pages_for(int positions) { return (positions + Pages::SIZE - 1) / Pages::SIZE; }
// Tokens of a sequence per call, at most, if the cache evicts.
constexpr int MAX_CHUNK = 512;
// Why a model's cache cannot evict; null: it can.
const char* why_no_eviction(const Config& c);
// Positions of a sequence to keep: the context; or, if the cache can evict and each layer has a
// window, the widest window, one chunk and one page, since no query attends to earlier positions.
int cache_positions(const Config& c);
// Bytes of a page in all layers with softmax, for a cache of this type.
int64_t page_bytes(const Config& c, Element type);
// Bytes of a full sequence, its states included.
int64_t cache_bytes(const Config& c, Element type);
// Text of cache_bytes: "36.0 MiB as fp32, 18.0 MiB as bf16, 9.6 MiB as fp8 or int8, for 1024
// tokens".
std::string cache_text(const Config& c);

// Arguments with which Ops::sample draws each sequence's next token, below V. Device pointers.
struct SampleArgs {
    int* counts = nullptr;    // Ops::sample's token_counts
    const double* bias = nullptr;
    SampleState* at = nullptr;
    SampleParams draw = {};
    int V = 0;
    bool operator==(const SampleArgs&) const = default;
};

// Keys and values, and the last call's positions and tokens. Must be destroyed before the model.
struct KvCache {
    PageTable table;    // pages of each sequence; for fork and rewind
    CacheOptions kind;
    Element type = {};
    int positions = 0, pages = 0;     // maximum per sequence; in all
    int sink_pages = 0, width = 0;    // width: pages of a sequence, at most
    int64_t bytes = 0;                // device memory in all
    int64_t state_bytes = 0;          // states of a sequence in all layers

    // Allocates for `sequences` x `positions` and calls of at most `most` tokens. exit 5: no memory
    Status allocate(const Table& op, const Config& c, int most, int sequences, int positions,
                    const CacheOptions& kind = {});
    Pages layer(int l) const;
    States states(int l) const;

    // Begins a call: appends lengths[i] <= S tokens to each of `sequences`, then padding. Evicts,
    // copies and rotates pages as needed; uploads positions and tokens. tok (B,S), host; null: the
    // tokens that the last step sampled for the same sequences.
    // Returns each sequence's first position of the call.
    std::vector<int> grow(const int* tok, int S, std::vector<int> sequences, const std::vector<int>& lengths);

    // Device memory: pages by layer; states by sequence; cos/sin tables as in Gpt, of all positions
    // or, if the cache evicts, of this call's rows; cos/sin tables of the sinks' rotation.
    char *memory = nullptr, *state = nullptr;
    float *cos_sin[2] = {}, *sink_cos_sin[2] = {};
    int *ints = nullptr, *page_numbers = nullptr, *copies = nullptr;
    int* sequences = nullptr;                                    // (B): the running ones
    int *cache_pos = nullptr, *pos = nullptr, *tok = nullptr;    // (B,S): position in the cache; row of cos_sin and wpe

    std::vector<int> running;                        // the sequences of the last call
    Pages::SumOrder sum_order = {};                  // the last call's
    bool from_start = false;                         // the last call began all its sequences
    std::vector<int> on_device;                      // host copy of cache_pos and pos, after all queued work
    int steps = 0;                                   // decode steps in a row with equal B and sampled
    bool sampled = false;                            // the last call sampled tokens
    SampleArgs sample_args;                          // the last call's, captured in graphs
    std::map<std::pair<int, bool>, void*> graphs;    // captured steps, by B and sampled
    int64_t max_rows = 0;                            // rows of the largest call so far
    void release_graphs();
    KvCache() = default;
    KvCache(const KvCache&) = delete;
    ~KvCache();

  private:
    const Table* op = nullptr;    // owns the memory
    Config c;
    void evict_pages(const std::vector<int>& lengths);
    void rotate_sinks(const std::vector<PageTable::Copy>& copies, const std::vector<int>& evicted);
    void upload_copies(const std::vector<PageTable::Copy>& copies);
    void copy_pages(const std::vector<PageTable::Copy>& copies);
    void copy_states();
    void upload_table();
};
