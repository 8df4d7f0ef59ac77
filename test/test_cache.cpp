// test_cache.cpp - the KV cache: shared pages, uneven lengths, bf16/fp8/int8, eviction.
#include <numeric>
#include <set>
#include <utility>

#include "model/decoder.h"
#include "infer/decode/generate.h"
#include "layers/cpu.h"
#include "test.h"
#include "model_checks.h"

namespace {
typedef std::vector<int> Ids;
const Config PLAIN = {.V = 97, .T = 64, .L = 2, .NH = 4, .C = 48, .F = 64, .NKV = 2, .HS = 16};
Config rotating(int L = 2) {
    Config c = PLAIN;
    c.L = L, c.position = Position::rope, c.rope_dims = 16;
    return c;
}
Ids part(const Ids& all, int from, int to) { return {all.begin() + from, all.begin() + to}; }
Ids joined(Ids a, const Ids& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}
PendingHead head;    // the last extend's result, for compute_logits
std::vector<float> logits_of(Model& g, const PendingHead& of = head) {
    std::vector<float> x(size_t(of.pass.B * g.c.V));
    compute_logits(g, of, x.data());
    return x;
}
std::vector<float> whole(Model& g, const Ids& tokens) {
    g.batch.upload(tokens.data(), nullptr, 1, int(tokens.size()));
    g.forward();
    return logits_of(g, whole_batch(g));
}
// One sequence's logits after each token from `first` on; the tokens before are one call.
std::vector<std::vector<float>> steps(Model& g, KvCache& cache, const Ids& tokens, int first) {
    std::vector<std::vector<float>> all;
    head = extend(g, cache, tokens.data(), first);
    all.push_back(logits_of(g));
    for (size_t i = size_t(first); i < tokens.size(); i++) {
        head = extend(g, cache, &tokens[i], 1);
        all.push_back(logits_of(g));
    }
    return all;
}
}    // namespace

TEST_CASE("cache: sequences share pages until one of them writes") {
    const int SIZE = Pages::SIZE;
    PageTable t;
    std::vector<PageTable::Copy> copies;
    t.resize(3, 7);
    t.grow(0, 2 * SIZE + 3, copies);
    CHECK(t[0].pages.size() == 3);
    CHECK(t.free() == 4);
    t.fork(0, 1), t.fork(0, 2);
    CHECK(t.free() == 4);    // a shared prompt is held once
    CHECK(t.ref_count(t[0].pages[2]) == 3);
    t.grow(1, 1, copies);    // a copy of the partial last page
    t.grow(2, 1, copies);
    t.grow(0, 1, copies);
    CHECK(t.free() == 2);
    REQUIRE(copies.size() == 2);
    CHECK(copies[0].from == t[0].pages[2]);
    CHECK(copies[0].to == t[1].pages[2]);
    CHECK(copies[1].to == t[2].pages[2]);
    CHECK(t[1].pages[1] == t[0].pages[1]);
    t.grow(1, SIZE, copies);
    CHECK(copies.size() == 2);    // a new page needs no copy
    CHECK(t.free() == 1);
    t.rewind(1, SIZE + 1);
    CHECK(t.free() == 3);
    CHECK(t.ref_count(t[0].pages[1]) == 3);
    t.grow(1, 1, copies);    // a write to a page of three sequences
    CHECK(copies.size() == 3);
    CHECK(t[1].pages[1] != t[0].pages[1]);
    for (int b : {0, 1, 2}) t.rewind(b, 0);
    CHECK(t.free() == 7);
    t.grow(0, 4 * SIZE, copies);
    t.fork(0, 1);
    t.evict(0, 1);
    CHECK(t.free() == 3);    // sequence 1 still holds the evicted page
    CHECK(t[0].length() == 3 * SIZE);
    CHECK(t[0].pages == Ids{t[1].pages[0], t[1].pages[2], t[1].pages[3]});
    t.copy_sinks(0, 1, copies);
    CHECK(t.ref_count(t[0].first[0]) == 2);
    CHECK(t.free() == 2);
    t.copy_sinks(0, 1, copies);    // the existing copy, reused
    CHECK(t.free() == 2);
    t.fork(0, 2);
    t.copy_sinks(2, 1, copies);
    CHECK(t[2].pages[0] != t[0].pages[0]);
    CHECK(t[2].first == t[0].first);
    for (int b : {0, 1, 2}) t.rewind(b, 0);
    CHECK(t.free() == 7);
}

