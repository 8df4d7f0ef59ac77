// packed_weights.cpp - see packed_weights.h.
#include "packed_weights.h"

#include <algorithm>
#include <map>

#include "base/pool.h"
#include "layers/quant/quant.h"

namespace {
// An adapter's matrices are small and may be trained: products read them as rows of floats.
bool is_matrix(const Tensor& t) { return (t.product || t.lookup) && !t.adapter; }

// Joins consecutive rows of one format to one part. Rows of different experts are in different
// parts, because a panel (a group of interleaved rows: layers/quant/packed.h) must not span two
// experts.
std::vector<PackedPart> parts_of(const Tensor& t, const WeightFormats& stored) {
    std::vector<FormatRows> rows = stored ? stored(t) : std::vector<FormatRows>{};
    if (rows.empty()) rows = {{t.rows, BlockType::f32}};
    std::vector<PackedPart> parts;
    const int64_t each = t.rows / t.experts;
    int64_t at = 0;
    for (size_t i = 0; i < rows.size() && at < t.rows; i++) {
        int64_t left = i + 1 < rows.size() ? std::min(rows[i].rows, t.rows - at) : t.rows - at;
        const BlockType format = packed_format(rows[i].format);
        while (left > 0) {
            const int64_t n = std::min(left, each - at % each);
            if (!parts.empty() && parts.back().format == format && at % each) parts.back().rows += n;
            else parts.push_back({at, n, format, nullptr});
            at += n;
            left -= n;
        }
    }
    return parts;
}
}    // namespace

bool all_fp32(const std::vector<Tensor>& tensors, const WeightFormats& stored) {
    return std::all_of(tensors.begin(), tensors.end(), [&](const Tensor& t) {
        if (!is_matrix(t)) return true;
        const std::vector<PackedPart> parts = parts_of(t, stored);
        return std::all_of(parts.begin(), parts.end(), [](const PackedPart& p) { return p.format == BlockType::f32; });
    });
}

void PackedWeights::lay_out(const std::vector<Tensor>& tensors, const WeightFormats& stored, int64_t positions,
                            int64_t C, bool train) {
    trains = train;
    entries.clear();
    bytes = 0;
    beside_numbers = positions * C;
    for (const Tensor& t : tensors) {
        entries.push_back(std::make_unique<Entry>(Entry{t}));
        Entry& e = *entries.back();
        CHECK(t.frozen || !train || !is_matrix(t), "%s is packed, and so cannot be trained", t.name.c_str());
        if (is_matrix(t)) e.parts = parts_of(t, stored);
        else if (t.frozen || !train) bytes += round_up(4 * t.size(), 64);
        for (const PackedPart& p : e.parts) bytes += round_up(part_bytes(p.format, p.rows, t.cols), 64);
    }
    bytes += 4 * beside_numbers;
    std::ranges::sort(entries, {}, [](const auto& e) { return e->tensor.offset; });
}
void PackedWeights::assign(char* memory, float* trained) {
    auto take = [&](int64_t size) { return std::exchange(memory, memory + round_up(size, 64)); };
    for (auto& e : entries) {
        if (trains && !e->tensor.frozen) e->weight.floats = trained + e->tensor.offset;
        else if (e->parts.empty()) e->weight.floats = reinterpret_cast<float*>(take(4 * e->tensor.size()));
        for (PackedPart& p : e->parts) p.data = take(part_bytes(p.format, p.rows, e->tensor.cols));
        e->weight.parts = e->parts.data();
        e->weight.count = int(e->parts.size());
    }
    if (beside_numbers) beside.floats = reinterpret_cast<float*>(memory);
}

bool PackedWeights::use(int64_t offset, const BlockFormat& format, std::vector<const char*> rows,
                        std::shared_ptr<const void> file) {
    constexpr int SPREAD = 8;    // decode steps over which matrices are packed
    Entry& e = entry(offset);
    bool fits = file && !in_blocks(format.type) && !e.parts.empty();
    for (const PackedPart& p : e.parts) fits &= p.format == format.type;
    for (const char* row : rows) fits &= reinterpret_cast<uintptr_t>(row) % uintptr_t(format.bytes) == 0;
    if (!fits) return false;
    e.rows = std::move(rows);
    e.file = std::move(file);
    for (PackedPart& p : e.parts) {
        p.mapped = e.rows.data() + p.first;
        p.wait = 1 + in_file % SPREAD;
    }
    in_file++;
    return true;
}

