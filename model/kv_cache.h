// kv_cache.h - the key/value cache of generation: the pages that each sequence holds (Pages in
// layers/ops.h), and their memory.
//
// A page holds 16 consecutive positions of a sequence, in every layer. A growing sequence gets
// further pages and copies nothing. Forked sequences share pages until one of them writes (copy on
// write). A layer with linear attention has no pages. It has a state of constant size per sequence,
// from which no position can be removed.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/config.h"

struct CacheOptions {
    std::optional<Element> type = {};    // none: activation type; fp32 needs fp32 activations
    // evicts: a full sequence drops its oldest page to make room, but keeps the pages of the first
    // `sinks` positions (attention sinks, Xiao et al. 2024). The remaining positions then count as
    // consecutive. If not `evicts`, a full sequence cannot grow.
    bool evicts = false;
    int sinks = 0;
    int pages = 0;            // total; 0: enough for every sequence's maximum
    int source = 0;           // positions of a source (an encoder's output), at most
    int sources = 1;          // sources that are kept at a time
    bool lossless = false;    // no window ever reaches evicted positions
};

// The page numbers of each sequence, and the reference count of each page.
class PageTable {
  public:
    struct Sequence {
        std::vector<int> pages;      // page numbers, in order of positions
        std::vector<int> first;      // the sinks' original pages, if `pages` has rotated copies
        int pos = 0, evicted = 0;    // positions appended, evicted
        int length() const { return pos - evicted; }
    };
    struct Copy {
        int to, from;
    };

    void resize(int sequences, int pages);    // 0 pages: only positions are counted
    const Sequence& operator[](int b) const { return all[size_t(b)]; }
    int sequences() const { return int(all.size()); }
    int free() const { return free_pages; }
    int ref_count(int page) const { return ref_counts[size_t(page)]; }

    bool changed = true;         // since the last upload_table
    bool states = false;         // the model has linear attention's states
    bool history = false;        // the model reads the token before (smear)
    std::vector<Copy> forked;    // copies of states and histories to make, in order

    // Allocates pages for `more` positions. If the last page is shared, a new one replaces it; the
    // caller must then copy the contents, as listed in `copies`.
    void grow(int b, int more, std::vector<Copy>& copies);
    void fork(int from, int to);    // `to` becomes a copy of `from`
    // Drops pos and all later positions. If one of these was evicted, or its appending caused an
    // eviction, pos must be 0. With states (linear attention), pos must be 0 or the sequence's
    // length.
    void rewind(int b, int pos);
    void evict(int b, int page);    // page: index in Sequence::pages
    // Replaces the first n pages, those of the sinks, by new ones. The caller then copies the keys
    // and values, as listed in `copies`, and rotates the copied keys.
    void copy_sinks(int b, int n, std::vector<Copy>& copies);

  private:
    int allocate_page(int preferred);
    void release_page(int page);
    std::vector<Sequence> all;
    std::vector<int> ref_counts;    // number of sequences per page
    int free_pages = 0;
};

constexpr int pages_for(int positions) { return (positions + Pages::SIZE - 1) / Pages::SIZE; }
// Most tokens that one call appends to a sequence if the cache evicts.
constexpr int MAX_CHUNK = 512;
// Reason why this model's cache cannot evict; null: it can.
const char* why_no_eviction(const Config& c);
// Number of positions that a sequence's pages must hold. In general this is the context. It may be
// less if the cache can evict, and each layer with softmax has a window and no global tokens. No
// query then attends to keys before the widest window, so that window, MAX_CHUNK and one page
// suffice.
int cache_positions(const Config& c);
// Bytes of one page of this element type, in all layers with softmax attention.
int64_t page_bytes(const Config& c, Element type);
// Bytes of a full sequence in the cache, including its states (linear attention).
int64_t cache_bytes(const Config& c, Element type);
// Text of cache_bytes: "36.0 MiB as fp32, 18.0 MiB as bf16, 9.6 MiB as fp8 or int8, for 1024
// tokens".
std::string cache_text(const Config& c);

// Arguments of operation sample, which draws each sequence's next token, below V. Pointers are
// device memory.
struct SampleArgs {
    int* counts = nullptr;    // Ops::sample's token_counts
    const double* bias = nullptr;
    SampleState* at = nullptr;
    SampleParams params = {};
    int V = 0;
    bool operator==(const SampleArgs&) const = default;
};

