#include "cached.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "rope.h"
#include "selftest.h"

template <class T> static constexpr double LIMIT = sizeof(T) == 2 ? 5e-3 : 1e-5;

// Keys or values, on the device and in the reference, as bytes.
template <class T> struct CacheArrays<T>::Part {
    struct Rows {
        virtual ~Rows() = default;
        virtual void* device() = 0;
        virtual void* reference() = 0;
        virtual bool same() = 0;
        virtual bool intact() = 0;
    };
    // X: the device's type; R: the reference's.
    template <class X, class R> struct Of : Rows {
        Array<X> array;
        std::vector<R> twin;
        Of(Memory m, const Numbers& x) : array(m, x) {
            for (double v : x) twin.push_back(as<R>(number(as<X>(v))));
        }
        void* device() override { return static_cast<X*>(array); }
        void* reference() override { return twin.data(); }
        bool intact() override { return array.intact(); }
        bool same() override {
            const Numbers got = array.read();
            for (size_t i = 0; i < got.size(); i++) {
                const double want = number(as<X>(number(twin[i])));
                if (got[i] != want && !(std::isnan(got[i]) && std::isnan(want))) return false;
            }
            return true;
        }
    };
    std::unique_ptr<Rows> rows;
    Array<float> factors;
    std::vector<float> reference_factors;
    Part(Memory m, const Numbers& f) : factors(m, f), reference_factors(f.begin(), f.end()) {}
};

template <class T> CacheArrays<T>::CacheArrays(Memory m, Element type, int NKV, int HS, int width,
                                               const std::vector<int>& held, double scale)
    : m(m), HS(HS), table(held.size() * size_t(width)), device_table(m, Numbers(table.size())) {
    std::iota(table.begin(), table.end(), 0);
    for (size_t i = 0; i < table.size(); i++)
        std::swap(table[i], table[size_t(random_tokens(1, int(i) + 1, 70 + i)[0])]);
    rows = int64_t(pages()) * NKV * Pages::SIZE;
    std::vector<bool> there(static_cast<size_t>(rows));
    Pages at = {type, nullptr, nullptr, nullptr, nullptr, NKV, table.data(), width};
    for (size_t b = 0; b < held.size(); b++)
        for (int kv = 0; kv < NKV; kv++)
            for (int j = 0; j < held[b]; j++) there[size_t(at.row(int(b), kv, j))] = true;
    const bool factor = type == Element::fp8 || type == Element::int8;
    const double largest = !factor ? 1 : type == Element::fp8 ? 480 : 127;
    for (int i : {0, 1}) {
        Numbers x = random_normal(rows * HS, uint64_t(2 + i), factor ? largest / 3 : scale), f(size_t(rows), NAN);
        for (int64_t r = 0; r < rows; r++) {
            if (there[size_t(r)]) f[size_t(r)] = scale * 3 / largest * (1 + double(r % 7) / 7);
            else if (!factor) std::fill_n(x.begin() + r * HS, HS, NAN);
        }
        parts[i] = new Part(m, rounded<float>(f));
        if (type == Element::bf16 && sizeof(T) != 2)
            parts[i]->rows.reset(new typename Part::template Of<bf16, bf16>(m, x));
        else if (type == Element::fp8) parts[i]->rows.reset(new typename Part::template Of<fp8, fp8>(m, x));
        else if (type == Element::int8) parts[i]->rows.reset(new typename Part::template Of<int8, int8>(m, x));
        else parts[i]->rows.reset(new typename Part::template Of<T, double>(m, x));
    }
    m.upload(static_cast<int*>(device_table), table.data(), int64_t(table.size() * sizeof(int)));
    Part &k = *parts[0], &v = *parts[1];
    device_pages = {type,
                    k.rows->device(),
                    v.rows->device(),
                    factor ? static_cast<float*>(k.factors) : nullptr,
                    factor ? static_cast<float*>(v.factors) : nullptr,
                    NKV,
                    device_table,
                    width};
    reference_pages = {type == element_of<T> ? Element::f64 : type,
                       k.rows->reference(),
                       v.rows->reference(),
                       k.reference_factors.data(),
                       v.reference_factors.data(),
                       NKV,
                       table.data(),
                       width};
}
template <class T> CacheArrays<T>::~CacheArrays() {
    for (Part* p : parts) delete p;
}
template <class T> bool CacheArrays<T>::intact() {
    return std::all_of(parts, parts + 2, [](Part* p) { return p->rows->intact() && p->factors.intact(); });
}
template <class T> bool CacheArrays<T>::same() {
    return std::all_of(parts, parts + 2, [&](Part* p) {
        const Numbers got = p->factors.read();
        for (size_t i = 0; i < got.size() && device_pages.k_scale; i++)
            if (got[i] != double(p->reference_factors[i]) && !std::isnan(got[i])) return false;
        return p->rows->same();
    });
}
template struct CacheArrays<float>;
template struct CacheArrays<bf16>;

template <class T> static Element type_of(Element type) { return type == Element::f64 ? element_of<T> : type; }
static const char* name_of(Element type) {
    return type == Element::bf16 ? " bf16" : type == Element::fp8 ? " fp8" : type == Element::int8 ? " int8" : "";
}

