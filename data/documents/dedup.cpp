// dedup.cpp - see dedup.h.
#include "dedup.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/console.h"
#include "words.h"

namespace {
constexpr uint64_t ODD_1 = 0x9E3779B97F4A7C15ull, ODD_2 = 0xD6E8FEB86659FD93ull, ODD_3 = 0xA0761D6478BD642Full;
constexpr double WRONG = 0.1;      // weight of wrong candidates against missed ones
constexpr int COMPARED = 64;       // candidates from each band, at the most
constexpr int MOST_STORED = 64;    // documents under one key of a band, at the most

// SplitMix64's output function (Steele et al. 2014): neighbouring inputs give unrelated outputs.
uint64_t scramble(uint64_t z) {
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}
uint64_t fold(uint64_t a, uint64_t b) {
    const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    return uint64_t(product) ^ uint64_t(product >> 64);
}
uint64_t load_word(const char* at, size_t bytes) {
    uint64_t word = 0;
    memcpy(&word, at, std::min<size_t>(bytes, 8));
    return word;
}
// Two words that depend on all bytes. Collisions could be constructed: this is no signature.
std::array<uint64_t, 2> hash_128(std::string_view text) {
    uint64_t a = text.size() * ODD_1 + 1, b = text.size() ^ ODD_2;
    for (size_t at = 0; at < text.size(); at += 16) {
        const size_t left = text.size() - at;
        const uint64_t low = load_word(text.data() + at, left),
                       high = left > 8 ? load_word(text.data() + at + 8, left - 8) : 0;
        a = fold(a ^ low, ODD_2 ^ (high + b)) + high;
        b = fold(b ^ high, ODD_3 ^ (low + (a << 1))) + low;
    }
    return {fold(a ^ ODD_3, b + ODD_1), fold(b ^ ODD_1, a + ODD_2)};
}

// Lowers each minimum to factors[i] * x + offsets[i], modulo 2^32. Wider instructions than SSE2's
// would save a tenth of `tokenize --dedup minhash` (10 MB of texts: 0.28 to 0.31 s of user time
// instead of 0.32 to 0.33; Xeon, 2026-11-30), which is not worth a condition of the preprocessor.
void lower_minima(uint32_t* minima, const uint32_t* factors, const uint32_t* offsets, int n, const uint32_t* x,
                  size_t count) {
    for (size_t k = 0; k < count; k++)
        for (int i = 0; i < n; i++) minima[i] = std::min(minima[i], factors[i] * x[k] + offsets[i]);
}

// Area under 1 - (1 - s^rows)^bands from `begin` to `end`, by midpoints.
double candidate_area(double begin, double end, int bands, int rows, bool missed) {
    constexpr int STEPS = 200;
    double area = 0;
    for (int i = 0; i < STEPS; i++) {
        const double s = begin + (end - begin) * (i + 0.5) / STEPS, none = std::pow(1 - std::pow(s, rows), bands);
        area += (missed ? none : 1 - none) * (end - begin) / STEPS;
    }
    return area;
}
}    // namespace

Bands lsh_bands(double threshold, int num_perm) {
    Bands best = {1, num_perm};
    double smallest = INFINITY;
    for (int bands = 1; bands <= num_perm; bands++)
        for (int rows = 1; rows <= num_perm / bands; rows++) {
            const double error = WRONG * candidate_area(0, threshold, bands, rows, false) +
                                 (1 - WRONG) * candidate_area(threshold, 1, bands, rows, true);
            if (error >= smallest) continue;
            smallest = error;
            best = {bands, rows};
        }
    return best;
}

void KeyTable::add(uint32_t key, size_t document) {
    if (4 * (used + 1) > 3 * slots.size()) {
        std::vector<Slot> old(slots.empty() ? 1024 : 2 * slots.size());
        old.swap(slots);
        used = 0;
        // The old order, from behind a gap on, keeps documents of a key in their order.
        size_t start = 0;
        while (start < old.size() && old[start].document) start++;
        for (size_t i = 0; i < old.size(); i++)
            if (const Slot& slot = old[(start + i) % old.size()]; slot.document) add(slot.key, slot.document - 1);
    }
    size_t i = first(key);
    while (slots[i].document) i = (i + 1) & (slots.size() - 1);
    slots[i] = {key, uint32_t(document + 1)};
    used++;
}
int64_t KeyTable::bytes_after_add() const {
    if (4 * (used + 1) <= 3 * slots.size()) return bytes();
    return std::max<int64_t>(1024 * sizeof(Slot), 2 * bytes());
}

Deduplicator::Deduplicator(const DedupConfig& config)
    : c(config), hashes(2), minima(size_t(config.num_perm)), origins(1) {
    if (c.kind == Dedup::minhash) lsh = lsh_bands(c.threshold, c.num_perm);
    tables.resize(size_t(lsh.bands));    // exact: none
    for (int i = 0; i < c.num_perm; i++) {
        const uint64_t drawn = scramble(ODD_1 * (uint64_t(i) + 1));
        factors.push_back(uint32_t(drawn) | 1);
        offsets.push_back(uint32_t(drawn >> 32));
    }
}

