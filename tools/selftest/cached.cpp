#include "cached.h"

#include <algorithm>
#include <numeric>

#include "selftest.h"

// The numbers 0 to n - 1 in shuffled order.
static std::vector<int> shuffled(size_t n) {
    std::vector<int> pages(n);
    std::iota(pages.begin(), pages.end(), 0);
    for (size_t i = 0; i < n; i++) std::swap(pages[i], pages[size_t(random_tokens(1, int(i) + 1, 70 + i)[0])]);
    return pages;
}

template <class T> CacheArrays<T>::CacheArrays(Memory m, Element of, int kv_heads, int HS, int row_pages,
                                               const std::vector<int>& held, double scale)
    : type(of == Element::f64 ? element_of<T> : of), scaled(type == Element::fp8 || type == Element::int8),
      NKV(kv_heads), width(row_pages), table(m, shuffled(held.size() * size_t(width))) {
    const int64_t rows = (table.size() + 1) * NKV * Pages::SIZE;    // one page is unused
    const Pages at = {type, nullptr, nullptr, nullptr, nullptr, NKV, table.host(), width};
    std::vector<bool> there(static_cast<size_t>(rows));
    for (size_t b = 0; b < held.size(); b++)
        for (int kv = 0; kv < NKV; kv++)
            for (int j = 0; j < held[b]; j++) there[size_t(at.row(int(b), kv, j))] = true;
    const double largest = !scaled ? 1 : type == Element::fp8 ? 480 : 127;
    for (int i : {0, 1}) {
        Numbers x = random_normal(rows * HS, uint64_t(2 + i), scaled ? largest / 3 : scale), scales(size_t(rows), NAN);
        for (int64_t r = 0; r < rows; r++) {
            if (there[size_t(r)]) scales[size_t(r)] = scale * 3 / largest * (1 + double(r % 7) / 7);
            else if (!scaled) std::fill_n(x.begin() + r * HS, HS, NAN);
        }
        auto allocate = [&](auto in_place) { parts[i].reset(new Part{Rows(in_place, m, x), {m, scales}}); };
        if (type == element_of<T>) allocate(std::in_place_type<Dual<T, double>>);
        else if (type == Element::bf16) allocate(std::in_place_type<Dual<bf16, bf16>>);
        else if (type == Element::fp8) allocate(std::in_place_type<Dual<fp8, fp8>>);
        else allocate(std::in_place_type<Dual<int8, int8>>);
    }
}
template <class T> bool CacheArrays<T>::intact() const {
    return std::all_of(parts, parts + 2, [](auto& part) {
        return part->scales.intact() && std::visit([](auto& x) { return x.intact(); }, part->rows);
    });
}
// Returns whether the device's numbers equal the reference's, rounded to X. NaN equals NaN.
template <class X, class R> static bool same_rows(const Dual<X, R>& x) {
    const Numbers got = x.read();
    for (size_t i = 0; i < got.size(); i++) {
        const double want = number(as<X>(number(x.numbers[i])));
        if (got[i] != want && !(std::isnan(got[i]) && std::isnan(want))) return false;
    }
    return true;
}
template <class T> bool CacheArrays<T>::same() const {
    return std::all_of(parts, parts + 2, [&](auto& part) {
        const Numbers got = part->scales.read();
        for (size_t i = 0; i < got.size() && scaled; i++)
            if (got[i] != double(part->scales.numbers[i]) && !std::isnan(got[i])) return false;
        return std::visit([](auto& x) { return same_rows(x); }, part->rows);
    });
}
template struct CacheArrays<float>;
template struct CacheArrays<bf16>;

static const SelftestRows rows([]<class T, class P>(Selftest& test, const Ops<T, P>& op, Dtype) {
    const int NH = gpt2.NH, HS = gpt2.HS;
    auto cached = [&](int B, int S, int pos, Heads h, Element type = Element::f64) {
        CHECK_ROW(attention_cached, B, S, pos, 1024, h, 1, type);
    };
    Heads capped = {4, 2, HS, 300}, alibi = {6, 6, HS};
    capped.scale = 0.2f, capped.softcap = 2, alibi.alibi = true;
    cached(1, 1, 1000, capped);
    cached(1, 1, 1000, {.NH = 6, .NKV = 6, .HS = HS, .max_distance = 128});
    cached(1, 1, 1000, alibi);
    cached(4, 1, 1000, {NH, NH, HS});
    cached(2, 100, 900, {4, 2, HS, 300});
    CHECK_ROW(cross_attention_cached, 4, 1, 700, {NH, NH, HS});
    CHECK_ROW(cross_attention_cached, 2, 90, 300, {4, 2, HS});
    for (Element type : {Element::bf16, Element::fp8, Element::int8}) {
        CHECK_ROW(cross_attention_cached, 2, 1, 300, {4, 2, HS}, type);
        cached(2, 1, 1000, {NH, NH, HS}, type);
        cached(2, 40, 500, {4, 2, HS}, type);
        CHECK_ROW(cache_rotate, 2, {NH, NH, HS}, {HS}, type);
    }
    CHECK_ROW(cache_rotate, 2, {NH, NH, HS}, {HS});
});
