// samples.cpp - windows of S+1 tokens of shards, and the choice among sources of shards. See
// samples.h.
#include "samples.h"

#include <algorithm>

#include "base/console.h"
#include "data/mixture.h"
#include "data/packing.h"
#include "data/encoders/sentence_pairs.h"

namespace {
class ShardWindows : public SampleSource {
  public:
    std::vector<Shard> files;
    std::vector<int64_t> before = {0};    // windows before shard i; last entry: all windows
    int S = 0, vocab = 0;

    int64_t samples() const override { return before.back(); }
    int64_t targets(int64_t) const override { return S; }
    const std::vector<Shard>& shards() const override { return files; }
    int64_t tokens() const override {
        int64_t n = 0;
        for (const Shard& shard : files) n += shard.tokens;
        return n;
    }
    std::string text() const override {
        return human_count(double(tokens())) + " tokens in " + counted(int64_t(files.size()), "shard") + ", " +
               counted(samples(), "window") + " of " + std::to_string(S);
    }
    Status read(int64_t sample, int* tokens, int* targets, std::vector<Text>* texts) const override {
        const auto shard = std::upper_bound(before.begin(), before.end(), sample) - before.begin() - 1;
        const int64_t first = (sample - before[size_t(shard)]) * S;
        std::vector<int> window(size_t(S + 1));
        TRY(shard_read(files[size_t(shard)], first, S + 1, vocab, window.data()));
        std::copy(window.begin(), window.end() - 1, tokens);
        std::copy(window.begin() + 1, window.end(), targets);
        *texts = {Text{}};
        return {};
    }
    uint64_t fingerprint() const override { return shards_fingerprint(files, S); }
};

Result<std::shared_ptr<const SampleSource>> shard_windows(std::vector<Shard> shards, const LoaderConfig& c) {
    auto windows = std::make_shared<ShardWindows>();
    windows->S = c.S;
    windows->vocab = c.vocab;
    for (const Shard& shard : shards)
        windows->before.push_back(windows->samples() + std::max<int64_t>(0, shard.tokens - 1) / c.S);
    if (windows->samples() == 0)
        return fail(Exit::input,
                    "'%s': %zu files, none with the %d tokens of one sample (sequence length + 1); the "
                    "first, %s, has %lld",
                    c.pattern.c_str(), shards.size(), c.S + 1, shards[0].path.c_str(), (long long)shards[0].tokens);
    windows->files = std::move(shards);
    return std::shared_ptr<const SampleSource>(windows);
}
}    // namespace

uint64_t shards_fingerprint(const std::vector<Shard>& shards, int S) {
    uint64_t h = FNV_OFFSET_BASIS;    // FNV-1a of bytes
    auto add = [&](const void* data, size_t bytes) {
        for (size_t i = 0; i < bytes; i++) h = (h ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001B3ull;
    };
    for (const Shard& shard : shards) {
        // The hash takes the file's name without the directory (data may move before a resume),
        // and with its NUL as a separator.
        const char* name = shard.path.c_str() + shard.path.rfind('/') + 1;
        add(name, std::char_traits<char>::length(name) + 1);
        add(&shard.file_bytes, 8);
        add(&shard.tokens, 8);
    }
    add(&S, sizeof S);
    return h;
}

Result<std::shared_ptr<const SampleSource>> shard_samples(const LoaderConfig& c) {
    const std::vector<MixtureEntry> entries = c.weighted ? TRY(mixture_parse(c.pattern))
                                                         : std::vector<MixtureEntry>{{c.pattern}};
    std::vector<std::vector<Shard>> shards;
    std::vector<Shard> all;
    std::vector<std::string> paths;
    for (const MixtureEntry& e : entries) {
        shards.emplace_back();
        Result<std::vector<std::string>> files = shard_glob(e.pattern);
        if (files.status.code == Exit::input && !e.text.empty())
            files.status.message += formatted(" (%g was read as its weight; of a file named '%s', write '%s=1')",
                                              e.weight, e.text.c_str(), e.text.c_str());
        for (const std::string& path : TRY(std::move(files))) {
            paths.push_back(path);
            shards.back().push_back(TRY(shard_open(path, c.raw_u16)));
        }
        all.insert(all.end(), shards.back().begin(), shards.back().end());
    }
    TRY(check_distinct(paths, c.pattern));
    TRY(check_shard_sets(all, c.allow_partial_set));
    std::vector<std::shared_ptr<const SampleSource>> sources;
    for (size_t k = 0; k < entries.size(); k++) {
        LoaderConfig one = c;
        one.pattern = entries[k].pattern;
        if (c.pairs) sources.push_back(TRY(sentence_pairs(std::move(shards[k]), *c.pairs, c.S, c.vocab)));
        else
            sources.push_back(c.begin < 0 ? TRY(shard_windows(std::move(shards[k]), one))
                                          : TRY(packed_documents(std::move(shards[k]), c.begin, c.S, c.vocab)));
    }
    return mixture_of(entries, std::move(sources));
}

Result<std::vector<int>> tokens_of(const SampleSource& source, int S) {
    const int64_t all = source.samples(), most = std::min(all, ceil_div(1 << 20, S));
    std::vector<int> tokens(size_t(most) * size_t(S)), targets(static_cast<size_t>(S));
    std::vector<Text> texts;
    for (int64_t i = 0; i < most; i++)
        TRY(source.read(int64_t(__int128(i) * all / most), &tokens[size_t(i * S)], targets.data(), &texts));
    return tokens;
}

int cut_behind_targets(int* tokens, int* targets, int B, int S) {
    int used = 1;
    for (int b = 0; b < B; b++)
        for (int s = S - 1; s >= used; s--)
            if (targets[int64_t(b) * S + s] >= 0) used = s + 1;
    const int length = std::min(S, int(round_up(used, 16)));
    for (int64_t b = 1; b < B && length < S; b++) {
        std::copy_n(tokens + b * S, length, tokens + b * length);
        std::copy_n(targets + b * S, length, targets + b * length);
    }
    return length;
}
