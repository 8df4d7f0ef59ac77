// test_packing.cpp - documents of shards packed into rows: the reference's rows, the tokens of a
// run's samples, what is left out, hostile shards.
#include "data/packing.h"

#include <numeric>
#include <set>

#include "toy_run.h"

namespace {
using Strings = std::vector<std::string>;
constexpr int BEGIN = 500;    // token that begins a document

PackedRows packed(int row, const std::vector<int>& lengths) {
    Packer packer(row);
    int64_t start = 0;
    for (int length : lengths) {
        packer.add(start, length);
        start += length;
    }
    return packer.finish();
}
// Documents of these lengths behind each other: BEGIN, then the document's number, again and again.
std::vector<int> documents(const std::vector<int>& lengths, int number = 0) {
    std::vector<int> all;
    for (int length : lengths) {
        all.push_back(BEGIN);
        all.insert(all.end(), size_t(length - 1), number++);
    }
    return all;
}
void write_shard(const std::string& path, const std::vector<int>& tokens, int vocab = 60000) {
    ShardWriter w;
    REQUIRE(w.open(path, vocab).ok());
    REQUIRE(w.append(tokens.data(), int64_t(tokens.size())).ok());
    REQUIRE(w.commit().ok());
}
LoaderConfig config(const std::string& pattern, int S, int B = 1) {
    return {.pattern = pattern, .weighted = true, .begin = BEGIN, .B = B, .S = S, .vocab = 60000};
}
std::vector<int> log_normal(int count, double median, double sigma) {
    std::vector<int> all;
    for (int i = 0; i < count; i++) {
        const Philox4 r = philox(12, 1, uint64_t(i));
        const double u = philox_uniform(r.v[0]), v = philox_uniform(r.v[1]);
        const double normal = std::sqrt(-2 * std::log(1 - u + 1e-12)) * std::cos(6.283185307179586 * v);
        all.push_back(std::max(2, int(std::lround(median * std::exp(sigma * normal)))));
    }
    return all;
}
}    // namespace

TEST_CASE("packing: rows are those of the reference in Python, document by document") {
    std::ifstream golden("test/golden/packing.txt");
    std::string line, name;
    REQUIRE(std::getline(golden, line));
    int cases = 0;
    for (int row; golden >> name >> row; cases++) {
        CAPTURE(name);
        int64_t cropped = 0, rows = 0;
        golden >> cropped;
        std::getline(golden, line);
        std::getline(golden, line);
        std::istringstream words(line);
        std::vector<int> lengths;
        for (int n; words >> n;) lengths.push_back(n);
        std::vector<int64_t> begins = {0};
        for (int n : lengths) begins.push_back(begins.back() + n);
        const PackedRows ours = packed(row, lengths);
        golden >> rows;
        std::getline(golden, line);
        REQUIRE(ours.rows() == rows);
        CHECK(ours.cropped_tokens == cropped);
        CHECK(ours.documents == int64_t(lengths.size()));
        CHECK(ours.tokens == begins.back());
        for (int64_t r = 0; r < rows; r++) {
            REQUIRE(std::getline(golden, line));
            std::string text;
            for (int64_t i = ours.first_of[size_t(r)]; i < ours.first_of[size_t(r) + 1]; i++) {
                const int64_t start = ours.starts[size_t(i)];
                const auto document = std::lower_bound(begins.begin(), begins.end(), start) - begins.begin();
                text += formatted("%s%lld:%d", text.empty() ? "" : " ", (long long)document, ours.lengths[size_t(i)]);
            }
            CHECK(text == line);
        }
    }
    CHECK(cases == 6);
}

