// test_seq2seq.cpp - pairs of lines against transformers' batches, their order, corrupted texts.
#include "data/seq2seq/length_groups.h"
#include "data/seq2seq/pairs_file.h"

#include "data/loader.h"
#include "test.h"

#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

namespace {
const std::string GOLDEN = "test/golden/seq2seq/";
Tokenizer tokenizer_of(const std::string& name) {
    Result<Tokenizer> t = Tokenizer::load(GOLDEN + name + ".json");
    REQUIRE_MESSAGE(t.ok(), t.status.message);
    return t.take();
}
// T5's and BART's tokenizers name their end in a second file, which these do not have.
Tokenizer with_end(const Tokenizer& t) {
    Vocabulary v = t.vocabulary();
    if (v.eos < 0) v.eos = v.after.back();
    return Tokenizer(std::move(v));
}
std::string write_pairs(const std::vector<std::pair<std::string, std::string>>& pairs) {
    std::string text;
    for (auto& [source, target] : pairs)
        text += nlohmann::json{{"source", source}, {"target", target}, {"id", 1}}.dump() + "\n";
    const std::string path = temporary_directory() + "/pairs.jsonl";
    write_file(path, text);
    return path;
}
Result<std::shared_ptr<PairsFile>> read(const std::string& path, const Tokenizer& t, PairsFileOptions o) {
    o.pattern = path, o.flag = "--pairs", o.vocab = t.vocab_size();
    return PairsFile::read(o, t);
}
// Pairs whose source has 1 to 40 letters, and the target as many or one less; by number.
std::string many_pairs(int n) {
    std::vector<std::pair<std::string, std::string>> pairs;
    for (int i = 0; i < n; i++) {
        const int length = 1 + int(philox(5, 1, uint64_t(i)).v[0] % 40);
        pairs.push_back(
            {std::string(size_t(length), 'x') + std::to_string(i), std::string(size_t(length - i % 2), 'y')});
    }
    return write_pairs(pairs);
}
Tokenizer byte_tokenizer() { return Tokenizer::from_merges({}, Pattern::gpt2, {"<|endoftext|>"}); }

struct Rows {
    std::vector<int> tokens, targets;
    std::vector<std::vector<Text>> texts;
};
Rows next(Loader& l, int B, int width) {
    Rows r{std::vector<int>(size_t(B * width)), std::vector<int>(size_t(B * width)), {}};
    const Status s = l.next(r.tokens.data(), r.targets.data(), &r.texts);
    REQUIRE_MESSAGE(s.ok(), s.message);
    return r;
}
std::vector<int> text_of(int n, int from = 1000) {
    std::vector<int> text(static_cast<size_t>(n));
    std::iota(text.begin(), text.end(), from);
    return text;
}
Seq2Seq made(const Seq2SeqOptions& o, const Tokenizer& t) {
    Result<Seq2Seq> s = Seq2Seq::make(o, t);
    REQUIRE_MESSAGE(s.ok(), s.status.message);
    return s.take();
}
// A tokenizer with so many sentinels behind 256 bytes and its end.
Tokenizer with_sentinels(int n) {
    std::vector<std::string> special = {"</s>", "<mask>"};
    for (int i = 0; i < n; i++) special.push_back("<extra_id_" + std::to_string(i) + ">");
    Vocabulary v = Tokenizer::from_merges({}, Pattern::gpt2, special).vocabulary();
    v.eos = 256, v.after = {256};
    return Tokenizer(std::move(v));
}
}    // namespace

