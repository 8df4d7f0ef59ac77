// encode_search.h - the searches of quantise.cpp, a vector of candidates at a time, for each instruction set. They
// give the bits of the loops in quantise.cpp, which stand for what they compute.
#pragma once
#include <stdint.h>

struct Line {
    float d = 0, m = 0;
};    // x ~ d q + m

// The searches return false where rounding alone decides between candidates, or a number is not finite: the loop must
// decide.
struct QuantiseSearch {
    bool (*scale16)(const float* x, float* best);                        // find_scale<16, -32>
    bool (*scale32)(const float* x, int lo, float* best);                // find_scale<32, lo>
    bool (*line)(const float* x, float most, bool below, Line* best);    // find_line
    // find_pair: the integers (s, t) at `near` or beside it, for which {d s, -m t} has the least error
    bool (*pair)(const float* x, float d, float m, Line near, Line* best);
    // n numbers, 16 or 32, as bytes: (x - m) inv rounded to an integer in [lo, hi], minus lo
    void (*bytes)(const float* x, int n, float m, float inv, float lo, float hi, uint8_t* q);
    bool (*q8_0)(const float* x, float* d, uint8_t* q);    // a block's scale and 32 integers; false: not finite
};
namespace base {
QuantiseSearch quantise_search();
}
enum class Isa;
QuantiseSearch quantise_search(Isa isa);    // that the CPU supports (cpu.h)

// As in quantised.h, by these searches; those that are null are done by the loops.
struct BlockFormat;
void quantise(const BlockFormat& format, const float* x, int64_t n, void* blocks, const QuantiseSearch& search);