TEST_CASE("packing: rows are full, begin with a document and use none twice; few tokens of common texts are cropped") {
    for (const auto& [median, sigma, row, most] :
         {std::tuple{60.0, 1.0, 129, 0.44}, {400.0, 1.1, 2049, 0.35}, {3.0, 0.5, 65, 0.01}}) {
        const std::vector<int> lengths = log_normal(20000, median, sigma);
        const PackedRows rows = packed(row, lengths);
        std::map<int64_t, int> by_start;
        int64_t start = 0;
        for (int n : lengths) by_start[start] = n, start += n;
        std::set<int64_t> used;
        int64_t crops = 0, crop_tokens = 0, in_rows = 0;
        for (int64_t r = 0; r < rows.rows(); r++) {
            int sum = 0;
            for (int64_t i = rows.first_of[size_t(r)]; i < rows.first_of[size_t(r) + 1]; i++) {
                const int64_t at = rows.starts[size_t(i)];
                REQUIRE(by_start.contains(at));
                CHECK(used.insert(at).second);
                const int cut = by_start[at] - rows.lengths[size_t(i)];
                CHECK(cut >= 0);
                CHECK((cut == 0 || i + 1 == rows.first_of[size_t(r) + 1]));    // a crop ends its row
                crops += cut > 0, crop_tokens += cut;
                sum += rows.lengths[size_t(i)];
            }
            CHECK(sum == row);
            in_rows += sum;
        }
        CHECK(crops == rows.cropped);
        CHECK(crop_tokens == rows.cropped_tokens);
        // At the end, less than a row's tokens are in no row.
        CHECK(start - in_rows - crop_tokens < row);
        MESSAGE("median " << median << ", row " << row << ": " << 100.0 * double(crop_tokens) / double(start)
                          << " % cropped");
        CHECK(double(crop_tokens) / double(start) < most);
    }
}

