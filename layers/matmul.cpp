// matmul.cpp - matrix products of our own, for where oneDNN is missing, and the sums and conversions around a product.
//
// matmul: C in tiles of MR x NR that stay in registers over KC steps. A is packed once per block of MC rows for all
// threads (in strips of MR rows), B by each thread as it comes to a panel of NR columns (KC x NR floats, in L2). Every
// element of C is summed in the order of k, whichever thread does it. Bound by FMAs.
#include "tile.h"

namespace ISA {
constexpr int NR = NV * VW, KC = 384, MC = 1536;

INLINE int blocks_of(int K, int most) { return (K + most - 1) / most; }
// KC or less, so that the blocks are even; a multiple of VW, as transposing writes whole vectors.
INLINE int depth(int K) { return padded((K + blocks_of(K, KC) - 1) / blocks_of(K, KC)); }

int64_t matmul_scratch(int M, int, int K) {
    int64_t strips = (least(M, MC) + MR - 1) / MR;
    return int64_t(sizeof(float)) * depth(K) * (strips * MR + int64_t(NR) * omp_get_max_threads());
}

static void round_all(float* x, int64_t n) {
    each_vector(n, [&](int64_t i, auto at) { at.put(x + i, rounded_bf16(at.get(x + i))); });
}

// to[k*MR + i] = A(m0+i, k0+k), zero beyond the last row
template <class P> static void pack_a(float* to, const Matmul<P>& g, int m0, int k0, int kc) {
    const float* a = g.a + int64_t(m0) * g.ra + int64_t(k0) * g.ca;
    const int rows = least(MR, g.M - m0);
    for (int k = 0; k < kc; k++)
        for (int i = 0; i < MR; i++) to[k * MR + i] = i < rows ? a[i * g.ra + k * g.ca] : 0;
    if (g.round) round_all(to, int64_t(kc) * MR);
}
// to[k*NR + j] = B(k0+k, n0+j), zero beyond the last column
template <class P> static void pack_b(float* to, const Matmul<P>& g, int n0, int k0, int kc) {
    const P* b = g.b + int64_t(k0) * g.rb + int64_t(n0) * g.cb;
    const int columns = least(NR, g.N - n0);
    if (g.rb == 1) {
        pack_transposed(to, NR, b, g.cb, columns, NR, kc);
    } else {
        for (int k = 0; k < kc; k++)
            each_vector(NR, [&](int64_t j, auto) {
                const P* p = b + k * g.rb + j * g.cb;
                int left = columns - int(j);
                store(to + k * NR + j, left >= VW ? load(p) : left > 0 ? load_some(p, left) : vf{});
            });
    }
    if (g.round && sizeof(P) == 4) round_all(to, int64_t(kc) * NR);
}

// One tile of C; whole ones in place, those at the edges by way of a copy.
template <class P>
static void tile(const Matmul<P>& g, bool add, int m0, int n0, int kc, const float* a, const float* b) {
    float* c = g.c + int64_t(m0) * g.N + n0;
    const int rows = least(MR, g.M - m0), columns = least(NR, g.N - n0);
    if (rows == MR && columns == NR) {
        if (add) kernel<NV, true>(kc, a, 1, MR, b, NR, c, g.N);
        else kernel<NV, false>(kc, a, 1, MR, b, NR, c, g.N);
        return;
    }
    float t[MR * NR];
    kernel<NV, false>(kc, a, 1, MR, b, NR, t, NR);
    for (int i = 0; i < rows; i++)
        each_vector(columns, [&](int64_t j, auto at) {
            vf v = at.get(t + i * NR + j);
            at.put(c + int64_t(i) * g.N + j, add ? v + at.get(c + int64_t(i) * g.N + j) : v);
        });
}

template <class P> static void matmul(const Matmul<P>& g) {
    const int kd = depth(g.K), panels = blocks_of(g.N, NR), threads = omp_get_max_threads();
    float* scratch = static_cast<float*>(cpu_scratch(matmul_scratch(g.M, g.N, g.K)));
    float* packed_b = scratch + int64_t(blocks_of(least(g.M, MC), MR)) * MR * kd;
#pragma omp parallel
    for (int k0 = 0; k0 < g.K; k0 += kd)
        for (int m0 = 0; m0 < g.M; m0 += MC) {
            const int kc = least(kd, g.K - k0), strips = blocks_of(least(MC, g.M - m0), MR);
            // With fewer panels than threads the strips of a panel are shared out, too.
            const int groups = least(blocks_of(4 * threads, panels), blocks_of(strips, 16));
            float* panel = packed_b + int64_t(omp_get_thread_num()) * NR * kd;
#pragma omp for schedule(static)
            for (int s = 0; s < strips; s++) pack_a(scratch + int64_t(s) * MR * kd, g, m0 + s * MR, k0, kc);
#pragma omp for schedule(static)
            for (int item = 0; item < panels * groups; item++) {
                const int n0 = item / groups * NR, group = item % groups;
                pack_b(panel, g, n0, k0, kc);
                for (int s = strips * group / groups; s < strips * (group + 1) / groups; s++)
                    tile(g, g.add || k0 > 0, m0 + s * MR, n0, kc, scratch + int64_t(s) * MR * kd, panel);
            }
        }
}

// ---- around a product ----------------------------------------------------------------------------------------------

// Each thread owns a range of columns and reads 8 rows of it at a time.
void column_sums(float* sums, const float* x, int N, int C) {
#pragma omp parallel
    {
        Range r = my_share(C, 16);
        for (int n = 0; n < N; n += 8) {
            const int rows = least(8, N - n);
            const float* from = x + int64_t(n) * C;
            each_vector(r.to - r.from, [&](int64_t i, auto at) {
                const float* p = from + r.from + i;
                vf s = at.get(p);
                for (int j = 1; j < rows; j++) s += at.get(p + int64_t(j) * C);
                at.put(sums + r.from + i, at.get(sums + r.from + i) + s);
            });
        }
    }
}

template <class P> static void add_rows(float* y, const float* x, const P* b, int N, int C) {
#pragma omp parallel for schedule(static)
    for (int n = 0; n < N; n++) {
        int64_t row = int64_t(n) * C;
        each_vector(C, [&](int64_t c, auto at) {
            at.put(y + row + c, (x ? at.get(x + row + c) : vf{}) + (b ? at.get(b + c) : vf{}));
        });
    }
}

template <class To, class From> static void convert(To* to, const From* from, int64_t n) {
    constexpr int64_t BLOCK = 16384;
#pragma omp parallel for schedule(static) if (n > BLOCK)
    for (int64_t i = 0; i < n; i += BLOCK)
        each_vector(least64(n - i, BLOCK), [&](int64_t k, auto at) { at.put(to + i + k, at.get(from + i + k)); });
}

template <class P> static void entries(Loops<P>& l) {
    l.matmul = matmul<P>;
    l.add_rows = add_rows<P>;
    l.from_floats = convert<P, float>;
    l.to_floats = convert<float, P>;
}
void matmul_entries(Loops<float>& l) { entries(l); }
void matmul_entries(Loops<bf16>& l) { entries(l); }
}   // namespace ISA
