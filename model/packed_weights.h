// packed_weights.h - parameters for inference: packed matrices (layers/quant/packed.h), each row in
// its file's format or in a requested one.
#pragma once
#include <map>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "layers/quant/packed.h"
#include "tensors.h"

struct FormatRows {
    int64_t rows;
    BlockType format;
};    // consecutive rows of one format
// Formats of a matrix's rows, in order of rows. An empty list, or no function, means fp32.
typedef std::function<std::vector<FormatRows>(const Tensor& t)> WeightFormats;
bool all_fp32(const std::vector<Tensor>& tensors, const WeightFormats& stored);

class PackedWeights {
  public:
    int64_t bytes = 0;

    // Lays out these tensors and, if positions > 0, a computed position table (positions,C). train:
    // tensors that are not frozen lie elsewhere, in the buffer that `assign` gets.
    void lay_out(const std::vector<Tensor>& tensors, const WeightFormats& stored, int64_t positions, int64_t C,
                 bool train = false);
    void assign(char* memory, float* trained = nullptr);    // memory: `bytes`, zeroed
    bool any() const { return !entries.empty(); }
    Parameter* at(int64_t offset) { return parameter(entry(offset).weight); }
    // Position embeddings from row `first` on of a stack's table wpe, which at() has returned; or,
    // if wpe is null, the computed table. Null: neither exists.
    Parameter* positions(const Parameter* wpe, int first);
    float* position_table() { return beside.floats; }

    // Writes n elements, given as blocks of a format, from an offset of the flat buffer on
    // (Tensor::offset). Converts rows stored in another format. Threads may write disjoint ranges.
    void write(int64_t offset, int64_t n, const BlockFormat& format, const void* blocks);
    void read(int64_t offset, int64_t n, float* to) const;    // n elements of one tensor; a matrix's whole rows
    uint64_t hash(uint64_t h) const;                          // h, and all numbers after it
    // Makes products read the rows of the matrix at this offset in a mapped file
    // (layers/quant/packed.h). rows[i] is the address of row i; null: a row of zeros. `file` keeps
    // the mapping alive. Returns false, and changes nothing, if the rows cannot be used: the matrix
    // has another format, the format is one of blocks, or a row is misaligned.
    bool use(int64_t offset, const BlockFormat& format, std::vector<const char*> rows,
             std::shared_ptr<const void> file);
    bool uses_file(int64_t offset) const { return any() && !entry(offset).rows.empty(); }
    int64_t bytes_beside_fp32() const;    // matrix bytes per token, minus fp32's
    std::string formats() const;          // formats by bytes: "Q4_1 and Q8_0"

  private:
    struct Entry {
        Tensor tensor;
        PackedWeight weight = {};
        std::vector<PackedPart> parts = {};
        std::vector<const char*> rows = {};    // row pointers into a mapped file; else empty
        std::shared_ptr<const void> file = {};
    };
    std::vector<std::unique_ptr<Entry>> entries;    // by offset
    PackedWeight beside = {};
    std::map<const Parameter*, PackedWeight> positions_from_first;    // by table
    int64_t beside_numbers = 0;
    bool trains = false;    // trained tensors lie elsewhere
    int in_file = 0;        // number of matrices that use mapped files

    Entry& entry(int64_t offset) const;
    static Parameter* parameter(PackedWeight& w) { return reinterpret_cast<Parameter*>(&w); }
    void write_row(const Entry& e, int64_t row, int64_t col, int64_t n, const BlockFormat& format, const void* blocks);
};
