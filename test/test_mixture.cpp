// test_mixture.cpp - sources read together by weight: shares, order, epochs, kills, world sizes.
#include "data/mixture.h"

#include <cmath>
#include <numeric>
#include <set>
#include <sys/file.h>

#include "toy_ranks.h"

namespace {
using Parts = std::vector<SamplePart>;
using Strings = std::vector<std::string>;

Parts parts_of(const std::vector<double>& weights, const std::vector<int64_t>& samples) {
    Parts parts;
    for (size_t k = 0; k < weights.size(); k++) parts.push_back({.weight = weights[k], .samples = samples[k]});
    return parts;
}
// A run's samples by part, as their numbers within the part.
struct Run {
    std::vector<int> part;
    std::vector<std::vector<int64_t>> of_part;
    Run(const MixtureOrder& order, const Parts& parts, int64_t n) : of_part(parts.size()) {
        for (int64_t i = 0; i < n; i++) {
            int64_t sample = order.at(i);
            size_t k = 0;
            for (; k < parts.size() && sample >= parts[k].samples; k++) sample -= parts[k].samples;
            REQUIRE(k < parts.size());
            REQUIRE(sample >= 0);
            part.push_back(int(k));
            of_part[k].push_back(sample);
        }
    }
};
// Each epoch of each part, the last one as far as it goes, has every sample once.
void check_epochs(const Run& run, const Parts& parts) {
    for (size_t k = 0; k < parts.size(); k++) {
        const std::vector<int64_t>& all = run.of_part[k];
        for (size_t first = 0; first < all.size(); first += size_t(parts[k].samples)) {
            const size_t end = std::min(all.size(), first + size_t(parts[k].samples));
            CHECK(std::set<int64_t>(all.begin() + int64_t(first), all.begin() + int64_t(end)).size() == end - first);
        }
    }
}
// The largest difference of any part's count from its share, at the ends of the first blocks and
// of some far ones.
double largest_drift(const MixtureOrder& order) {
    const std::vector<double> shares = order.shares();
    std::vector<int64_t> before(shares.size());
    double most = 0;
    for (int64_t block = 1; block <= 3000; block++) {
        const int64_t n = (block <= 2000 ? block : block * block * 1000003) * MIXTURE_BLOCK;
        const std::vector<int64_t> drawn = order.drawn(n);
        CHECK(std::accumulate(drawn.begin(), drawn.end(), int64_t(0)) == n);
        for (size_t k = 0; k < shares.size(); k++) {
            CHECK(drawn[k] >= before[k]);
            if (block <= 2000) most = std::max(most, std::fabs(double(drawn[k]) - shares[k] * double(n)));
        }
        before = drawn;
    }
    return most;
}
void write_tokens(const std::string& path, int64_t count, int from) {
    ShardWriter w;
    REQUIRE(w.open(path, 60000).ok());
    std::vector<int> tokens(static_cast<size_t>(count));
    std::iota(tokens.begin(), tokens.end(), from);
    REQUIRE(w.append(tokens.data(), count).ok());
    REQUIRE(w.commit().ok());
}
// Three sources with 30, 12 and 1 samples of 16 tokens, whose tokens tell source and sample.
struct Sources {
    std::string dir = temporary_directory();
    Sources() {
        write_tokens(dir + "/a_0.bin", 16 * 20 + 1, 0);
        write_tokens(dir + "/a_1.bin", 16 * 10 + 1, 1000);
        write_tokens(dir + "/b.bin", 16 * 12 + 1, 10000);
        write_tokens(dir + "/c.bin", 16 + 1, 20000);
    }
    std::string text(const char* a = "5", const char* b = "4", const char* c = "1") const {
        return dir + "/a_*.bin=" + a + "," + dir + "/b.bin=" + b + "," + dir + "/c.bin=" + c;
    }
    LoaderConfig config(const std::string& pattern, int B = 12, uint64_t seed = 9) const {
        return {.pattern = pattern, .weighted = true, .B = B, .S = 16, .vocab = 60000, .seed = seed};
    }
};
Loader open(const LoaderConfig& c) {
    Result<Loader> l = Loader::open(c);
    REQUIRE_MESSAGE(l.ok(), l.status.message);
    return std::move(l.value);
}
std::vector<int> next(Loader& l, int B) {
    std::vector<int> tokens(size_t(B * 16)), targets(tokens.size());
    REQUIRE(l.next(tokens.data(), targets.data()).ok());
    tokens.insert(tokens.end(), targets.begin(), targets.end());
    return tokens;
}
std::vector<int> firsts(Loader& l, int batches, int B) {
    std::vector<int> all;
    for (int i = 0; i < batches; i++) {
        const std::vector<int> tokens = next(l, B);
        for (int b = 0; b < B; b++) all.push_back(tokens[size_t(b * 16)]);
    }
    return all;
}
}    // namespace