// Keys and values of cross-attention in every layer, computed from an encoder's outputs, in the
// activations' type. Each sequence of a KvCache attends to one source, and several may share it:
// encode_source (model/decoder.h) computes its keys and values once.
struct SourceCache {
    int positions = 0;                 // room of a source, in whole pages; 0: no encoder
    char* memory = nullptr;            // pages of one layer after the other
    int* table = nullptr;              // (sequences of a call,pages of a source)
    int* last = nullptr;               // (tokens of a call): length of the sequence's source - 1
    int* pos = nullptr;                // (positions): 0, 1, ...
    std::vector<Pages> layers = {};    // (L)
    std::vector<int> of = {};          // by sequence: its source; -1: none
    std::vector<int> lengths = {};     // by source
    int uploaded_S = 0;                // tokens per sequence for which `last` is there; 0: it is not
};

// Keys and values, and the last call's positions and tokens. Must be destroyed before the model.
struct KvCache {
    PageTable table;    // pages by sequence; callers fork and rewind
    CacheOptions kind;
    Element type = {};
    int positions = 0, pages = 0;     // maximum per sequence; total pages
    int sink_pages = 0, width = 0;    // width: most pages of a sequence
    int64_t bytes = 0;                // device memory, total
    int64_t state_bytes = 0;          // one sequence's states in all layers

    // Allocates `sequences` x `positions`, for calls of up to `most` tokens. Exit 5: no memory.
    Status allocate(const Table& op, const Config& c, int most, int sequences, int positions,
                    const CacheOptions& kind = {});
    Pages layer(int l) const;
    States states(int l) const;

    // Begins a call of S tokens for each of `sequences`: appends the first lengths[i] of them; the
    // others are padding. Evicts, copies and rotates pages as needed, and uploads positions and
    // tokens. tok (B,S) lies on the host; null: the tokens that the last step sampled for the same
    // sequences. Returns each sequence's position before the call.
    std::vector<int> grow(const int* tok, int S, std::vector<int> sequences, const std::vector<int>& lengths);

    // Device memory. memory has the pages of one layer after the other, and state the states
    // (linear attention) of one sequence after the other. cos_sin has the rows of Gpt::cos_sin for
    // all positions or, if the cache evicts, for this call's positions. sink_cos_sin has the angles
    // by which sinks are rotated.
    SourceCache source;
    int64_t source_bytes = 0;
    // Gives the sequence a source of this length, and makes row 0 of source.table its pages, to
    // which the caller appends keys and values. share_source: gives it the other sequence's source.
    void begin_source(int seq, int length);
    void share_source(int seq, int other);
    char *memory = nullptr, *state = nullptr;
    float *cos_sin[2] = {}, *sink_cos_sin[2] = {};
    int *ints = nullptr, *page_numbers = nullptr, *copies = nullptr;
    int *history = nullptr, *previous = nullptr;    // smear: (all sequences,positions) tokens; (B,S) predecessors
    int* sequences = nullptr;                       // (B): indices of the running sequences
    int *cache_pos = nullptr, *pos = nullptr, *tok = nullptr;    // (B,S): position in the cache; row of cos_sin and wpe

    std::vector<int> running;                        // sequences of the last call
    Pages::SumOrder sum_order = {};                  // the last call's
    bool from_start = false;                         // the last call began its sequences at 0
    std::vector<int> on_device;                      // host copy of cache_pos and pos, after queued work
    int steps = 0;                                   // consecutive decode steps with equal B and sampled
    bool sampled = false;                            // the last call sampled tokens
    SampleArgs sample_args;                          // captured in graphs
    std::map<std::pair<int, bool>, void*> graphs;    // captured decode steps, by B and sampled
    int64_t max_rows = 0;                            // rows of the largest call so far
    void release_graphs();
    KvCache() = default;
    KvCache(const KvCache&) = delete;
    ~KvCache();

  private:
    const Table* op = nullptr;    // owns the memory
    Config c;
    Status allocate_sources(int most, int count);
    void upload_sources(int S);
    void evict_pages(const std::vector<int>& lengths);
    void rotate_sinks(const std::vector<PageTable::Copy>& copies, const std::vector<int>& evicted);
    void upload_copies(const std::vector<PageTable::Copy>& copies);
    void copy_pages(const std::vector<PageTable::Copy>& copies);
    void copy_forked();
    void upload_table();
};