TEST_CASE("packing: a document of more than 2^31 tokens, as a file without a header may have, is cropped") {
    Packer packer(17);
    packer.add(0, 3'000'000'000);
    packer.add(3'000'000'000, (int64_t(1) << 32) + 5);
    const PackedRows rows = packer.finish();
    CHECK(rows.rows() == 2);
    CHECK(rows.lengths == std::vector<int>{17, 17});
    CHECK(rows.starts == std::vector<int64_t>{0, 3'000'000'000});
    CHECK(rows.cropped_tokens == 3'000'000'000 + (int64_t(1) << 32) + 5 - 34);
}

TEST_CASE("packing: a loader's samples are the documents' tokens, from several shards of both widths") {
    const std::string dir = temporary_directory();
    // 8-token rows. The first shard begins within a document, whose rest no sample has.
    std::vector<int> one = {7, 7, 7}, two = documents({8, 3, 30, 1, 1}, 10);
    for (int id : documents({4, 4, 5}, 0)) one.push_back(id);
    write_shard(dir + "/0.bin", one);
    write_shard(dir + "/1.bin", two, 70000);
    const LoaderConfig c = config(dir + "/*.bin", 7);
    Loader l = Loader::open(c).take();
    CHECK(l.samples() == 4);
    CHECK(l.tokens() == 3 + 13 + 43);
    CHECK(l.source().cropped() == doctest::Approx(22.0 / 59));
    CHECK(contains(l.source().note(),
                   "6 documents in 4 sequences of 7; 1 of them are cropped (37.3 % of all tokens); "
                   "5 tokens left out"));
    std::set<std::vector<int>> rows;
    for (int i = 0; i < 4; i++) {
        std::vector<int> tokens(7), targets(7);
        std::vector<std::vector<Text>> texts;
        REQUIRE(l.next(tokens.data(), targets.data(), &texts).ok());
        CHECK(texts.size() == 1);
        for (size_t s = 0; s + 1 < 7; s++) CHECK(targets[s] == tokens[s + 1]);
        tokens.push_back(targets.back());
        rows.insert(tokens);
    }
    const int b = BEGIN;
    CHECK(rows == std::set<std::vector<int>>{{b, 10, 10, 10, 10, 10, 10, 10},
                                             {b, 2, 2, 2, 2, b, 11, 11},
                                             {b, 0, 0, 0, b, 1, 1, 1},
                                             {b, 12, 12, 12, 12, 12, 12, 12}});
    LoaderConfig windows = c;
    windows.begin = -1;
    CHECK(Loader::open(windows).take().fingerprint() != l.fingerprint());
    // The token that begins a document is a part of the data, even if as many documents begin.
    std::vector<int> both;
    for (int i = 0; i < 10; i++)
        for (int id : {BEGIN, 1, 2, 3, BEGIN + 1, 4, 5, 6}) both.push_back(id);
    both.insert(both.end(), {7, 7, 7, 7});
    write_shard(dir + "/both", both);
    LoaderConfig other = config(dir + "/both", 7);
    const Loader one_begin = Loader::open(other).take();
    other.begin = BEGIN + 1;
    const Loader other_begin = Loader::open(other).take();
    CHECK(one_begin.samples() == 10);
    CHECK(other_begin.samples() == 10);
    CHECK(one_begin.fingerprint() != other_begin.fingerprint());
    // A file that changes after it was opened is noticed, as with windows.
    l.seek({0, 0});
    std::vector<int> tokens(7), targets(7);
    two.push_back(1);
    write_shard(dir + "/1.bin", two, 70000);
    Status s;
    for (int i = 0; i < 20 && s.ok(); i++) s = l.next(tokens.data(), targets.data());
    CHECK(s.code == Exit::input);
    CHECK(contains(s.message, "/1.bin: the file was changed while in use"));
}

TEST_CASE("packing: every document's begin is found, at any offset and in either width") {
    const std::string dir = temporary_directory();
    for (const int vocab : {60000, 70000}) {
        std::vector<int> tokens(300001, 3), at;
        for (uint64_t i = 0; i < 3000; i++) tokens[philox(6, 2, i).v[0] % tokens.size()] = BEGIN;
        for (size_t i : {size_t(0), size_t(63), size_t(64), size_t(1 << 18) - 1, size_t(1) << 18, size_t(300000)})
            tokens[i] = BEGIN;
        for (size_t i = 0; i < tokens.size(); i++)
            if (tokens[i] == BEGIN) at.push_back(int(i));
        const std::string path = dir + "/" + std::to_string(vocab);
        write_shard(path, tokens, vocab);
        const Shard shard = shard_open(path, false).value;
        std::vector<int> found;
        REQUIRE(shard_find(shard, BEGIN, [&](int64_t i) { found.push_back(int(i)); }).ok());
        CHECK(found == at);
        found.clear();
        REQUIRE(shard_find(shard, 65536 + BEGIN, [&](int64_t i) { found.push_back(int(i)); }).ok());
        CHECK(found.empty());
    }
}

TEST_CASE(
    "packing: shards without documents, or with few, are refused by name; any tokens are packed without a crash") {
    const std::string dir = temporary_directory(), path = dir + "/a.bin";
    auto refused = [&](const std::vector<int>& tokens, const std::string& part) {
        write_shard(path, tokens);
        const Status s = Loader::open(config(path, 15)).status;
        CHECK(s.code == Exit::input);
        CHECK_MESSAGE(contains(s.message, part), s.message);
    };
    refused({}, path + ": expected documents (token 500 begins one) that fill a sequence of 16 tokens");
    refused(std::vector<int>(100, 1), "found 0 documents with 0 tokens");
    refused(std::vector<int>(100, BEGIN), "found 0 documents with 0 tokens");
    refused(documents({7, 8}), "found 2 documents with 15 tokens");
    for (uint64_t trial = 0; trial < 50; trial++) {
        std::vector<int> tokens;
        for (uint64_t i = 0; i < 400; i++) {
            const uint32_t r = philox(7, trial, i).v[0];
            tokens.push_back(r % (2 + trial) == 0 ? BEGIN : int(r % 9));
        }
        write_shard(path, tokens);
        Result<Loader> l = Loader::open(config(path, 15));
        if (!l.ok()) continue;
        std::vector<int> in(15), targets(15);
        for (int64_t i = 0; i < l.value.samples(); i++) {
            REQUIRE(l.value.next(in.data(), targets.data()).ok());
            CHECK(in[0] == BEGIN);
        }
    }
}

namespace {
// A toy whose shards have documents of 5 to 60 tokens.
struct PackToy : Toy {
    PackToy() {
        for (const char* name : {"train", "more", "val"}) {
            std::vector<int> tokens;
            for (uint64_t i = 0; i < 400; i++) {
                tokens.push_back(256);
                for (uint32_t k = 0, n = 4 + philox(9, uint64_t(name[0]), i).v[0] % 56; k < n; k++)
                    tokens.push_back(int((i + 3 * k) % 64));
            }
            write_shard(dir + "/" + name + ".bin", tokens);
        }
    }
};
}    // namespace

TEST_CASE("packing: train --pack says how much is cropped, alone, in a mixture and with --documents, and resumes") {
    const PackToy toy;
    const Strings more = {"--steps", "30", "--save-every", "10", "--threads", "1"};
    const ProcessResult dry = must(with(toy.args("none", more), {"--pack", "--dry-run"}));
    CHECK(contains(dry.out, "400 documents packed into "));
    CHECK(contains(dry.out, " % of the tokens cropped\n"));
    const ProcessResult plain = must(toy.args("plain", more)), packed = must(with(toy.args("whole", more), {"--pack"}));
    CHECK(contains(packed.err, "note: --pack: 400 documents in "));
    CHECK_FALSE(contains(plain.err, "--pack"));
    const double share = number(toy.metrics("whole"), "\"cropped\":");
    CHECK(share > 0.1);
    CHECK(share < 0.5);
    CHECK(contains(dry.out, formatted("%.1f %% of the tokens cropped", 100 * share)));
    CHECK(toy.metrics("plain") != toy.metrics("whole"));
    // Validation reads windows either way: eval of the checkpoint has the loss again.
    const std::string rows = toy.metrics("whole");
    const ProcessResult eval = must({"eval", toy.dir + "/whole", "--data", toy.dir + "/val.bin", "--eval-tokens", "256",
                                     "--seq-len", "32", "--dtype", "fp32", "--json"});
    CHECK(number(eval.out, "{\"loss\":") ==
          doctest::Approx(number(rows.substr(rows.rfind("\"val_loss\":")), "\"val_loss\":")).epsilon(1e-6));
    // Documents apart.
    must(with(toy.args("apart", more), {"--pack", "--documents"}));
    CHECK(toy.metrics("apart") != toy.metrics("whole"));
    // In a mixture each source is packed by itself.
    const ProcessResult mixed =
        must(with(toy.args("mixed", {"--data", toy.dir + "/train.bin=3," + toy.dir + "/more.bin=1", "--steps", "3"}),
                  {"--pack"}));
    CHECK(contains(mixed.err, "/train.bin: --pack: 400 documents in "));
    CHECK(contains(mixed.err, "/more.bin: --pack: 400 documents in "));
    CHECK(number(toy.metrics("mixed"), "\"cropped\":") == doctest::Approx(share).epsilon(0.1));
    // A resumed run has the same rows; without --pack it is refused.
    fs::copy(toy.dir + "/whole", toy.dir + "/cut", fs::copy_options::recursive);
    fs::remove_all(toy.newest("cut"));
    must({"train", "--config", toy.dir + "/cut/run.toml", "--out", toy.dir + "/cut", "--resume", "auto"});
    CHECK(toy.metrics("cut") == toy.metrics("whole"));
    CHECK(same_file(toy.newest("cut") + "/model.safetensors", toy.newest("whole") + "/model.safetensors"));
    must(with(toy.args("whole", {"--steps", "40"}), {"--resume", "auto"}), 2,
         "or with other weights, --pack or --seq-len");
    Strings none = with(toy.args("none", {"--vocab", "300"}), {"--pack"});
    none.erase(std::find(none.begin(), none.end(), "--tokenizer"),
               std::find(none.begin(), none.end(), "--tokenizer") + 2);
    must(none, 2, "--pack: the tokenizer has no token that parts documents");
    must({"train", "--pack", "--dry-run"}, 2, "--pack needs --data or --chat");
}