TEST_CASE("mixture: a text's weights are read, and a text that is none is refused with the entry's name") {
    auto parsed = [](const std::string& text) {
        Result<std::vector<MixtureEntry>> r = mixture_parse(text);
        REQUIRE_MESSAGE(r.ok(), r.status.message);
        return r.value;
    };
    const std::vector<MixtureEntry> two = parsed("a_*.bin=0.7,x=y/b=1.bin=3e-1");
    REQUIRE(two.size() == 2);
    CHECK(two[0].pattern == "a_*.bin");
    CHECK(two[0].weight == 0.7);
    CHECK(two[1].pattern == "x=y/b=1.bin");
    CHECK(two[1].weight == 0.3);
    // Without weights a text is one list of patterns, with '=' in names and all.
    for (const char* plain : {"a.bin", "a.bin,b.bin", "lr=0.1/a_*.bin,b=.bin", "a=1x,b= 1", "", "a="}) {
        REQUIRE(parsed(plain).size() == 1);
        CHECK(parsed(plain)[0].pattern == plain);
    }
    CHECK(parsed("a=0.5=2")[0].pattern == "a=0.5");    // a file whose name ends in a number
    for (const auto& [text, part] : std::vector<std::pair<const char*, const char*>>{
             {"a=1,b=0", "'b=0': expected a finite weight above 0 behind '=', found 0"},
             {"a=-1,b=1", "'a=-1': expected a finite weight above 0"},
             {"a=nan,b=1", "found nan"},
             {"a=inf,b=1", "found inf"},
             {"a=1e999,b=1", "found 1e999"},
             {"a=1,b", "'b' has no weight, and 'a' has 1"},
             {"a,b=0.25", "'a' has no weight, and 'b' has 0.25"},
             {"a=0,7", "'a=0': expected a finite weight"},
             {"=1,b=2", "'=1': expected a file or a pattern before '='"}}) {
        const Status s = mixture_parse(text).status;
        CHECK(s.code == Exit::usage);
        CHECK_MESSAGE(contains(s.message, part), s.message);
    }
}

