// vec.h - one vector of floats, by GCC's vector extensions: load and store (also as bf16), tails,
// reductions, exp. Compiled for each instruction set.
#pragma once
#include "base/pool.h"
#include "layers/cpu.h"

#if defined(__AVX512F__)
#define VW 16    // floats in a vector
#elif defined(__AVX2__)
#define VW 8
#else
#define VW 4
#endif
#define INLINE static inline __attribute__((always_inline))
#define INLINE_MEMBER inline __attribute__((always_inline))

namespace ISA {
template <class F> struct Target;    // Target<F*>::type is F
template <class F> struct Target<F*> { typedef F type; };

typedef float vf __attribute__((vector_size(4 * VW)));
typedef int32_t vi __attribute__((vector_size(4 * VW)));
typedef uint32_t vu __attribute__((vector_size(4 * VW)));
typedef uint16_t vh __attribute__((vector_size(2 * VW)));
typedef float vf_unaligned __attribute__((vector_size(4 * VW), aligned(4), may_alias));
typedef uint16_t vh_unaligned __attribute__((vector_size(2 * VW), aligned(2), may_alias));

INLINE int least(int a, int b) { return a < b ? a : b; }
INLINE int64_t least64(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int padded(int n) { return (n + VW - 1) / VW * VW; }

INLINE vf set1(float s) { return s - vf{}; }
// Returns x, a product that must not be contracted to an FMA. It is needed where the compiler has a
// choice, and the result would depend on it: in a * b + c * d, and in a loop that is compiled in
// two variants. Does nothing on CPUs other than x86.
INLINE vf rounded_product(vf x) {
#if defined(__x86_64__)
    __asm__("" : "+x"(x));
#endif
    return x;
}
INLINE vf load(const float* p) { return *reinterpret_cast<const vf_unaligned*>(p); }
INLINE void store(float* p, vf v) { *reinterpret_cast<vf_unaligned*>(p) = v; }
// Extends VW 16-bit numbers with zeros to 32 bits in one instruction, where GCC 12's
// __builtin_convertvector needs five with AVX-512. A template, so that a compilation for another
// instruction set never looks up the builtins that it lacks.
template <class V> INLINE vi wide_words(V words) {
    if constexpr (VW == 16) return reinterpret_cast<vi>(__builtin_ia32_pmovzxwd512_mask(words, vi{}, -1));
    else if constexpr (VW == 8) return reinterpret_cast<vi>(__builtin_ia32_pmovzxwd256(words));
    else return __builtin_convertvector(reinterpret_cast<vh>(words), vi);
}
INLINE vf widened(vh v) {
    typedef short words __attribute__((vector_size(2 * VW)));
    return reinterpret_cast<vf>(wide_words(reinterpret_cast<words>(v)) << 16);
}
INLINE float widened(bf16 x) {
    uint32_t u = uint32_t(x.bits) << 16;
    float f;
    __builtin_memcpy(&f, &u, 4);
    return f;
}
INLINE float widened(float x) { return x; }
// The nearest bf16, ties to even; every NaN becomes 0x7fff, as in to_bf16 (base/element.h).
INLINE vh nearest_bf16(vf x) {
    vu u = reinterpret_cast<vu>(x), nearest = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    return __builtin_convertvector(x == x ? nearest : vu{} + 0x7fff, vh);
}
INLINE vf load(const bf16* p) { return widened(vh(*reinterpret_cast<const vh_unaligned*>(p))); }
INLINE void store(bf16* p, vf v) { *reinterpret_cast<vh_unaligned*>(p) = nearest_bf16(v); }
constexpr int64_t PASSES_BY = 2 << 20;    // bytes of a result too large for L2
// Stores to memory past the caches, with AVX-512. p: a multiple of the vector's bytes, or of 32 for
// bf16. Other threads see the result after a fence. Templates, as compilers for other instruction
// sets lack the builtins' names and types.
template <class V> INLINE void store_past_caches(float* p, V v) {
    if constexpr (VW == 16) __builtin_ia32_movntps512(p, v);
    else store(p, v);
}
template <class V> struct HalfLine { typedef long long type __attribute__((vector_size(32))); };
template <class V> INLINE void store_past_caches(bf16* p, V v) {
    typedef typename HalfLine<V>::type words;
    if constexpr (VW == 16)
        __builtin_ia32_movntdq256(reinterpret_cast<words*>(p), reinterpret_cast<words>(nearest_bf16(v)));
    else store(p, v);
}
typedef int8_t vc __attribute__((vector_size(VW)));
typedef int16_t vs __attribute__((vector_size(2 * VW), aligned(2), may_alias));
// VW bytes as integers, and back. GCC 12's __builtin_convertvector would go byte by byte.
// Templates, as compilers for other instruction sets lack these names.
template <class V> INLINE vi wide_bytes(V bytes) {
    if constexpr (VW == 16) return reinterpret_cast<vi>(__builtin_ia32_pmovsxbd512_mask(bytes, vi{}, -1));
    else if constexpr (VW == 8) return reinterpret_cast<vi>(__builtin_ia32_pmovsxbd256(bytes));
    else {
        const V pairs = __builtin_shuffle(V{}, bytes, V{0, 16, 0, 17, 0, 18, 0, 19, 0, 0, 0, 0, 0, 0, 0, 0});
        const V top = __builtin_shuffle(V{}, pairs, V{0, 0, 16, 17, 0, 0, 18, 19, 0, 0, 20, 21, 0, 0, 22, 23});
        return reinterpret_cast<vi>(top) >> 24;
    }
}
INLINE vi load_bytes(const void* p) {
    typedef char bytes_of_sse __attribute__((vector_size(16)));
    bytes_of_sse bytes = {};
    __builtin_memcpy(&bytes, p, VW);
    return wide_bytes(bytes);
}
INLINE void store_bytes(void* p, vi x) {
    vc bytes;
    if constexpr (VW == 16) bytes = __builtin_convertvector(x, vc);
    else bytes = __builtin_convertvector(__builtin_convertvector(x, vs), vc);
    __builtin_memcpy(p, &bytes, VW);
}
INLINE vf load(const fp8* p) {    // as to_float does
    const vu u = reinterpret_cast<vu>(load_bytes(p)), code = u & 0x7f;
    return reinterpret_cast<vf>((code != 0 ? (code + 960) << 20 : vu{}) | (u & 0x80000000));
}
INLINE void store(fp8* p, vf x) {    // as to_fp8 does
    const vu u = reinterpret_cast<vu>(x), a = u & 0x7fffffff;
    vi code = reinterpret_cast<vi>((a + 0x7ffff + (a >> 20 & 1)) >> 20) - 960;
    code = code < 0 ? vi{} : code > 127 ? vi{} + 127 : code;
    store_bytes(p, code | reinterpret_cast<vi>(u >> 24 & 0x80));
}
INLINE vf load(const int8* p) { return __builtin_convertvector(load_bytes(p), vf); }
INLINE void store(int8* p, vf x) {    // as to_int8 does
    const vf some = x == x ? (x > 127 ? vf{} + 127 : x < -127 ? vf{} - 127 : x) : vf{};
    const vi number = reinterpret_cast<vi>(some + 0x1.8p23f) - 0x4B400000;
    store_bytes(p, number);
}
// Loads the first n < VW elements; the other lanes are zero.
template <class X> INLINE vf load_some(const X* p, int n) {
    X t[VW] = {};
    for (int i = 0; i < n; i++) t[i] = p[i];
    return load(t);
}
template <class X> INLINE void store_some(X* p, vf v, int n) {
    X t[VW];
    store(t, v);
    for (int i = 0; i < n; i++) p[i] = t[i];
}
INLINE vi lanes() {
    vi v;
    for (int i = 0; i < VW; i++) v[i] = i;
    return v;
}
// The lanes of a vector that exist: all (full), or the first n in the last vector of a row.
template <bool full> struct Lanes {
    int n;
    template <class X> INLINE_MEMBER vf get(const X* p) const { return full ? load(p) : load_some(p, n); }
    template <class X> INLINE_MEMBER void put(X* p, vf v) const { full ? store(p, v) : store_some(p, v, n); }
    INLINE_MEMBER vf fill_rest(vf v, float fill) const { return full ? v : lanes() < n ? v : set1(fill); }
};
// Calls f(offset, lanes) for each vector of n elements: one body for whole vectors and the tail.
template <class F> INLINE void each_vector(int64_t n, F f) {
    int64_t i = 0;
    for (; i + VW <= n; i += VW) f(i, Lanes<true>{VW});
    if (i < n) f(i, Lanes<false>{int(n - i)});
}

// max and min are b if either is NaN. For AVX-512 GCC 12 compiles the comparison to a mask and a
// blend, so the instructions are named, in templates, as other instruction sets lack the names.
template <class V> INLINE V max(V a, V b) {
    if constexpr (VW == 16) return __builtin_ia32_maxps512_mask(a, b, a, -1, 4);
    else return a > b ? a : b;
}
template <class V> INLINE V min(V a, V b) {
    if constexpr (VW == 16) return __builtin_ia32_minps512_mask(a, b, a, -1, 4);
    else return a < b ? a : b;
}

// Reductions by halves, in one order for all callers.
template <int W> INLINE vf swapped(vf v) { return __builtin_shuffle(v, lanes() ^ W); }
INLINE float sum(vf v) {
    if constexpr (VW > 8) v += swapped<8>(v);
    if constexpr (VW > 4) v += swapped<4>(v);
    v += swapped<2>(v);
    v += swapped<1>(v);
    return v[0];
}
INLINE float max(vf v) {
    if constexpr (VW > 8) v = max(v, swapped<8>(v));
    if constexpr (VW > 4) v = max(v, swapped<4>(v));
    v = max(v, swapped<2>(v));
    v = max(v, swapped<1>(v));
    return v[0];
}

constexpr float LOG2E = 0x1.715476p0f;

// exp(x) = 2^k exp(r), |r| <= ln2/2: at most 1.1 ulp off, denormal results included; NaN, 0 and
// infinity as in exp. The polynomial is a minimax fit of degree 6. 2^k is two factors, so that the
// exponent of each is in range.
INLINE vf exp(vf x) {
    const float MAGIC = 0x1.8p23f;    // low bits of the sum: rounded integer
    x = max(set1(-104), min(set1(89), x));
    vf t = x * LOG2E + MAGIC;
    vi k = reinterpret_cast<vi>(t) - 0x4B400000;
    vf kf = t - MAGIC;
    vf r = x - kf * 0x1.63p-1f - kf * -0x1.bd0106p-13f;    // ln2 in two parts; first product exact
    vf p = set1(0x1.6a23a8p-10f);
    p = p * r + 0x1.123a36p-7f;
    p = p * r + 0x1.5558f4p-5f;
    p = p * r + 0x1.555490p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = p * r * r + r + 1.0f;
    vi half = k >> 1, rest = k - half;
    return p * reinterpret_cast<vf>((half + 127) << 23) * reinterpret_cast<vf>((rest + 127) << 23);
}

// 2^x = whole * (1 + rest), |rest| < 0.42, for x below 127 and at least -125. NaN stays NaN. The
// polynomial is minimax, of degree 6 on [-1/2, 1/2], 1.9e-9 off before rounding.
struct Power {
    vf whole, rest;
};
INLINE Power power_of_two(vf x) {
    const float MAGIC = 0x1.8p23f + 127;    // sum's low bits: rounded integer + 127
    vf t = x + MAGIC;
    vf r = x - (t - MAGIC);
    vf p = set1(0x1.41d334p-13f);
    p = p * r + 0x1.5f456ap-10f;
    p = p * r + 0x1.3b2dbcp-7f;
    p = p * r + 0x1.c6aed4p-5f;
    p = p * r + 0x1.ebfbdap-3f;
    p = p * r + 0x1.62e430p-1f;
    return {reinterpret_cast<vf>(reinterpret_cast<vi>(t) << 23), p * r};
}
// 2^x for x below 127; for x below -125 the result is 2^-125.
INLINE vf exp2(vf x) {
    const Power y = power_of_two(max(set1(-125), x));
    return (y.rest + 1.0f) * y.whole;
}

// The bf16 nearest to x (ties to even), as a float; NaN stays NaN.
INLINE vf rounded_bf16(vf x) {
    vu u = reinterpret_cast<vu>(x), nearest = u + 0x7fff + (u >> 16 & 1), quiet = u | 0x400000;
    return reinterpret_cast<vf>((x == x ? nearest : quiet) & 0xffff0000);
}

// A loop of at most this many elements stays on its caller, because waking another thread takes
// longer (one or two microseconds).
constexpr int64_t ONE_THREAD = 8192;
// Chunks of a loop for each thread. With several, threads of unequal speed end together.
constexpr int CHUNKS = 8;
INLINE int64_t chunks_of(int64_t items) { return least64(items, int64_t(CHUNKS) * pool_threads()); }

struct Range {
    int64_t from, to;
};
// Part `part` of `parts` of n items. Parts begin at multiples of `unit`.
INLINE Range part_of(int64_t n, int64_t unit, int64_t part, int64_t parts) {
    const int64_t units = (n + unit - 1) / unit;
    return {least64(n, units * part / parts * unit), least64(n, units * (part + 1) / parts * unit)};
}
// Calls f(range, worker) for ranges of n items in units of `unit`. `elements`, the loop's work,
// only decides whether it is divided (ONE_THREAD).
template <class F> INLINE void each_range(int64_t n, int64_t unit, int64_t elements, const F& f) {
    const int64_t chunks = elements <= ONE_THREAD ? 1 : chunks_of((n + unit - 1) / unit);
    each_chunk(chunks, [&](int64_t chunk, int worker) { f(part_of(n, unit, chunk, chunks), worker); });
}
// As each_range, but calls f(i) for each i of 0..n-1.
template <class F> INLINE void each_item(int64_t n, int64_t elements, const F& f) {
    each_range(n, 1, elements, [&](Range r, int) {
        for (int64_t i = r.from; i < r.to; i++) f(i);
    });
}

// A gradient of weights that all rows share, such as a norm's, is first summed over ranges of rows:
// at most RANGES, a number that depends only on the number of rows. Range j has n sums from sums +
// j * stride on. add_parts adds them to d, range after range.
constexpr int RANGES = 32;
INLINE void add_parts(float* d, const float* sums, int parts, int64_t stride, int64_t n) {
    each_range(n, 16, n * parts, [&](Range r, int) {
        each_vector(r.to - r.from, [&](int64_t i, auto at) {
            const float* p = sums + r.from + i;
            vf s = at.get(p);
            for (int j = 1; j < parts; j++) s += at.get(p + j * stride);
            at.put(d + r.from + i, at.get(d + r.from + i) + s);
        });
    });
}
}    // namespace ISA
