// ptx.cpp - ldmatrix and mma.sync of a whole warp, optimised: the tests run hundreds of thousands.
#include "layers/cuda.cuh"

#include <ptx_on_cpu.h>

namespace emu {
namespace {
typedef uint32_t Pairs __attribute__((vector_size(16)));
typedef float Four __attribute__((vector_size(16)));
}    // namespace

// The sum over k may be taken in any order: here in the registers' order, k = t, t + 1, t + 8,
// t + 9 from each lane.
void mma(Meeting& m) {
    if (m.arrived != ~0u) throw Error("mma.sync without the whole warp");
    alignas(32) float a[16][16], b[16][8], d[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const Mma& x = *static_cast<Mma*>(m.slot[lane]);
        const int g = lane / 4, t = lane % 4;
        Pairs pairs;
        std::memcpy(&pairs, x.a, 16);
        const Four low = Four(pairs << 16), high = Four(pairs & 0xffff0000);
        const Four upper = {low[0], high[0], low[2], high[2]}, lower = {low[1], high[1], low[3], high[3]};
        std::memcpy(&a[g][t * 4], &upper, 16);
        std::memcpy(&a[g + 8][t * 4], &lower, 16);
        b[t * 4][g] = bf16_low(x.b[0]), b[t * 4 + 1][g] = bf16_high(x.b[0]);
        b[t * 4 + 2][g] = bf16_low(x.b[1]), b[t * 4 + 3][g] = bf16_high(x.b[1]);
    }
    for (int i = 0; i < 16; i++) {
        Four left = {}, right = {};
        for (int k = 0; k < 16; k++) {
            const Four* row = reinterpret_cast<const Four*>(b[k]);
            left += a[i][k] * row[0], right += a[i][k] * row[1];
        }
        std::memcpy(d[i], &left, 16), std::memcpy(d[i] + 4, &right, 16);
    }
    for (int lane = 0; lane < 32; lane++) {
        float* to = static_cast<Mma*>(m.slot[lane])->d;
        const int g = lane / 4, t = lane % 4 * 2;
        to[0] += d[g][t], to[1] += d[g][t + 1], to[2] += d[g + 8][t], to[3] += d[g + 8][t + 1];
    }
}

void ldmatrix(Meeting& m) {
    if (m.arrived != ~0u) throw Error("ldmatrix without the whole warp");
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            static_cast<LoadMatrix*>(m.slot[lane])->r[i] =
                static_cast<LoadMatrix*>(m.slot[i * 8 + lane / 4])->row[lane % 4];
}

void ldmatrix_trans(Meeting& m) {
    if (m.arrived != ~0u) throw Error("ldmatrix without the whole warp");
    for (int i = 0; i < 4; i++) {
        uint16_t x[8][8];
        for (int row = 0; row < 8; row++) std::memcpy(x[row], static_cast<LoadMatrix*>(m.slot[i * 8 + row])->row, 16);
        for (int lane = 0; lane < 32; lane++) {
            const int g = lane / 4, t = lane % 4 * 2;
            static_cast<LoadMatrix*>(m.slot[lane])->r[i] = x[t][g] | static_cast<uint32_t>(x[t + 1][g]) << 16;
        }
    }
}

void land(const Copy& c) {
    std::memcpy(c.to, c.from, c.bytes);
    std::memset(static_cast<char*>(c.to) + c.bytes, 0, c.zeros);
}

}    // namespace emu