TEST_CASE("cache: copies of a sequence do not disturb each other") {
    const Ids prompt = toy_tokens(21, PLAIN.V, 1), a = toy_tokens(30, PLAIN.V, 2), b = toy_tokens(30, PLAIN.V, 3);
    for (std::optional<Element> type : {std::optional<Element>(), std::optional(Element::int8)}) {
        Model g(cpu_ops<float>());
        toy_model(g, rotating(), {RunMode::infer, 2, 32});
        KvCache both, apart;
        REQUIRE(allocate_cache(g, both, 2, 64, {type}).ok());
        REQUIRE(allocate_cache(g, apart, 2, 64, {type}).ok());
        head = extend(g, both, prompt.data(), 21, {0});
        both.table.fork(0, 1);
        for (int which : {0, 1}) head = extend(g, apart, prompt.data(), 21, {which});
        for (size_t i = 0; i < 30; i++) {
            const Ids next = {a[i], b[i]};
            head = extend(g, both, next.data(), 1);
            const auto got = logits_of(g);
            head = extend(g, apart, next.data(), 1);
            CHECK(memcmp(got.data(), logits_of(g).data(), got.size() * sizeof(float)) == 0);
        }
        const int shared = 1, each = pages_for(51) - shared;
        CHECK(both.table.free() == both.pages - shared - 2 * each);
    }
}

TEST_CASE("cache: sequences of different lengths are what each is alone") {
    const std::vector<int> lengths = {30, 1, 17, 2, 40};
    const int S = 40, B = int(lengths.size());
    for (const Kind& kind : kind_configs(PLAIN)) {
        CAPTURE(std::string(kind.name));
        Model g(cpu_ops<float>());
        toy_model(g, kind.c, {RunMode::infer, B, S});
        KvCache together, alone;
        REQUIRE(allocate_cache(g, together, B, 64).ok());
        REQUIRE(allocate_cache(g, alone, B, 64).ok());
        Ids all;
        for (int b = 0; b < B; b++) all = joined(all, toy_tokens(S, PLAIN.V, uint64_t(b)));
        head = extend(g, together, all.data(), S, {}, lengths);
        auto rows = logits_of(g);
        for (int step = 0; step < 3; step++) {
            for (int b = 0; b < B; b++) {
                const int from = step ? lengths[size_t(b)] + step - 1 : 0, n = step ? 1 : lengths[size_t(b)];
                if (from + n > S) continue;
                head = extend(g, alone, &all[size_t(b * S + from)], n, {b});
                const auto own = logits_of(g);
                CAPTURE(b);
                CAPTURE(step);
                CHECK(relative_error(own.data(), &rows[size_t(b * PLAIN.V)], PLAIN.V) < 1e-5);
                // S chooses the order of attention's sums: alone a 1-token prompt has another.
                if (lengths[size_t(b)] > 1)
                    CHECK(memcmp(own.data(), &rows[size_t(b * PLAIN.V)], own.size() * sizeof(float)) == 0);
            }
            Ids next;
            for (int b = 0; b < B; b++) next.push_back(all[size_t(b * S + std::min(S - 1, lengths[size_t(b)] + step))]);
            head = extend(g, together, next.data(), 1);
            rows = logits_of(g);
        }
    }
}

static Ids product_rows;
TEST_CASE("cache: the last block goes on, after attention, with the rows that logits are asked of") {
    Ops<float> op = cpu_ops<float>();
    op.linear_gelu_forward = nullptr, op.linear_gelu_backward = nullptr;
    op.linear_forward = [](float* y, const float* x, const float* w, const float* b, const float* residual, int N,
                           int C, int OC, Precision) {
        product_rows.push_back(N);
        cpu_ops<float>().linear_forward(y, x, w, b, residual, N, C, OC, {});
    };
    auto taken = [] { return std::exchange(product_rows, {}); };
    const int V = PLAIN.V, B = 2, S = 6;
    for (Parallel parallel : {Parallel::none, Parallel::one, Parallel::two}) {
        Config c = rotating();
        c.parallel = parallel;
        Model g((Table(op)));
        toy_model(g, c, {RunMode::infer, B, S});
        KvCache cache;
        REQUIRE(allocate_cache(g, cache, B, c.T).ok());
        const Ids tokens = toy_tokens(B * S, V, 1), asked = {1, 5, 7, 8, 11};
        std::vector<float> all(size_t(B * S * V)), some(asked.size() * size_t(V));
        Ids rows(size_t(B * S));
        std::iota(rows.begin(), rows.end(), 0);
        auto check = [&] {
            for (size_t i = 0; i < some.size(); i++)
                CHECK(some[i] == doctest::Approx(all[size_t(asked[i / size_t(V)] * V) + i % size_t(V)]).epsilon(1e-4));
        };
        for (auto [to, which] : {std::pair(&all, rows), std::pair(&some, asked)}) {
            g.batch.upload(tokens.data(), nullptr, B, S);
            g.forward();
            compute_logits(g, whole_batch(g), to->data(), which);
        }
        check();
        (void)taken();
        head = extend(g, cache, tokens.data(), S);
        CHECK(taken() == Ids{12, 12, 12, 12, 12});    // block 0 and the qkv of block 1
        compute_logits(g, head, some.data(), asked);
        CHECK(taken() == Ids{5, 5, 5, 5});
        check();
        head = extend(g, cache, tokens.data(), 1);
        CHECK(taken() == Ids(8, 2));
        compute_logits(g, head, some.data(), {1});
        CHECK(taken() == Ids{1});
    }
}

