// length_groups.h - an order in which adjacent samples have similar lengths, so that little of a
// batch is padding.
//
// The base order of an epoch is cut into windows of some groups. Each window is sorted by length
// and cut into groups, which come in a permuted order (as transformers' group_by_length). Groups
// are counted from the run's beginning, so that an epoch may begin within one. The order is a pure
// function of (seed, epoch, index) and the group's size: ranks and batches do not change it.
#pragma once
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

class LengthGroups {
  public:
    typedef std::function<int64_t(int64_t epoch, int64_t index)> BaseOrder;    // returns a sample
    typedef std::function<int64_t(int64_t sample)> Length;
    // group, samples: numbers of samples in a group and in an epoch. permute: false keeps the
    // groups of a window sorted.
    LengthGroups(int64_t group, int64_t samples, uint64_t seed, bool permute, BaseOrder base, Length length);
    int64_t at(int64_t epoch, int64_t index) const;    // a sample; several threads may call

  private:
    struct Window {
        int64_t epoch = -1, first = 0;
        std::vector<int64_t> samples;
    };
    const int64_t group, n, size;    // size: samples of a window
    const uint64_t seed;
    const bool permute;
    const BaseOrder base;
    const Length length;
    mutable std::mutex mutex;
    mutable Window kept[2];    // the last two used: the thread that reads ahead may be in the next one

    Window window(int64_t epoch, int64_t number, int64_t first, int64_t end, int64_t head) const;
};
