// key_parts.h - parts of the keys, for an encoder's sparse attention. With random blocks (BigBird,
// Zaheer et al. 2020), a part has one block of keys outside the window for each block of queries.
// With a dilated window (Longformer, Beltagy et al. 2020), the only part has all keys, in an order
// in which the window has no gaps.
#pragma once
#include "model/spans.h"

struct KeyParts {
    int window = 0, global_tokens = 0;    // values in layers with a window
    int dilation = 1;
    int random_blocks = 0, block = 1;
    static KeyParts of(const Config& c);
    int count() const { return dilation > 1 ? 1 : random_blocks; }
    static constexpr int INTS = 6;    // per position and part

    // A part, for B sequences of S positions. Key n is row rows[n] of the batch's B * S rows, and
    // lies in the same sequence as row n. back[m] is the n whose key is row m, or -1 if the part
    // lacks it. keys and queries are the mask as in Heads: ranges of positions within a sequence.
    // With dilation, query n is row rows[n], too. With random blocks it is row n; where no block
    // was chosen, rows[n] is n, keys[n] is empty and no back[m] is n.
    struct Part {
        int *rows, *back;        // (B,S)
        Span *keys, *queries;    // (B,S)
    };
    // A part's arrays in a buffer of count() * INTS * most ints.
    static Part at(int* buffer, int part, int64_t most);
    // Fills all parts. spans: the mask without a window.
    void fill(int* buffer, int64_t most, const Spans& spans, int B, int S) const;
    // Returns, by part and block of queries, the number of a random block of keys, or -1. The
    // choice depends on S and these fields alone, so all sequences and layers share it. A chosen
    // block has no key in a window of its queries, does not begin among the global tokens, and is
    // not chosen twice for the same queries. A part has a block of keys at most once, so that a
    // key's gradient comes from one block of queries. Positions after the last whole block are in
    // no block.
    std::vector<std::vector<int>> chosen_blocks(int S) const;

  private:
    bool is_near(int queries, int keys) const;
    void fill_dilated(Part p, const Spans& spans, int b, int S) const;
    void fill_random(Part p, const std::vector<int>& chosen, const Spans& spans, int b, int S) const;
};
