// batch.h - the batch that a pass reads on the device, and the next one, which is uploaded while the device works.
#pragma once
#include "model/plan.h"
#include "model/spans.h"

class Batch {
  public:
    struct Sizes {
        int B = 0, S = 0;
        int64_t targets = 0;    // positions whose target counts
        bool spans = false;     // keys() and queries() say which positions a position sees
    };
    explicit Batch(const Table& op) : op(op) {}
    void configure(const Plan& plan, MaskKind mask);

    // Uploads the next batch, perhaps while the device still works on the one before. tok null: only the sizes, for a
    // table that only counts.     tok, target (B,S), host; target null: none; a target below 0 does not count
    // spans (B,S): null: as the model's mask says of whole sequences without a prefix
    void upload(const int* tok, const int* target, int B, int S, const Spans* spans = nullptr);
    // The batch that was uploaded becomes the one that passes read.
    Sizes use_uploaded();

    // Device memory: input and staged have ints() each. input: tok (N), target (N), and where there may be spans, keys
    // (N) and queries (N).
    int *input = nullptr, *staged = nullptr;
    int64_t ints() const { return (may_span ? 6 : 2) * most; }
    int* tok() const { return input; }
    int* target() const { return tok() + most; }
    Span* keys() const { return reinterpret_cast<Span*>(tok() + 2 * most); }
    Span* queries() const { return keys() + most; }

  private:
    const Table& op;
    MaskKind mask = {};
    int most_S = 0;
    int64_t most = 0;    // positions
    bool may_span = false;
    Sizes next;
    std::vector<int> host;
};