TEST_CASE("seq2seq: batches of pairs are those of transformers for T5 and BART") {
    const nlohmann::json all = nlohmann::json::parse(read_file(GOLDEN + "pairs.json"));
    for (const std::string name : {"t5", "bart"}) {
        const nlohmann::json& g = all[name];
        const Tokenizer t = tokenizer_of(name);
        const PairsFileOptions o = {.source_S = g["source_len"], .S = g["target_len"], .pad = g["pad"]};
        auto file = read(write_pairs(g["pairs"]), t, o).take();
        CHECK(file->samples() == 8);
        CHECK(file->counts.cut_sources > 0);
        CHECK(file->counts.cut_targets > 0);
        const Seq2Seq s = made({.source_S = o.source_S, .S = o.S, .start = g["start"], .pad = o.pad}, t);
        CHECK(s.width() == o.source_S);
        Loader loader = Loader::open(file, {.B = 8, .S = s.width(), .vocab = t.vocab_size(), .shuffle = false}).take();
        CHECK(s.targets(8, loader.targets(8)) == file->tokens() - [&] {
            int64_t sources = 0;
            for (int n : g["lengths"]) sources += n;
            return sources;
        }());
        const Rows rows = next(loader, 8, s.width());
        for (bool cut : {false, true}) {
            const Seq2SeqBatch b = s.batch(0, rows.tokens.data(), rows.targets.data(), rows.texts, 8, cut);
            CHECK(b.B == 8);
            CHECK(b.source_S == 24);
            CHECK(b.S == 16);
            CHECK(nlohmann::json(b.source_lengths) == g["lengths"]);
            for (int i = 0; i < 8; i++) {
                auto row = [&](const std::vector<int>& x, int S) {
                    return std::vector<int>(x.begin() + i * S, x.begin() + (i + 1) * S);
                };
                std::vector<int> labels = g["labels"][size_t(i)], tokens = g["tokens"][size_t(i)];
                int used = 0;
                for (int& id : labels) used += id >= 0, id = std::max(id, -1);
                for (size_t k = size_t(used); k < tokens.size(); k++) tokens[k] = o.pad;    // theirs shift the end, too
                CHECK(row(b.source, 24) == g["source"][size_t(i)].get<std::vector<int>>());
                CHECK(row(b.targets, 16) == labels);
                CHECK(row(b.tokens, 16) == tokens);
            }
        }
    }
}

TEST_CASE("seq2seq: a batch is as long as its longest source and target") {
    const Tokenizer t = byte_tokenizer();
    const std::string path = write_pairs({{"aaaaa", "b"}, {"a", "bbbbbbbbb"}, {"aaaaaaaaaaaaaaaa", "bbbbbbbb"}});
    const PairsFileOptions o = {.source_S = 64, .S = 20, .pad = 9};
    auto file = read(path, t, o).take();
    CHECK(file->longest() == 17);    // with the end token
    const Seq2Seq s = made({.source_S = 64, .S = 20, .start = 7, .pad = 9}, t);
    Loader l = Loader::open(file, {.B = 2, .S = s.width(), .vocab = 257, .shuffle = false}).take();
    const Rows rows = next(l, 2, s.width());
    const Seq2SeqBatch b = s.batch(0, rows.tokens.data(), rows.targets.data(), rows.texts, 2, true);
    CHECK(b.source_S == 8);
    CHECK(b.S == 16);
    CHECK(b.source_lengths == std::vector<int>{6, 2});
    CHECK(std::vector<int>(b.tokens.begin(), b.tokens.begin() + 4) == std::vector<int>{7, t.encode("b")[0], 9, 9});
    CHECK(std::vector<int>(b.targets.begin(), b.targets.begin() + 3) ==
          std::vector<int>{t.encode("b")[0], t.end_of_text(), -1});
    const Seq2SeqBatch whole = s.batch(0, rows.tokens.data(), rows.targets.data(), rows.texts, 2, false);
    CHECK(whole.source_S == 64);
    CHECK(whole.S == 20);
    const uint64_t before = file->fingerprint();
    auto limited = [&](int source_S, int S) { return *read(path, t, {.source_S = source_S, .S = S, .pad = 9}).take(); };
    PairsFile shorter = limited(17, 10);
    CHECK(shorter.fingerprint() != before);
    PairsFile equal = *file;
    equal.shorten(20);
    CHECK(equal.fingerprint() == limited(20, 20).fingerprint());
    const PairsFile longer = limited(17, 30);    // targets may be longer than sources
    const Seq2Seq wide = made({.source_S = 17, .S = 30, .start = 7, .pad = 9}, t);
    CHECK(wide.width() == 30);
    std::vector<int> row(30), row_targets(30);
    std::vector<Text> row_texts;
    REQUIRE(longer.read(2, row.data(), row_targets.data(), &row_texts).ok());
    const Seq2SeqBatch padded = wide.batch(0, row.data(), row_targets.data(), {row_texts}, 1, false);
    CHECK(padded.source_lengths == std::vector<int>{17});
    CHECK(std::ranges::count(padded.targets, -1) == 30 - 9);
    CHECK(limited(17, 20).fingerprint() != before);
    const Rows last = next(l, 2, s.width());    // a source of 17 tokens, rounded up
    CHECK(s.batch(0, last.tokens.data(), last.targets.data(), last.texts, 1, true).source_S == 24);
    std::vector<int> tokens(17), targets(17);
    std::vector<Text> texts;
    REQUIRE(shorter.read(2, tokens.data(), targets.data(), &texts).ok());    // fills the source's limit
    CHECK(texts.size() == 1);
    const Seq2Seq small = made({.source_S = 17, .S = 10, .start = 7, .pad = 9}, t);
    CHECK(small.batch(0, tokens.data(), targets.data(), {texts}, 1, true).source_lengths[0] == 17);
}

