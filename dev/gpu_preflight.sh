# shellcheck shell=bash
# gpu_preflight.sh - is everything here that dev/gpu.sh needs? dev/gpu.sh sources it. Says what is missing and where it
# looked. Adds what lies elsewhere (carry/, pip's packages) to CPATH, LIBRARY_PATH and LD_LIBRARY_PATH. Sets device,
# capability, ARCH, sanitizer.
# shellcheck disable=SC2154    # root, work, limited and smi are of gpu.sh

missing=0
found() { printf '  found    %-20s %s\n' "$1" "$2"; }
lacks() {    # WHAT WHERE-IT-LOOKED WHAT-TO-DO
    printf '  MISSING  %-20s %s\n           %-20s %s\n' "$1" "$2" "" "$3"
    missing=1
}
# FILE PLACE...: the first place that has it, in $at; FILE may be a pattern.
look() {
    local file=$1 place path
    shift
    for place in "$@"; do
        for path in "$place"/$file; do
            [ -e "$path" ] && { at=$place path_found=$path; return 0; }
        done
    done
    at='' path_found=''
    return 1
}
prepend() {    # VARIABLE FOLDER
    [[ ":${!1:-}:" == *":$2:"* ]] || export "$1=$2${!1:+:${!1}}"
}
# Folders that compiler and linker search anyway. Named once more, /usr/include would come before C++'s own headers.
searched() {
    case $1 in
        "$root"/usr/include* | "$root"/usr/lib* | "$root"/lib* | "$cuda"/include | "$cuda"/lib | "$cuda"/lib64) ;;
        *) return 1 ;;
    esac
}

