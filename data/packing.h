// packing.h - documents of shards packed into rows that each begin with a document's beginning:
// lengths of documents come in, rows go out.
//
// Best fit within a buffer, the rule of nanochat's loader (2026): of the next PACKING_BUFFER
// documents that are not yet placed, the longest one that fits the rest of the row is placed there.
// If none fits, the shortest one is cropped to that rest, and its other tokens are left out. Of
// equal lengths the first document is taken. So rows are full, a document is in one row at most,
// and the rows are a pure function of the lengths. The last row is dropped unless it is full.
#pragma once
#include <memory>
#include <set>
#include <vector>

#include "data/samples.h"

constexpr int PACKING_BUFFER = 1000;

struct PackedRows {
    std::vector<int64_t> starts;                // first token of each piece of a document, row after row
    std::vector<int> lengths;                   // tokens of each piece
    std::vector<int64_t> first_of = {0};        // index of each row's first piece; last entry: pieces
    int64_t documents = 0, tokens = 0;          // documents added, and their tokens
    int64_t cropped = 0, cropped_tokens = 0;    // documents in rows without their ends; tokens of these ends

    int64_t rows() const { return int64_t(first_of.size()) - 1; }
};

class Packer {
  public:
    explicit Packer(int row_tokens) : size(row_tokens), free(row_tokens) {}
    void add(int64_t start, int64_t length);    // next document; length > 0
    PackedRows finish();

  private:
    void pack_next();
    int size, free;                                  // tokens of a row; of the open row, still free
    std::set<std::pair<int64_t, int64_t>> buffer;    // length, start
    PackedRows all;
};

// Packs the documents of the shards: a sample's S+1 tokens are a row. A document begins at each
// `begin` token and ends before the next one or with its shard. A `begin` token that no other token
// follows in its document is left out. Exit 3: the documents do not fill a row; also as shard_find.
Result<std::shared_ptr<const SampleSource>> packed_documents(std::vector<Shard> shards, int begin, int S, int vocab);
