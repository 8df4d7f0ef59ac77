#!/bin/bash
# At home: what dev/gpu_call.py runs on the GPU's machine, built for one kind of GPU, as
# carry/gpu.tar.xz (git ignores carry/).
# Usage: dev/gpu_pack.sh [90a] [TEXT...]     texts to train on; none: this project's sources
# VARIANTS="NAME=TREE ...": build/flatgpt of other trees, which gpu_call.py measures beside this.
# LOSSES: the options of the steps that a GPU's losses are held to.
set -eu -o pipefail
cd "$(dirname "$0")/.."
arch=${1:-90a} to=carry/gpu
[ $# = 0 ] || shift
[ $# != 0 ] || set -- README.md dev/*.md layers/*.c* layers/*/*.c* test/*.cpp
mkdir -p carry
# shellcheck disable=SC2086    # LADDERS may be empty, or several words
${MAKE:-make} ARCH="$arch" build/flatgpt build/test_cuda ${LADDERS-ladders} >carry/log 2>&1 || {
    tail -20 carry/log
    exit 1
}
rm -rf "$to" "$to.tar.xz" && mkdir -p "$to/lib"
for f in build/flatgpt build/test_cuda build/ladder_*; do
    [ ! -x "$f" ] || strip -o "$to/${f##*/}" "$f"    # kernels keep their lines
done
for variant in ${VARIANTS:-}; do
    strip -o "$to/variant_${variant%%=*}" "${variant#*=}/build/flatgpt"
done
# gpu_call.py takes of these what that machine lacks. libc must be that machine's own.
ldd "$to/flatgpt" "$to/test_cuda" | awk '/=> \// { print $3 }' | sort -u | while read -r lib; do
    case ${lib##*/} in
        libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.*) ;;
        *) cp -L "$lib" "$to/lib/" ;;
    esac
done
git describe --always --dirty >"$to/commit" 2>/dev/null || echo unknown >"$to/commit"
"$to/flatgpt" tokenize --tokenizer gpt2 --out "$to/t" --overwrite "$@" >/dev/null 2>&1
mv "$to"/t_train_000.bin "$to/train.bin" && rm -f "$to"/t_*
# Steps of GPT-2 on the CPU in fp32: what a GPU's losses are held to.
echo "${LOSSES:---model gpt2 --batch 4 --seq-len 256 --steps 6 --lr 1e-4 --seed 1}" >"$to/losses.flags"
run=$(mktemp -d)
read -ra flags <"$to/losses.flags"
"$to/flatgpt" train --data "$to/train.bin" --device cpu --dtype fp32 --out "$run/run" "${flags[@]}" \
    >"$to/losses.log" 2>&1
sed 's/.*"loss":\([0-9.]*\).*/\1/' "$run/run/metrics.jsonl" >"$to/losses.txt"
rm -rf "$run"
# The binaries hold the same kernels: with a dictionary larger than one of them, each but the first
# takes little.
tar -C carry -cf - gpu | xz -T1 --lzma2=preset=1,dict=192MiB >"$to.tar.xz"
du -shc "$to" "$to.tar.xz" | head -2
