// cached.cu - attention in generation for activations in bf16, whatever the cache's type: cached.cuh.
#include "cached.cuh"

CACHED(bf16)
