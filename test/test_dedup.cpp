// test_dedup.cpp - `tokenize --dedup`: a Python reference (dev/golden_dedup.py), the probability of
// candidates, memory, and the same documents for any number of threads.
#include "data/documents/dedup.h"

#include <cmath>
#include <filesystem>
#include <set>

#include "base/philox.h"
#include "data/bpe.h"
#include "data/documents/words.h"
#include "data/documents/duplicates.h"
#include "data/loader.h"
#include "files/json.h"
#include "files/json_write.h"
#include "speaker.h"

namespace {
namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

Strings ngrams(const std::string& text, int n) {
    Strings all;
    each_ngram(text, n, [&](uint64_t hash) { all.push_back(std::to_string(hash)); });
    return all;
}
DedupConfig minhash(double threshold = 0.8, int ngram = 5) {
    DedupConfig c;
    c.kind = Dedup::minhash;
    c.threshold = threshold;
    c.ngram = ngram;
    c.origins = true;
    return c;
}
// Words that occur nowhere else: `first` to `first + n - 1`.
std::string distinct_words(uint64_t first, int n) {
    std::string text;
    for (int i = 0; i < n; i++) {
        const Philox4 r = philox(77, 1, first + uint64_t(i));
        text += formatted(" %08x%08x", r.v[0], r.v[1]);
    }
    return text;
}
struct Tokenized {
    ProcessResult r;
    Strings train, val;
};
Strings shard_texts(const std::string& path, const Tokenizer& t) {
    Strings all;
    if (!fs::exists(path)) return all;
    const Shard s = shard_open(path, false).value;
    std::vector<int> ids(size_t(s.tokens)), document;
    REQUIRE(shard_read(s, 0, s.tokens, 1 << 20, ids.data()).ok());
    for (size_t i = 1; i < ids.size(); i++) {
        if (ids[i] != t.end_of_text()) document.push_back(ids[i]);
        else all.push_back(t.decode(document)), document.clear();
    }
    return all;
}
Tokenized tokenized(const Strings& more, const std::string& threads = "2") {
    static const Tokenizer t = chat_tokenizer();
    const std::string dir = temporary_directory();
    write_file(dir + "/tok.json", t.to_json());
    fs::remove(dir + "/o_val_000.bin");
    Strings args = {"tokenize", "--overwrite", "--out", dir + "/o", "--tokenizer", dir + "/tok.json"};
    args.insert(args.end(), more.begin(), more.end());
    Tokenized all{run_flatgpt(args, {.environment = {"OMP_NUM_THREADS=" + threads}}), {}, {}};
    if (all.r.exit_code) return all;
    all.train = shard_texts(dir + "/o_train_000.bin", t);
    all.val = shard_texts(dir + "/o_val_000.bin", t);
    return all;
}
std::string lines_of(const Strings& texts) {
    std::string all;
    for (const std::string& t : texts) all += "{\"text\": " + json_string(t) + "}\n";
    return all;
}
}    // namespace

TEST_CASE("dedup: words and n-grams") {
    auto same = [](const std::string& a, const std::string& b, int n) { return ngrams(a, n) == ngrams(b, n); };
    CHECK(ngrams("one two three four", 2).size() == 3);
    CHECK(ngrams("one two", 5).size() == 1);
    CHECK(ngrams("", 5).empty());
    CHECK(ngrams(" ...! \xE2\x80\x94 \xC2\xA0", 5).empty());
    CHECK(same("One, TWO;three", "one two three", 2));
    CHECK_FALSE(same("one two three", "one three two", 2));
    CHECK_FALSE(same("ab c", "a bc", 2));
    CHECK_FALSE(same("a_b", "a b", 2));
    CHECK_FALSE(same("caf\xC3\xA9", "cafe", 1));
    CHECK(ngrams("\xE6\xBC\xA2\xE5\xAD\x97 x\xE6\xBC\xA2y", 1).size() == 5);    // each CJK character is a word
    CHECK(
        same("a\xE2\x80\x94"
             "b",
             "a b", 1));    // a dash parts words
    // The n-grams depend on their words alone, wherever they are.
    const Strings all = ngrams("a b c d e a b c d", 3), part = ngrams("x y z a b c d", 3);
    CHECK(all[0] == part[3]);
    CHECK(all[0] == all[5]);
    CHECK(std::set(all.begin(), all.end()).size() == 5);
}

