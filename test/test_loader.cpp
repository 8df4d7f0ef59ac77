// test_loader.cpp - order of samples, hostile shards, files that change while they are read.
#include "data/bpe.h"
#include "base/philox.h"
#include "data/loader.h"

#include "test.h"

#include <filesystem>
#include <set>
#include <sys/stat.h>
#include <unistd.h>

namespace fs = std::filesystem;

namespace {
constexpr int V = 60000;

// Writes tokens from, from+1, ... modulo V, so that a token's value tells its position.
void write_shard(const std::string& path, int64_t count, int from = 0, int vocab = V) {
    ShardWriter w;
    REQUIRE(w.open(path, vocab).ok());
    std::vector<int> tokens;
    for (int64_t i = 0; i < count; i++) tokens.push_back(int((from + i) % V));
    REQUIRE(w.append(tokens.data(), count).ok());
    REQUIRE(w.commit().ok());
    CHECK(w.tokens() == count);
}
struct Batch {
    std::vector<int> tokens, targets;
    bool operator==(const Batch&) const = default;
};
Batch next(Loader& l, int B, int S) {
    Batch b{std::vector<int>(size_t(B * S)), std::vector<int>(size_t(B * S))};
    Status s = l.next(b.tokens.data(), b.targets.data());
    REQUIRE_MESSAGE(s.ok(), s.message);
    return b;
}
Loader open(const LoaderConfig& c) {
    Result<Loader> l = Loader::open(c);
    REQUIRE_MESSAGE(l.ok(), l.status.message);
    return std::move(l.value);
}
// The first error of the next ten batches (batches read ahead come before it), or ok.
Status first_error(Loader& l, int B, int S) {
    std::vector<int> tokens(size_t(B * S)), targets(tokens.size());
    for (int i = 0; i < 10; i++)
        if (Status s = l.next(tokens.data(), targets.data()); !s.ok()) return s;
    return {};
}
std::string header(int32_t magic, int32_t version, int32_t count) {
    int32_t h[256] = {magic, version, count};
    return {reinterpret_cast<const char*>(h), sizeof h};
}
// A sparse file: tokens at the given offsets, zeros elsewhere.
void write_sparse(const std::string& path, const std::string& head, int64_t bytes,
                  const std::vector<std::pair<int64_t, std::string>>& parts) {
    write_file(path, head);
    REQUIRE(truncate(path.c_str(), bytes) == 0);
    FILE* f = fopen(path.c_str(), "r+b");
    for (auto& [offset, data] : parts) {
        fseeko(f, offset, SEEK_SET);
        fwrite(data.data(), 1, data.size(), f);
    }
    fclose(f);
}
}    // namespace

TEST_CASE("shuffled: a bijection that depends on seed and epoch") {
    for (int64_t n : {1, 2, 3, 4, 5, 7, 16, 17, 255, 256, 257, 1000, 65537})
        for (int64_t epoch : {0, 1, 5}) {
            std::vector<char> hit(size_t(n), 0);
            for (int64_t i = 0; i < n; i++) {
                int64_t p = shuffled(3, epoch, n, i);
                REQUIRE((p >= 0 && p < n));
                hit[size_t(p)]++;
            }
            CHECK(std::all_of(hit.begin(), hit.end(), [](char c) { return c == 1; }));
        }
    std::set<int64_t> far;
    const int64_t large = (int64_t(1) << 61) + 12345;
    for (int64_t i = 0; i < 1000; i++) far.insert(shuffled(3, 0, large, large - 1 - i));
    CHECK(far.size() == 1000);
    CHECK((*far.begin() >= 0 && *far.rbegin() < large));
    CHECK(*far.rbegin() - *far.begin() > large / 2);
    auto order = [](uint64_t seed, int64_t epoch) {
        std::vector<int64_t> p;
        for (int64_t i = 0; i < 1000; i++) p.push_back(shuffled(seed, epoch, 1000, i));
        return p;
    };
    CHECK(order(3, 0) != order(3, 1));
    CHECK(order(3, 0) != order(4, 0));
    CHECK(order(3, 0) != order(3 + (uint64_t(1) << 32), 0));
    // Over many epochs each sample comes first about equally often, and neighbours are separated.
    int first[10] = {}, neighbours = 0;
    for (int64_t e = 0; e < 2000; e++) first[shuffled(1, e, 10, 0)]++;
    for (int count : first) CHECK((count > 130 && count < 270));
    for (int64_t i = 0; i < 9999; i++)
        neighbours += std::llabs(shuffled(1, 0, 10000, i + 1) - shuffled(1, 0, 10000, i)) == 1;
    CHECK(neighbours < 12);
    // A resumed run relies on this order: it must never change.
    const std::vector<int64_t> pinned = {791, 742, 687, 769, 172, 350, 843, 961};
    CHECK(std::equal(pinned.begin(), pinned.end(), order(1, 0).begin()));
}

