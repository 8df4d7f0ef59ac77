// cached_float.cu - attention in generation (cached.cuh) for float activations and any cache type.
#include "cached.cuh"

CACHED(float)