template <class T, class P> Check check_attention_cached(const Ops<T, P>& op, int B, int S, int pos, int maxT, Heads h,
                                                         double scale, Element type) {
    const Memory m(op);
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
                std::string(h.alibi ? " alibi" : "") + (h.softcap != 0 ? " softcap" : "") + name_of(type));
    std::vector<int> held, at;
    for (int b = 0; b < B; b++) {
        held.push_back(std::max(0, pos - 5 * b));
        for (int s = 0; s < S; s++) at.push_back(s < std::max(1, S - 3 * b) ? held.back() + s : -1);
    }
    CacheArrays<T> cache(m, type_of<T>(type), h.NKV, h.HS, int(ceil_div(maxT, Pages::SIZE)), held, scale);
    const Numbers biases = rounded<float>(random_normal(h.NH * (2 * h.max_distance + 1), 4));
    Array<float> device_bias(m, biases);
    Heads device = h;
    if (h.max_distance) h.bias = reinterpret_cast<const float*>(biases.data()), device.bias = device_bias;
    Pages pages = cache.device();
    pages.from_start = S > 1 && pos == 0;
    Numbers qkv = rounded<T>(random_normal(int64_t(B) * S * h.qkv_width(), 1, scale));
    auto pads = [&](size_t i, int width) { return at[i / size_t(width)] < 0; };
    for (size_t i = 0; i < qkv.size(); i++)
        if (!pages.from_start && pads(i, h.qkv_width())) qkv[i] = NAN;
    Array<T> in(m, qkv);
    Array<InputType<T, P>> out(m, int64_t(B) * S * h.width());
    Array<int> p(m, Numbers(at.begin(), at.end()));
    Numbers y(size_t(out.size()));
    reference_ops().attention_cached(y.data(), qkv.data(), cache.reference(), B, S, at.data(), h);
    op.attention_cached(out, in, pages, B, S, p, device);
    Numbers got = out.read();
    for (size_t i = 0; i < got.size(); i++)
        if (pages.from_start && pads(i, h.width()) && std::isfinite(got[i])) got[i] = 0;
    check.note("y", out.intact() ? Check::error_over_limit(got, y, LIMIT<InputType<T, P>>) : INFINITY,
               sizeof(InputType<T, P>) == 2);
    if (!cache.same()) check.note("cache", INFINITY);
    if (!cache.intact()) check.note("beyond the cache", INFINITY);
    return check;
}

template <class T, class P> Check check_cache_rotate(const Ops<T, P>& op, int n, Heads h, QkNormRope t, Element type) {
    const Memory m(op);
    Check check("cache_rotate", {{"n", n}, {"NKV", h.NKV}, {"HS", h.HS}, {"dims", t.dims}},
                std::string(t.interleaved ? " interleaved" : "") + name_of(type));
    CacheArrays<T> cache(m, type_of<T>(type), h.NKV, h.HS, 2 * n, {n * Pages::SIZE});
    Numbers pages, cos_sin = cos_sin_table(n, t.dims);
    // The first half of the sequence's pages hold rows.
    std::vector<int> numbers;
    for (int i = 0; i < n; i++)
        for (int page : {cache.reference().table[2 * n - 1 - i], cache.reference().table[i]})
            pages.push_back(page), numbers.push_back(page);
    const std::vector<float> host(cos_sin.begin(), cos_sin.end());
    reference_ops().cache_rotate(cache.reference(), numbers.data(), n, host.data(), h, t);
    Array<int> device_pages(m, pages);
    Array<float> device_turns(m, cos_sin);
    op.cache_rotate(cache.device(), device_pages, n, or_null(t.dims > 0, device_turns), h, t);
    // A key halfway between two codes may round to either, but equally for all queries.
    const Numbers qkv = rounded<T>(random_normal(h.qkv_width(), 1));
    const int at = 2 * n * Pages::SIZE - 1;
    Array<T> in(m, qkv);
    Array<InputType<T, P>> out(m, h.width());
    Array<int> p(m, Numbers{double(at)});
    Numbers y(size_t(h.width()));
    reference_ops().attention_cached(y.data(), qkv.data(), cache.reference(), 1, 1, &at, h);
    op.attention_cached(out, in, cache.device(), 1, 1, p, h);
    const double step = type == Element::int8 ? 4e-3 : type == Element::fp8 ? 3e-2 : type == Element::bf16 ? 2e-3 : 0;
    check.note("y", Check::error_over_limit(out.read(), y, std::max(step, LIMIT<InputType<T, P>>)),
               sizeof(InputType<T, P>) == 2);
    if (!cache.intact()) check.note("beyond the cache", INFINITY);
    return check;
}

FOR_EACH_TABLE(check_attention_cached, int, int, int, int, Heads, double, Element)
FOR_EACH_TABLE(check_cache_rotate, int, Heads, QkNormRope, Element)

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    const int NH = gpt2.NH, HS = gpt2.HS;
    auto cached = [&](int B, int S, int pos, Heads h, Element type = Element::f64) {
        test.row("attention_cached", [&] { return check_attention_cached(op, B, S, pos, 1024, h, 1, type); });
    };
    Heads capped = {4, 2, HS, 300}, alibi = {6, 6, HS};
    capped.scale = 0.2f, capped.softcap = 2, alibi.alibi = true;
    cached(1, 1, 1000, capped);
    cached(1, 1, 1000, {.NH = 6, .NKV = 6, .HS = HS, .max_distance = 128});
    cached(1, 1, 1000, alibi);
    cached(4, 1, 1000, {NH, NH, HS});
    cached(2, 100, 900, {4, 2, HS, 300});
    for (Element type : {Element::bf16, Element::fp8, Element::int8}) {
        cached(2, 1, 1000, {NH, NH, HS}, type);
        cached(2, 40, 500, {4, 2, HS}, type);
        test.row("cache_rotate", [&] { return check_cache_rotate(op, 2, {NH, NH, HS}, {HS}, type); });
    }
    test.row("cache_rotate", [&] { return check_cache_rotate(op, 2, {NH, NH, HS}, {HS}); });
});