TEST_CASE("mixture: shares are within two samples at the ends of blocks, however awkward the weights are") {
    const std::vector<std::vector<double>> all = {{0.7, 0.3},
                                                  {1, 1},
                                                  {1, 1e-6},
                                                  {1, 1, 1},
                                                  {0.5, 0.2, 0.2, 0.1},
                                                  {8, 4, 2, 1, 1},
                                                  {1, 1, 2, 3, 5, 8, 13, 21},
                                                  std::vector<double>(20, 1),
                                                  {1e308, 1e308, 3e307},
                                                  {1e-300, 2e-300}};
    for (const std::vector<double>& weights : all) {
        const MixtureOrder order(parts_of(weights, std::vector<int64_t>(weights.size(), 7)), 1);
        CAPTURE(weights.size());
        double sum = 0;    // the weights' own sum may overflow
        for (double w : weights) sum += w / weights[0];
        for (size_t k = 0; k < weights.size(); k++)
            CHECK(order.shares()[k] == doctest::Approx(weights[k] / weights[0] / sum).epsilon(1e-5));
        const double drift = largest_drift(order);
        CHECK(drift <= (weights.size() == 2 ? 0.5 + 1e-6 : 2));
    }
    // Twenty sources of drawn weights, many times.
    for (uint64_t trial = 0; trial < 20; trial++) {
        std::vector<double> weights;
        for (uint64_t k = 0; k < 20; k++) weights.push_back(std::exp(6 * philox_uniform(philox(4, trial, k).v[0])));
        CHECK(largest_drift(MixtureOrder(parts_of(weights, std::vector<int64_t>(20, 7)), trial)) < 2);
    }
}

TEST_CASE("mixture: sources are read without replacement, each in epochs of its own, and within 3 sigma anywhere") {
    const std::vector<Parts> all = {
        parts_of({0.7, 0.3}, {1000, 37}), parts_of({1, 1e-6}, {5000, 3}), parts_of({0.6, 0.3, 0.1}, {1, 900, 2}),
        parts_of(std::vector<double>(20, 1), std::vector<int64_t>(20, 50)), parts_of({3}, {97})};
    for (const Parts& parts : all) {
        const int64_t n = 6000;
        const MixtureOrder order(parts, 5);
        const Run run(order, parts, n);
        check_epochs(run, parts);
        for (const int64_t at : {int64_t(0), int64_t(1), int64_t(700), int64_t(1024), int64_t(1500), n}) {
            const std::vector<int64_t> drawn = order.drawn(at);
            for (size_t k = 0; k < parts.size(); k++) {
                CHECK(drawn[k] == std::count(run.part.begin(), run.part.begin() + at, int(k)));
                const double share = order.shares()[k], sigma = std::sqrt(double(at) * share * (1 - share));
                CHECK(std::fabs(double(drawn[k]) - share * double(at)) <= 3 * sigma + 1);
            }
        }
        // The sample of an index does not depend on what was asked before.
        const MixtureOrder again(parts, 5), other(parts, 6);
        bool differs = false;
        for (uint64_t i = 0; i < 200; i++) {
            const int64_t at = int64_t(philox(8, 1, i).v[0]) % n;
            CHECK(again.at(at) == order.at(at));
            differs |= other.at(at) != order.at(at);
        }
        CHECK(differs);
    }
    // Sources of one size have different orders, and no source has fixed positions.
    const Parts equal = parts_of({1, 1}, {500, 500});
    const Run run(MixtureOrder(equal, 2), equal, 4096);
    CHECK(run.of_part[0] != run.of_part[1]);
    int even = 0;
    for (size_t i = 0; i < 4096; i += 2) even += run.part[i] == 0;
    CHECK(std::abs(even - 1024) < 3 * 23);    // sigma of 2048 fair draws
}

TEST_CASE("mixture: of one source it has that source's order, which older runs have, and its fingerprint") {
    const MixtureOrder one(parts_of({0.2}, {1000}), 1);
    // As in "loader: an order is ...": it must never change.
    const std::vector<int64_t> pinned = {791, 742, 687, 769, 172, 350, 843, 961};
    for (size_t i = 0; i < pinned.size(); i++) CHECK(one.at(int64_t(i)) == pinned[i]);
    for (int64_t i : {999, 1000, 5432}) CHECK(one.at(i) == shuffled(1, i / 1000, 1000, i % 1000));
    const Sources s;
    Loader plain = open(s.config(s.dir + "/a_*.bin")), weighted = open(s.config(s.dir + "/a_*.bin=0.3"));
    CHECK(firsts(plain, 6, 12) == firsts(weighted, 6, 12));
    CHECK(plain.fingerprint() == weighted.fingerprint());
    // Weights of two sources are a part of the data; their scale is none of the order.
    CHECK(open(s.config(s.text())).fingerprint() != open(s.config(s.text("5", "4", "2"))).fingerprint());
    Loader half = open(s.config(s.text("0.5", "0.4", "0.1"))), whole = open(s.config(s.text()));
    CHECK(firsts(half, 6, 12) == firsts(whole, 6, 12));
    CHECK(half.fingerprint() == whole.fingerprint());
}

