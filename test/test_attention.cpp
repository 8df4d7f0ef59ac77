#include "ops.h"

static int64_t packed(int B, int S, Heads h) { return int64_t(B) * S * (h.NH + 2 * h.NKV) * h.HS; }
static int64_t heads(int B, int S, Heads h) { return int64_t(B) * S * h.NH * h.HS; }

// Documents of B sequences of S: each begins at its own places, in order, and after the last of them.
struct Documents {
    std::vector<int> start, end;
    Documents(int S, const std::vector<std::vector<int>>& places) : start(places.size() * size_t(S)), end(start) {
        for (size_t b = 0; b < places.size(); b++) {
            const size_t row = b * size_t(S);
            for (int s = 0; s < S; s++) start[row + size_t(s)] = 0, end[row + size_t(s)] = S;
            for (int at : places[b])
                for (int s = 0; s < S; s++)
                    if (s >= at) start[row + size_t(s)] = at;
                    else end[row + size_t(s)] = std::min(end[row + size_t(s)], at);
        }
    }
    Heads in(Heads h) const {
        h.doc_start = start.data(), h.doc_end = end.data();
        return h;
    }
};
static std::vector<int> all_places(int S) {
    std::vector<int> all(static_cast<size_t>(S));
    for (int s = 0; s < S; s++) all[size_t(s)] = s;
    return all;
}

// f(forward, backward) for every instruction set's pairs: with products of floats, then of bf16.
template <class F> static void each_pair(F f) {
    for (int i = 0; i < ISA_COUNT; i++)
        if (cpu_supports(Isa(i))) {
            CAPTURE(i);
            const auto& full = cpu_ops_isa<float>(Isa(i));
            const auto& half = cpu_ops_isa<bf16>(Isa(i));
            f(full.attention_forward, full.attention_backward);
            f(half.attention_forward, half.attention_backward);
        }
}

// Forward and backward of every instruction set; tolerance relative to the largest element of each output.
static void compare(int B, int S, Heads h, double size, double tolerance) {
    CAPTURE(B); CAPTURE(S); CAPTURE(h.NH); CAPTURE(h.NKV); CAPTURE(h.HS); CAPTURE(h.window); CAPTURE(size);
    const Ops<double>& ref = reference_ops();
    const int64_t nq = packed(B, S, h), ny = heads(B, S, h), nl = int64_t(B) * h.NH * S;
    auto qkv = normal<float>(nq, 1, size), dy = normal<float>(ny, 2);
    std::vector<double> y(ny), dqkv(nq);
    std::vector<float> lse(nl);
    ref.attention_forward(y.data(), lse.data(), doubles(qkv).data(), B, S, h);
    std::vector<float> y32(y.begin(), y.end());
    ref.attention_backward(dqkv.data(), doubles(dy).data(), y.data(), doubles(qkv).data(), lse.data(), B, S, h);
    each_isa([&](const Ops<float>& op) {
        Guarded<float> fy(ny), fl(nl), fd(nq);
        op.attention_forward(fy, fl, qkv.data(), B, S, h);
        op.attention_backward(fd, dy.data(), y32.data(), qkv.data(), lse.data(), B, S, h);
        CHECK(relative_error(fy.data(), y.data(), ny) < tolerance);
        CHECK(relative_error(fl.data(), lse.data(), nl) < tolerance);
        CHECK(relative_error(fd.data(), dqkv.data(), nq) < 4 * tolerance);
        CHECK((fy.intact() && fl.intact() && fd.intact()));
    });
}