TEST_CASE("dedup: the documents that a reference in Python drops, by their true similarity") {
    Deduplicator d(minhash());
    const Bands bands = d.bands();
    CHECK(bands.bands == 14);    // datasketch: MinHashLSH(0.8, 128, weights=(0.1, 0.9)).b and .r
    CHECK(bands.rows == 9);
    CHECK(lsh_bands(0.5, 128).bands == 32);
    CHECK(lsh_bands(0.5, 128).rows == 4);
    int number = 0, dropped = 0, empty = 0;
    Strings texts, kept;
    const std::string golden = read_file("test/golden/dedup.jsonl");
    for (size_t at = 0, end; at < golden.size(); at = end + 1) {
        end = golden.find('\n', at);
        const nlohmann::json row = json_parse(golden.substr(at, end - at), "row", 4).value;
        const std::string text = row["text"];
        texts.push_back(text);
        const int of = row["of"];
        number++;
        dropped += of >= 0;
        empty += text.empty();
        if (of < 0 && !text.empty()) kept.push_back(text);
        if (text.empty()) continue;
        const auto match = d.add(d.sketch(text), {3, number});
        REQUIRE(match.ok());
        CHECK_MESSAGE(match.value.has_value() == (of >= 0), text);
        if (!match.value) continue;
        CHECK(match.value->origin.file == 3);
        CHECK(match.value->origin.line == of + 1);
        CHECK(std::abs(match.value->similarity - row["similarity"].get<double>()) < 0.12);
    }
    CHECK(dropped == 18);
    CHECK(d.kept() == number - dropped - empty);
    // The command, for any number of threads, with a report; nothing is in training and validation.
    const std::string dir = temporary_directory(), report = dir + "/r.jsonl";
    write_file(dir + "/a.jsonl", lines_of(texts));
    for (const char* threads : {"1", "2", "4"}) {
        const Tokenized t = tokenized({"--dedup", "minhash", "--dedup-report", report, dir + "/a.jsonl"}, threads);
        REQUIRE_MESSAGE(t.r.exit_code == 0, t.r.err);
        CHECK(t.train == kept);
        CHECK_MESSAGE(contains(t.r.err, "--dedup minhash: 18 of 57 documents left out (31.6 %), "), t.r.err);
        const std::string lines = read_file(report);
        CHECK(std::count(lines.begin(), lines.end(), '\n') == 18);
        const nlohmann::json first = json_parse(lines.substr(0, lines.find('\n')), "report", 2).value;
        CHECK(first["dropped"].get<std::string>().starts_with(dir + "/a.jsonl:"));
        CHECK(first["kept"].get<std::string>().starts_with(dir + "/a.jsonl:"));
        CHECK(first["similarity"].get<double>() >= 0.8);
    }
}

TEST_CASE("dedup: pairs become candidates with the probability 1 - (1 - s^r)^b, and the estimate is right") {
    constexpr int PAIRS = 400, WORDS = 240;
    uint64_t next = 0;
    for (const double similarity : {0.5, 0.65, 0.75, 0.8, 0.85, 0.92}) {
        const int own = int(std::lround(WORDS * (1 - similarity) / (1 + similarity))), shared = WORDS - own;
        const double s = double(shared) / (shared + 2 * own);
        Deduplicator d(minhash(0.8, 1));
        int dropped = 0;
        double sum = 0;
        for (int pair = 0; pair < PAIRS; pair++) {
            const std::string common = distinct_words(next, shared);
            next += WORDS;
            for (int half : {0, 1}) {
                const std::string text = common + distinct_words(next, own);
                next += WORDS;
                const auto match = d.add(d.sketch(text), {0, pair});
                REQUIRE(match.ok());
                if (half == 0) CHECK_FALSE(match.value.has_value());
                if (!match.value) continue;
                CHECK(match.value->origin.line == pair);
                CHECK(match.value->similarity >= 0.8);
                sum += match.value->similarity;
                dropped++;
            }
        }
        const Bands b = d.bands();
        const double p = 1 - std::pow(1 - std::pow(s, b.rows), b.bands), sigma = std::sqrt(PAIRS * p * (1 - p));
        CHECK_MESSAGE(std::abs(double(d.candidates()) - PAIRS * p) < 3 * sigma, s, " ", d.candidates(), " ", PAIRS * p);
        if (similarity == 0.5) CHECK(dropped == 0);    // precision: far below the threshold
        if (similarity == 0.65) CHECK(dropped <= PAIRS / 100);
        if (similarity == 0.92) CHECK(dropped > PAIRS * 95 / 100);
        // Among 128 equal or unequal minima, an estimate varies by sqrt(s (1 - s) / 128).
        if (similarity == 0.92) CHECK(std::abs(sum / dropped - s) < 3 * std::sqrt(s * (1 - s) / 128 / dropped) + 0.004);
    }
}