TEST_CASE("seq2seq: long pairs are cut or left out and counted; wrong lines are named") {
    const Tokenizer t = byte_tokenizer();
    const std::string path = write_pairs({{"aaaa", "bb"}, {"aaaaaaaa", "b"}, {"a", "bbbbbb"}, {"", ""}});
    auto cut = read(path, t, {.source_S = 5, .S = 4}).take();
    CHECK(cut->samples() == 4);
    CHECK(cut->counts.cut_sources == 1);
    CHECK(cut->counts.cut_targets == 1);
    CHECK(cut->counts.cut_tokens == 7);
    CHECK(cut->pair(1).source.size() == 5);
    CHECK(cut->pair(1).source.back() == t.end_of_text());
    CHECK(cut->pair(2).target.back() == t.end_of_text());
    CHECK(cut->pair(3).source == std::vector<int>{t.end_of_text()});
    CHECK(contains(cut->note(), "1 source cut to 5 tokens and 1 target to 4 (7 tokens"));
    auto dropped = read(path, t, {.drop = true, .source_S = 5, .S = 4}).take();
    CHECK(dropped->samples() == 2);
    CHECK(dropped->counts.dropped == 2);
    CHECK(contains(dropped->note(), "2 pairs left out"));

    auto error_of = [&](const std::string& text, int source_S = 5) {
        const std::string file = temporary_directory() + "/p.jsonl";
        write_file(file, text);
        const auto r = read(file, t, {.source_S = source_S, .S = 4});
        REQUIRE(!r.ok());
        CHECK(r.status.code == (source_S == 1 ? Exit::usage : Exit::input));
        return r.status.message;
    };
    const std::string good = "{\"source\": \"a\", \"target\": \"b\"}\n";
    CHECK(contains(error_of(good + "{\"source\": \"a\"}\n"), "p.jsonl:2: "));
    CHECK(contains(error_of(good + "{\"source\": \"a\"}\n"), "target"));
    CHECK(contains(error_of("{\"source\": 5, \"target\": \"b\"}\n"), "source"));
    CHECK(contains(error_of("{\"source\": [\"a\"], \"target\": \"b\"}\n"), "source"));
    CHECK(contains(error_of("[1, 2]\n"), "expected a JSON object"));
    CHECK(contains(error_of(good + "{\"source\": \"a\", \"source\": \"a\", \"target\": \"b\"}\n"), "twice"));
    CHECK(contains(error_of("{\"source\": \"\xFF\", \"target\": \"b\"}\n"), "p.jsonl:1"));
    CHECK(contains(error_of("{\"source\": \"a\", \"target\": \"b\", \"x\": " + std::string(100000, '[') + "\n"),
                   "p.jsonl"));
    error_of("");
    CHECK(contains(error_of(good, 1), "--seq-len 1: expected at least 2"));
    const std::string file = write_pairs({{"aaaaaaaa", "b"}});
    const auto none = read(file, t, {.drop = true, .source_S = 5, .S = 4});
    REQUIRE(!none.ok());
    CHECK(contains(none.status.message, "found 1 line; 1 pair left out"));
}

