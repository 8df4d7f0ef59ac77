// cached.h - checks of attention over the KV cache.
#pragma once
#include <memory>
#include <variant>

#include "attention.h"
#include "rope.h"

// A KV cache of B sequences of `width` pages, for the tested table and for the reference. Pages are
// in shuffled order. T is the activations' type, `type` the cache's. If `type` is f64, numbers are
// not converted: they have type T on the tested table and f64 in the reference.
template <class T> struct CacheArrays {
    // Sequence b's first held[b] rows are random, the others NaN.
    CacheArrays(Memory m, Element type, int NKV, int HS, int width, const std::vector<int>& held, double scale = 1);
    Pages device() { return pages(type, on_device); }
    Pages host() { return pages(type == element_of<T> ? Element::f64 : type, on_host); }
    bool same() const;      // device and reference rows are equal
    bool intact() const;    // nothing was written beyond the device's arrays

  private:
    typedef std::variant<Dual<T, double>, Dual<bf16, bf16>, Dual<fp8, fp8>, Dual<int8, int8>> Rows;
    struct Part {    // keys or values
        Rows rows;
        Statistics scales;
    };
    template <class At> Pages pages(Element of, At at) {
        auto rows = [&](Part& part) { return std::visit([&](auto& x) -> void* { return at(x); }, part.rows); };
        return {of,
                rows(*parts[0]),
                rows(*parts[1]),
                at(parts[0]->scales, scaled),
                at(parts[1]->scales, scaled),
                NKV,
                at(table),
                width};
    }
    const Element type;
    const bool scaled;
    const int NKV, width;
    Integers table;
    std::unique_ptr<Part> parts[2];
};
inline const char* cache_name(Element type) {
    return type == Element::bf16 ? " bf16" : type == Element::fp8 ? " fp8" : type == Element::int8 ? " int8" : "";
}

// Sequence b begins at position pos - 5 b, or 0. With several sequences it has S - 3 b positions,
// at least 1; the rest is padding, whose y must be 0, or finite if pos is 0. If type is f64, the
// cache stores type T.
template <class T, class P> Check check_attention_cached(const Ops<T, P>& op, int B, int S, int pos, int maxT, Heads h,
                                                         double scale = 1, Element type = Element::f64) {
    Check check("attention_cached",
                {{"B", B},
                 {"S", S},
                 {"NH", h.NH},
                 {"NKV", h.NKV},
                 {"HS", h.HS},
                 {"window", h.window},
                 {"pos", pos},
                 {"maxT", maxT},
                 {"stride", h.stride},
                 {"globals", h.global_tokens}},
                std::string(h.alibi ? " alibi" : "") + (h.softcap != 0 ? " softcap" : "") + cache_name(type));
    std::vector<int> held, positions;
    for (int b = 0; b < B; b++) {
        held.push_back(std::max(0, pos - 5 * b));
        for (int s = 0; s < S; s++) positions.push_back(s < std::max(1, S - 3 * b) ? held.back() + s : -1);
    }
    const bool from_start = S > 1 && pos == 0;
    auto pads = [&](size_t i, int width) { return positions[i / size_t(width)] < 0; };
    Numbers numbers = random_normal(int64_t(B) * S * h.qkv_width(), 1, scale);
    for (size_t i = 0; i < numbers.size(); i++)
        if (!from_start && pads(i, h.qkv_width())) numbers[i] = NAN;
    CacheArrays<T> cache(op, type, h.NKV, h.HS, int(ceil_div(maxT, Pages::SIZE)), held, scale);
    DualHeads heads(op, int64_t(B) * S, h);
    Dual<T> qkv(op, numbers);
    Dual<InputType<T, P>> y(op, int64_t(B) * S * h.width());
    Integers at_pos(op, positions);
    both(op, [&](auto& table, auto at) {
        Pages pages = at(cache);
        pages.from_start = from_start;
        table.attention_cached(at(y), at(qkv), pages, B, S, at(at_pos), at(heads));
    });
    Numbers got = y.read();
    for (size_t i = 0; i < got.size(); i++)
        if (from_start && pads(i, h.width()) && std::isfinite(got[i])) got[i] = 0;
    check.note("y", y, Check::error_over_limit(got, y.numbers, ATTENTION_LIMIT<InputType<T, P>>));
    if (!cache.same()) check.note("cache", INFINITY);
    if (!cache.intact()) check.note("beyond the cache", INFINITY);
    return check;
}

