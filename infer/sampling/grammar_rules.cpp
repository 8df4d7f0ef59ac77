// grammar_rules.cpp - see grammar_rules.h.
#include "grammar_rules.h"

#include <algorithm>
#include <utility>

namespace {
using Kind = Grammar::Kind;

// edges[rule]: the rules with which an alternative can begin, each with whether elements follow it.
// A later rule of an alternative counts too if all rules before it derive the empty text.
using Edges = std::vector<std::vector<std::pair<int, bool>>>;
// Index of each rule's strongly connected component (Tarjan 1972), without recursion.
std::vector<int> components(const Edges& edges) {
    const size_t n = edges.size();
    std::vector<int> index(n, -1), low(n), part(n, -1), stack, path;
    std::vector<size_t> next(n);
    int count = 0;
    for (size_t first = 0; first < n; first++) {
        if (index[first] < 0) path.push_back(int(first));
        while (!path.empty()) {
            const size_t r = size_t(path.back());
            if (index[r] < 0) index[r] = low[r] = count++, stack.push_back(int(r));
            if (next[r] < edges[r].size()) {
                const size_t to = size_t(edges[r][next[r]].first);
                if (index[to] < 0) {
                    path.push_back(int(to));
                    continue;
                }
                if (part[to] < 0) low[r] = std::min(low[r], low[to]);
                next[r]++;
                continue;
            }
            path.pop_back();
            for (bool on = low[r] == index[r]; on; stack.pop_back()) {
                part[size_t(stack.back())] = int(r);
                on = stack.back() != int(r);
            }
        }
    }
    return part;
}
}    // namespace

std::vector<char> derivable(const Grammar& g, bool bytes) {
    const size_t n = g.rules.size();
    std::vector<char> found(n);
    std::vector<int> owner, left, open;        // by alternative: rule, underivable elements; rules to visit
    std::vector<std::vector<int>> users(n);    // by rule: alternatives with it, once per use
    auto add_found = [&](int rule) {
        if (!std::exchange(found[size_t(rule)], true)) open.push_back(rule);
    };
    for (size_t r = 0; r < n; r++)
        for (int i : g.rules[r]) {
            owner.push_back(int(r));
            left.push_back(0);
            for (; g.elements[size_t(i)].kind != Kind::end; i++) {
                const bool rule = g.elements[size_t(i)].kind == Kind::rule;
                if (rule) users[size_t(g.elements[size_t(i)].value)].push_back(int(owner.size()) - 1);
                left.back() += rule || !bytes;
            }
            if (left.back() == 0) add_found(int(r));
        }
    while (!open.empty()) {
        const size_t r = size_t(open.back());
        open.pop_back();
        for (int a : users[r])
            if (--left[size_t(a)] == 0) add_found(owner[size_t(a)]);
    }
    return found;
}

int left_recursive(const Grammar& g) {
    const size_t n = g.rules.size();
    const std::vector<char> empty = derivable(g, false);
    Edges edges(n);
    for (size_t r = 0; r < n; r++)
        for (int i : g.rules[r])
            for (bool on = true; on && g.elements[size_t(i)].kind == Kind::rule; i++) {
                edges[r].push_back({g.elements[size_t(i)].value, g.elements[size_t(i) + 1].kind != Kind::end});
                on = empty[size_t(g.elements[size_t(i)].value)];
            }
    const std::vector<int> part = components(edges);
    for (size_t r = 0; r < n; r++)
        for (auto [to, comes_back] : edges[r])
            if (comes_back && part[r] == part[size_t(to)]) return int(r);
    return -1;
}
