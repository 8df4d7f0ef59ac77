// loader.cpp - order of the samples, and a thread that reads batches in advance. See loader.h.
#include "base/philox.h"
#include "loader.h"

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "data/mixture.h"
#include "data/seq2seq/length_groups.h"

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
    std::shared_ptr<const SampleSource> source;
    MixtureOrder order;
    std::unique_ptr<LengthGroups> groups;    // null: the samples come as `ordered` has them
    int64_t epoch = 0;                       // samples per epoch, limited by max_tokens
    Position at;                             // start of the batch that next() returns

    // Shared with the reader thread, which reads batch `made`. The ring holds batches [taken,
    // made).
    std::mutex mutex;
    std::condition_variable_any changed;
    struct Batch {
        std::vector<int> tokens, targets;    // (B,S)
        std::vector<std::vector<Text>> texts;
    } ring[DEPTH];
    Status error;      // reading batch `made` failed
    Position ahead;    // start of batch `made`
    int64_t made = 0, taken = 0, seeks = 0;
    std::jthread reader;    // last: stops before the other members are destroyed

    Position normal(Position p) const { return {p.epoch + p.index / epoch, p.index % epoch}; }
    int64_t sample_at(Position p) const { return groups ? groups->at(p.epoch, p.index) : ordered(p); }
    int64_t ordered(Position order_pos) const {
        if (c.shuffle) return order.at(order_pos.epoch * epoch + order_pos.index);
        return int64_t(__int128(order_pos.index) * source->samples() / epoch);
    }
    Position after(Position p) const { return normal({p.epoch, p.index + int64_t(c.ranks) * c.B}); }

    Status read(Position p, Batch& to) const {
        for (int b = 0; b < c.B; b++) {
            const int64_t sample = sample_at(normal({p.epoch, p.index + int64_t(c.rank) * c.B + b}));
            const size_t first = size_t(b) * size_t(c.S);
            TRY(source->read(sample, &to.tokens[first], &to.targets[first], &to.texts[size_t(b)]));
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
            Batch& to = ring[made % DEPTH];
            lock.unlock();
            Status status = read(p, to);
            lock.lock();
            if (seeks != seeks_then) continue;    // seek made this batch obsolete
            error = status;
            if (status.ok()) ahead = after(p), made++;
            changed.notify_all();
        }
    }
};

Result<Loader> Loader::open(const LoaderConfig& c) {
    CHECK(c.S > 0 && c.vocab > 0);
    return open(TRY(shard_samples(c)), c);
}
Result<Loader> Loader::open(std::shared_ptr<const SampleSource> source, const LoaderConfig& c) {
    CHECK(c.B > 0 && c.S > 0 && c.vocab > 0 && c.ranks > 0 && c.rank >= 0 && c.rank < c.ranks);
    CHECK(c.max_tokens >= 0 && (c.max_tokens == 0 || !c.shuffle), "some samples, in a shuffled order");
    Loader loader;
    loader.s = std::make_shared<State>();
    State& s = *loader.s;
    s.c = c;
    s.source = std::move(source);
    const int64_t all = s.source->samples();
    CHECK(all > 0, "no samples");
    s.epoch = c.max_tokens ? std::min(all, ceil_div(c.max_tokens, c.S)) : all;
    s.order = MixtureOrder(s.source->parts(), c.seed);
    if (c.group > 0)
        s.groups = std::make_unique<LengthGroups>(
            c.group, s.epoch, c.seed, c.shuffle,
            [&s](int64_t e, int64_t i) {
                return s.ordered({e, i});
            },
            [&s](int64_t sample) { return s.source->length(sample); });
    const size_t positions = size_t(c.B) * size_t(c.S);
    for (State::Batch& batch : s.ring) {
        batch.tokens.resize(positions), batch.targets.resize(positions);
        batch.texts.resize(size_t(c.B));
    }
    try {
        s.reader = std::jthread([&s](std::stop_token stop) { s.read_ahead(stop); });
    } catch (const std::system_error& e) {
        return fail(Exit::run, "the thread that reads the data cannot be started: %s", e.what());
    }
    return loader;
}

Status Loader::next(int* tokens, int* targets, std::vector<std::vector<Text>>* texts) {
    CHECK(s);
    std::unique_lock lock(s->mutex);
    s->changed.wait(lock, [&] { return s->made > s->taken || !s->error.ok(); });
    if (s->made == s->taken) return s->error;
    const State::Batch& from = s->ring[s->taken % State::DEPTH];
    lock.unlock();    // the thread cannot reuse it before `taken` grows
    std::copy(from.tokens.begin(), from.tokens.end(), tokens);
    std::copy(from.targets.begin(), from.targets.end(), targets);
    if (texts) *texts = from.texts;
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
int64_t Loader::tokens() const { return s->source->tokens(); }
const SampleSource& Loader::source() const { return *s->source; }
const std::vector<Shard>& Loader::shards() const {
    static const std::vector<Shard> none;
    return s ? s->source->shards() : none;
}
int64_t Loader::targets(int64_t n) const {
    int64_t all = 0;
    for (int64_t i = 0; i < n; i++) all += s->source->targets(sample(i));
    return all;
}
int64_t Loader::sample(int64_t i) const { return s->sample_at(s->normal({s->at.epoch, s->at.index + i})); }
std::vector<int64_t> Loader::drawn(int64_t n) const { return s->order.drawn(n); }
std::vector<double> Loader::shares() const { return s->order.shares(); }
uint64_t Loader::fingerprint() const { return s->source->fingerprint(); }
