// packed_weights.h - the parameters of a model whose weights are only read: matrices packed (layers/quant/packed.h),
// each row in the format that its file has, or in another one that was asked for.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "layers/quant/packed.h"
#include "tensors.h"

struct FormatRows {
    int64_t rows;
    BlockType format;
};    // rows that follow one another
// The formats of a matrix' rows, in order; the last one's is that of the rows that are left. Null: fp32.
typedef std::function<std::vector<FormatRows>(const Tensor& t)> WeightFormats;
bool all_fp32(const std::vector<Tensor>& tensors, const WeightFormats& stored);    // all matrices

class PackedWeights {
  public:
    int64_t bytes = 0;

    // The parameters of these tensors; positions (positions,C) beside them, where these are no parameters.
    void lay_out(const std::vector<Tensor>& tensors, const WeightFormats& stored, int64_t positions, int64_t C);
    void assign(char* memory);    // (bytes), zero
    bool any() const { return !entries.empty(); }
    Parameter* at(int64_t offset) { return parameter(entry(offset).weight); }
    // The table of positions from row `first` on: wpe's, or the one beside the parameters. Null: none
    Parameter* positions(int first);
    float* position_table() { return beside.floats; }

    // n numbers from a flat buffer's place on (Tensor::offset), as blocks of this format. Rows of another format are
    // quantised. Threads may write different numbers at once.
    void write(int64_t offset, int64_t n, const BlockFormat& format, const void* blocks);
    void read(int64_t offset, int64_t n, float* to) const;    // whole rows
    // The matrix at this offset uses a file's rows where they lie (layers/quant/packed.h): rows[i] for row i, null for
    // zeros, which come last. `file` keeps the rows there. False, and nothing is done, where their format is not the
    // matrix'.
    bool use(int64_t offset, const BlockFormat& format, std::vector<const char*> rows,
             std::shared_ptr<const void> file);
    bool uses_file(int64_t offset) const { return any() && !entry(offset).rows.empty(); }
    int64_t bytes_beside_fp32(const Config& c) const;    // that a token reads of matrices, less those of fp32
    std::string formats() const;                         // the matrices', by bytes: "Q4_1 and Q8_0"

  private:
    struct Entry {
        Tensor tensor;
        PackedWeight weight = {};
        std::vector<PackedPart> parts = {};
        std::vector<const char*> rows = {};    // where a file has them, or none
        std::shared_ptr<const void> file = {};
    };
    std::vector<std::unique_ptr<Entry>> entries;    // by offset
    PackedWeight beside = {}, positions_from_first = {};
    int64_t beside_numbers = 0;
    int in_file = 0;    // matrices with rows in a file

    Entry& entry(int64_t offset) const;
    static Parameter* parameter(PackedWeight& w) { return reinterpret_cast<Parameter*>(&w); }
    void write_row(const Entry& e, int64_t row, int64_t col, int64_t n, const BlockFormat& format, const void* blocks);
};
