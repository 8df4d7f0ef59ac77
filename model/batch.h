// batch.h - the batch that passes read on the device, and the next one, uploaded in advance.
#pragma once
#include "model/plan.h"
#include "model/ring/zigzag.h"
#include "model/sparse/key_parts.h"

class Batch {
  public:
    struct Sizes {
        int B = 0, S = 0;
        int64_t targets = 0;    // positions with a target >= 0
        bool spans = false;     // keys() and queries() define the attention mask
        bool pos = false;       // pos() has the positions in texts; else they count from 0
    };
    explicit Batch(const Table& table) : op(table) {}
    void configure(const Plan& plan, const Config& c);

    // Uploads the next batch, even while the device works on the previous one. tok, target (B,S)
    // lie on the host. `target` may be null; a target below 0 is ignored. If tok is null, only
    // sizes are set, which is enough for a CostTable. spans (B,S): the attention mask. If null,
    // each sequence is one text, with the mask of the model and an empty prefix.
    // With Plan::cp (context parallelism), S counts the positions of whole sequences. This rank
    // keeps its share of them (Zigzag::cut): S and targets of the batch then count this share, and
    // the masks of the ring replace the spans.
    // An encoder-decoder's batch also has the lengths (B) of its sources, which have source_S
    // positions each; a null pointer: all are full.
    void upload(const int* tok, const int* target, int B, int S, const Spans* spans = nullptr,
                const int* source_lengths = nullptr, int source_S = 0);
    // Makes the uploaded batch the one that passes read.
    Sizes use_uploaded();

    // Two batches in device memory: `input`, which passes read, and `staged`, which upload() fills.
    // Each has ints() ints. Its arrays follow each other, each with room for `most` positions:
    // tok (N), target (N); if it may have spans, keys (N), queries (N) and pos (N), the position in
    // the text; if the model has segments, segment (N); with Config::next_sentence, label (N);
    // with an encoder, the spans of cross-attention, source_keys (N) and source_queries
    // (B,source_S); the ring's masks; the parts of the keys of sparse attention; the spans of
    // global tokens with projections of their own, global_keys (B,G) and global_queries (N).
    int *input = nullptr, *staged = nullptr;
    int64_t ints() const { return globals_at() + (globals ? 4 * most : 0); }
    int* tok() const { return input; }
    int* target() const { return tok() + most; }
    Span* keys() const { return reinterpret_cast<Span*>(tok() + 2 * most); }
    Span* queries() const { return keys() + most; }
    int* pos() const { return tok() + 6 * most; }
    int* segment() const { return tok() + (may_span ? 7 : 2) * most; }
    int* label() const { return segment() + (segments ? most : 0); }
    // The mask between this rank's queries and the keys of rank `source` of its ring, in layers
    // with a window or without (Zigzag::mask).
    struct RingMask {
        const Span *keys, *queries;    // (N)
        bool any;                      // some query attends to some key
    };
    RingMask ring_mask(int source, bool windowed) const;
    bool ring_has_documents() const { return ring.documents; }
    const Zigzag& zigzag() const { return part; }
    const KeyParts& key_parts() const { return parts; }
    KeyParts::Part key_part(int i) const { return KeyParts::at(tok() + parts_at(), i, most); }
    Span* global_keys() const { return reinterpret_cast<Span*>(tok() + globals_at()); }
    Span* global_queries() const { return global_keys() + most; }
    Span* source_keys() const { return reinterpret_cast<Span*>(tok() + source_at()); }
    Span* source_queries() const { return source_keys() + most; }

  private:
    // Cuts the whole sequences, and fills pos and the ring's masks.
    void fill_ring(int* to, const int* from_tok, const int* from_target, int B, const Spans* whole);
    int64_t masks_at() const { return source_at() + (most_sources ? 2 * (most + most_sources) : 0); }
    int64_t parts_at() const { return masks_at() + int64_t(ring.any.size()) * 4 * most; }
    int64_t globals_at() const { return parts_at() + int64_t(parts.count()) * KeyParts::INTS * most; }
    int64_t source_at() const { return label() - tok() + (has_labels ? most : 0); }
    void fill_globals(int* to, const Spans& spans, int B, int S) const;
    void fill_source(int* to, const int* lengths, int B, int S, int source_S) const;
    const Table& op;
    MaskKind mask = {};
    int64_t most = 0;                             // positions
    bool may_span = false, has_values = false;    // values: Config::predicts_values
    bool has_labels = false;                      // Config::predicts_next
    int segments = 0;
    int64_t most_sources = 0;    // positions of all sources; 0: no encoder
    Zigzag part;
    KeyParts parts;
    int window = 0;     // windowed layers' size
    int globals = 0;    // global tokens with projections of their own
    struct RingMasks {
        std::vector<bool> any;     // a visible pair: by window and rank of the ring; empty without a ring
        bool documents = false;    // the masks have some
    } ring, next_ring;
    Sizes next;
    bool whole_upload = false;    // all ints() of the next batch
    std::vector<int> host;
};