TEST_CASE("attention: every instruction set against the reference") {
    const Heads kinds[] = {{2, 2, 0}, {4, 2, 0}, {3, 1, 0}};
    int k = 0;
    for (int S : {1, 2, 63, 64, 65, 130, 259})
        for (int HS : {4, 8, 16, 20, 32, 64, 80, 96, 128}) {
            Heads h = kinds[k++ % 3];
            h.HS = HS;
            compare(S < 100 ? 2 : 1, S, h, 1, 2e-6);
        }
    compare(8, 100, {4, 4, 32}, 1, 2e-6);       // many heads: dQ is not split
    compare(1, 600, {2, 1, 16}, 1, 2e-6);       // several tiles of keys: sums are brought to new maxima
    compare(2, 130, {2, 2, 1}, 1, 2e-6);
    compare(1, 100, {2, 1, 64}, 30, 1e-3);      // scores of some 1e4: a float score is off by 1e-3 itself
}

TEST_CASE("attention: windows and documents, every instruction set against the reference") {
    const Heads kinds[] = {{2, 2, 0}, {4, 2, 0}, {3, 1, 0}};
    const int lengths[] = {66, 130, 200}, sizes[] = {8, 20, 64};
    int k = 0;
    for (int window : {0, 1, 2, 31, 64, 65, 1000})
        for (int documents = 0; documents < 4; documents++, k++) {
            const int S = lengths[k / 3 % 3];
            Heads h = kinds[k % 3];
            h.HS = sizes[(k + k / 9) % 3], h.window = window == 1000 ? S + 5 : window;
            const std::vector<int> edges = {0, 1, 63, 64, 65}, halves = {S / 2}, each = all_places(S);
            const Documents d(S, documents == 1   ? std::vector{edges, halves}
                                 : documents == 2 ? std::vector{halves, each}
                                                  : std::vector{std::vector<int>{}, edges});
            CAPTURE(documents);
            compare(2, S, documents ? d.in(h) : h, 1, 2e-6);
        }
}

// ---- products of bf16 -----------------------------------------------------------------------------------------------

static float nearest_bf16(float x) { return to_float(to_bf16(x)); }
static std::vector<float> normal_bf16(int64_t n, uint64_t stream) {
    auto x = normal<float>(n, stream);
    for (float& e : x) e = nearest_bf16(e);
    return x;
}

// Against the reference of inputs that are bf16 already: what is left is that each probability p, and each ds, is off
// by 2^-8 of itself at most, by less than half of that in the mean. y then is by 2^-9 max |v| or so, and max |y| is
// not much less than that: position 0 copies v. A gradient's terms are off as much each, and it is less than their sum
// where they cancel.
static void compare_bf16(int B, int S, Heads h) {
    CAPTURE(B); CAPTURE(S); CAPTURE(h.NH); CAPTURE(h.NKV); CAPTURE(h.HS); CAPTURE(h.window);
    const Ops<double>& ref = reference_ops();
    const Ops<float, bf16>& op = cpu_ops_isa<bf16>(Isa::avx512bf16);
    const int64_t nq = packed(B, S, h), ny = heads(B, S, h), nl = int64_t(B) * h.NH * S;
    const auto qkv = normal_bf16(nq, 1), dy = normal_bf16(ny, 2);
    std::vector<double> y(ny), dqkv(nq);
    std::vector<float> lse(nl);
    ref.attention_forward(y.data(), lse.data(), doubles(qkv).data(), B, S, h);
    std::vector<float> y32(y.begin(), y.end());
    ref.attention_backward(dqkv.data(), doubles(dy).data(), y.data(), doubles(qkv).data(), lse.data(), B, S, h);
    Guarded<float> fy(ny), fl(nl), fd(nq);
    op.attention_forward(fy, fl, qkv.data(), B, S, h);
    op.attention_backward(fd, dy.data(), y32.data(), qkv.data(), lse.data(), B, S, h);
    CHECK(relative_error(fy.data(), y.data(), ny) < 0x1p-9 * 1.5);
    CHECK(relative_error(fl.data(), lse.data(), nl) < 2e-6);    // float throughout
    CHECK(relative_error(fd.data(), dqkv.data(), nq) < 0x1p-9 * 2);
    CHECK((fy.intact() && fl.intact() && fd.intact()));
}