TEST_CASE("seq2seq: a step has similar lengths and an epoch each sample once") {
    const std::vector<int64_t> lengths = [] {
        std::vector<int64_t> all;
        for (uint64_t i = 0; i < 1000; i++) all.push_back(philox(9, 9, i).v[0] % 300);
        return all;
    }();
    auto length = [&](int64_t i) { return lengths[size_t(i)]; };
    for (auto [n, group] :
         {std::pair{1000, 16}, {1000, 7}, {5, 16}, {16, 16}, {100, 64}, {1, 1}, {1000, 1}, {640, 16}}) {
        auto base = [n = n](int64_t epoch, int64_t i) { return shuffled(3, epoch, n, i); };
        const LengthGroups groups(group, n, 3, true, base, length), again(group, n, 3, true, base, length);
        int64_t run = 0, spread = 0, steps = 0, low = INT64_MAX, high = 0;
        std::vector<int64_t> first;
        for (int64_t epoch = 0; epoch < 4; epoch++) {
            std::set<int64_t> seen;
            std::vector<int64_t> order;
            for (int64_t i = 0; i < n; i++, run++) {
                const int64_t sample = groups.at(epoch, i);
                REQUIRE((sample >= 0 && sample < n));
                seen.insert(sample);
                order.push_back(sample);
                if (run % group == 0) low = INT64_MAX, high = 0;
                low = std::min(low, length(sample)), high = std::max(high, length(sample));
                if (run % group == group - 1) spread += high - low, steps++;
            }
            CHECK(int(seen.size()) == n);
            if (epoch == 0) first = order;
            else if (n > 16) CHECK(order != first);
        }
        // Any entry by itself is the same, in whatever order they are computed.
        for (int64_t i = n - 1; i >= 0; i -= 3) CHECK(again.at(0, i) == first[size_t(i)]);
        if (n == 1000 && group == 16) CHECK(double(spread) / double(steps) < 40);    // shuffled: some 265
        if (n == 1000 && group == 7) CHECK(double(spread) / double(steps) < 20);
        if (n == 640) {    // steps do not come by length
            int rising = 0;
            for (int64_t s = 16; s < 640; s += 16) rising += length(first[size_t(s)]) > length(first[size_t(s - 16)]);
            CHECK((rising > 10 && rising < 30));
        }
    }
}

