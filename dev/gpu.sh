#!/bin/bash
# Everything that only a GPU can tell: build, tests on the device, benches, 50 training steps of GPT-2 124M, generation,
# PyTorch beside them, the ladders, compute-sanitizer. Goes on after a failed part; all output ends in one archive and a
# summary under $OUT (default dev/results/DATE_DEVICE_COMMIT), even when cut off. Where a call lasts ten minutes at
# most, take three: GPU_PARTS="build tests bench train ranks", GPU_PARTS="build sample torch variants ladders",
# GPU_PARTS="build sanitizer".
# What the machine lacks may lie in carry/ (git ignores it; name it to the tool that copies the tree), made where the
# packages are:
#   mkdir -p carry/include carry/lib && cp -r /usr/include/{CLI,doctest,nlohmann,pcre2.h} carry/include &&
#   cp /usr/lib/x86_64-linux-gnu/libpcre2-8.so* carry/lib
# CUDA_ARCH defaults to the device's.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
export PATH=/usr/local/cuda/bin:$PATH
device=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1)
[ -n "$device" ] || { echo "dev/gpu.sh: no GPU here (nvidia-smi lists none)" >&2; exit 5; }
commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
final=${OUT:-dev/results/$(date +%F)_$(tr -cs 'A-Za-z0-9\n' - <<<"$device")_$commit}
out=$(mktemp -d)/results data=$(mktemp -d)
mkdir -p "$out" "$final"
parts=${GPU_PARTS:-build tests bench train ranks sample torch variants ladders sanitizer}
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
[ "$capability" = 90 ] && capability=90a
export ARCH=${CUDA_ARCH:-$capability}
if [ -d carry ]; then
    export CPATH=$PWD/carry/include${CPATH:+:$CPATH} LIBRARY_PATH=$PWD/carry/lib${LIBRARY_PATH:+:$LIBRARY_PATH}
    export LD_LIBRARY_PATH=$PWD/carry/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} NO_DEPS=1
fi
finish() {
    cp "$out/summary.txt" "$final/" 2>/dev/null
    tar -C "$(dirname "$out")" -czf "$final/results.tar.gz" results
    rm -rf "$data"
}
trap finish EXIT
trap 'exit 130' INT TERM

part() {    # NAME SECONDS COMMAND...: output to $out/NAME.txt, its end to the terminal
    local name=$1 limit=$2 status=0 start=$SECONDS
    shift 2
    case " $parts " in *" ${name%%-*} "*) ;; *) return ;; esac
    printf '\n==== %s: %s\n' "$name" "$*"
    timeout "$limit" "$@" >"$out/$name.txt" 2>&1 || status=$?
    tail -n "${TAIL:-25}" "$out/$name.txt"
    printf '%-28s exit %3d  %4d s\n' "$name" $status $((SECONDS - start)) >>"$out/summary.txt"
}
{
    date -u +%FT%TZ
    echo "$device, $commit, ARCH=$ARCH"
    nvidia-smi
    nvcc --version | tail -2
} >"$out/machine.txt"

part build 400 make flatgpt build/test_cuda ladders
part tests 240 build/test_cuda
part tests-selftest 120 ./flatgpt selftest --device cuda
part bench 200 ./flatgpt bench --device cuda --batch 32 --seq-len 1024

# Random tokens: speed does not depend on what they say.
python3 - "$data/train.bin" <<'PY'
import random, struct, sys
n = 4_000_000
random.seed(1)
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<256i", 20240520, 1, n, *[0] * 253))
    f.write(struct.pack("<%dH" % n, *(int(50257 * random.random() ** 3) for _ in range(n))))
PY
train=(./flatgpt train --data "$data/train.bin" --model gpt2 --seq-len 1024 --lr 6e-4 --device cuda)
part train 200 "${train[@]}" --out "$data/run" --batch 32 --steps 50
part train-dry-run 60 "${train[@]}" --batch 32 --steps 50 --dry-run
[ -e "$data/run/metrics.jsonl" ] && cp "$data/run/metrics.jsonl" "$out/train-metrics.jsonl"
[ -d "$data/run" ] || [[ " $parts " != *" sample "* ]] ||
    "${train[@]}" --out "$data/run" --batch 32 --steps 2 2>&1 | tail -1
# NCCL at the world's size of 1, which is what one GPU can do.
for zero in 0 1 2; do
    part ranks-zero-$zero 60 env RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29531 \
        "${train[@]}" --out "$data/ranks$zero" --batch 32 --steps 20 --zero $zero
done
part ranks-wire 60 env RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29531 \
    "${train[@]}" --out "$data/wire" --batch 32 --steps 20 --zero 1 --reduce-dtype bf16
for num in 1 64; do
    part sample-$num 120 ./flatgpt sample "$data/run" --tokens 512 --num $num --ignore-end --device cuda --json
done
part torch 300 python3 dev/compare_torch.py
for recompute in cheap blocks; do
    part variants-recompute-$recompute 60 "${train[@]}" --out "$data/$recompute" --batch 32 --steps 10 \
        --recompute $recompute
done
part variants-batch-auto 90 "${train[@]}" --out "$data/auto" --batch auto --steps 5
part variants-sm80 90 env FLATGPT_ATTENTION=sm80 ./flatgpt bench --device cuda --filter attention
part variants-any-order 90 env FLATGPT_ATTENTION_ORDER=any ./flatgpt bench --device cuda --filter attention
for ladder in build/ladder_*; do
    [ -x "$ladder" ] && part "ladders-${ladder##*ladder_}" 60 "$ladder"
done
check="compute-sanitizer --error-exitcode 9 --tool"
for tool in memcheck racecheck; do
    part sanitizer-$tool-kernels 250 $check $tool build/test_cuda -tc='cuda*,hopper*' -tce='cuda attention*'
    part sanitizer-$tool-attention 250 $check $tool build/test_cuda -tc='*attention*'
done

printf '\n%s, %s -> %s\n' "$device" "$commit" "$final"
cat "$out/summary.txt"
! grep -qv 'exit   0' "$out/summary.txt"
