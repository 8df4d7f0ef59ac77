#!/bin/bash
# Everything that only a GPU can tell, in one run: build, tests on the device, compute-sanitizer, ladders, benches, 50
# training steps of GPT-2 124M, generation, PyTorch beside them. Output under $OUT (default dev/results/NAME), a summary
# last. Goes on after a failed part. Fits one call of ten minutes: GPU_PARTS="build tests" runs some parts alone.
# What the machine lacks may lie in carry/ (git ignores it), made where the packages are:
#   mkdir -p carry/include carry/lib && cp -r /usr/include/{CLI,doctest,nlohmann,pcre2.h} carry/include &&
#   cp /usr/lib/x86_64-linux-gnu/libpcre2-8.so* carry/lib
# CUDA_ARCH defaults to the device's.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
device=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1)
[ -n "$device" ] || { echo "dev/gpu.sh: no GPU here (nvidia-smi lists none)" >&2; exit 5; }
commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
out=${OUT:-dev/results/$(date +%F)_$(tr -cs 'A-Za-z0-9\n' - <<<"$device")_$commit}
mkdir -p "$out"
parts=${GPU_PARTS:-build tests bench train sample torch ladders sanitizer}
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
[ "$capability" = 90 ] && capability=90a
export ARCH=${CUDA_ARCH:-$capability}
if [ -d carry ]; then
    export CPATH=$PWD/carry/include${CPATH:+:$CPATH} LIBRARY_PATH=$PWD/carry/lib${LIBRARY_PATH:+:$LIBRARY_PATH}
    export LD_LIBRARY_PATH=$PWD/carry/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
summary=()

part() {    # NAME SECONDS COMMAND...: output to $out/NAME.txt, its end to the terminal
    local name=$1 limit=$2 status=0 start=$SECONDS
    shift 2
    case " $parts " in *" ${name%%-*} "*) ;; *) return ;; esac
    printf '\n==== %s: %s\n' "$name" "$*"
    timeout "$limit" "$@" >"$out/$name.txt" 2>&1 || status=$?
    tail -n "${TAIL:-25}" "$out/$name.txt"
    summary+=("$(printf '%-20s exit %3d  %4d s' "$name" $status $((SECONDS - start)))")
}
{
    date -u +%FT%TZ
    echo "$device, $commit, ARCH=$ARCH"
    nvidia-smi
    nvcc --version | tail -2
} >"$out/machine.txt"

part build 300 make flatgpt build/test_cuda ladders
part tests 240 build/test_cuda
part tests-selftest 120 ./flatgpt selftest --device cuda
part bench 240 ./flatgpt bench --device cuda --batch 32 --seq-len 1024
part bench-json 240 ./flatgpt bench --device cuda --batch 32 --seq-len 1024 --json

# 50 steps of GPT-2 124M on random tokens: speed does not depend on what they say.
data=$(mktemp -d)
trap 'rm -rf "$data"' EXIT
python3 - "$data/train.bin" <<'PY'
import random, struct, sys
n = 4_000_000
random.seed(1)
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<256i", 20240520, 1, n, *[0] * 253))
    f.write(struct.pack("<%dH" % n, *(int(50257 * random.random() ** 3) for _ in range(n))))
PY
part train 200 ./flatgpt train --data "$data/train.bin" --model gpt2 --out "$data/run" --batch 32 --seq-len 1024 \
    --steps 50 --lr 6e-4 --device cuda --dtype bf16
part train-dry-run 60 ./flatgpt train --data "$data/train.bin" --model gpt2 --batch 32 --seq-len 1024 --steps 50 \
    --device cuda --dry-run
[ -e "$data/run/metrics.jsonl" ] && cp "$data/run/metrics.jsonl" "$out/train-metrics.jsonl"
for num in 1 64; do
    part sample-$num 120 ./flatgpt sample "$data/run" --tokens 512 --num $num --ignore-end --device cuda --json
done
part torch 300 python3 dev/compare_torch.py
for ladder in build/ladder_*; do
    [ -x "$ladder" ] && part "ladders-${ladder##*ladder_}" 60 "$ladder"
done
part sanitizer-memcheck 280 compute-sanitizer --tool memcheck --error-exitcode 9 build/test_cuda -tc='*attention*,*layernorm*,*linear*'
part sanitizer-racecheck 280 compute-sanitizer --tool racecheck --error-exitcode 9 build/test_cuda -tc='*attention*,*layernorm*,*entropy*,*embedding*'

printf '\n%s, %s -> %s\n' "$device" "$commit" "$out"
printf '%s\n' "${summary[@]}" | tee "$out/summary.txt"
! grep -qv 'exit   0' "$out/summary.txt"
