// amx_tiles.h - AMX: a thread's eight tiles of 16 rows of 64 bytes; products of bf16 or bytes.
//
// A tile holds A, B or sums (16 x 16). For bf16, A is 16 rows of 32 k, and B is 16 pairs of k: a
// line has the pair of each of 16 columns. For bytes, A is 16 rows of `depth` k (64, 32 or 16), and
// a line of B has four k of each of 16 columns. If depth is below 64, A is in tiles 4 and 5, B in 6
// and 7.
// The kernels have a set of tiles as template parameter, one object per thread:
//   Amx        the instructions. They are asm, so that every object file may hold them; only a
//              process with the kernel's permission may run them (cpu_has_amx), between configure
//              and release, in one thread.
//   Pretended  the emulation in plain C++, with the same bits: on any CPU.
#pragma once
#include "micro_kernel.h"

namespace ISA {
constexpr int TILE = 256;    // words of a tile

namespace {
struct Pretended {
    float tile[8][TILE];
    int depth, rows;    // rows of the sums and of tile 4

    void configure(int bytes = 64, int of_sums = 16) {
        __builtin_memset(tile, 0, sizeof tile);
        depth = bytes;
        rows = of_sums;
    }
    void release() {}
    template <int t> void zero() { __builtin_memset(tile[t], 0, sizeof tile[t]); }
    // stride: bytes between rows in memory
    template <int t> void load(const void* p, int64_t stride) {
        const int lines = t >= 6 ? depth / 4 : t == 5 ? 16 : rows, words = t == 4 || t == 5 ? depth / 4 : 16;
        const char* from = static_cast<const char*>(p);
        if (lines + words < 32) zero<t>();
        for (int i = 0; i < lines; i++, from += stride)
            for (int j = 0; j < words; j += 4) __builtin_memcpy(tile[t] + 16 * i + j, from + 4 * j, 16);
    }
    template <int t> void load_past_l1(const void* p, int64_t stride) { load<t>(p, stride); }
    template <int t> void store(void* p, int64_t stride) const {
        for (int i = 0; i < rows; i++) __builtin_memcpy(static_cast<char*>(p) + i * stride, tile[t] + 16 * i, 64);
    }

    static INLINE_MEMBER vf flushed(vf x) {    // denormals become zeros
        const vu u = reinterpret_cast<vu>(x), sign = u & 0x80000000;
        return reinterpret_cast<vf>((u & 0x7f800000) != 0 ? u : sign);
    }
    template <class V> static INLINE_MEMBER V fma(V x, V y, V z) {    // rounded once
        if constexpr (VW == 16) return __builtin_ia32_vfmaddps512_mask(x, y, z, -1, 4);
        else if constexpr (VW == 8) return __builtin_ia32_vfmaddps256(x, y, z);
        else
            for (int i = 0; i < VW; i++) z[i] = __builtin_fmaf(x[i], y[i], z[i]);
        return z;
    }
    // c += a b, as Intel's manual defines TDPBF16PS: each sum has two chains of FMAs from zero on,
    // one over the even k and one over the odd; their sum is added to c. All round to nearest even;
    // denormals are zeros in inputs and outputs. Callers do not rely on which NaN results.
    template <int c, int a, int b> [[gnu::noinline]] void products() {
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < 16; j += VW) {
                vf even = {}, odd = {};
                for (int k = 0; k < 16; k++) {
                    const vu y = reinterpret_cast<vu>(words(tile[b] + 16 * k + j));
                    uint32_t x;
                    __builtin_memcpy(&x, tile[a] + 16 * i + k, 4);
                    even = flushed(fma(half(vu{} + (x << 16)), half(y << 16), even));
                    odd = flushed(fma(half(vu{} + x), half(y), odd));
                }
                float* to = tile[c] + 16 * i + j;
                ISA::store(to, flushed(flushed(words(to)) + flushed(even + odd)));
            }
    }
    // c += a b of signed bytes, in 32 bits (TDPBSSD).
    template <int c, int a, int b> [[gnu::noinline]] void byte_products() {
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < 16; j += VW) {
                float* to = tile[c] + 16 * i + j;
                vu sum = reinterpret_cast<vu>(words(to));
                for (int k = 0; k < depth / 4; k++) {
                    int x;
                    __builtin_memcpy(&x, tile[a] + 16 * i + k, 4);
                    const vi y = reinterpret_cast<vi>(words(tile[b] + 16 * k + j));
#pragma GCC unroll 4
                    for (int up = 24; up >= 0; up -= 8) sum += vu((y << up >> 24) * int8_t(x << up >> 24));
                }
                ISA::store(to, reinterpret_cast<vf>(sum));
            }
    }
    static INLINE_MEMBER vf words(const float* p) { return ISA::load(p); }    // `load` is a tile's here
    static INLINE_MEMBER vf half(vu u) { return flushed(reinterpret_cast<vf>(u & 0xffff0000)); }    // the upper bf16
};