TEST_CASE("attention: products of bf16 against the reference") {
    if (!cpu_supports(Isa::avx512bf16)) return;
    const Heads kinds[] = {{2, 2, 0}, {4, 2, 0}, {3, 1, 0}};
    int k = 0;
    for (int S : {1, 2, 33, 64, 95, 97, 129, 257, 300})
        for (int HS : {8, 9, 16, 20, 31, 32, 33, 64, 80, 127, 128}) {
            Heads h = kinds[k++ % 3];
            h.HS = HS;
            compare_bf16(S < 100 ? 2 : 1, S, h);
        }
    compare_bf16(8, 100, {4, 4, 32});
    compare_bf16(1, 600, {2, 1, 33});
    const int sizes[] = {8, 33, 64};
    for (int window : {0, 1, 2, 31, 64, 129, 1000})
        for (int documents = 0; documents < 3; documents++, k++) {
            const int S = 290;
            Heads h = kinds[k % 3];
            h.HS = sizes[(k + k / 9) % 3], h.window = window;
            const std::vector<int> edges = {0, 1, 63, 95, 127, 129, 257}, halves = {S / 2}, each = all_places(S);
            const Documents d(S, documents == 1 ? std::vector{edges, halves} : std::vector{each, edges});
            CAPTURE(documents);
            compare_bf16(2, S, documents ? d.in(h) : h);
        }
}

TEST_CASE("attention: what the products of bf16 round, and what not") {
    if (!cpu_supports(Isa::avx512bf16)) return;
    const Ops<float, bf16>& op = cpu_ops_isa<bf16>(Isa::avx512bf16);
    const Heads h = {1, 1, 4};
    // Two positions; the second weighs v of the first by p = exp(-3/4), its own by 1.
    const float own = 0.3f, third = 1.0f / 3, e = std::exp(-0.75f), p = nearest_bf16(e), total = 1 + e;
    const float qkv[] = {0, 0, 0, 0, 0,   0, 0, 0, 1, third, 0, 0,     //
                         1, 0, 0, 0, 1.5, 0, 0, 0, 0, 0,     1, own};
    float y[8], lse[2];
    op.attention_forward(y, lse, qkv, 1, 2, h);
    const float want[] = {1, nearest_bf16(third), 0, 0, p / total, p * nearest_bf16(third) / total, 1 / total,
                          nearest_bf16(own) / total};
    for (int d = 0; d < 8; d++) CHECK(std::fabs(y[d] - want[d]) < 1e-6);
    CHECK(std::fabs(lse[1] - (0.75f + std::log(total))) < 1e-6);
    CHECK(std::fabs(p / e - 1) > 1e-4);    // else this is no test
    // dy of the second alone: dv = p dy, ds = p (dp - delta), dq = ds k, dk = ds q, the sums' terms rounded.
    const float dy[] = {0, 0, 0, 0, third, 0, 0, 0}, g = nearest_bf16(third);
    float d[24];
    op.attention_backward(d, dy, y, qkv, lse, 1, 2, h);
    const float share[] = {e / total, 1 / total}, delta = third * y[4];
    const float ds[] = {nearest_bf16(share[0] * (g - delta)), nearest_bf16(share[1] * -delta)};
    CHECK(std::fabs(d[8] - nearest_bf16(share[0]) * g) < 1e-6);
    CHECK(std::fabs(d[20] - nearest_bf16(share[1]) * g) < 1e-6);
    CHECK(std::fabs(d[4] - ds[0] / 2) < 1e-6);
    CHECK(std::fabs(d[16] - ds[1] / 2) < 1e-6);
    CHECK(std::fabs(d[12] - ds[1] * 1.5f / 2) < 1e-6);
    // q and k: a third each, of which a float keeps more than a bf16.
    const float scores[] = {third, 0, 0, 0, third, 0, 0, 0, 0, 0, 0, 0};
    op.attention_forward(y, lse, scores, 1, 1, h);
    CHECK(std::fabs(lse[0] - g * g / 2) < 1e-7);
    CHECK(std::fabs(g * g - third * third) > 1e-4);
}

