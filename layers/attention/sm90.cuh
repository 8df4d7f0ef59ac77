// sm90.cuh - what forward and backward of attention on sm_90 share: rings of tiles, tensor maps, fragments.
//
// Fragments: thread t of a warpgroup holds, in d[4 j + 2 r + c], the element of a 64 x N product at
//     row 16 (t / 32) + t % 32 / 4 + 8 r,    column 8 j + 2 (t % 4) + c.
#pragma once
#include "attention.cuh"
#include "layers/ptx/hopper.cuh"

namespace sm90 {

constexpr int WARPGROUP = 128, CONSUMERS = 2;
constexpr int THREADS = WARPGROUP * (1 + CONSUMERS);          // the producer comes first
constexpr int REGISTERS = 65536, SHARED_BYTES = 227 << 10;    // what an SM has; one block gets all of it

// Tiles come through rings of STAGES slots. The slot that the i-th tile takes, and the parity of the phase it fills.
constexpr int STAGES = 2;
template <int stages> struct SlotOf {
    unsigned stage;
    int parity;
    __device__ explicit SlotOf(unsigned i) : stage(i % stages), parity(int(i / stages % 2)) {}
};
typedef SlotOf<STAGES> Slot;

// How TMA sees heads of rows: (HS, heads, S, B), in boxes of one chunk of a tile: `width` columns of one head in `rows`
// positions. A column or position outside is zero. Encoded once for each set of arguments.
const CUtensorMap& tensor_map(const bf16* x, int B, int S, int heads, int HS, int rows, int width);
inline const CUtensorMap& tensor_map(const bf16* x, int B, int S, int heads, int HS, int rows) {
    return tensor_map(x, B, S, heads, HS, rows, chunk_columns(HS));
}

// The same in all of a warp, as the compiler then knows: what follows from it takes uniform registers, and so do the
// descriptors of products.
__device__ inline int uniform_warpgroup() { return __shfl_sync(0xffffffff, int(threadIdx.x) / WARPGROUP, 0); }

// A window as long as the sequence is no window. So key + window cannot overflow.
inline Heads checked(Heads h, int S) {
    if (h.window >= S || h.window < 0) h.window = 0;
    return h;
}

// The fragments' distances: how far the query of element i lies behind its key. first: that of element 0. KEYS: the
// rows are keys.
template <bool KEYS> __device__ __forceinline__ float distance(float first, int i) {
    const int d = i / 2 % 2 * 8 - i / 4 * 8 - i % 2;
    return first + float(KEYS ? -d : d);
}
// From each product, tanh of it with a soft cap; else nothing changes.
template <int n> __device__ __forceinline__ void multiply_cap_slope(float (&x)[n], const Scores& s) {
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