TEST_CASE("loader: files in order when unshuffled, each sample once an epoch when shuffled") {
    std::string dir = temporary_directory();
    write_shard(dir + "/t_000.bin", 101, 0);            // 12 windows of 8+1
    write_shard(dir + "/t_001.bin", 8, 1000);           // too short: none
    write_shard(dir + "/t_002.bin", 9, 2000, 70000);    // one window, of uint32
    write_shard(dir + "/t_003.bin", 0, 0);
    LoaderConfig c{.pattern = dir + "/t_*.bin", .B = 3, .S = 8, .vocab = V, .shuffle = false};
    Loader l = open(c);
    CHECK(l.samples() == 13);
    CHECK(l.tokens() == 118);
    CHECK(l.shards().size() == 4);
    std::vector<int> starts;
    for (int step = 0; step < 5; step++) {
        Batch b = next(l, 3, 8);
        for (int i = 0; i < 3; i++) starts.push_back(b.tokens[size_t(i * 8)]);
        for (size_t i = 0; i < b.tokens.size(); i++) CHECK(b.targets[i] == b.tokens[i] + 1);
    }
    for (int i = 0; i < 12; i++) CHECK(starts[size_t(i)] == 8 * i);
    CHECK(starts[12] == 2000);
    CHECK(starts[13] == 0);    // first of the next epoch
    CHECK(l.position() == Loader::Position{1, 2});
    c.shuffle = true;
    Loader s = open(c);
    std::vector<int> mixed;
    for (int step = 0; step < 13; step++) {    // 39 samples: three epochs
        Batch b = next(s, 3, 8);
        for (int i = 0; i < 3; i++) mixed.push_back(b.tokens[size_t(i * 8)]);
    }
    for (int e = 0; e < 3; e++) {
        std::set<int> epoch(mixed.begin() + e * 13, mixed.begin() + (e + 1) * 13);
        CHECK(epoch.size() == 13);
    }
    for (int e = 1; e < 3; e++)    // each epoch in an order of its own
        CHECK(!std::equal(mixed.begin(), mixed.begin() + 13, mixed.begin() + e * 13));
    CHECK(s.position() == Loader::Position{3, 0});
    CHECK(!std::equal(starts.begin(), starts.begin() + 13, mixed.begin()));
}

TEST_CASE("loader: ranks share one order, and a seek goes on where another loader was") {
    std::string dir = temporary_directory();
    write_shard(dir + "/a.bin", 500, 0);
    write_shard(dir + "/b.bin", 300, 10000);
    LoaderConfig whole{.pattern = dir + "/a.bin," + dir + "/b.bin", .B = 12, .S = 16, .vocab = V, .seed = 9};
    for (int ranks : {2, 3, 4, 12}) {
        Loader one = open(whole);
        std::vector<Loader> part;
        for (int r = 0; r < ranks; r++) {
            LoaderConfig c = whole;
            c.B = 12 / ranks, c.rank = r, c.ranks = ranks;
            part.push_back(open(c));
        }
        for (int step = 0; step < 9; step++) {    // more than two epochs of 49 samples
            Batch all = next(one, 12, 16), joined;
            for (Loader& l : part) {
                Batch b = next(l, 12 / ranks, 16);
                joined.tokens.insert(joined.tokens.end(), b.tokens.begin(), b.tokens.end());
                joined.targets.insert(joined.targets.end(), b.targets.begin(), b.targets.end());
            }
            CHECK(all == joined);
        }
        CHECK(one.position() == part.back().position());
    }
    Loader a = open(whole), b = open(whole);
    std::vector<Loader::Position> places;
    std::vector<Batch> batches;
    for (int step = 0; step < 20; step++) {
        places.push_back(a.position());
        batches.push_back(next(a, 12, 16));
    }
    for (uint64_t i = 0; i < 200; i++) {    // back and forth, against the read-ahead
        size_t k = philox(1, 1, i).v[0] % 19;
        b.seek(places[k]);
        CHECK(b.position() == places[k]);
        CHECK(next(b, 12, 16) == batches[k]);
        if (i % 3 == 0) CHECK(next(b, 12, 16) == batches[k + 1]);
    }
    b.seek({0, 49 * 2 + 5});    // 5 samples into epoch 2
    CHECK(b.position() == Loader::Position{2, 5});
}

