// test_slots.cpp - sequences that join and leave a shared KV cache have the bits that they have
// alone. The models have packed weights, whose products of a row do not depend on the other rows.
#include "infer/decode/cached_sequences.h"
#include "base/philox.h"

#include "layers/cpu.h"
#include "test.h"
#include "model_checks.h"

namespace {
typedef std::vector<float> Row;
const Config PLAIN = {.V = 97, .T = 640, .L = 2, .NH = 4, .C = 48, .F = 64, .NKV = 2, .HS = 16};
Ids part(const Ids& all, size_t from, size_t to) {
    return {all.begin() + ptrdiff_t(from), all.begin() + ptrdiff_t(to)};
}
bool same_bits(const Row& a, const float* b) { return memcmp(a.data(), b, a.size() * sizeof(float)) == 0; }

// Logits after a prompt of `first` tokens and after each later token, computed alone, one by one.
std::vector<Row> alone(Model& g, const Ids& tokens, size_t first, const CacheOptions& kind = {}, int positions = 0) {
    CachedSequences sequences(g);
    REQUIRE(sequences.open(1, positions ? positions : int(tokens.size()), kind).ok());
    std::vector<Row> rows(1, Row(size_t(g.c.V)));
    sequences.prefill({0}, {part(tokens, 0, first)}, rows[0].data());
    for (size_t i = first; i < tokens.size(); i++) {
        rows.emplace_back(size_t(g.c.V));
        sequences.step({0}, {{tokens[i]}}, rows.back().data());
    }
    return rows;
}

// Sequences join and leave in random order. A step computes up to `most` tokens of each, some of
// them drafts that are dropped again.
void come_and_go(Model& g, int count, int most, uint64_t seed, const CacheOptions& kind = {}) {
    const size_t V = size_t(g.c.V);
    const int positions = 90;
    CachedSequences sequences(g);
    REQUIRE(sequences.open(count, positions, kind).ok());
    struct Running {
        Ids tokens;
        size_t at, first;    // tokens computed, tokens of the prompt
        std::vector<Row> want;
    };
    std::vector<Running> running(static_cast<size_t>(count));
    uint32_t drawn = 0;
    auto draw = [&](int n) { return int(philox(seed, 1, drawn++).v[0] % uint32_t(n)); };
    uint64_t number = 0;
    for (int step = 0; step < 14; step++) {
        std::vector<int> joins, seqs;
        std::vector<Ids> prompts, more;
        for (int b = 0; b < count; b++) {
            Running& r = running[size_t(b)];
            if (r.at < r.tokens.size() && draw(6)) continue;
            const size_t first = size_t(1 + draw(draw(2) ? 40 : 4));
            r = {toy_tokens(int(first) + 8, g.c.V, ++number), first, first, {}};
            if (sequences.can_share_prefix() && draw(2)) {    // shares a prefix with another one
                const Ids& other = running[size_t(draw(count))].tokens;
                std::copy_n(other.begin(), std::min(other.size(), r.tokens.size()) / 2, r.tokens.begin());
            }
            r.want = alone(g, r.tokens, r.first, kind, positions);
            const CachedSequences::Prefix from = draw(3) ? sequences.longest_prefix(part(r.tokens, 0, first))
                                                         : CachedSequences::Prefix{};
            sequences.begin(b, from);
            joins.push_back(b), prompts.push_back(part(r.tokens, from.length, first));
        }
        std::vector<float> got(joins.size() * V);
        if (!joins.empty()) sequences.prefill(joins, prompts, got.data());
        for (size_t i = 0; i < joins.size(); i++) CHECK(same_bits(running[size_t(joins[i])].want[0], &got[i * V]));
        size_t rows = 0;
        for (int b = 0; b < count; b++) {
            const Running& r = running[size_t(b)];
            if (r.at >= r.tokens.size() || (count > 1 && !draw(5))) continue;    // others wait
            seqs.push_back(b);
            more.push_back(part(r.tokens, r.at, std::min(r.tokens.size(), r.at + size_t(1 + draw(most)))));
            if (most > 1 && draw(2)) more.back().push_back(draw(g.c.V));    // a random draft
            rows += more.back().size();
        }
        if (seqs.empty()) continue;
        got.resize(rows * V);
        sequences.step(seqs, more, got.data());
        for (size_t i = 0, row = 0; i < seqs.size(); row += more[i++].size()) {
            Running& r = running[size_t(seqs[i])];
            size_t right = 0;
            for (; right < more[i].size() && r.at < r.tokens.size() && more[i][right] == r.tokens[r.at]; right++) {
                CHECK(same_bits(r.want[r.at + 1 - r.first], &got[(row + right) * V]));
                r.at++;
            }
            sequences.drop_last(seqs[i], int(more[i].size() - right));
        }
    }
}
std::vector<Kind> kinds() {
    std::vector<Kind> all = kind_configs(PLAIN);
    all.push_back({"gpt2", PLAIN});
    Config window = all[0].c;
    window.window = 20;
    all.push_back({"window", window});
    Config pattern = all[0].c;
    pattern.window = 8, pattern.stride = 5, pattern.global_tokens = 3;
    all.push_back({"pattern", pattern});
    return all;
}
}    // namespace