PackedWeights::Entry& PackedWeights::entry(int64_t offset) const {
    auto after = std::upper_bound(entries.begin(), entries.end(), offset,
                                  [](int64_t at, auto& e) { return at < e->tensor.offset; });
    CHECK(after != entries.begin(), "no tensor at %lld", (long long)offset);
    return **--after;
}
Parameter* PackedWeights::positions(const Parameter* wpe, int first) {
    for (auto& e : entries)
        if (parameter(e->weight) == wpe) {
            PackedWeight& rows = positions_from_first[wpe];
            rows.floats = e->weight.floats + first * e->tensor.cols;
            return parameter(rows);
        }
    return beside_numbers ? parameter(beside) : nullptr;
}

void PackedWeights::write_row(const Entry& e, int64_t row, int64_t col, int64_t n, const BlockFormat& format,
                              const void* blocks) {
    const PackedPart* part = e.parts.data();
    while (!e.parts.empty() && row >= part->first + part->rows) part++;
    if (!e.parts.empty() && part->format == format.type)
        return pack(*part, e.tensor.cols, row - part->first, col, n, blocks);
    if (e.parts.empty()) return dequantise(format, blocks, n, e.weight.floats + row * e.tensor.cols + col);
    std::vector<float> floats(static_cast<size_t>(n));
    dequantise(format, blocks, n, floats.data());
    const BlockFormat& own = block_format(part->format);
    std::vector<char> packed(size_t(n / own.numbers * own.bytes));
    quantise(own, floats.data(), n, packed.data());
    pack(*part, e.tensor.cols, row - part->first, col, n, packed.data());
}
void PackedWeights::write(int64_t offset, int64_t n, const BlockFormat& format, const void* blocks) {
    while (n > 0) {
        const Entry& e = entry(offset);
        const int64_t cols = e.tensor.cols, at = offset - e.tensor.offset;
        const int64_t count = std::min(n, e.tensor.size() - at);
        CHECK(count > 0, "%s ends before %lld", e.tensor.name.c_str(), (long long)offset);
        auto* from = static_cast<const char*>(blocks);
        const int64_t first = at / cols, rows = (at + count - 1) / cols + 1 - first;
        const int64_t chunks = std::clamp<int64_t>(count >> 16, 1, rows);
        each_chunk(chunks, [&](int64_t chunk, int) {
            for (int64_t row = first + rows * chunk / chunks; row < first + rows * (chunk + 1) / chunks; row++) {
                const int64_t begin = std::max(at, row * cols), end = std::min(at + count, (row + 1) * cols);
                write_row(e, row, begin - row * cols, end - begin, format,
                          from + (begin - at) / format.numbers * format.bytes);
            }
        });
        blocks = from + count / format.numbers * format.bytes;
        offset += count;
        n -= count;
    }
}
void PackedWeights::read(int64_t offset, int64_t n, float* to) const {
    for (const int64_t end = offset + n; offset < end;) {
        const Entry& e = entry(offset);
        const int64_t at = offset - e.tensor.offset, whole = std::min(end - offset, e.tensor.size() - at);
        const int64_t cols = e.parts.empty() ? whole : e.tensor.cols;
        if (e.parts.empty()) {
            std::copy_n(e.weight.floats + at, cols, to);
        } else {
            CHECK(at % cols == 0 && end - offset >= cols, "%s: no whole row", e.tensor.name.c_str());
            unpack_row(e.weight, cols, at / cols, to);
        }
        offset += cols;
        to += cols;
    }
}

uint64_t PackedWeights::hash(uint64_t h) const {
    for (auto& e : entries) {
        std::vector<float> row(size_t(e->tensor.cols));
        for (int64_t r = 0; r < e->tensor.rows; r++) {
            read(e->tensor.offset + r * e->tensor.cols, e->tensor.cols, row.data());
            h = fnv1a_words(h, row.data(), int64_t(row.size() * sizeof(float)));
            count_progress();
        }
    }
    return h;
}

int64_t PackedWeights::bytes_beside_fp32() const {
    int64_t all = 0;
    for (auto& e : entries)
        for (const PackedPart& p : e->parts)
            if (e->tensor.product)    // not tables, of which a token reads a row
                all += part_bytes(p.format, p.rows, e->tensor.cols) - 4 * p.rows * e->tensor.cols;
    return all;
}

std::string PackedWeights::formats() const {
    std::map<BlockType, int64_t> sizes;
    for (auto& e : entries)
        for (const PackedPart& p : e->parts) sizes[p.format] += part_bytes(p.format, p.rows, e->tensor.cols);
    std::vector<std::pair<int64_t, BlockType>> order;
    for (auto& [format, size] : sizes) order.push_back({-size, format});
    std::sort(order.begin(), order.end());
    std::string text;
    for (size_t i = 0; i < order.size(); i++)
        text += (i ? i + 1 < order.size() ? ", " : " and " : "") + std::string(block_format(order[i].second).name);
    return text;
}
