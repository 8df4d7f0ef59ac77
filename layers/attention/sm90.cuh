// sm90.cuh - common to attention on sm_90: rings of tiles, tensor maps, fragments.
//
// Fragments: thread t of a warpgroup holds, in d[4 j + 2 r + c], the element of a 64 x N product at
//     row 16 (t / 32) + t % 32 / 4 + 8 r,    column 8 j + 2 (t % 4) + c.
#pragma once
#include "attention.cuh"
#include "layers/ptx/hopper.cuh"

namespace sm90 {

constexpr int WARPGROUP = 128, CONSUMERS = 2;
constexpr int THREADS = WARPGROUP * (1 + CONSUMERS);          // warpgroup 0 is the producer
constexpr int REGISTERS = 65536, SHARED_BYTES = 227 << 10;    // per multiprocessor; one block uses all

// Tiles pass through rings of STAGES stages. RingStage: stage and mbarrier parity of the i-th tile.
constexpr int STAGES = 2;
template <int stages> struct RingStageOf {
    unsigned stage;
    int parity;
    __device__ explicit RingStageOf(unsigned i) : stage(i % stages), parity(int(i / stages % 2)) {}
};
typedef RingStageOf<STAGES> RingStage;

// TMA descriptor of an array (HS, heads, S, B). A box is one chunk of a tile: `width` columns of
// one head at `rows` positions, zeros outside the array. Encoded once for each set of arguments.
const CUtensorMap& tensor_map(const bf16* x, int B, int S, int heads, int HS, int rows, int width);
inline const CUtensorMap& tensor_map(const bf16* x, int B, int S, int heads, int HS, int rows) {
    return tensor_map(x, B, S, heads, HS, rows, chunk_columns(HS));
}

// The shuffle tells the compiler that the value is uniform in a warp. Values computed from it and
// the descriptors of products then use uniform registers.
__device__ inline int uniform_warpgroup() { return __shfl_sync(0xffffffff, int(threadIdx.x) / WARPGROUP, 0); }

// Drops a window that is not shorter than the sequence, so that key + window cannot overflow.
inline Heads checked(Heads h, int S) {
    if (h.window >= S || h.window < 0) h.window = 0;
    return h;
}

// Distance from the key to the query of a fragment's element i. first: distance of element 0. KEYS:
// the product's rows are keys.
template <bool KEYS> __device__ __forceinline__ float distance(float first, int i) {
    const int d = i / 2 % 2 * 8 - i / 4 * 8 - i % 2;
    return first + float(KEYS ? -d : d);
}
// Applies a soft cap's tanh to each product; without a cap, nothing changes.
template <int n> __device__ __forceinline__ void apply_cap_tanh(float (&x)[n], const Scores& s) {
    if (s.inner == 0) return;
#pragma unroll
    for (int i = 0; i < n; i++) x[i] = tanh_of(x[i] * s.inner);
}

// Starts loading the rows of one head from `position` on.
template <int ROWS, int HS, int WIDTH> __device__ inline void load(Tile<ROWS, HS, WIDTH>& to, const CUtensorMap& map,
                                                                   int b, int position, int head, uint64_t* full) {
    for (int c = 0; c < HS; c += WIDTH) tma_load(to.chunk[c / WIDTH], map, c, head, position, b, full);
}

}    // namespace sm90