TEST_CASE("mixture: the same samples come for any batch and number of ranks, and after any seek") {
    const Sources s;
    Loader one = open(s.config(s.text()));
    CHECK(one.samples() == 43);
    const std::vector<int> order = firsts(one, 300, 12);
    std::map<int, int> counts;    // by source
    for (int first : order) counts[first / 10000]++;
    CHECK(std::abs(counts[0] - 1800) < 20);
    CHECK(std::abs(counts[1] - 1440) < 20);
    CHECK(std::abs(counts[2] - 360) < 20);
    for (int ranks : {2, 3, 4, 6}) {
        const int B = 12 / ranks;
        std::vector<Loader> parts;
        for (int r = 0; r < ranks; r++) {
            LoaderConfig c = s.config(s.text(), B);
            c.rank = r, c.ranks = ranks;
            parts.push_back(open(c));
        }
        for (int step = 0; step < 300; step++) {
            // As after a kill: all ranks begin anew at the position of a checkpoint.
            if (step % 70 == 69)
                for (Loader& l : parts) l.seek(l.position());
            std::vector<int> joined;
            for (Loader& l : parts)
                for (int first : firsts(l, 1, B)) joined.push_back(first);
            CHECK(std::equal(joined.begin(), joined.end(), order.begin() + step * 12));
        }
        CHECK(parts[0].position() == one.position());
    }
    // New loaders at other world sizes go on at a saved position, rank by rank.
    Loader::Position saved;
    std::vector<int> resumed;
    for (const int ranks : {2, 3, 1, 6}) {
        for (int step = 0; step < 10; step++) {
            for (int r = 0; r < ranks; r++) {
                LoaderConfig c = s.config(s.text(), 12 / ranks);
                c.rank = r, c.ranks = ranks;
                Loader l = open(c);
                l.seek(saved);
                for (int first : firsts(l, 1, 12 / ranks)) resumed.push_back(first);
                if (r + 1 == ranks) saved = l.position();
            }
        }
    }
    CHECK(std::equal(resumed.begin(), resumed.end(), order.begin()));
    for (int B : {1, 5}) {
        Loader l = open(s.config(s.text(), B));
        CHECK(std::equal(order.begin(), order.begin() + 500 / B * B, firsts(l, 500 / B, B).begin()));
        l.seek({0, 1234});
        const std::vector<int> there = firsts(l, 100, B);
        CHECK(std::equal(there.begin(), there.end(), order.begin() + 1234));
    }
    CHECK(one.drawn(3600) == std::vector<int64_t>{counts[0], counts[1], counts[2]});
}