TEST_CASE("seq2seq: the loader's order does not depend on ranks and is resumed anywhere") {
    const Tokenizer t = byte_tokenizer();
    const PairsFileOptions o = {.source_S = 48, .S = 48};
    auto file = read(many_pairs(203), t, o).take();
    const int width = 48;
    LoaderConfig c{.B = 8, .S = width, .vocab = 257, .seed = 4, .group = 16};
    auto sources = [&](const Rows& r, int B) {
        std::vector<std::vector<int>> all;
        for (int b = 0; b < B; b++)
            all.push_back({r.tokens.begin() + b * width, r.tokens.begin() + b * width + r.texts[size_t(b)][1].from});
        return all;
    };
    typedef std::vector<std::vector<int>> Sources;
    Loader one = Loader::open(file, c).take();
    std::vector<Sources> steps;
    double filled = 0, positions = 0;
    for (int step = 0; step < 60; step++) {    // over four epochs
        steps.push_back(sources(next(one, 8, width), 8));
        size_t most = 0;
        for (const auto& s : steps.back()) filled += double(s.size()), most = std::max(most, s.size());
        positions += 8 * double(most);
    }
    CHECK(filled / positions > 0.85);
    std::set<std::vector<int>> epoch;    // each source once
    for (int i = 0; i < 203; i++) CHECK(epoch.insert(steps[size_t(i / 8)][size_t(i % 8)]).second);
    c.ranks = 4, c.B = 2;
    for (int rank = 0; rank < 4; rank++) {
        c.rank = rank;
        Loader l = Loader::open(file, c).take();
        for (const Sources& step : steps)
            CHECK(sources(next(l, 2, width), 2) == Sources(step.begin() + 2 * rank, step.begin() + 2 * rank + 2));
    }
    c.rank = 0, c.ranks = 1, c.B = 8;
    for (int step : {0, 1, 13, 25, 26, 51, 59}) {
        Loader l = Loader::open(file, c).take();
        l.seek({step * 8 / 203, step * 8 % 203});
        CHECK(sources(next(l, 8, width), 8) == steps[size_t(step)]);
    }
    Loader l = Loader::open(file, c).take();
    const int64_t expected = l.targets(16);    // in the next steps
    int64_t found = 0;
    for (int i = 0; i < 2; i++)
        for (int id : next(l, 8, width).targets) found += id >= 0;
    CHECK(found == expected);
}

TEST_CASE("seq2seq: span corruption has T5's lengths and nothing is lost") {
    const Tokenizer t = with_sentinels(100);
    Seq2SeqOptions o = {.kind = Seq2SeqKind::span_corruption, .source_S = 512, .pad = 1, .seed = 3};
    const Seq2Seq s = made(o, t);
    CHECK(s.width() == 568);    // T5's: 512 tokens of source, 568 of text, 114 of target
    CHECK(s.target_length() == 114);
    CHECK(s.targets(7, 0) == 7 * 114);
    for (auto [length, text, target] : {std::tuple{128, 141, 29}, {256, 284, 58}, {1024, 1137, 229}}) {
        o.source_S = length;
        CHECK(made(o, t).width() == text);
        CHECK(made(o, t).target_length() == target);
    }
    for (auto [source, density, mean] : {std::tuple{512, 0.0, 3.0},
                                         {512, 0.5, 8.0},
                                         {3, 0.0, 3.0},
                                         {10, 0.0, 1.0},
                                         {33, 0.9, 2.0},
                                         {64, 0.15, 100.0}}) {
        const Seq2Seq q = made({.kind = Seq2SeqKind::span_corruption,
                                .source_S = source,
                                .density = density,
                                .mean_span = mean,
                                .seed = 3},
                               t);
        const std::vector<int> text = text_of(q.width());
        std::set<std::vector<int>> drawn;
        for (int64_t number = 0; number < 40; number++) {
            const SequencePair p = q.pair(number, text.data(), nullptr, {Text{}});
            drawn.insert(p.source);
            REQUIRE(int(p.source.size()) <= source);
            REQUIRE(int(p.source.size()) >= source - 1);
            REQUIRE(int(p.target.size()) == q.target_length());
            CHECK(p.source.back() == 256);
            CHECK(p.target.back() == 256);
            CHECK(p.source[0] == text[0]);    // a kept span is first, a corrupted one last
            CHECK(p.target[p.target.size() - 2] == text.back());
            // Each sentinel of the source stands for the target's tokens behind it.
            std::map<int, std::vector<int>> spans;
            int open = -1;
            for (size_t i = 0; i + 1 < p.target.size(); i++) {
                if (p.target[i] >= 1000) spans[open].push_back(p.target[i]);
                else CHECK(spans.emplace(open = p.target[i], std::vector<int>{}).second);
            }
            std::vector<int> whole;
            int next_sentinel = 258;
            for (size_t i = 0; i + 1 < p.source.size(); i++) {
                if (p.source[i] >= 1000) {
                    whole.push_back(p.source[i]);
                    continue;
                }
                CHECK(p.source[i] == next_sentinel++);
                REQUIRE(!spans[p.source[i]].empty());
                whole.insert(whole.end(), spans[p.source[i]].begin(), spans[p.source[i]].end());
            }
            CHECK(whole == text);
            CHECK(q.pair(number, text.data(), nullptr, {Text{}}).source == p.source);
        }
        if (source > 64) CHECK(drawn.size() == 40);
    }
    // All places are corrupted about as often.
    std::vector<int> hits(568);
    const std::vector<int> text = text_of(568);
    for (int64_t number = 0; number < 1000; number++)
        for (int id : s.pair(number, text.data(), nullptr, {Text{}}).target)
            if (id >= 1000) hits[size_t(id - 1000)]++;
    CHECK(hits[0] == 0);
    for (size_t i = 60; i < 500; i++) CHECK_MESSAGE((hits[i] > 90 && hits[i] < 210), i, ": ", hits[i]);
    CHECK(std::accumulate(hits.begin(), hits.end(), 0) == 85000);
}

