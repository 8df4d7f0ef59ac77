// position_loss.h - loss by position in the context: the cost of a position encoding or window.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/common.h"
#include "files/json_write.h"

// Positions first..last, counted from 1: position i has i tokens of context.
struct PositionBin {
    int first, last;
    double loss = 0;    // mean over the bin's targets, nats; NaN: no targets
    int64_t targets = 0;
};
class LossByPosition {
  public:
    explicit LossByPosition(int S) : sums(size_t(S)), counts(size_t(S)) {}
    void add(int rows, const float* losses, const int* targets);    // (rows,S); targets below 0 do not count
    // Returns one bin per position up to 15. Each later bin that begins at position `first` has
    // first / 8 positions.
    std::vector<PositionBin> bins() const;

  private:
    std::vector<double> sums;
    std::vector<int64_t> counts;
};

Json positions_json(const std::vector<PositionBin>& bins);    // a list
void print_positions(const std::vector<PositionBin>& bins);
// Writes the bins to a file. Errors are those of replace_file (exit 2, 4).
Status write_positions_csv(const std::string& path, const std::vector<PositionBin>& bins);
Status write_positions_picture(const std::string& path, const std::vector<PositionBin>& bins);
