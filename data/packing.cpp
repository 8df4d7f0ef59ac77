// packing.cpp - see packing.h.
#include "data/packing.h"

#include <algorithm>

#include "base/console.h"

// ---- rows ---------------------------------------------------------------------------------------

void Packer::add(int64_t start, int64_t length) {
    CHECK(length > 0);
    all.documents++;
    all.tokens += length;
    buffer.emplace(length, start);
    if (buffer.size() >= PACKING_BUFFER) pack_next();
}

void Packer::pack_next() {
    // Among equal lengths the smallest start is the first document.
    auto best = buffer.upper_bound({free, INT64_MAX});
    best = best == buffer.begin() ? best : buffer.lower_bound({std::prev(best)->first, 0});
    const auto [length, start] = *best;
    buffer.erase(best);
    const int used = int(std::min<int64_t>(length, free));
    all.starts.push_back(start);
    all.lengths.push_back(used);
    if (used < length) {
        all.cropped++;
        all.cropped_tokens += length - used;
    }
    free -= used;
    if (free > 0) return;
    free = size;
    all.first_of.push_back(int64_t(all.starts.size()));
}

PackedRows Packer::finish() {
    while (!buffer.empty()) pack_next();
    // An open row has no cropped document, because a crop fills its row.
    all.starts.resize(size_t(all.first_of.back()));
    all.lengths.resize(size_t(all.first_of.back()));
    return std::move(all);
}

// ---- samples ------------------------------------------------------------------------------------

namespace {
class PackedDocuments : public SampleSource {
  public:
    std::vector<Shard> files;
    std::vector<int64_t> before = {0};    // tokens before shard i; last entry: all tokens
    PackedRows rows;
    int begin = -1, S = 0, vocab = 0;

    int64_t samples() const override { return rows.rows(); }
    int64_t tokens() const override { return before.back(); }
    int64_t targets(int64_t) const override { return S; }
    const std::vector<Shard>& shards() const override { return files; }
    double cropped() const override { return double(rows.cropped_tokens) / double(tokens()); }
    std::string text() const override {
        return formatted("%s tokens in %s, %s packed into %s of %d, %.1f %% of the tokens cropped",
                         human_count(double(tokens())).c_str(), counted(int64_t(files.size()), "shard").c_str(),
                         counted(rows.documents, "document").c_str(), counted(samples(), "sequence").c_str(), S,
                         100 * cropped());
    }
    std::string note() const override {
        const int64_t rest = tokens() - rows.cropped_tokens - samples() * (S + 1);
        std::string all = formatted("--pack: %s in %s of %d; %lld of them are cropped (%.1f %% of all tokens)",
                                    counted(rows.documents, "document").c_str(), counted(samples(), "sequence").c_str(),
                                    S, (long long)rows.cropped, 100 * cropped());
        if (rest > 0)
            all += formatted("; %s left out (no document, or no full sequence at the end)",
                             counted(rest, "token").c_str());
        if (cropped() > 0.5)
            all +=
                ". Most of the text is in no sequence, since its documents are long: a longer --seq-len keeps "
                "more, and without --pack all is read";
        return all;
    }
    // Pieces that lie near each other are read at once, because opening a file costs more than some
    // more tokens.
    Status read(int64_t sample, int* tokens, int* targets, std::vector<Text>* texts) const override {
        constexpr int64_t AT_ONCE = 1 << 15;    // tokens
        struct Piece {
            int64_t start;
            int length, at;    // at: first position in the row
        };
        std::vector<Piece> pieces;
        int n = 0;
        for (size_t i = size_t(rows.first_of[size_t(sample)]); i < size_t(rows.first_of[size_t(sample) + 1]); i++) {
            pieces.push_back({rows.starts[i], rows.lengths[i], n});
            n += rows.lengths[i];
        }
        CHECK(n == S + 1, "%d tokens in a row of %d", n, S + 1);
        std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.start < b.start; });
        std::vector<int> row(size_t(S + 1)), together;
        for (size_t i = 0, end; i < pieces.size(); i = end) {
            const int64_t first = pieces[i].start;
            const size_t k = size_t(std::upper_bound(before.begin(), before.end(), first) - before.begin() - 1);
            const int64_t last = std::min(before[k + 1], first + AT_ONCE);
            for (end = i + 1; end < pieces.size() && pieces[end].start + pieces[end].length <= last;) end++;
            together.resize(size_t(pieces[end - 1].start + pieces[end - 1].length - first));
            TRY(shard_read(files[k], first - before[k], int64_t(together.size()), vocab, together.data()));
            for (size_t p = i; p < end; p++)
                std::copy_n(together.begin() + (pieces[p].start - first), pieces[p].length, row.begin() + pieces[p].at);
        }
        std::copy(row.begin(), row.end() - 1, tokens);
        std::copy(row.begin() + 1, row.end(), targets);
        *texts = {Text{}};
        return {};
    }
    uint64_t fingerprint() const override {
        const int64_t rule[] = {begin, PACKING_BUFFER, rows.rows(), rows.documents};
        return fnv1a_words(shards_fingerprint(files, S), rule, sizeof rule);
    }
};
}    // namespace

Result<std::shared_ptr<const SampleSource>> packed_documents(std::vector<Shard> shards, int begin, int S, int vocab) {
    auto packed = std::make_shared<PackedDocuments>();
    packed->begin = begin;
    packed->S = S;
    packed->vocab = vocab;
    Packer packer(S + 1);
    for (const Shard& shard : shards) {
        const int64_t base = packed->before.back();
        int64_t open = -1;    // start of the document that has not ended
        auto end = [&](int64_t at) {
            if (open >= 0 && at - open > 1) packer.add(base + open, at - open);
            open = at;
        };
        TRY(shard_find(shard, begin, end));
        end(shard.tokens);
        packed->before.push_back(base + shard.tokens);
    }
    packed->rows = packer.finish();
    if (packed->rows.rows() == 0)
        return fail(Exit::input,
                    "--pack: %s: expected documents (token %d begins one) that fill a sequence of %d tokens "
                    "(sequence length + 1), found %s with %s",
                    shards[0].path.c_str(), begin, S + 1, counted(packed->rows.documents, "document").c_str(),
                    counted(packed->rows.tokens, "token").c_str());
    packed->files = std::move(shards);
    return std::shared_ptr<const SampleSource>(packed);
}