TEST_CASE("mixture: a file in two sources, a set in parts, and a source without a sample are refused by name") {
    const Sources s;
    const std::string a = s.dir + "/a_0.bin", b = s.dir + "/b.bin";
    auto refused = [&](const std::string& pattern, Exit code, const std::string& part) {
        const Status status = Loader::open(s.config(pattern)).status;
        CHECK(status.code == code);
        CHECK_MESSAGE(contains(status.message, part), status.message);
    };
    refused(a + "=1," + a + "=1", Exit::usage, a + " is given twice");
    refused(a + "=1," + s.dir + "/a_*.bin=2", Exit::usage, a + " is given twice");
    refused(s.dir + "/*.bin=1," + s.dir + "/*.bin=1", Exit::usage, " is given twice");
    fs::create_symlink(b, s.dir + "/link");
    fs::create_hard_link(b, s.dir + "/hard");
    for (const std::string& other : {s.dir + "/link", s.dir + "/hard", s.dir + "/./b.bin"})
        refused(b + "=1," + other + "=1", Exit::usage, " are one file");
    write_tokens(s.dir + "/short", 9, 0);
    refused(b + "=1," + s.dir + "/short=1", Exit::input, "'" + s.dir + "/short': 1 files, none with the 17 tokens");
    refused(b + "=1," + s.dir + "/none*=1", Exit::input,
            "/none*': no such files (1 was read as its weight; of a file "
            "named '" +
                s.dir + "/none*=1', write '");
    CHECK_FALSE(contains(shard_glob(s.dir + "/lr=0.1/x_*.bin").status.message, "weight"));
    // A set of shards may be divided among sources, if it is whole; a copy of its shard is refused.
    const std::vector<int> tokens(100, 5);
    for (int i = 0; i < 2; i++) {
        ShardWriter w;
        REQUIRE(w.open(s.dir + formatted("/set_%03d.bin", i), 60000).ok());
        REQUIRE(w.append(tokens.data(), 100).ok());
        REQUIRE(w.finish({77, i, 2}).ok());
        REQUIRE(w.publish().ok());
    }
    const std::string first = s.dir + "/set_000.bin", second = s.dir + "/set_001.bin";
    CHECK(Loader::open(s.config(first + "=1," + second + "=3")).ok());
    refused(first + "=1," + b + "=3", Exit::input, "number 1, " + second + " is missing");
    fs::copy(first, s.dir + "/copy.bin");
    refused(first + "=1," + second + "=3," + s.dir + "/copy.bin=1", Exit::input, " are the same shard; name it once");
    // Elsewhere, weights are names that no file has.
    LoaderConfig plain = s.config(b + "=1");
    plain.weighted = false;
    const Status status = Loader::open(plain).status;
    CHECK(contains(status.message,
                   "/b.bin=1': no such files; a number behind '=' is a weight with `train --data` alone"));
}

namespace {
// A toy whose --data is a mixture of three sources; the second one is read several times.
struct MixtureToy : RanksToy {
    MixtureToy() {
        write("more", 700, 3, 64);
        write("tiny", 40, 4, 128);
    }
    // Two sources of documents, for --pack.
    std::string documents() const {
        std::string text;
        for (uint64_t source = 0; source < 2; source++) {
            std::vector<int> tokens;
            for (uint64_t i = 0; i < 6000; i++) {
                const uint32_t r = philox(3, 50 + source, i).v[0];
                tokens.push_back(r % 20 == 0 ? 256 : int(r >> 8) % 64);
            }
            const std::string path = dir + "/documents_" + std::to_string(source);
            ShardWriter w;
            REQUIRE(w.open(path, 60000).ok());
            REQUIRE(w.append(tokens.data(), int64_t(tokens.size())).ok());
            REQUIRE(w.commit().ok());
            text += (source ? "," : "") + path + (source ? "=1" : "=3");
        }
        return text;
    }
    std::string data() const { return dir + "/train.bin=0.6," + dir + "/more.bin=0.3," + dir + "/tiny.bin=0.1"; }
};
}    // namespace