// Checks cache_append of `source` positions of B sequences, the last of them padding, and
// cross_attention_cached of S queries, which differ in length.
template <class T, class P> Check check_cross_attention_cached(const Ops<T, P>& op, int B, int S, int source, Heads h,
                                                               Element type = Element::f64) {
    Check check("cross_attention_cached",
                {{"B", B}, {"S", S}, {"source", source}, {"NH", h.NH}, {"NKV", h.NKV}, {"HS", h.HS}},
                std::string(h.softcap != 0 ? " softcap" : "") + cache_name(type));
    std::vector<int> positions, last;
    for (int b = 0; b < B; b++) {
        const int length = std::max(1, source - 7 * b);
        for (int j = 0; j < source; j++) positions.push_back(j < length ? j : -1);
        for (int s = 0; s < S; s++) last.push_back(s < std::max(1, S - 3 * b) ? length - 1 : -1);
    }
    h.source = source;
    CacheArrays<T> cache(op, type, h.NKV, h.HS, int(ceil_div(source, Pages::SIZE)), std::vector<int>(size_t(B), 0));
    Dual<T> q(op, random_normal(int64_t(B) * S * h.q_row(), 1));
    Dual<T> kv(op, random_normal(int64_t(B) * source * h.kv_row(), 2));
    Dual<InputType<T, P>> y(op, int64_t(B) * S * h.width());
    Integers at_pos(op, positions), at_last(op, last);
    both(op, [&](auto& table, auto at) {
        table.cache_append(at(cache), at(kv), B, source, at(at_pos), h);
        table.cross_attention_cached(at(y), at(q), at(cache), B, S, at(at_last), h);
    });
    check.expect("y", y, ATTENTION_LIMIT<InputType<T, P>>);
    if (!cache.same()) check.note("cache", INFINITY);
    if (!cache.intact()) check.note("beyond the cache", INFINITY);
    return check;
}

// Checks cache_rotate of n pages of a cache, by attention over the cache afterwards.
template <class T, class P>
Check check_cache_rotate(const Ops<T, P>& op, int n, Heads h, QkNormRope t, Element type = Element::f64) {
    Check check("cache_rotate", {{"n", n}, {"NKV", h.NKV}, {"HS", h.HS}, {"dims", t.dims}},
                std::string(t.interleaved ? " interleaved" : "") + cache_name(type));
    CacheArrays<T> cache(op, type, h.NKV, h.HS, 2 * n, {n * Pages::SIZE});
    // The first n pages of the sequence hold rows, and page i is copied to page 2 n - 1 - i.
    std::vector<int> to_from;
    for (int i = 0; i < n; i++)
        for (int j : {2 * n - 1 - i, i}) to_from.push_back(cache.host().table[j]);
    Integers pages(op, to_from), last(op, std::vector{2 * n * Pages::SIZE - 1});
    Statistics cos_sin(op, cos_sin_table(n, t.dims));
    Dual<T> qkv(op, random_normal(h.qkv_width(), 1));
    Dual<InputType<T, P>> y(op, h.width());
    both(op, [&](auto& table, auto at) {
        table.cache_rotate(at(cache), at(pages), n, at(cos_sin, t.dims > 0), h, t);
        // Outputs of attention are compared, not pages, because a rotated key halfway between two
        // codes of the cache's type may be rounded to either.
        table.attention_cached(at(y), at(qkv), at(cache), 1, 1, at(last), h);
    });
    const double step = type == Element::int8 ? 4e-3 : type == Element::fp8 ? 3e-2 : type == Element::bf16 ? 2e-3 : 0;
    check.expect("y", y, std::max(step, ATTENTION_LIMIT<InputType<T, P>>));
    if (!cache.intact()) check.note("beyond the cache", INFINITY);
    return check;
}