Sketch Deduplicator::sketch(std::string_view text) const {
    Sketch s;
    s.hash = hash_128(text);
    if (c.kind != Dedup::minhash) return s;
    s.minima.assign(size_t(c.num_perm), UINT32_MAX);
    std::vector<uint32_t> low, high;    // halves of the n-grams' hashes
    auto flush = [&] {
        // Half of the functions hash one half of an n-gram's hash, half the other: 32 bits alone
        // would make many short texts, which have one n-gram, equal.
        const int half = c.num_perm / 2;
        lower_minima(s.minima.data(), factors.data(), offsets.data(), half, low.data(), low.size());
        lower_minima(&s.minima[size_t(half)], &factors[size_t(half)], &offsets[size_t(half)], c.num_perm - half,
                     high.data(), high.size());
        low.clear();
        high.clear();
    };
    auto add = [&](uint64_t hash) {
        low.push_back(uint32_t(hash));
        high.push_back(uint32_t(hash >> 32));
        if (low.size() == 4096) flush();
    };
    bool any = false;
    each_ngram(text, c.ngram, [&](uint64_t gram) {
        add(scramble(gram));
        any = true;
    });
    // A document without words is the set of its one text.
    if (!any) add(s.hash[0]);
    flush();
    return s;
}

std::optional<size_t> Deduplicator::find_exact(const Sketch& s) const {
    std::optional<size_t> found;
    exact.find(uint32_t(s.hash[0] >> 32), [&](size_t document) {
        if (memcmp(hashes[document], s.hash.data(), 16) == 0) found = document;
        return found.has_value();
    });
    return found;
}

uint32_t Deduplicator::band_key(const Sketch& s, size_t band) const {
    uint64_t key = band + 1;
    for (size_t row = 0; row < size_t(lsh.rows); row++) key = scramble(key + s.minima[band * size_t(lsh.rows) + row]);
    return uint32_t(key >> 32);
}

// The most similar candidate, the oldest of equal ones.
std::optional<size_t> Deduplicator::find_similar(const Sketch& s, double* similarity) {
    std::vector<size_t> candidates;
    for (size_t band = 0; band < tables.size(); band++) {
        int compared = 0;
        tables[band].find(band_key(s, band), [&](size_t document) {
            candidates.push_back(document);
            return ++compared == COMPARED;
        });
    }
    std::sort(candidates.begin(), candidates.end());
    candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
    met += !candidates.empty();
    std::optional<size_t> best;
    int most = -1;
    for (const size_t document : candidates) {
        const uint8_t* theirs = minima[document];
        int equal = 0;
        for (size_t i = 0; i < s.minima.size(); i++) equal += uint8_t(s.minima[i]) == theirs[i];
        if (equal <= most) continue;
        most = equal;
        best = document;
    }
    // Different minima share their 8 bits with probability 1/256.
    *similarity = (double(most) / c.num_perm - 1.0 / 256) / (1 - 1.0 / 256);
    return *similarity >= c.threshold ? best : std::nullopt;
}

void Deduplicator::keep(const Sketch& s, Origin origin) {
    const auto document = size_t(kept());
    if (c.origins) *origins.add() = uint64_t(origin.file) << 40 | uint64_t(origin.line);
    memcpy(hashes.add(), s.hash.data(), 16);
    exact.add(uint32_t(s.hash[0] >> 32), document);
    if (c.kind == Dedup::exact) return;
    uint8_t* low = minima.add();
    for (size_t i = 0; i < s.minima.size(); i++) low[i] = uint8_t(s.minima[i]);
    for (size_t band = 0; band < tables.size(); band++) {
        const uint32_t key = band_key(s, band);
        int stored = 0;
        const bool full = tables[band].find(key, [&](size_t) { return ++stored == MOST_STORED; });
        if (!full) tables[band].add(key, document);
    }
}

Result<std::optional<Deduplicator::Match>> Deduplicator::add(const Sketch& s, Origin origin) {
    Match match;
    std::optional<size_t> found = find_exact(s);
    if (!found && c.kind == Dedup::minhash) found = find_similar(s, &match.similarity);
    if (found) {
        const uint64_t at = c.origins ? *origins[*found] : 0;
        match.origin = {int(at >> 40), int64_t(at & ((1ull << 40) - 1))};
        return std::optional(match);
    }
    if (bytes_to_add() > c.memory || kept() == UINT32_MAX - 1)
        return fail(Exit::input,
                    "--dedup: the tables of %lld documents need more than %s; give a larger --dedup-memory, fewer "
                    "documents, or --dedup exact, which needs some 30 bytes for each",
                    (long long)kept() + 1, human_bytes(double(c.memory)).c_str());
    keep(s, origin);
    return std::optional<Match>();
}

int64_t Deduplicator::bytes() const {
    int64_t all = hashes.bytes() + minima.bytes() + origins.bytes() + exact.bytes();
    for (const KeyTable& table : tables) all += table.bytes();
    return all;
}

// Memory at the most while the next document is kept: tables grow one after the other, and an old
// one is freed when the new one is filled.
int64_t Deduplicator::bytes_to_add() const {
    const bool similar = c.kind == Dedup::minhash;
    int64_t all = bytes() + hashes.bytes_of_add() + (similar ? minima.bytes_of_add() : 0) +
                  (c.origins ? origins.bytes_of_add() : 0);
    int64_t most = all;
    auto grow = [&](const KeyTable& table) {
        const int64_t after = table.bytes_after_add();
        if (after == table.bytes()) return;
        most = std::max(most, all + after);
        all += after - table.bytes();
    };
    grow(exact);
    for (const KeyTable& table : tables) grow(table);
    return most;
}
