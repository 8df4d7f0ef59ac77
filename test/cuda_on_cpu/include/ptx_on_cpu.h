// The functions of kernels/ptx.cuh for the emulation: what each PTX instruction does, in plain C++.
#pragma once
#include "../cuda_on_cpu.h"

inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(static_cast<const char*>(p) - emu::block->shared); }

namespace emu {

inline float bf16_low(uint32_t pair) { return __uint_as_float(pair << 16); }
inline float bf16_high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000); }

struct Mma { float* d; const uint32_t *a, *b; };
inline void mma(Meeting& m) {
  if (m.arrived != ~0u) throw Error("mma.sync without the whole warp");
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const Mma& x = *static_cast<Mma*>(m.slot[lane]);
    int g = lane / 4, t = lane % 4 * 2;
    for (int r = 0; r < 4; ++r) {
      float* to = &a[g + r % 2 * 8][t + r / 2 * 8];
      to[0] = bf16_low(x.a[r]), to[1] = bf16_high(x.a[r]);
    }
    for (int r = 0; r < 2; ++r) b[t + r * 8][g] = bf16_low(x.b[r]), b[t + r * 8 + 1][g] = bf16_high(x.b[r]);
  }
  for (int i = 0; i < 16; ++i) {
    float d[8] = {};
    for (int k = 0; k < 16; ++k)
      for (int j = 0; j < 8; ++j) d[j] += a[i][k] * b[k][j];
    for (int j = 0; j < 8; ++j) static_cast<Mma*>(m.slot[i % 8 * 4 + j / 2])->d[i / 8 * 2 + j % 2] += d[j];
  }
}

struct LoadMatrix { uint16_t row[8]; uint32_t* r; };
template <int count, bool transposed>
void load_matrix(Meeting& m) {
  if (m.arrived != ~0u) throw Error("ldmatrix without the whole warp");
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < count; ++i) {
      auto at = [&](int row, int column) -> uint32_t { return static_cast<LoadMatrix*>(m.slot[i * 8 + row])->row[column]; };
      int g = lane / 4, t = lane % 4 * 2;
      static_cast<LoadMatrix*>(m.slot[lane])->r[i] = transposed ? at(t, g) | at(t + 1, g) << 16 : at(g, t) | at(g, t + 1) << 16;
    }
}
template <int count, bool transposed>
void load_matrix(uint32_t* r, const void* row, Location at) {
  LoadMatrix l{{}, r};
  if (self->lane() < count * 8) {
    if (!block->is_shared(row) || reinterpret_cast<uintptr_t>(row) % 16) block->fail("ldmatrix", at, "the row is not 16 aligned bytes of shared memory");
    auto from = static_cast<const uint16_t*>(row);
    for (int i = 0; i < 8; ++i) l.row[i] = from[i];  // read by its own lane, so that the sanitizers see who reads
  }
  block->meet("ldmatrix", at, ~0u, &l, load_matrix<count, transposed>);
}

inline void land(const Copy& c) {
  std::memcpy(c.to, c.from, c.bytes);
  std::memset(static_cast<char*>(c.to) + c.bytes, 0, c.zeros);
}

}  // namespace emu

inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], EMU_AT) {
  emu::Mma x{d, a, b};
  emu::block->meet("mma.sync", at, ~0u, &x, emu::mma);
}
inline void ldmatrix_x4(uint32_t (&r)[4], const void* row, EMU_AT) { emu::load_matrix<4, false>(r, row, at); }
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, EMU_AT) { emu::load_matrix<4, true>(r, row, at); }

// The bytes may land at any time until the wait: here at the last moment or, as a seed may have it, at once.
inline void cp_async_16(void* to, const void* from, bool valid = true, EMU_AT) {
  if (!emu::block->is_shared(to)) emu::block->fail("cp.async", at, "the destination is not shared memory");
  if (reinterpret_cast<uintptr_t>(to) % 16 || reinterpret_cast<uintptr_t>(from) % 16) emu::block->fail("cp.async", at, "not 16-byte aligned");
  emu::Copy c{to, from, valid ? 16u : 0u, valid ? 0u : 16u};
  if (emu::config.seed && emu::block->toss()) emu::land(c);
  else emu::self->copies.push_back(c);
}
inline void cp_async_commit() {
  auto& f = *emu::self;
  f.copy_groups.push_back(f.copies.size());  // where the group ends
}
template <int but>
void cp_async_wait() {
  auto& f = *emu::self;
  if (f.copy_groups.size() <= but) return;
  size_t n = f.copy_groups[f.copy_groups.size() - 1 - but];
  for (size_t i = 0; i < n; ++i) emu::land(f.copies[i]);
  f.copies.erase(f.copies.begin(), f.copies.begin() + static_cast<long>(n));
  f.copy_groups.erase(f.copy_groups.begin(), f.copy_groups.end() - but);
  for (size_t& end : f.copy_groups) end -= n;
}

inline void named_barrier(int id, int threads, EMU_AT) { emu::block->sync(id, threads, 0, "bar.sync", at); }
inline void named_barrier_arrive(int id, int threads, EMU_AT) { emu::block->sync(id, threads, 0, "bar.arrive", at, true); }

inline uint32_t pack_bf16(float low, float high) { return to_bf16(low).bits | uint32_t(to_bf16(high).bits) << 16; }
inline float exp2_approx(float x) { return exp2f(x); }
