// loader.cpp - order of the samples, and a thread that reads batches in advance. See loader.h.
#include "base/philox.h"
#include "loader.h"

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

// A Feistel network with philox as round function permutes [0, 2^bits), where 2^bits < 2n. It is
// applied again while the result is outside [0, n) (cycle walking: Black & Rogaway 2002), on
// average fewer than twice in all.
int64_t shuffled(uint64_t seed, int64_t epoch, int64_t n, int64_t i) {
    CHECK(i >= 0 && i < n);
    constexpr int ROUNDS = 8;
    constexpr uint64_t STREAM = 0xDA7Aull << 48;    // random stream of its own
    int bits = std::bit_width(uint64_t(n - 1));
    uint64_t x = uint64_t(i);
    do {
        int low = bits / 2, high = bits - low;
        for (int round = 0; round < ROUNDS; round++) {
            uint64_t right = x & ((uint64_t(1) << low) - 1), left = x >> low;
            Philox4 f = philox(seed, STREAM ^ uint64_t(epoch), uint64_t(round) << 56 | right);
            uint64_t mask = (uint64_t(1) << high) - 1, mixed = (left ^ (uint64_t(f.v[1]) << 32 | f.v[0])) & mask;
            x = right << high | mixed;    // halves, and their widths, swap
            std::swap(low, high);
        }
    } while (x >= uint64_t(n));
    return int64_t(x);
}

struct Loader::State {
    static constexpr int DEPTH = 2;    // batches that the ring buffer holds

    LoaderConfig c;
    std::vector<Shard> shards;
    std::vector<int64_t> before;    // samples before shard i; last entry: all samples
    int64_t epoch = 0;              // samples per epoch, limited by max_tokens
    Position at;                    // start of the batch that next() returns

    // Shared with the reader thread, which reads batch `made`. The ring holds batches [taken,
    // made).
    std::mutex mutex;
    std::condition_variable_any changed;
    std::vector<int> ring[DEPTH];    // (B,S+1) tokens per batch
    Status error;                    // reading batch `made` failed
    Position ahead;                  // start of batch `made`
    int64_t made = 0, taken = 0, seeks = 0;
    std::jthread reader;    // last: stops before the other members are destroyed

    Position normal(Position p) const { return {p.epoch + p.index / epoch, p.index % epoch}; }
    int64_t sample_at(Position order_pos) const {
        if (c.shuffle) return shuffled(c.seed, order_pos.epoch, epoch, order_pos.index);
        return int64_t(__int128(order_pos.index) * before.back() / epoch);
    }
    Position after(Position p) const { return normal({p.epoch, p.index + int64_t(c.ranks) * c.B}); }

    Status read(Position p, int* out) const {
        for (int b = 0; b < c.B; b++) {
            Position order_pos = normal({p.epoch, p.index + int64_t(c.rank) * c.B + b});
            int64_t sample = sample_at(order_pos);
            auto shard = std::upper_bound(before.begin(), before.end(), sample) - before.begin() - 1;
            int64_t first = (sample - before[size_t(shard)]) * c.S;
            TRY(shard_read(shards[size_t(shard)], first, c.S + 1, c.vocab, out + int64_t(b) * (c.S + 1)));
        }
        return {};
    }

    void read_ahead(std::stop_token stop) {
        std::unique_lock lock(mutex);
        while (true) {
            changed.wait(lock, stop, [&] { return error.ok() && made - taken < DEPTH; });
            if (stop.stop_requested()) return;
            Position p = ahead;
            int64_t seeks_then = seeks;
            int* out = ring[made % DEPTH].data();
            lock.unlock();
            Status status = read(p, out);
            lock.lock();
            if (seeks != seeks_then) continue;    // seek made this batch obsolete
            error = status;
            if (status.ok()) ahead = after(p), made++;
            changed.notify_all();
        }
    }
};

Result<Loader> Loader::open(const LoaderConfig& c) {
    CHECK(c.B > 0 && c.S > 0 && c.vocab > 0 && c.ranks > 0 && c.rank >= 0 && c.rank < c.ranks);
    CHECK(c.max_tokens >= 0 && (c.max_tokens == 0 || !c.shuffle), "some samples, in a shuffled order");
    Loader loader;
    loader.s = std::make_shared<State>();
    State& s = *loader.s;
    s.c = c;
    s.before = {0};
    for (const std::string& path : TRY(shard_glob(c.pattern))) {
        s.shards.push_back(TRY(shard_open(path, c.raw_u16)));
        s.before.push_back(s.before.back() + std::max<int64_t>(0, s.shards.back().tokens - 1) / c.S);
    }
    TRY(check_shard_sets(s.shards, c.allow_partial_set));
    const int64_t all = s.before.back();
    s.epoch = c.max_tokens ? std::min(all, ceil_div(c.max_tokens, c.S)) : all;
    if (all == 0)
        return fail(Exit::input,
                    "'%s': %zu files, none with the %d tokens of one sample (sequence length + 1); the "
                    "first, %s, has %lld",
                    c.pattern.c_str(), s.shards.size(), c.S + 1, s.shards[0].path.c_str(),
                    (long long)s.shards[0].tokens);
    for (auto& batch : s.ring) batch.resize(size_t(c.B) * size_t(c.S + 1));
    try {
        s.reader = std::jthread([&s](std::stop_token stop) { s.read_ahead(stop); });
    } catch (const std::system_error& e) {
        return fail(Exit::run, "the thread that reads the data cannot be started: %s", e.what());
    }
    return loader;
}

Status Loader::next(int* tokens, int* targets) {
    CHECK(s);
    std::unique_lock lock(s->mutex);
    s->changed.wait(lock, [&] { return s->made > s->taken || !s->error.ok(); });
    if (s->made == s->taken) return s->error;
    const int *from = s->ring[s->taken % State::DEPTH].data(), B = s->c.B, S = s->c.S;
    lock.unlock();    // the thread cannot reuse it before `taken` grows
    for (int64_t b = 0; b < B; b++, from += S + 1) {
        std::copy(from, from + S, tokens + b * S);
        std::copy(from + 1, from + S + 1, targets + b * S);
    }
    lock.lock();
    s->taken++;
    s->at = s->after(s->at);
    s->changed.notify_all();
    return {};
}

Loader::Position Loader::position() const { return s->at; }
void Loader::seek(Position p) {
    CHECK(s && p.epoch >= 0 && p.index >= 0);
    std::lock_guard lock(s->mutex);
    s->at = s->ahead = s->normal(p);
    s->taken = s->made;
    s->error = {};
    s->seeks++;
    s->changed.notify_all();
}
int64_t Loader::samples() const { return s->epoch; }
const std::vector<Shard>& Loader::shards() const { return s->shards; }
int64_t Loader::tokens() const {
    int64_t n = 0;
    for (const Shard& shard : s->shards) n += shard.tokens;
    return n;
}

uint64_t Loader::fingerprint() const {
    uint64_t h = FNV_OFFSET_BASIS;    // FNV-1a of bytes
    auto add = [&](const void* data, size_t bytes) {
        for (size_t i = 0; i < bytes; i++) h = (h ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001B3ull;
    };
    for (const Shard& shard : s->shards) {
        // The hash takes the file's name without the directory (data may move before a resume), and
        // with its NUL as a separator.
        const char* name = shard.path.c_str() + shard.path.rfind('/') + 1;
        add(name, std::char_traits<char>::length(name) + 1);
        add(&shard.file_bytes, 8);
        add(&shard.tokens, 8);
    }
    add(&s->c.S, sizeof s->c.S);
    return h;
}