python_folders() {    # where pip puts NVIDIA's packages
    local folder
    {
        limited 10 python3 -c 'import sys; print("\n".join(sys.path))' 2>/dev/null
        for folder in ${VIRTUAL_ENV:+"$VIRTUAL_ENV"} ${CONDA_PREFIX:+"$CONDA_PREFIX"} "$root"/usr "$root"/usr/local \
            "$root"/opt/* "${HOME:-/root}/.local"; do
            printf '%s\n' "$folder"/lib/python3*/site-packages "$folder"/lib/python3*/dist-packages
        done
    } | while read -r folder; do
        [ -d "$folder/nvidia" ] && printf '%s\n' "$folder"/nvidia/*/
    done | sed 's,/$,,' | awk '!seen[$0]++'
}

find_device() {
    local text place="looked for: nvidia-smi in $PATH" todo="dev/gpu.sh is for a machine with a GPU and its driver"
    device='' capability='' driver=''
    command -v nvidia-smi >/dev/null || { lacks "a GPU" "$place" "$todo"; return 5; }
    text=$(smi --query-gpu=name,compute_cap,driver_version --format=csv,noheader 2>&1)
    case $? in
        0) ;;
        124 | 137) lacks "a GPU" "asked: nvidia-smi, which gives no answer" "the driver hangs: restart the machine"
                   return 5 ;;
        *) lacks "a GPU" "asked: nvidia-smi, which says: $(head -1 <<<"$text")" "$todo"; return 5 ;;
    esac
    IFS=, read -r device capability driver <<<"$text"
    capability=$(tr -dc 0-9 <<<"$capability")
    driver=${driver# }
    if [ -z "$device" ]; then
        lacks "a GPU" "asked: nvidia-smi, which lists none" "$todo"
        return 5
    fi
    if [ -n "$capability" ] && [ "$capability" -lt 80 ]; then
        lacks "a GPU" "asked: nvidia-smi: $device has compute capability $capability" "needed is 80 (Ampere) or newer"
        return 5
    fi
    found device "$device, sm_${capability:-?}, driver $driver"
}
find_nvcc() {
    local nvcc
    nvcc=$(command -v nvcc)
    if [ -z "$nvcc" ]; then
        look bin/nvcc ${CUDA_HOME:+"$CUDA_HOME"} "$root"/usr/local/cuda "$root"/usr/local/cuda-* "$root"/opt/cuda \
            "${python[@]}" && nvcc=$path_found && export PATH=$at/bin:$PATH
    fi
    if [ -z "$nvcc" ]; then
        lacks nvcc \
            "looked in: PATH, CUDA_HOME, $root/usr/local/cuda*, $root/opt/cuda, ${#python[@]} folders of pip packages" \
            "install the CUDA toolkit (12.8 or newer), or pip install nvidia-cuda-nvcc"
        return
    fi
    cuda=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
    found nvcc "$nvcc ($(limited 20 nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p'))"
}

# A device that this nvcc does not know gets the newest code that it does, which the driver translates.
choose_arch() {
    local known a
    if [ -n "${CUDA_ARCH:-}" ]; then
        export ARCH=$CUDA_ARCH
    else
        ARCH=
        known=$(limited 20 nvcc --list-gpu-arch 2>/dev/null | sed -n 's/^compute_\([0-9]*\)$/\1/p' | sort -n)
        for a in $known; do
            [ -n "$capability" ] && [ "$a" -ge 80 ] && [ "$a" -le "$capability" ] && ARCH=$a
        done
        [ -n "$ARCH" ] || ARCH=${capability:-80}
        [ "$ARCH" = "$capability" ] || found ARCH "$ARCH for sm_${capability:-?}, which this nvcc does not know"
        [ "$ARCH" = 90 ] && ARCH=90a    # wgmma needs the a
        export ARCH
    fi
}

header() {    # FILE WHAT-TO-DO PLACE...
    local file=$1 todo=$2
    shift 2
    if look "$file" "$@"; then
        found "$file" "$at"
        searched "$at" || prepend CPATH "$at"
    else
        lacks "$file" "looked in: $(printf '%s ' "$@")" "$todo"
    fi
}
library() {    # NAME WHAT-TO-DO PLACE...: libNAME.so, or of pip's packages libNAME.so.N, which the linker does not find
    local name=$1 todo=$2
    shift 2
    if look "lib$name.so" "$@" || look "lib$name.so.*" "$@"; then
        found "lib$name" "$path_found"
        case $at in "$root"/usr/lib* | "$root"/lib*) return ;; esac
        prepend LD_LIBRARY_PATH "$at"
        [ -e "$at/lib$name.so" ] && { searched "$at" || prepend LIBRARY_PATH "$at"; return; }
        mkdir -p "$work/lib"
        ln -sf "$path_found" "$work/lib/lib$name.so"
        prepend LIBRARY_PATH "$work/lib"
    else
        lacks "lib$name" "looked in: $(printf '%s ' "$@")" "$todo"
    fi
}

# Compiles and runs a kernel beside the libraries: what the folders above leave open shows in seconds.
try_device() {
    cat >"$work/preflight.cu" <<'CU'
#include <cstdio>
#include <cublasLt.h>
#include <dlfcn.h>
#include <nccl.h>
#include <string>
__global__ void count(int* n) { atomicAdd(n, 1); }
int main() {
    int *n = nullptr, seen = 0;
    cublasLtHandle_t blas;
    const std::string name = "libcublasLt.so." + std::to_string(CUDART_VERSION / 1000);    // as layers/cublaslt.cu
    void* library = dlopen(name.c_str(), RTLD_NOW);
    if (!library) return printf("%s\n", dlerror()), 1;
    auto* create = reinterpret_cast<decltype(&cublasLtCreate)>(dlsym(library, "cublasLtCreate"));
    cudaError_t error = cudaMalloc(&n, sizeof(int));
    if (!error) error = cudaMemset(n, 0, sizeof(int));
    if (!error) count<<<1, 32>>>(n), error = cudaGetLastError();
    if (!error) error = cudaMemcpy(&seen, n, sizeof(int), cudaMemcpyDeviceToHost);
    const int status = error || !create ? -1 : int(create(&blas));
    printf("a kernel counts %d of 32 threads (%s), cuBLASLt starts with status %d, NCCL's header is %d\n", seen,
           cudaGetErrorString(error), status, NCCL_VERSION_CODE);
    return seen != 32 || status != 0;
}
CU
    local log=$work/preflight.txt
    if ! limited "$(limit 60)" nvcc -std=c++20 -arch="sm_${ARCH%% *}" -o "$work/preflight" "$work/preflight.cu" \
        -ldl >"$log" 2>&1; then
        lacks "a working nvcc" "tried: 20 lines compiled for sm_${ARCH%% *}:" "$(tail -5 "$log")"
    elif ! limited "$(limit 30)" "$work/preflight" >"$log" 2>&1; then
        status=5
        lacks "a working device" "tried: to run 20 lines there:" \
            "$(tail -3 "$log") (driver $driver; is it older than nvcc?)"
    else
        found kernels "$(tail -1 "$log")"
    fi
}

preflight() {
    local include=() lib=() own=() p multiarch status=2
    multiarch=$(uname -m)-linux-gnu
    printf 'preflight: what the build needs\n'
    find_device || status=5
    mapfile -t python < <(python_folders)
    cuda=
    find_nvcc
    for p in ${CPATH:+$(tr : ' ' <<<"$CPATH")} "$PWD/carry/include"; do include+=("$p") own+=("$p"); done
    own+=("$root/usr/include" "$root/usr/local/include")
    [ -n "$cuda" ] && include+=("$cuda/include") lib+=("$cuda/lib64" "$cuda/lib")
    for p in "$root"/usr/local/cuda "$root"/usr/local/cuda-* "$root"/opt/cuda; do
        [ -d "$p" ] && include+=("$p/include") lib+=("$p/lib64")
    done
    include+=("$root/usr/include" "$root/usr/include/$multiarch")
    for p in ${LIBRARY_PATH:+$(tr : ' ' <<<"$LIBRARY_PATH")} ${LD_LIBRARY_PATH:+$(tr : ' ' <<<"$LD_LIBRARY_PATH")} \
        "$PWD/carry/lib"; do lib+=("$p"); done
    lib+=("$root/usr/lib/$multiarch" "$root/usr/lib64" "$root/usr/lib" "$root/lib/$multiarch")
    for p in "${python[@]}"; do include+=("$p/include") lib+=("$p/lib"); done

    header cuda_runtime.h "install the CUDA toolkit" "${include[@]}"
    header cublasLt.h "install libcublas-dev, or pip install nvidia-cublas" "${include[@]}"
    library cublasLt "install libcublas-dev, or pip install nvidia-cublas" "${lib[@]}"
    header nccl.h "install libnccl-dev, or pip install nvidia-nccl-cu13 (cu12 for CUDA 12)" "${include[@]}"
    for p in CLI/CLI.hpp doctest/doctest.h nlohmann/json.hpp pcre2.h utf8proc.h zlib.h zconf.h zstd.h \
             zstd_errors.h; do
        header "$p" "carry it along: the head of dev/gpu.sh says how" "${own[@]}"
    done
    for p in pcre2-8 utf8proc z zstd; do    # the Makefile's LIBS
        library "$p" "carry it along: the head of dev/gpu.sh says how" "${lib[@]}"
    done
    for p in make "${CXX:-g++}" awk tar timeout; do
        at=$(command -v "$p")
        if [ -n "$at" ]; then found "$p" "$at"; else lacks "$p" "looked in: $PATH" "install it"; fi
    done
    # What may be missing, and what is lost then.
    if look 'libnccl.so.2*' "${lib[@]}"; then
        found libnccl "$path_found"
        prepend LD_LIBRARY_PATH "$at"
    else
        printf '  without  %-20s the parts nccl and ranks will fail\n' libnccl
    fi
    sanitizer=$(command -v compute-sanitizer)
    if [ -z "$sanitizer" ] && [ -n "$cuda" ]; then
        look compute-sanitizer "$cuda/bin" "$cuda/compute-sanitizer" && sanitizer=$path_found
    fi
    if [ -n "$sanitizer" ]; then found compute-sanitizer "$sanitizer"
    else printf '  without  %-20s failed tests are not looked into\n' compute-sanitizer; fi
    p=$(df -Pk "$work" | awk 'NR == 2 { print int($4 / 1048576) }')
    [ "${p:-99}" -ge 8 ] ||
        printf '  without  %-20s %s has %s GiB: set TMPDIR; runs there may fail\n' "8 GiB for runs" "$work" "$p"
    if [ $missing = 0 ]; then
        choose_arch
        export NO_DEPS=1    # make would ask the network for packages
        try_device
    fi
    [ $missing = 0 ] || { echo "dev/gpu.sh: nothing was run: see MISSING above" >&2; exit $status; }
}