TEST_CASE("loader: a batch larger than an epoch, and a fingerprint that follows the data") {
    std::string dir = temporary_directory();
    write_shard(dir + "/a.bin", 25);
    Loader l = open({.pattern = dir + "/a.bin", .B = 10, .S = 8, .vocab = V});
    CHECK(l.samples() == 3);
    (void)next(l, 10, 8);
    CHECK(l.position() == Loader::Position{3, 1});
    uint64_t before = l.fingerprint();
    fs::create_directory(dir + "/moved");
    fs::copy(dir + "/a.bin", dir + "/moved/a.bin");
    CHECK(open({.pattern = dir + "/moved/a.bin", .B = 2, .S = 8, .vocab = V}).fingerprint() == before);
    write_shard(dir + "/a.bin", 26);
    CHECK(open({.pattern = dir + "/a.bin", .B = 2, .S = 8, .vocab = V}).fingerprint() != before);
    fs::rename(dir + "/moved/a.bin", dir + "/moved/b.bin");
    CHECK(open({.pattern = dir + "/moved/b.bin", .B = 2, .S = 8, .vocab = V}).fingerprint() != before);
}

TEST_CASE("shard: every bad header is refused by name") {
    std::string dir = temporary_directory(), path = dir + "/s.bin", ten(20, '\1');
    auto code = [&](const std::string& bytes, bool raw = false) {
        std::vector<char> exact(bytes.begin(), bytes.end());
        Result<Shard> parsed = shard_parse({exact.data(), exact.size()}, int64_t(bytes.size()), path, raw);
        write_file(path, bytes);
        Result<Shard> opened = shard_open(path, raw);
        CHECK(parsed.status.code == opened.status.code);
        if (!opened.ok()) CHECK(opened.status.message.find(path) != std::string::npos);
        return opened.status.code;
    };
    std::string good = header(20240520, 1, 10) + ten;
    CHECK(code(good) == Exit::ok);
    CHECK(code(header(20240801, 7, 5) + ten) == Exit::ok);
    for (size_t n = 0; n < good.size(); n++) CHECK(code(good.substr(0, n)) == Exit::input);
    for (size_t n : {1, 2, 3, 4, 1024, 4096}) CHECK(code(good + std::string(n, '\0')) == Exit::input);
    const int32_t hostile[] = {0, -1, 1, 7, 9, 11, INT32_MAX, INT32_MIN, INT32_MAX - 1, 20240522, 20240326};
    for (int32_t x : hostile) {
        CHECK(code(header(x, 1, 10) + ten) == Exit::input);
        if (x != 1) CHECK(code(header(20240520, x, 10) + ten) == Exit::input);
        CHECK(code(header(20240520, 1, x) + ten) == Exit::input);
        CHECK(code(header(20240801, 7, x) + ten) == Exit::input);
        for (int32_t y : hostile) CHECK(code(header(x, y, 10) + ten) == Exit::input);
    }
    for (size_t bit = 0; bit < 96; bit++) {    // all bits of magic, version, count
        std::string bad = good;
        bad[bit / 8] = char(bad[bit / 8] ^ 1 << bit % 8);
        CHECK(code(bad) == Exit::input);
    }
    for (size_t place : {12, 24})    // byte offsets of vocabulary and documents
        for (int32_t x : {-1, INT32_MIN, INT32_MAX}) {
            std::string bad = good;
            memcpy(bad.data() + place, &x, 4);
            CHECK(code(bad) == Exit::input);
        }
    CHECK(code(good, true) == Exit::input);    // raw tokens have no header
    CHECK(code(good + "xx", true) == Exit::ok);
    CHECK(code(ten, true) == Exit::ok);
    CHECK(code(ten + "x", true) == Exit::input);
    CHECK(shard_open(dir, false).status.code == Exit::input);
    CHECK(shard_open(dir + "/none", false).status.code == Exit::input);
    REQUIRE(mkfifo((dir + "/fifo").c_str(), 0600) == 0);
    CHECK(shard_open(dir + "/fifo", false).status.code == Exit::input);    // must not block
    CHECK(shard_glob(dir + "/nothing*").status.code == Exit::input);
    CHECK(shard_glob("").status.code == Exit::input);
    CHECK(shard_glob(path + "," + dir + "/nothing*").status.code == Exit::input);
    CHECK(shard_glob(dir + "/s.*").value == std::vector{path});
    CHECK(shard_glob(path + "," + dir + "/s.*").status.code == Exit::usage);
}