TEST_CASE("seq2seq: infilling replaces Poisson spans by one mask each and permutes sentences") {
    const Tokenizer t = with_sentinels(0);
    constexpr int MASK = 257, END = 256, STOP = 5000;
    Seq2SeqOptions o = {.kind = Seq2SeqKind::infilling, .source_S = 512, .S = 512, .seed = 3};
    const Seq2Seq s = made(o, t);
    CHECK(s.width() == 511);
    CHECK(s.targets(3, 0) == 3 * 512);
    const std::vector<int> text = text_of(511);
    double masks = 0, alone = 0;    // alone: masks that replace nothing
    for (int64_t number = 0; number < 400; number++) {
        const SequencePair p = s.pair(number, text.data(), nullptr, {Text{}});
        REQUIRE(p.source.size() <= 512);
        CHECK(p.source.back() == END);
        CHECK(std::vector<int>(p.target.begin(), p.target.end() - 1) == text);
        CHECK(p.target.back() == END);
        std::vector<int> kept;
        for (size_t i = 0; i + 1 < p.source.size(); i++) {
            if (p.source[i] != MASK) {
                kept.push_back(p.source[i]);
                continue;
            }
            masks++;
            alone += i > 0 && p.source[i - 1] >= 1000 && p.source[i + 1] == p.source[i - 1] + 1;
        }
        CHECK(kept.size() == 511 - 153);    // 30 %
        CHECK(std::is_sorted(kept.begin(), kept.end()));
        CHECK(s.pair(number, text.data(), nullptr, {Text{}}).source == p.source);
    }
    CHECK(masks / 400 == doctest::Approx(153 / 3.0).epsilon(0.03));
    // exp(-3) of the spans are empty, of which those beside a kept token at both sides are seen.
    CHECK(alone / masks == doctest::Approx(0.0498 * 0.77).epsilon(0.2));
    // Sentences of 10 tokens; what is kept of each stays in order.
    o.sentence_end = STOP;
    const Seq2Seq permuted = made(o, t);
    std::vector<int> sentences = text;
    for (size_t i = 9; i < 511; i += 10) sentences[i] = STOP;
    sentences[100] = STOP;    // behind another end: no sentence by itself
    const SequencePair p = permuted.pair(5, sentences.data(), nullptr, {Text{}});
    CHECK(std::vector<int>(p.target.begin(), p.target.end() - 1) == sentences);
    int jumps = 0, before = -1;
    std::map<int, int> last;
    for (int id : p.source) {
        if (id < 1000 || id == STOP) continue;
        const int sentence = (id - 1000) / 10;
        jumps += sentence < before;
        before = sentence;
        CHECK(last[sentence] < id);
        last[sentence] = id;
    }
    CHECK(jumps > 10);
    o.density = 0.01;
    const Seq2Seq nearly_whole = made(o, t);
    const int end_of_ten[] = {text[98], STOP, STOP};
    int together = 0;
    for (int64_t number = 0; number < 20; number++) {
        const std::vector<int> source = nearly_whole.pair(number, sentences.data(), nullptr, {Text{}}).source;
        together += !std::ranges::search(source, end_of_ten).empty();
    }
    CHECK(together > 15);
    // Tiny texts; no source is longer than its text.
    for (double density : {0.01, 0.3, 0.9})
        for (int length : {3, 4, 9}) {
            const Seq2Seq tiny = made(
                {.kind = Seq2SeqKind::infilling, .source_S = length, .S = length, .density = density, .mean_span = 1},
                t);
            for (int64_t number = 0; number < 200; number++)
                CHECK(int(tiny.pair(number, text.data(), nullptr, {Text{}}).source.size()) <= length);
        }
}