TEST_CASE("attention: documents are as if each were alone; a window of 1 copies v") {
    const int S = 9, HS = 3;
    const Heads h = {2, 1, HS};
    const int64_t row = 4 * HS, width = 2 * HS;
    auto qkv = normal<double>(packed(1, S, h), 1);
    std::vector<double> y(heads(1, S, h)), alone(y), copied(y);
    std::vector<float> lse(2 * S);
    const Documents d(S, {{2, 3}});
    reference_ops().attention_forward(y.data(), lse.data(), qkv.data(), 1, S, d.in(h));
    for (auto [from, to] : {std::pair{0, 2}, {2, 3}, {3, S}})
        reference_ops().attention_forward(&alone[size_t(from * width)], lse.data(), &qkv[size_t(from * row)], 1,
                                          to - from, h);
    CHECK(y == alone);
    reference_ops().attention_forward(copied.data(), lse.data(), qkv.data(), 1, S, {2, 1, HS, 1});
    for (int i = 0; i < S * width; i++) CHECK(copied[size_t(i)] == qkv[size_t(i / width * row + 3 * HS + i % HS)]);
}

TEST_CASE("attention: the same bits for any number of threads") {
    const Documents d(130, std::vector<std::vector<int>>(9, {50, 64, 100}));
    for (auto [B, window, documents] : {std::tuple{1, 0, false}, {9, 0, false}, {1, 40, false}, {9, 70, true}}) {
        const int S = 130;
        Heads h = {4, 2, 20, window};
        if (documents) h = d.in(h);
        const int64_t nq = packed(B, S, h), ny = heads(B, S, h), nl = int64_t(B) * h.NH * S;
        auto qkv = normal<float>(nq, 1), dy = normal<float>(ny, 2);
        each_pair([&](auto forward, auto backward) {
            CHECK(same_bits(ny + nl + nq, [&](float* out) {
                forward(out, out + ny, qkv.data(), B, S, h);
                backward(out + ny + nl, dy.data(), out, qkv.data(), out + ny, B, S, h);
            }));
        });
    }
}

TEST_CASE("attention: a NaN is seen by the positions after it and by no other") {
    const int S = 140, at = 125;
    const Documents d(S, {{at - 3, at + 3}});    // the next one begins with a tile of keys, within a strip of queries
    const Heads all = {2, 2, 32}, window = {2, 2, 32, 10}, document = d.in(all);
    for (const Heads& h : {all, window, document}) {
        auto qkv = normal<float>(packed(1, S, h), 1);
        qkv[size_t((int64_t(at) * 6 + 2) * 32 + 5)] = NAN;    // k of head 0
        const int last = h.window ? at + 10 : h.doc_start ? at + 3 : S;
        each_pair([&](auto forward, auto) {
            std::vector<float> y(heads(1, S, h)), lse(2 * S);
            forward(y.data(), lse.data(), qkv.data(), 1, S, h);
            bool right = true;
            for (int s = 0; s < S; s++)
                for (int d = 0; d < 64; d++)
                    right = right && std::isnan(y[size_t(s * 64 + d)]) == (s >= at && s < last && d < 32);
            CHECK(right);
        });
    }
}