TEST_CASE("shard: names the tokenizer that made it, and another one is refused") {
    std::string dir = temporary_directory();
    Tokenizer small = Tokenizer::from_merges({{64, 65}}, Pattern::gpt2, {"<|endoftext|>"}), gpt2 = Tokenizer::gpt2();
    std::vector<int> tokens = {257, 1, 2, 257, 3, 257};
    auto write = [&](const std::string& name, const Tokenizer& t) {
        ShardWriter w;
        REQUIRE(w.open(dir + name, small.vocab_size(), t.fingerprint()).ok());
        for (int i = 0; i < 2; i++) w.count_document();
        REQUIRE(w.append(tokens.data(), int64_t(tokens.size())).ok());
        REQUIRE(w.commit().ok());
        Result<Shard> s = shard_open(dir + name, false);
        REQUIRE(s.ok());
        return s.value;
    };
    Shard known = write("/known.bin", small), unknown = write("/unknown.bin", Tokenizer());
    CHECK(known.vocab == 258);
    CHECK(known.tokenizer == small.fingerprint());
    CHECK(known.documents == 2);
    CHECK(unknown.vocab == 0);
    CHECK(unknown.tokenizer == 0);
    auto match = [](const std::vector<Shard>& shards, const Tokenizer& t, int vocab = 0) {
        return check_shard_tokenizer(shards, t, vocab, {"gpt2, the default", "do that"});
    };
    CHECK(match({unknown, known}, small).ok());
    CHECK(match({unknown}, gpt2).ok());
    CHECK(match({known}, Tokenizer(), 258).ok());
    CHECK(match({unknown}, Tokenizer(), 65).ok());
    CHECK(match({unknown, known}, Tokenizer(), 65).code == Exit::input);    // ids up to 257 > 65
    Status s = match({unknown, known}, gpt2);
    CHECK(s.code == Exit::input);
    for (const char* part : {"known.bin: made with", "258", "50257", "gpt2, the default", "do that"})
        CHECK_MESSAGE(s.message.find(part) != std::string::npos, s.message);
    // An equal number of tokens does not make an equal tokenizer.
    CHECK_FALSE(match({known}, Tokenizer::from_merges({{65, 64}}, Pattern::gpt2, {"<|endoftext|>"})).ok());
    // Words as in llm.c: [3] vocabulary, [4], [5] the fingerprint's low, high half, [6] documents.
    std::string bytes = read_file(dir + "/known.bin");
    auto word = [&](size_t i) {
        uint32_t x;
        return memcpy(&x, bytes.data() + 4 * i, 4), x;
    };
    CHECK(word(3) == 258);
    CHECK((uint64_t(word(5)) << 32 | word(4)) == small.fingerprint());
    CHECK(word(6) == 2);
    CHECK(std::count(bytes.begin() + 28, bytes.begin() + 1024, '\0') == 996);
}

TEST_CASE("shard: tokens outside the vocabulary are refused wherever they are") {
    std::string dir = temporary_directory(), path = dir + "/s.bin";
    for (int bad : {1000, 1001, 65535})
        for (int64_t where : {0, 1, 500, 998, 999}) {
            std::string body(2000, '\0');
            memcpy(body.data() + 2 * where, &bad, 2);
            write_file(path, header(20240520, 1, 1000) + body);
            Result<Shard> s = shard_open(path, false);
            REQUIRE(s.ok());
            Guarded<int> out(1000, -1);
            Status status = shard_read(s.value, 0, 1000, 1000, out);
            CHECK(status.code == Exit::input);
            CHECK(status.message.find(path + ": offset " + std::to_string(1024 + 2 * where)) == 0);
            CHECK(shard_read(s.value, 0, 1000, 65536, out).ok());
            CHECK(out[where] == bad);
            CHECK(out.intact());
            Loader l = open({.pattern = path, .B = 4, .S = 111, .vocab = 1000});    // all tokens
            CHECK(first_error(l, 4, 111).code == Exit::input);
        }
    for (uint32_t bad : {1000u, uint32_t(INT32_MAX), 1u << 31, ~0u}) {
        std::string body(4, '\0');
        memcpy(body.data(), &bad, 4);
        write_file(path, header(20240801, 7, 1) + body);
        int out = 0;
        CHECK(shard_read(shard_open(path, false).value, 0, 1, 1000, &out).code == Exit::input);
    }
}

TEST_CASE("loader: no sample in any file") {
    std::string dir = temporary_directory();
    write_shard(dir + "/a.bin", 8);
    write_shard(dir + "/b.bin", 0);
    Result<Loader> l = Loader::open({.pattern = dir + "/*.bin", .B = 2, .S = 8, .vocab = V});
    CHECK(l.status.code == Exit::input);
    CHECK(l.status.message.find("9 tokens") != std::string::npos);
    CHECK(Loader::open({.pattern = dir + "/none*", .B = 2, .S = 8, .vocab = V}).status.code == Exit::input);
}