namespace {
// Pinned memory (allocate_host) held now; all allocations, downloads, downloads elsewhere.
struct Pinned {
    std::set<void*> held;
    int allocated = 0, downloads = 0, elsewhere = 0;
} pinned;
Table pinning(Table op) {
    static void (*download)(void*, const void*, int64_t);
    download = op.download, pinned = {};
    op.allocate_host = [](int64_t bytes) {
        void* p = reference_ops().allocate_host(bytes);
        return pinned.allocated++, pinned.held.insert(p), p;
    };
    op.release_host = [](void* p, int64_t bytes) { pinned.held.erase(p), reference_ops().release_host(p, bytes); };
    op.download = [](void* to, const void* from, int64_t bytes) {
        pinned.downloads++, pinned.elsewhere += !pinned.held.contains(to);
        download(to, from, bytes);
    };
    return op;
}
}    // namespace

TEST_CASE("cache: logits come by one download into pinned memory that the model keeps") {
    for (const Table& table : {Table(reference_ops()), Table(cpu_ops<float>()), Table(cpu_ops<bf16>())}) {
        const Table op = pinning(table);
        {
            Model g(op);
            toy_model(g, PLAIN, {RunMode::infer, 3, 8});
            KvCache cache;
            REQUIRE(allocate_cache(g, cache, 3, 32).ok());
            const Ids in = toy_tokens(3 * 8, PLAIN.V, 1);
            const int before = pinned.allocated;
            for (int S : {8, 1, 4}) {
                pinned.downloads = pinned.elsewhere = 0;
                head = extend(g, cache, in.data(), S);
                (void)logits_of(g);
                CHECK((pinned.downloads == 1 && pinned.elsewhere == 0));
            }
            CHECK(pinned.allocated == before + 1);
        }
        CHECK(pinned.held.empty());
    }
}

TEST_CASE("cache: narrow types agree with the reference's, and cost little") {
    const Ids tokens = toy_tokens(60, PLAIN.V, 1);
    const Config c = rotating();
    for (auto [type, cost] : {std::pair{Element::bf16, 2e-2}, {Element::fp8, 0.15}, {Element::int8, 4e-2}}) {
        CAPTURE(int(type));
        Model g(cpu_ops<float>()), reference(reference_ops());
        toy_model(g, c, {RunMode::infer, 1, 64});
        toy_model(reference, c, {RunMode::infer, 1, 64});
        KvCache narrow, exact, wide;
        REQUIRE(allocate_cache(g, narrow, 1, 64, {type}).ok());
        REQUIRE(allocate_cache(g, wide, 1, 64).ok());
        REQUIRE(allocate_cache(reference, exact, 1, 64, {type}).ok());
        CHECK(narrow.bytes < wide.bytes);
        const auto got = steps(g, narrow, tokens, 20), want = steps(reference, exact, tokens, 20);
        const auto whole = steps(g, wide, tokens, 20);
        double most = 0;
        for (size_t i = 0; i < got.size(); i++) {
            // A value near the middle of two codes may round to either after two layers.
            CHECK(relative_error(got[i].data(), want[i].data(), c.V) < cost / 3);
            most = std::max(most, relative_error(got[i].data(), whole[i].data(), c.V));
        }
        CHECK(most < cost);
        CHECK(most > 0);
    }
}

