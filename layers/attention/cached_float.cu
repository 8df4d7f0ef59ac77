// cached_float.cu - attention in generation for activations in float, whatever the cache's type: cached.cuh.
#include "cached.cuh"

CACHED(float)