#if defined(__x86_64__)
// Another reason for asm: GCC 12's _tile_loadd is not declared to read memory, so that the compiler
// may move earlier stores behind it.
struct Amx {
    static void configure(int depth = 64, int rows = 16) {
        struct alignas(64) {    // Intel's manual, "LDTILECFG"
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t bytes[16] = {};
            uint8_t rows[16] = {};
        } config;
        for (int i = 0; i < 8; i++) {
            config.bytes[i] = i == 4 || i == 5 ? uint16_t(depth) : 64;
            config.rows[i] = uint8_t(i >= 6 ? depth / 4 : i == 5 ? 16 : rows);
        }
        __asm__ volatile("ldtilecfg %0" ::"m"(config));
    }
    static void release() { __asm__ volatile("tilerelease"); }
    template <int t> static INLINE_MEMBER void zero() { __asm__ volatile("tilezero %%tmm%c0" ::"i"(t)); }
    template <int t> static INLINE_MEMBER void load(const void* p, int64_t stride) {
        __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(t) : "memory");
    }
    // Loads a tile with the hint not to keep it in L1, which then holds other data.
    template <int t> static INLINE_MEMBER void load_past_l1(const void* p, int64_t stride) {
        __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(t) : "memory");
    }
    template <int t> static INLINE_MEMBER void store(void* p, int64_t stride) {
        __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(t) : "memory");
    }
    template <int c, int a, int b> static INLINE_MEMBER void products() {
        __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b));
    }
    template <int c, int a, int b> static INLINE_MEMBER void byte_products() {
        __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b));
    }
};
#endif
}    // namespace

// Template argument in place of a set of tiles (Amx, Pretended): products are computed by vectors.
struct Vectors {};
template <class Set> constexpr bool TILED = true;
template <> constexpr bool TILED<Vectors> = false;
// Rows of a strip of products.
template <class Set> constexpr int STRIP = TILED<Set> ? 16 : MR;

template <int n> struct Index { static constexpr int is = n; };
template <int from, int to, class F> INLINE void each_index(F f) {
    if constexpr (from < to) f(Index<from>()), each_index<from + 1, to>(f);
}
// C (16, columns*16) (+)= A B, like kernel() of micro_kernel.h with half: word k of A's row i is at
// a[i*ra + k], word k of B's column j at b[k*rb + j]. K counts words, rounded up to whole tiles;
// words beyond K must add zero. If `ahead` is not 0, B is contiguous in memory and is prefetched
// this many words ahead, alternating with tiles, because many prefetches at once gain nothing.
template <int columns, bool add, class Set> INLINE void tile_kernel(Set& set, int K, const float* a, int64_t ra,
                                                                    const float* b, int64_t rb, float* c, int64_t rc,
                                                                    int ahead = 0) {
    each_index<0, columns>([&](auto v) {
        if constexpr (add) set.template load<v.is>(c + 16 * v.is, 4 * rc);
        else set.template zero<v.is>();
    });
    for (int k = 0; k < K; k += 16) {
        set.template load<4>(a + k, 4 * ra);
        each_index<0, columns>([&](auto v) {
            constexpr int x = 5 + v.is % 3;
            if (ahead > 0)
                each_index<0, 16>(
                    [&](auto line) { __builtin_prefetch(b + k * rb + v.is * TILE + ahead + 16 * line.is); });
            set.template load<x>(b + k * rb + 16 * v.is, 4 * rb);
            set.template products<v.is, 4, x>();
        });
    }
    each_index<0, columns>([&](auto v) { set.template store<v.is>(c + 16 * v.is, 4 * rc); });
}
// tile_kernel for N columns, in whole tiles. With Vectors: strip() of micro_kernel.h, for MR rows.
template <bool add, bool half, class Set> static void strip_by(Set& set, int N, int K, const float* a, int64_t ra,
                                                               const float* b, int64_t rb, float* c, int64_t rc) {
    if constexpr (!TILED<Set>) return strip<add, half>(N, K, a, ra, 1, b, rb, c, rc);
    else
        for (; N > 0; N -= 64, b += 64, c += 64) {
            if (N > 48) tile_kernel<4, add>(set, K, a, ra, b, rb, c, rc);
            else if (N > 32) tile_kernel<3, add>(set, K, a, ra, b, rb, c, rc);
            else if (N > 16) tile_kernel<2, add>(set, K, a, ra, b, rb, c, rc);
            else tile_kernel<1, add>(set, K, a, ra, b, rb, c, rc);
        }
}

// Calls f(tiles) with this thread's tiles of the kind that the table uses. depth: in bytes. rows:
// rows of the sums and of tile 4; products of fewer rows take less time.
template <class F> INLINE void with_tiles(Tiles kind, F f, int depth = 64, int rows = 16) {
#if defined(__AVX512BF16__)    // no CPU has AMX without AVX512-BF16
    if (kind == Tiles::amx) {
        Amx tiles;
        tiles.configure(depth, rows);
        f(tiles);
        return tiles.release();
    }
#endif
    (void)kind;
    Pretended tiles;
    tiles.configure(depth, rows);
    f(tiles);
    tiles.release();
}
}    // namespace ISA
