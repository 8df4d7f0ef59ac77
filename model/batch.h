// batch.h - the batch that passes read on the device, and the next one, uploaded in advance.
#pragma once
#include "model/plan.h"
#include "model/spans.h"

class Batch {
  public:
    struct Sizes {
        int B = 0, S = 0;
        int64_t targets = 0;    // positions with a target >= 0
        bool spans = false;     // keys() and queries() define the attention mask
    };
    explicit Batch(const Table& table) : op(table) {}
    void configure(const Plan& plan, const Config& c);

    // Uploads the next batch, even while the device works on the previous one. tok, target (B,S)
    // lie on the host. `target` may be null; a target below 0 is ignored. If tok is null, only
    // sizes are set, which is enough for a CostTable. spans (B,S): the attention mask. If null,
    // each sequence is one text, with the mask of the model and an empty prefix.
    // An encoder-decoder's batch also has the lengths (B) of its sources, which have source_S
    // positions each; a null pointer: all are full.
    void upload(const int* tok, const int* target, int B, int S, const Spans* spans = nullptr,
                const int* source_lengths = nullptr, int source_S = 0);
    // Makes the uploaded batch the one that passes read.
    Sizes use_uploaded();

    // Two batches in device memory, the one that passes read (`input`) and the next one (`staged`),
    // each of ints() ints: tok (N), target (N); with spans also keys (N), queries (N), and pos (N),
    // which counts from a text's start; with segments also those (N); with a source the spans of
    // cross-attention, source_keys (N) and source_queries (B,source positions).
    int *input = nullptr, *staged = nullptr;
    int64_t ints() const { return source_at() + (most_sources ? 2 * (most + most_sources) : 0); }
    int* tok() const { return input; }
    int* target() const { return tok() + most; }
    Span* keys() const { return reinterpret_cast<Span*>(tok() + 2 * most); }
    Span* queries() const { return keys() + most; }
    int* pos() const { return tok() + 6 * most; }
    int* segment() const { return tok() + (may_span ? 7 : 2) * most; }
    Span* source_keys() const { return reinterpret_cast<Span*>(tok() + source_at()); }
    Span* source_queries() const { return source_keys() + most; }

  private:
    int64_t source_at() const { return (may_span ? 7 : 2) * most + (segments ? most : 0); }
    void fill_source(int* to, const int* lengths, int B, int S, int source_S) const;
    const Table& op;
    MaskKind mask = {};
    int most_S = 0;
    int64_t most = 0;                             // positions
    bool may_span = false, has_values = false;    // values: Config::predicts_values
    int segments = 0;
    int64_t most_sources = 0;    // positions of all sources; 0: no encoder
    Sizes next;
    bool whole_upload = false;    // all ints() of the next batch
    std::vector<int> host;
};