TEST_CASE("loader: beyond 2 and 4 GiB") {
    std::string dir = temporary_directory(), path = dir + "/big.bin";
    const int64_t GIB = int64_t(1) << 30;
    auto u16 = [](std::vector<uint16_t> t) { return std::string(reinterpret_cast<char*>(t.data()), t.size() * 2); };
    auto u32 = [](std::vector<uint32_t> t) { return std::string(reinterpret_cast<char*>(t.data()), t.size() * 4); };
    std::vector<std::pair<int64_t, std::string>> parts;
    for (int64_t g : {2, 4}) parts.push_back({g * GIB - 4, u16({11, 12, 13, 14})});
    write_sparse(path, "", 5 * GIB, parts);
    Loader raw = open({.pattern = path, .raw_u16 = true, .B = 1, .S = 4, .vocab = V, .shuffle = false});
    CHECK(raw.tokens() == 5 * GIB / 2);
    for (int64_t g : {2, 4}) {
        raw.seek({0, (g * GIB - 8) / 2 / 4});    // 5 tokens from 8 bytes before
        CHECK(next(raw, 1, 4) == Batch{{0, 0, 11, 12}, {0, 11, 12, 13}});
    }
    // The largest count that the header can hold: 2^31-1 tokens of 4 bytes.
    const int64_t tokens = INT32_MAX, bytes = 1024 + 4 * tokens;
    write_sparse(path, header(20240801, 7, INT32_MAX), bytes, {{bytes - 16, u32({21, 22, 23, 24})}});
    Loader big = open({.pattern = path, .B = 1, .S = 2, .vocab = V, .shuffle = false});
    CHECK(big.samples() == (tokens - 1) / 2);
    big.seek({0, big.samples() - 1});
    CHECK(next(big, 1, 2) == Batch{{22, 23}, {23, 24}});
}

TEST_CASE("loader: a file that vanishes or changes is an error, never a wrong token") {
    std::string dir = temporary_directory(), path = dir + "/a.bin";
    auto run = [&](const std::function<void()>& change) {
        write_shard(path, 400);
        Loader l = open({.pattern = path, .B = 2, .S = 8, .vocab = V});
        (void)next(l, 2, 8);
        CHECK(first_error(l, 2, 8).ok());
        change();
        Status s = first_error(l, 2, 8);
        CHECK(s.code == Exit::input);
        CHECK(s.message.find(path) != std::string::npos);
        CHECK(first_error(l, 2, 8).message == s.message);    // the error stays
        Loader::Position p = l.position();
        l.seek(p);
        CHECK(first_error(l, 2, 8).code == Exit::input);
        CHECK(l.position() == p);
    };
    run([&] { fs::remove(path); });
    run([&] { REQUIRE(truncate(path.c_str(), 1030) == 0); });
    run([&] { REQUIRE(truncate(path.c_str(), 0) == 0); });
    run([&] { write_shard(path, 500); });
    run([&] {    // equal size, later time
        fs::last_write_time(path, fs::last_write_time(path) + std::chrono::seconds(2));
    });
    run([&] {
        fs::remove(path);
        fs::create_directory(path);
    });
    fs::remove(path);
}

TEST_CASE("shard writer: nothing under the name before commit") {
    std::string dir = temporary_directory(), path = dir + "/w.bin";
    const int tokens[] = {1, 2, 65535};
    {
        ShardWriter w;
        REQUIRE(w.open(path, 65536).ok());
        REQUIRE(w.append(tokens, 3).ok());
        CHECK(!fs::exists(path));
    }
    CHECK(fs::is_empty(dir));
    std::vector<int> many(700000);
    for (size_t i = 0; i < many.size(); i++) many[i] = int(i % 100000);
    ShardWriter w;
    REQUIRE(w.open(path, 100000).ok());
    for (size_t i = 0; i < many.size(); i += 70000) REQUIRE(w.append(many.data() + i, 70000).ok());
    REQUIRE(w.commit().ok());
    Result<Shard> s = shard_open(path, false);
    REQUIRE_MESSAGE(s.ok(), s.status.message);
    CHECK(s.value.token_bytes == 4);
    std::vector<int> back(many.size());
    REQUIRE(shard_read(s.value, 0, int64_t(back.size()), 100000, back.data()).ok());
    CHECK(back == many);
    CHECK(std::distance(fs::directory_iterator(dir), fs::directory_iterator()) == 1);
    CHECK(w.open(dir + "/no/such/w.bin", 100).code == Exit::io);
}