// A sequence in calls of various lengths through the cache equals the whole at once.
static void cached(int B, Heads h, std::vector<int> calls, int spare) {
    int S = 0;
    for (int n : calls) S += n;
    CAPTURE(B); CAPTURE(S); CAPTURE(h.NH); CAPTURE(h.NKV); CAPTURE(h.HS); CAPTURE(h.window);
    const int64_t row = int64_t(h.NH + 2 * h.NKV) * h.HS, width = int64_t(h.NH) * h.HS, maxT = S + spare;
    auto qkv = normal<float>(packed(B, S, h), 1);
    std::vector<double> want(heads(B, S, h));
    std::vector<float> lse(size_t(B) * h.NH * S);
    reference_ops().attention_forward(want.data(), lse.data(), doubles(qkv).data(), B, S, h);
    each_isa([&](const Ops<float>& op) {
        Guarded<float> k(B * h.NKV * maxT * h.HS, 77), v(B * h.NKV * maxT * h.HS, 77), all(heads(B, S, h));
        int pos = 0;
        for (int n : calls) {
            std::vector<float> part(size_t(B * n * row));
            for (int b = 0; b < B; b++)
                memcpy(&part[size_t(b * n * row)], &qkv[size_t((b * S + pos) * row)], size_t(n * row) * sizeof(float));
            Guarded<float> y(heads(B, n, h));
            op.attention_cached(y, k, v, part.data(), B, n, &pos, int(maxT), h);
            for (int b = 0; b < B; b++)
                memcpy(&all[(int64_t(b) * S + pos) * width], &y[b * n * width], size_t(n * width) * sizeof(float));
            CHECK(y.intact());
            pos += n;
        }
        CHECK(relative_error(all.data(), want.data(), all.n) < 2e-6);
        bool untouched = true;
        for (int64_t i = 0; i < k.n; i++)
            if (i / h.HS % maxT >= S) untouched = untouched && k[i] == 77 && v[i] == 77;
        CHECK(untouched);
        CHECK((k.intact() && v.intact()));
    });
}

TEST_CASE("attention: through the cache, equal to the whole sequence") {
    cached(1, {2, 2, 16}, {1, 1, 1, 5, 1, 60, 1, 64, 2}, 3);
    cached(3, {4, 2, 20}, {7, 1, 1, 50, 1}, 0);
    cached(2, {3, 1, 64}, {65, 1, 1}, 10);
    cached(1, {2, 1, 80}, {255, 1, 1, 1, 300, 1}, 5);    // beyond one split of the keys
    int many = 0;
    for (int window : {1, 2, 31, 64, 65, 256, 1000})
        cached(2, {4, 2, many++ % 2 ? 20 : 64, window}, {1, 1, 70, 1, 130, 1, 1, 66, 1}, 3);
    cached(1, {2, 1, 16, 300}, {600, 1, 1}, 3);    // more than one split of the keys in the window
    const int pos = 599;
    each_isa([&](const Ops<float>& op) {
        const Heads h = {4, 2, 24};
        CHECK(same_bits(4 * 24, [&](float* y) {
            auto k = normal<float>(2 * 600 * 24, 1), v = normal<float>(2 * 600 * 24, 2), qkv = normal<float>(8 * 24, 3);
            op.attention_cached(y, k.data(), v.data(), qkv.data(), 1, 1, &pos, 600, h);
        }));
    });
}

TEST_CASE("attention: gradients of the reference") {
    const Ops<double>& op = reference_ops();
    const int B = 2, S = 5;
    const Documents d(S, {{2}, {1, 4}});
    for (Heads h : {Heads{2, 2, 3}, Heads{4, 2, 2}, Heads{2, 1, 2, 2}, d.in({2, 2, 2})}) {
        const int64_t nq = packed(B, S, h), ny = heads(B, S, h);
        auto qkv = normal<double>(nq, 1), g = normal<double>(ny, 2);
        std::vector<double> y(ny), d(nq);
        std::vector<float> lse(size_t(B) * h.NH * S);
        auto loss = [&] {
            op.attention_forward(y.data(), lse.data(), qkv.data(), B, S, h);
            return dot(y, g);
        };
        loss();
        op.attention_backward(d.data(), g.data(), y.data(), qkv.data(), lse.data(), B, S, h);
        CHECK(gradient_error(qkv.data(), d.data(), nq, loss) < 1e-5);    // lse is float
    }
}