TEST_CASE("seq2seq: a batch of infilled texts has the template's tokens and is drawn by number") {
    const Tokenizer bart = with_end(tokenizer_of("bart"));
    const Seq2Seq around = made({.kind = Seq2SeqKind::infilling, .source_S = 16, .S = 16, .start = 2, .pad = 1}, bart);
    CHECK(around.width() == 14);
    const std::vector<int> texts(28, 77);
    const Seq2SeqBatch b = around.batch(0, texts.data(), nullptr, {{Text{}}, {Text{}}}, 2, false);
    CHECK(b.source[0] == 0);
    CHECK(b.tokens[0] == 2);
    CHECK(b.tokens[1] == 0);
    CHECK(b.targets[0] == 0);
    CHECK(b.targets[15] == 2);
    CHECK(b.source[16 + size_t(b.source_lengths[1]) - 1] == 2);
    CHECK(std::vector<int>(b.source.begin(), b.source.begin() + 16) !=
          std::vector<int>(b.source.begin() + 16, b.source.end()));
}

TEST_CASE("seq2seq: wrong options and tokenizers are refused") {
    auto error_of = [](const Seq2SeqOptions& o, const Tokenizer& t) {
        const Result<Seq2Seq> s = Seq2Seq::make(o, t);
        REQUIRE(!s.ok());
        CHECK(s.status.code == Exit::usage);
        return s.status.message;
    };
    const auto t5 = Seq2SeqKind::span_corruption, bart = Seq2SeqKind::infilling;
    const Tokenizer t = with_sentinels(28);
    made({.kind = t5, .source_S = 512}, t);
    CHECK(contains(error_of({.kind = t5, .source_S = 1024}, t), "with 57 sentinels"));
    CHECK(contains(error_of({.kind = t5, .source_S = 512}, with_sentinels(0)), "found 0"));
    CHECK(contains(error_of({.kind = t5, .source_S = 512, .S = 113}, t), "targets of 114"));
    made({.kind = t5, .source_S = 512, .S = 114}, t);
    CHECK(contains(error_of({.kind = t5, .source_S = 2}, t), "at least 3"));
    for (double density : {-0.1, 0.95, double(NAN), double(INFINITY)})
        error_of({.kind = t5, .source_S = 512, .density = density}, t);
    for (double mean : {0.5, 101.0, double(NAN)}) error_of({.kind = t5, .source_S = 512, .mean_span = mean}, t);
    CHECK(contains(error_of({.kind = bart, .source_S = 8, .S = 8}, byte_tokenizer()), "mask"));
    CHECK(contains(error_of({.kind = bart, .source_S = 7, .S = 8}, t), "sources of 7 tokens"));
    CHECK(contains(error_of({.kind = bart, .source_S = 8, .S = 2}, t), "--seq-len 2"));
    CHECK(contains(error_of({.kind = t5, .source_S = 512}, Tokenizer::from_merges({}, Pattern::gpt2, {"<mask>"})),
                   "EOS"));
}
