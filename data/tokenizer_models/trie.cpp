#include "trie.h"

#include <algorithm>

Trie::Trie(const std::vector<std::string_view>& texts) {
    // Shared beginnings of sorted texts are counted once, which gives the number of edges.
    std::vector<int> order;
    for (size_t id = 0; id < texts.size(); id++)
        if (!texts[id].empty()) order.push_back(int(id));
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return texts[size_t(a)] < texts[size_t(b)]; });
    size_t count = 0;
    std::string_view before;
    auto shared = [&](std::string_view text) {
        const size_t most = std::min(before.size(), text.size());
        return size_t(std::mismatch(text.begin(), text.begin() + int64_t(most), before.begin()).first - text.begin());
    };
    for (int id : order) {
        count += texts[size_t(id)].size() - shared(texts[size_t(id)]);
        before = texts[size_t(id)];
    }
    size_t slots = 16;
    while (slots < 2 * count) slots *= 2;
    edges.resize(slots);
    mask = slots - 1;
    uint32_t nodes = ROOT;
    std::vector<uint32_t> path = {ROOT};    // nodes of `before`
    before = {};
    for (int id : order) {
        const std::string_view text = texts[size_t(id)];
        size_t i = shared(text);
        path.resize(i + 1);
        Edge* last = nullptr;
        for (size_t from = i == text.size() ? i - 1 : i; from < text.size(); from++) {
            const uint64_t key = uint64_t(path[from]) << 8 | static_cast<unsigned char>(text[from]);
            size_t at = bucket(key);
            while (edges[at].key && edges[at].key != key) at = (at + 1) & mask;
            last = &edges[at];
            if (last->key != key) *last = {key, {++nodes, -1}};
            if (from >= i) path.push_back(last->to.at);
        }
        last->to.id = id;
        before = text;
    }
}
