// length_groups.cpp - see length_groups.h.
#include "data/seq2seq/length_groups.h"

#include <algorithm>

#include "data/loader.h"

// Groups of a window, and the fewest windows of an epoch: with fewer, every epoch would sort the
// same samples together.
constexpr int64_t WINDOW_GROUPS = 50, FEWEST_WINDOWS = 4;
constexpr uint64_t GROUPS = 0x6E17ull << 48;    // random stream of its own

LengthGroups::LengthGroups(int64_t samples_of_group, int64_t samples, uint64_t order_seed, bool permute_groups,
                           BaseOrder base_order, Length length_of)
    : group(samples_of_group), n(samples),
      size(group * std::clamp<int64_t>(n / group / FEWEST_WINDOWS, 1, WINDOW_GROUPS)), seed(order_seed),
      permute(permute_groups), base(std::move(base_order)), length(std::move(length_of)) {
    CHECK(group > 0 && n > 0);
}

int64_t LengthGroups::at(int64_t epoch, int64_t index) const {
    CHECK(epoch >= 0 && index >= 0 && index < n);
    // The epoch's first `head` samples complete the group that the last epoch has begun.
    const int64_t begun = int64_t(__int128(epoch) * n % group), head = std::min(n, (group - begun) % group);
    const int64_t number = (index - head) / size;
    const int64_t first = number ? head + number * size : 0, end = std::min(n, head + (number + 1) * size);
    std::lock_guard lock(mutex);
    if (kept[1].epoch == epoch && kept[1].first == first) std::swap(kept[0], kept[1]);
    if (kept[0].epoch != epoch || kept[0].first != first) {
        std::swap(kept[0], kept[1]);
        kept[0] = window(epoch, number, first, end, number ? 0 : head);
    }
    return kept[0].samples[size_t(index - first)];
}

// Samples first..end-1 of the epoch, of which the first `head` end a group.
LengthGroups::Window LengthGroups::window(int64_t epoch, int64_t number, int64_t first, int64_t end,
                                          int64_t head) const {
    std::vector<int64_t> sorted;
    for (int64_t i = first; i < end; i++) sorted.push_back(base(epoch, i));
    std::stable_sort(sorted.begin(), sorted.end(), [&](int64_t a, int64_t b) { return length(a) < length(b); });
    std::vector<int64_t> begins;    // groups; the first and the last one may be parts
    if (head > 0) begins.push_back(0);
    for (int64_t at = head; at < end - first; at += group) begins.push_back(at);
    begins.push_back(end - first);
    Window w = {epoch, first, std::vector<int64_t>(sorted.size())};
    const int64_t groups = int64_t(begins.size()) - 1;
    for (int64_t i = 0, from = 0; i < groups; i++) {
        const size_t to = size_t(permute ? shuffled(seed ^ GROUPS ^ uint64_t(number), epoch, groups, i) : i);
        const int64_t count = begins[to + 1] - begins[to];
        std::copy_n(sorted.begin() + from, count, w.samples.begin() + begins[to]);
        from += count;
    }
    return w;
}
