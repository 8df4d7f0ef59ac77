// cached.cu - attention in generation (cached.cuh) for bf16 activations and any cache type.
#include "cached.cuh"

CACHED(bf16)
