// cublaslt.cu - see cublaslt.h.
#include "cublaslt.h"

#include <dlfcn.h>

#include <string>

#include "layers/cuda.cuh"
#include "layers/cuda.h"

CublasLt cublaslt;

int cublaslt_version() { return int(cublaslt.GetVersion()); }
Status cublaslt_load() {
    if (cublaslt.Create) return {};
    if constexpr (EMULATED) {
#define CUBLASLT_LINKED(f) cublaslt.f = cublasLt##f;
        CUBLASLT_FUNCTIONS(CUBLASLT_LINKED)
        return {};
    }
    const std::string name = "libcublasLt.so." + std::to_string(CUDART_VERSION / 1000);
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);    // searches the binary's rpath, too
    if (!library)
        return fail(Exit::device,
                    "products on GPUs need cuBLASLt: %s; install it, or name its folder in "
                    "LD_LIBRARY_PATH",
                    dlerror());
    CublasLt found;
#define CUBLASLT_LOADED(f)                                                        \
    found.f = reinterpret_cast<decltype(found.f)>(dlsym(library, "cublasLt" #f)); \
    if (!found.f) return fail(Exit::device, "%s has no cublasLt" #f, name.c_str());
    CUBLASLT_FUNCTIONS(CUBLASLT_LOADED)
    cublaslt = found;
    return {};
}