TEST_CASE("slots: a sequence among others that come and go has the bits that it has alone") {
    for (const Kind& kind : kinds()) {
        CAPTURE(std::string(kind.name));
        const bool tiles = std::string(kind.name) == "gpt2";    // another order of prefill's sums
        Model g(tiles ? cpu_packed_ops_isa(cpu_isa(), Tiles::emulated) : cpu_packed_ops());
        toy_model(g, kind.c, {RunMode::infer, 9, 48});
        const bool states = kind.c.linear != LinearAttention::none;
        for (int count : {1, 2, 9}) come_and_go(g, count, states ? 1 : 4, uint64_t(count));
    }
    Model g(cpu_packed_ops());
    toy_model(g, kinds()[0].c, {RunMode::infer, 9, 8});    // prompts in several chunks
    for (Element type : {Element::bf16, Element::int8, Element::fp8}) come_and_go(g, 5, 3, 1, {type});
}

// Cuts lie around the kernels' bounds: tiles of 48 queries and of 256 keys; beyond 128 keys a
// single position's keys are split.
TEST_CASE("slots: a prompt has the same bits wherever it is cut") {
    Config base = kinds()[0].c;
    base.L = 1;
    for (auto [window, tiles] : {std::pair{0, false}, {100, false}, {300, false}, {0, true}}) {
        CAPTURE(window);
        CAPTURE(tiles);
        Config c = base;
        c.window = window;
        Model g(tiles ? cpu_packed_ops_isa(cpu_isa(), Tiles::emulated) : cpu_packed_ops());
        toy_model(g, c, {RunMode::infer, 1, 640});
        const Ids tokens = toy_tokens(541, c.V, 7);
        const std::vector<Row> want = alone(g, tokens, 530);
        CachedSequences sequences(g);
        REQUIRE(sequences.open(2, 640, {}).ok());
        Row got(size_t(c.V));
        for (size_t cut : {1, 2, 16, 47, 48, 49, 200, 255, 256, 257, 300, 511, 528, 529}) {
            CAPTURE(cut);
            for (int b : {0, 1}) sequences.empty(b);
            sequences.prefill({0}, {part(tokens, 0, cut)}, got.data());
            sequences.begin(1, sequences.longest_prefix(part(tokens, 0, 530)));
            CHECK(sequences.length(1) == int(cut));
            sequences.prefill({1}, {part(tokens, cut, 530)}, got.data());
            CHECK(same_bits(want[0], got.data()));
        }
        std::vector<float> rows(11 * size_t(c.V));
        sequences.step({1}, {part(tokens, 530, 541)}, rows.data());
        for (size_t i = 0; i < 11; i++) CHECK(same_bits(want[i + 1], &rows[i * size_t(c.V)]));
    }
}