// With one layer, keys and values depend on their own token alone: evicted ones leave no trace.
TEST_CASE("cache: rolling equals a pass over what is left, as neighbours") {
    Config base = PLAIN;
    base.L = 1;
    const Ids tokens = toy_tokens(200, PLAIN.V, 1);
    for (Kind& kind : kind_configs(base)) {
        if (why_no_eviction(kind.c)) continue;
        // A recurrent state evicts nothing; in mixed models its layer adds zero here.
        const bool mixed = kind.c.softmax_every > 0;
        if (kind.c.linear != LinearAttention::none && !mixed) continue;
        if (mixed) kind.c.L = 2;
        CAPTURE(std::string(kind.name));
        for (int sinks : {0, 4, 17}) {
            CAPTURE(sinks);
            Model g(cpu_ops<float>());
            toy_model(g, kind.c, {RunMode::infer, 1, 64});
            for (const Tensor& t : g.tensors)
                if (mixed && (t.name.starts_with("0.proj") || t.name.starts_with("0.fc2")))
                    g.write(StateKind::weights, t.offset, t.size(), std::vector<float>(size_t(t.size())).data());
            KvCache cache;
            REQUIRE(allocate_cache(g, cache, 1, 64, {{}, true, sinks}).ok());
            const int kept = pages_for(sinks) * Pages::SIZE, free = cache.table.free();
            double worst = 0;
            for (int i = 0; i < 200;) {
                const int n = i == 0 ? 30 : i == 60 ? 12 : 1;
                head = extend(g, cache, &tokens[size_t(i)], n);
                i += n;
                const int evicted = cache.table[0].evicted;
                CHECK(evicted % Pages::SIZE == 0);
                CHECK(cache.table[0].length() <= 64);
                CHECK(cache.table[0].length() > 64 - Pages::SIZE - 12 - (i <= 64 ? 64 : 0));
                if (i % 7 && i < 190) continue;
                const auto got = logits_of(g);
                const Ids left = evicted ? joined(part(tokens, 0, kept), part(tokens, kept + evicted, i))
                                         : part(tokens, 0, i);
                const auto want = whole(g, left);
                worst = std::max(worst, relative_error(got.data(), want.data(), PLAIN.V));
            }
            CHECK(worst < 3e-5);
            CHECK(cache.table[0].evicted > 100);
            cache.table.rewind(0, 0);
            CHECK(cache.table.free() == free);
        }
    }
}

TEST_CASE("cache: rolling copies of a sequence have sinks of their own") {
    const Ids tokens = toy_tokens(200, PLAIN.V, 1);
    Model g(cpu_ops<float>());
    toy_model(g, rotating(), {RunMode::infer, 2, 32});
    KvCache both, apart;
    for (KvCache* c : {&both, &apart}) REQUIRE(allocate_cache(g, *c, 2, 64, {{}, true, 4}).ok());
    for (int i = 0; i < 90; i++)
        for (auto [c, b] : {std::pair{&both, 0}, {&apart, 0}, {&apart, 1}})
            head = extend(g, *c, &tokens[size_t(i)], 1, {b});
    both.table.fork(0, 1);
    for (int i = 90; i < 200; i++) {
        const Ids next = {tokens[size_t(i)], tokens[size_t(199 - i)]};
        head = extend(g, apart, next.data(), 1);
        const auto want = logits_of(g);
        head = extend(g, both, next.data(), 1);
        CHECK(memcmp(want.data(), logits_of(g).data(), want.size() * sizeof(float)) == 0);
    }
}

TEST_CASE("cache: a copy has the tokens of its original, and a shortened sequence those that are left (smear)") {
    const Ids prompt = toy_tokens(21, PLAIN.V, 1), more = toy_tokens(9, PLAIN.V, 2), others = toy_tokens(9, PLAIN.V, 3);
    Config c = rotating();
    c.smear = true;
    Model g(cpu_ops<float>());
    toy_model(g, c, {RunMode::infer, 2, 32});
    KvCache both, apart;
    for (KvCache* cache : {&both, &apart}) REQUIRE(allocate_cache(g, *cache, 2, 64).ok());
    CHECK(contains(why_no_eviction(c), "the token before"));
    head = extend(g, both, prompt.data(), 21, {1});
    both.table.fork(1, 0);
    for (int b : {0, 1}) head = extend(g, apart, prompt.data(), 21, {b});
    auto check_next = [&](const Ids& a, const Ids& b) {
        for (size_t i = 0; i < a.size(); i++) {
            const Ids next = {a[i], b[i]};
            head = extend(g, apart, next.data(), 1);
            const auto want = logits_of(g);
            head = extend(g, both, next.data(), 1);
            CHECK(memcmp(want.data(), logits_of(g).data(), want.size() * sizeof(float)) == 0);
        }
    };
    check_next(more, others);
    for (int b : {0, 1}) both.table.rewind(b, 21), apart.table.rewind(b, 0);
    for (int b : {0, 1}) head = extend(g, apart, prompt.data(), 21, {b});
    check_next(others, more);
}

