// position_loss.h - the loss by the position in the context: shows what a kind of positions or a window costs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/common.h"

// Positions first..last, counted from 1: a position's number is that of the tokens up to it.
struct PositionBin {
    int first, last;
    double loss = 0;    // mean over the targets at these positions, nats; NaN where there is none
    int64_t targets = 0;
};
class LossByPosition {
  public:
    explicit LossByPosition(int S) : sums(size_t(S)), counts(size_t(S)) {}
    void add(int rows, const float* losses, const int* targets);    // (rows,S); a target below 0 does not count
    // Up to 15 each position by itself, then bins of about an eighth of the positions before them.
    std::vector<PositionBin> bins() const;

  private:
    std::vector<double> sums;
    std::vector<int64_t> counts;
};

std::string positions_json(const std::vector<PositionBin>& bins);    // an array
void print_positions(const std::vector<PositionBin>& bins);
// Exit 2, 4: as of replace_file.
Status write_positions_csv(const std::string& path, const std::vector<PositionBin>& bins);
Status write_positions_picture(const std::string& path, const std::vector<PositionBin>& bins);