TEST_CASE("dedup: exact drops equal bytes alone, in bounded memory") {
    DedupConfig c;
    c.kind = Dedup::exact;
    Deduplicator d(c);
    constexpr int N = 200'000;
    int again = 0;
    for (int i = 0; i < N; i++) {
        const std::string text = "document " + std::to_string(i % (N / 2)) + std::string(size_t(i % 40), 'x');
        again += d.add(d.sketch(text), {}).value.has_value();
    }
    CHECK(d.kept() == N - again);
    std::set<std::string> distinct;
    for (int i = 0; i < N; i++)
        distinct.insert("document " + std::to_string(i % (N / 2)) + std::string(size_t(i % 40), 'x'));
    CHECK(d.kept() == int64_t(distinct.size()));
    CHECK(d.bytes() < 40 * d.kept());
    // Short documents have one n-gram, and yet differ.
    Deduplicator short_texts(minhash());
    constexpr int SHORT = 150'000;
    for (int i = 0; i < SHORT; i++) {
        const auto match = short_texts.add(short_texts.sketch("title " + std::to_string(i)), {});
        CHECK_FALSE(match.value.has_value());
    }
    CHECK(short_texts.kept() == SHORT);
    CHECK(short_texts.bytes() < 500 * int64_t(SHORT));
    // Equal documents are found, also if a common n-gram fills the bands.
    Deduplicator crowded(minhash(0.1, 1));
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 300; i++) {
            const std::string text = "common " + distinct_words(uint64_t(i) * 40, 40);
            const auto match = crowded.add(crowded.sketch(text), {});
            CHECK(match.value.has_value() == (round == 1));
        }
    // Any single bit counts, at any offset.
    Deduplicator bits(c);
    std::string text(100, 'a');
    CHECK_FALSE(bits.add(bits.sketch(text), {}).value.has_value());
    for (size_t i = 0; i < text.size(); i++)
        for (int bit = 0; bit < 8; bit++) {
            std::string other = text;
            other[i] = char(other[i] ^ (1 << bit));
            CHECK_FALSE(bits.add(bits.sketch(other), {}).value.has_value());
        }
    CHECK_FALSE(bits.add(bits.sketch(text + '\0'), {}).value.has_value());
    CHECK(bits.add(bits.sketch(text), {}).value.has_value());
    // The limit of memory.
    c.memory = 1 << 20;
    Deduplicator small(c);
    Status s;
    int64_t added = 0;
    for (; s.ok(); added++) s = small.add(small.sketch(std::to_string(added)), {}).status;
    CHECK(s.code == Exit::input);
    CHECK_MESSAGE(contains(s.message, "need more than"), s.message);
    CHECK(contains(s.message, "--dedup-memory"));
    CHECK(small.bytes() <= c.memory);
    CHECK(added > 10'000);
}

