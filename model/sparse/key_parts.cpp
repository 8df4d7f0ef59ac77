#include "key_parts.h"

#include <algorithm>
#include <numeric>

#include "base/philox.h"

KeyParts KeyParts::of(const Config& c) {
    return {.window = c.window,
            .global_tokens = c.global_tokens,
            .dilation = std::max(1, c.dilation),
            .random_blocks = c.random_blocks,
            .block = c.random_block};
}
KeyParts::Part KeyParts::at(int* buffer, int part, int64_t most) {
    int* const p = buffer + part * INTS * most;
    Span* const spans = reinterpret_cast<Span*>(p + 2 * most);
    return {p, p + most, spans, spans + most};
}

void KeyParts::fill(int* buffer, int64_t most, const Spans& spans, int B, int S) const {
    std::vector<std::vector<int>> chosen;
    if (dilation == 1) chosen = chosen_blocks(S);
    for (int part = 0; part < count(); part++)
        for (int b = 0; b < B; b++) {
            const Part p = at(buffer, part, most);
            if (dilation > 1) fill_dilated(p, spans, b, S);
            else fill_random(p, chosen[size_t(part)], spans, b, S);
        }
}

// The order: positions with remainder 0 of i / dilation, then those with remainder 1, and so on.
void KeyParts::fill_dilated(Part p, const Spans& spans, int b, int S) const {
    for (int remainder = 0, first = 0; remainder < std::min(dilation, S); remainder++) {
        auto below = [&](int end) { return first + (std::max(0, end - remainder) + dilation - 1) / dilation; };
        for (int i = remainder; i < S; i += dilation) {
            const int from = b * S + i, to = b * S + below(i);
            p.rows[to] = from;
            p.back[from] = to;
            const Span keys = spans.keys[size_t(from)], queries = spans.queries[size_t(from)];
            p.keys[to] = {below(keys.from), below(keys.to)};
            p.queries[to] = {below(queries.from), below(queries.to)};
        }
        first = below(S);
    }
}

bool KeyParts::is_near(int queries, int keys) const {
    const int nearest = (std::abs(queries - keys) - 1) * block + 1;    // distance of a query and a key
    return nearest < window || keys * block < global_tokens;
}

std::vector<std::vector<int>> KeyParts::chosen_blocks(int S) const {
    constexpr uint64_t SEED = 0xb16b19d;    // fixed, so that a checkpoint need not hold the blocks
    constexpr int TRIES = 16;
    const int n = S / block;
    std::vector<std::vector<int>> parts;
    for (int part = 0; part < random_blocks; part++) {
        std::vector<int> best(size_t(n), -1);
        for (int attempt = 0; attempt < TRIES; attempt++) {
            std::vector<int> order(static_cast<size_t>(n));
            std::iota(order.begin(), order.end(), 0);
            const uint64_t stream = uint64_t(part * TRIES + attempt);
            for (int i = n - 1; i > 0; i--)
                std::swap(order[size_t(i)], order[philox(SEED, stream, uint64_t(i)).v[0] % uint32_t(i + 1)]);
            for (size_t i = 0; i < size_t(n); i++) {
                bool left_out = is_near(int(i), order[i]);
                for (const std::vector<int>& before : parts) left_out |= before[i] == order[i];
                if (left_out) order[i] = -1;
            }
            if (std::ranges::count(order, -1) < std::ranges::count(best, -1)) best = order;
        }
        parts.push_back(best);
    }
    return parts;
}

void KeyParts::fill_random(Part p, const std::vector<int>& chosen, const Spans& spans, int b, int S) const {
    const int first = b * S, whole = int(chosen.size()) * block;
    for (int i = 0; i < S; i++) {
        p.rows[first + i] = first + i;
        p.back[first + i] = -1;
        const int begin = std::min(i / block * block, whole);
        p.keys[first + i] = p.queries[first + i] = {begin, begin};
    }
    for (int i = 0; i < whole; i++) {
        const int begin = i / block * block, source = chosen[size_t(i / block)] * block;
        if (source < 0) continue;
        const int key = source + i % block;
        p.rows[first + i] = first + key;
        p.back[first + key] = first + i;
        const Span keys = spans.keys[size_t(first + i)], queries = spans.queries[size_t(first + key)];
        auto within = [&](int position, int block_begin) {
            return begin + std::clamp(position - block_begin, 0, block);
        };
        // Queries of global tokens attend to all keys without the part.
        if (i >= global_tokens) p.keys[first + i] = {within(keys.from, source), within(keys.to, source)};
        p.queries[first + i] = {within(std::max(queries.from, global_tokens), begin), within(queries.to, begin)};
    }
}
