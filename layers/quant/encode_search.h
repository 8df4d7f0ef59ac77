// encode_search.h - the searches of quantise.cpp, a vector of candidates at a time, for each instruction set. They
// give the bits of the loops in quantise.cpp, which stand for what they compute.
#pragma once
#include <stdint.h>

struct Line {
    float d = 0, m = 0;
};    // x ~ d q + m

// Each returns false where rounding alone decides between candidates, or a number is not finite: the loop must decide.
struct QuantiseSearch {
    bool (*scale16)(const float* x, float most, float* best);    // find_scale<16, -32>; most: its largest number
    bool (*scale32)(const float* x, float most, int lo, float* best);                           // find_scale<32, lo>
    bool (*line)(const float* x, float low, float high, float most, bool below, Line* best);    // find_line
    // find_pair: the integers (s, t) at `near` or beside it, for which {d s, -m t} has the least error
    bool (*pair)(const float* x, float d, float m, Line near, Line* best);
};
namespace base {
QuantiseSearch quantise_search();
}
enum class Isa;
QuantiseSearch quantise_search(Isa isa);    // that the CPU supports (cpu.h)

// As in quantised.h, by these searches; those that are null are done by the loops.
struct BlockFormat;
void quantise(const BlockFormat& format, const float* x, int64_t n, void* blocks, const QuantiseSearch& search);
