// encode_search.h - the searches of encode.cpp, a vector of candidates at a time, for each
// instruction set. They give the bits of the loops in encode.cpp, which define the results.
#pragma once
#include <stdint.h>

struct LinearFit {
    float d = 0, m = 0;
};    // x ~ d q + m

// Searches by vectors. Each returns false if rounding alone decides between candidates, or if a
// number is not finite; the loop in encode.cpp must then decide.
struct QuantiseSearch {
    bool (*scale16)(const float* x, float* best);                             // find_scale<16, -32>
    bool (*scale32)(const float* x, int lo, float* best);                     // find_scale<32, lo>
    bool (*line)(const float* x, float most, bool below, LinearFit* best);    // find_line
    // find_pair: integers (s, t) at or next to `near` whose line {d s, -m t} has the least error
    bool (*pair)(const float* x, float d, float m, LinearFit near, LinearFit* best);
    // n numbers, 16 or 32, as bytes: (x - m) inv rounded to an integer in [lo, hi], minus lo
    void (*bytes)(const float* x, int n, float m, float inv, float lo, float hi, uint8_t* q);
    bool (*q8_0)(const float* x, float* d, uint8_t* q);    // a block's scale, 32 integers; false: not finite
};
namespace base {
QuantiseSearch quantise_search();
}
enum class Isa;
QuantiseSearch quantise_search(Isa isa);    // an instruction set of this CPU (cpu.h)

// Quantises like quant.h's `quantise`, with these searches; encode.cpp's loops replace null ones.
struct BlockFormat;
void quantise(const BlockFormat& format, const float* x, int64_t n, void* blocks, const QuantiseSearch& search);