TEST_CASE("cache: what lies before every window can go") {
    for (Config c : {rotating(), PLAIN}) {
        c.T = 400, c.window = 20;
        if (c.position == Position::learned) c.position = Position::alibi;
        const Ids tokens = toy_tokens(300, c.V, 1);
        Model g(cpu_ops<float>());
        toy_model(g, c, {RunMode::infer, 1, 64});
        KvCache all, some;
        REQUIRE(allocate_cache(g, all, 1, 300).ok());
        REQUIRE(allocate_cache(g, some, 1, 20 + 10 + Pages::SIZE, {{}, true}).ok());
        for (int i = 0; i < 300;) {
            const int n = i < 40 ? 10 : 1;
            head = extend(g, all, &tokens[size_t(i)], n);
            const auto want = logits_of(g);
            head = extend(g, some, &tokens[size_t(i)], n);
            i += n;
            CHECK(relative_error(logits_of(g).data(), want.data(), c.V) < 1e-6);
        }
        CHECK(some.table[0].evicted > 200);
    }
}

TEST_CASE("cache: 20,000 tokens take the memory of the first hundred") {
    Config c = rotating(1);
    c.V = 20, c.NH = c.NKV = 1, c.C = 16, c.F = 16, c.HS = 16;
    Model g(cpu_ops<float>());
    toy_model(g, c, {RunMode::infer, 1, 64});
    KvCache cache;
    REQUIRE(allocate_cache(g, cache, 1, 64, {Element::int8, true, 4}).ok());
    const Ids tokens = toy_tokens(100, c.V, 1);
    std::set<int> used;
    for (int i = 0; i < 20000; i++) {
        head = extend(g, cache, &tokens[size_t(i % 100)], 1);
        if (i > 100) used.insert(cache.table.free());
    }
    CHECK(used.size() <= 2);
    CHECK(cache.table[0].pos == 20000);
    for (float x : logits_of(g)) CHECK(std::isfinite(x));
}

TEST_CASE("cache: which one a command gets") {
    Config c = rotating();
    c.T = 1024;
    auto limits = [&](CacheFlags choice, int64_t length) {
        const Result<CacheLimits> r = cache_limits(c, choice, length);
        REQUIRE_MESSAGE(r.ok(), r.status.message);
        return r.value;
    };
    CHECK(limits({}, 300).positions == 300);
    CHECK(!limits({}, 1024).evicts);
    CHECK(limits({}, 1025).evicts);
    CHECK(limits({}, 1025).positions == 1024);
    CHECK(limits({}, 1025).sinks == 4);
    CHECK(!limits({}, 1025).lossless);
    CHECK(limits({"auto", 100, 20}, 200).sinks == 20);
    CHECK(cache_limits(c, {"auto", 2000, -1}, 10).status.code == Exit::usage);
    CHECK(!limits({"auto", 40, -1}, 100).evicts);
    CHECK(cache_limits(c, {"auto", 40, 4}, 100).status.code == Exit::usage);
    c.window = 30;
    CHECK(limits({}, 2000).lossless);
    CHECK(limits({}, 2000).positions == 30 + MAX_CHUNK + Pages::SIZE);
    CHECK(limits({}, 2000).sinks == 0);
    c.global_every = 2;
    CHECK(!limits({}, 2000).lossless);
    c = PLAIN;    // learned positions: no eviction
    CHECK(!limits({}, 2000).evicts);
    CHECK(!limits({"auto", 60, -1}, 100).evicts);
    CHECK(limits({"auto", 60, -1}, 100).positions == 60);
    CHECK(cache_limits(c, {"auto", 0, 4}, 10).status.code == Exit::usage);
    c.mask_kind = MaskKind::prefix;
    CHECK(cache_limits(c, {"auto", 60, -1}, 100).status.code == Exit::usage);
    CHECK(cache_type(c, "fp32", Element::bf16, false).status.code == Exit::usage);
    CHECK(cache_type(c, "int8", Element::bf16, true).value == Element::int8);
    CHECK(cache_type(c, "fp32", Element::f32, true).value == Element::f32);
    CHECK(cache_type(c, "auto", Element::f32, true).value == Element::bf16);
    for (const bool narrow : {false, true}) CHECK(!cache_type(c, "auto", Element::bf16, narrow).value);
    CHECK(!cache_type(c, "auto", Element::f32, false).value);
}