TEST_CASE("dedup: training and validation share no document, and the share held out counts kept ones") {
    const std::string dir = temporary_directory();
    // Every document twice, so that the second of each pair would be held out if both counted.
    Strings texts, kept;
    for (int i = 0; i < 100; i++) {
        kept.push_back("text " + std::to_string(i));
        texts.insert(texts.end(), {kept.back(), kept.back()});
    }
    write_file(dir + "/a.jsonl", lines_of(texts));
    const Tokenized t = tokenized({"--dedup", "exact", "--val-fraction", "0.5", dir + "/a.jsonl"});
    REQUIRE_MESSAGE(t.r.exit_code == 0, t.r.err);
    CHECK(t.train.size() == 50);
    CHECK(t.val.size() == 50);
    std::set<std::string> all(t.train.begin(), t.train.end());
    all.insert(t.val.begin(), t.val.end());
    CHECK(all.size() == 100);
    CHECK_MESSAGE(contains(t.r.err, "--dedup exact: 100 of 200 documents left out (50.0 %)"), t.r.err);
    // Other orders keep the same texts.
    std::reverse(texts.begin(), texts.end());
    write_file(dir + "/b.jsonl", lines_of(texts));
    Strings other = tokenized({"--dedup", "exact", dir + "/b.jsonl"}).train;
    std::sort(other.begin(), other.end());
    std::sort(kept.begin(), kept.end());
    CHECK(other == kept);
    // Files of text, also large ones, and the same file twice; in CSV a report has lines.
    std::string large;
    for (int i = 0; large.size() < (3 << 20); i++) large += std::to_string(i) + " ";
    write_file(dir + "/large.txt", large);
    write_file(dir + "/copy.txt", large);
    write_file(dir + "/c.csv", "text\nsame\nother\nsame\n");
    const std::string report = dir + "/r.jsonl";
    const Tokenized files = tokenized({"--dedup", "exact", "--dedup-report", report, dir + "/large.txt", dir + "/c.csv",
                                       dir + "/copy.txt", dir + "/c.csv"});
    REQUIRE_MESSAGE(files.r.exit_code == 0, files.r.err);
    CHECK((files.train == Strings{large, "same", "other"}));
    const std::string lines = read_file(report);
    CHECK_MESSAGE(
        contains(lines, "{\"dropped\":\"" + dir + "/c.csv:4\",\"kept\":\"" + dir + "/c.csv:2\",\"similarity\":1.0}"),
        lines);
    CHECK(contains(lines, "{\"dropped\":\"" + dir + "/copy.txt\",\"kept\":\"" + dir + "/large.txt\""));
    // A text longer than may be held at once is kept, and a note says so.
    const Tokenized longer =
        tokenized({"--dedup", "exact", "--longest-line", "2", dir + "/large.txt", dir + "/copy.txt"});
    CHECK((longer.train == Strings{large, large}));
    CHECK_MESSAGE(contains(longer.r.err, "2 documents were too long to be compared"), longer.r.err);
}

TEST_CASE("dedup: options that do not fit, limits, and an interrupted run") {
    const std::string dir = temporary_directory();
    Strings texts;
    for (int i = 0; i < 40000; i++) texts.push_back("text " + std::to_string(i) + " of many");
    write_file(dir + "/a.jsonl", lines_of(texts));
    auto fails = [&](const Strings& more, int code, const char* part) {
        const Tokenized t = tokenized(more);
        CHECK(t.r.exit_code == code);
        CHECK_MESSAGE(contains(t.r.err, part), t.r.err);
    };
    const std::string a = dir + "/a.jsonl";
    fails({"--dedup", "fuzzy", a}, 2, "--dedup");
    fails({"--dedup-threshold", "0.7", a}, 2, "--dedup");
    fails({"--dedup", "exact", "--dedup-ngram", "3", a}, 2, "--dedup minhash");
    fails({"--dedup-report", dir + "/r", a}, 2, "--dedup");
    fails({"--dedup", "minhash", "--dedup-memory", "1", a}, 3, "--dedup-memory");
    fails({"--dedup", "exact", "--dedup-report", dir + "/no/such/r", a}, 4, "--dedup-report");
    CHECK_FALSE(fs::exists(dir + "/r"));
    // A failed run leaves no report; the next one is as if it had not been.
    fails({"--dedup", "exact", "--dedup-report", a, a}, 2, "is an input");
    CHECK(read_file(a) == lines_of(texts));
    const std::string report = dir + "/kept.jsonl", bad = dir + "/bad.jsonl";
    write_file(bad, lines_of(texts) + lines_of(texts) + "bad\n");
    fails({"--dedup", "exact", "--dedup-report", report, bad}, 3, "bad.jsonl:80001");
    CHECK_FALSE(fs::exists(report));
    const Tokenized again = tokenized({"--dedup", "exact", "--dedup-report", report, "--skip-bad-lines", bad});
    REQUIRE_MESSAGE(again.r.exit_code == 0, again.r.err);
    CHECK(again.train == texts);
    for (const auto& entry : fs::directory_iterator(dir)) CHECK_FALSE(entry.path().string().ends_with(".tmp"));
}