TEST_CASE("mixture: a run says what it will read and has read, and after kills it has the same bits") {
    const MixtureToy toy;
    const Strings more = {"--data", toy.data(), "--steps", "40", "--save-every", "5", "--threads", "1"};
    const ProcessResult dry = must(with(toy.args("none", more), {"--dry-run"}));
    CHECK(contains(dry.out, "data          a mixture of 3 sources, 20.7k tokens, "));
    CHECK(contains(dry.out, "  60.0 % ("));
    CHECK(contains(dry.out, "/more.bin: "));
    CHECK(contains(dry.out, " tokens read of 700, "));
    const ProcessResult r = must(toy.args("whole", more));
    CHECK(contains(r.err, "to read:  60.0 % ("));
    CHECK(contains(r.err, "\nread:  60.0 % ("));
    CHECK(contains(r.err, "warning: the run reads " + toy.dir + "/tiny.bin "));
    const std::string rows = toy.metrics("whole");
    // 160 sequences: of tiny's one sample 16, with the block's draw about 3 sigma (4) around it.
    const std::string last = rows.substr(rows.rfind("\"epochs\":["));
    const double tiny = std::stod(last.substr(last.find(',', last.find(',') + 1) + 1));
    CHECK(std::abs(tiny - 16) <= 12);
    CHECK(tiny == std::round(tiny));
    CHECK(contains(rows.substr(0, rows.find('\n')), "\"epochs\":["));
    killed_and_resumed(toy, toy.args("whole", more), {3, 17, 31}, [&](const std::string& out) {
        CHECK(same_file(toy.newest(out) + "/model.safetensors", toy.newest("whole") + "/model.safetensors"));
    });
    // Other weights are other data.
    must(with(toy.args("whole", {"--data", toy.dir + "/train.bin=0.6," + toy.dir + "/more.bin=0.4", "--steps", "50"}),
              {"--resume", "auto"}),
         2, "trained on other shards than --data");
    must(toy.args("none", {"--data", toy.dir + "/train.bin=0.6," + toy.dir + "/more.bin"}), 2,
         "more.bin' has no weight");
    must(toy.args("none", {"--val", toy.dir + "/val.bin=1"}), 3,
         "a number behind '=' is a weight with `train --data` alone");
    CHECK_FALSE(fs::exists(toy.dir + "/none"));
}

TEST_CASE("mixture: killed at one world size and resumed at others, a run has the losses of one process") {
    NEED_MPIRUN();
    const MixtureToy toy;
    for (const bool pack : {false, true}) {
        const Strings more = {
            "--data", pack ? toy.documents() : toy.data(), "--steps", "16", "--save-every", "2", "--keep", "0"};
        const Strings flags = pack ? Strings{"--pack"} : Strings{};
        fs::remove_all(toy.dir + "/whole");
        fs::remove_all(toy.dir + "/parts");
        REQUIRE(run_process(with(toy.program("whole", more), flags)).exit_code == 0);
        const struct {
            int ranks, kill_at;    // rows of metrics.jsonl; 0: to the end
            const char* zero;
        } parts[] = {{2, 3, "1"}, {4, 8, "2"}, {1, 12, "0"}, {2, 0, "0"}};
        for (const auto& part : parts) {
            Strings program = with(toy.program("parts", with(more, {"--zero", part.zero, "--resume", "auto"})), flags);
            if (part.ranks > 1) program = mpirun(part.ranks, program);
            Process p(program, mpirun_options(120));
            auto written = [&] {
                const std::string text = read_file(toy.dir + "/parts/metrics.jsonl");
                return std::count(text.begin(), text.end(), '\n');
            };
            for (int i = 0; i < 60000 && p.running() && (!part.kill_at || written() < part.kill_at); i++) usleep(1000);
            if (part.kill_at) p.send(SIGKILL);
            const ProcessResult r = p.wait();
            INFO(r.err);
            CHECK((part.kill_at ? r.signal == SIGKILL : r.exit_code == 0));
            // The ranks end by themselves without mpirun; the next run needs the directory's lock.
            for (int i = 0; i < 5000 && part.kill_at; i++) {
                const int lock = ::open((toy.dir + "/parts/lock").c_str(), O_RDWR | O_CLOEXEC);
                const bool free = lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) == 0;
                if (lock >= 0) close(lock);
                if (free) break;
                usleep(2000);
            }
        }
        toy.same_losses("parts", "whole", 1e-5);
        CHECK(toy.losses("parts", "\"epochs\":[") == toy.losses("whole", "\"epochs\":["));
    }
}
