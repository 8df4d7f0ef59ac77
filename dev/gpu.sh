#!/bin/bash
# Runs everything that only a GPU can show, most important first: whether the machine has what the build needs
# (seconds), tests on the device in groups, ten training steps; then benches, 50 steps of GPT-2 124M, generation,
# PyTorch for comparison, the ladders, compute-sanitizer. Goes on after a failed part. After every part $OUT (default
# dev/results/DATE_DEVICE_COMMIT) has summary.txt, parts/*.txt and results.tar.gz, so a session may be cut off.
#   dev/gpu.sh              all parts; GPU_PARTS names some of them
#   dev/gpu.sh preflight    only whether everything is there
#   dev/gpu.sh groups       the groups of tests and their filters
# Where a call lasts ten minutes at most, take four: GPU_PARTS="build tests first", GPU_PARTS="build bench train ranks
# sample", GPU_PARTS="build torch variants ladders", GPU_PARTS="build sanitizer".
# What the machine lacks may lie in carry/ (git ignores it; name it to the tool that copies the tree), made where the
# packages are:
#   mkdir -p carry/include carry/lib &&
#   cp -r /usr/include/{CLI,doctest,nlohmann,pcre2.h,utf8proc.h,zlib.h,zconf.h,zstd.h,zstd_errors.h} carry/include &&
#   cp /usr/lib/$(uname -m)-linux-gnu/lib{pcre2-8,utf8proc,z,zstd}.so* carry/lib
# CUDA_ARCH defaults to the device's. GPU_SECONDS cuts every limit, GPU_GRACE are the seconds from SIGTERM to SIGKILL.
# Exit: 0 all passed, 1 a part failed, 2 something is missing, 5 no GPU that can be used.
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1
root=${GPU_ROOT:-}    # tests: a tree that stands for /
grace=${GPU_GRACE:-10}
parts=${GPU_PARTS:-build tests first bench train ranks sample torch variants ladders sanitizer}

# NAME SECONDS FILTER: a process each, since a kernel that fails takes its process with it. The last group is what no
# other has.
groups=(
    "ptx              30 ptx*"
    "hopper-tensor    30 hopper: tensor*"
    "hopper-products  60 hopper: products*"
    "hopper-bulk      60 hopper: bulk*"
    "attention-sm90   60 attention sm90*"
    "attention        60 attention:*,attention cached*,cuda attention*"
    "linear           60 linear*,cuda linear*"
    "nccl             60 nccl*"
    "rest             60"
)
group() {    # ROW: sets name, seconds, filter
    read -r name seconds filter <<<"$1"
    [ -z "$filter" ] || { filter="-tc=$filter"; return; }
    local row others=
    for row in "${groups[@]}"; do
        read -r _ _ row <<<"$row"
        others+=${row:+${others:+,}$row}
    done
    filter="-tce=$others"
}
if [ "${1:-}" = groups ]; then
    for row in "${groups[@]}"; do
        group "$row"
        printf '%s\t%s\t%s\n' "$name" "$seconds" "$filter"
    done
    exit 0
fi

limit() { echo $((${GPU_SECONDS:-$1} < $1 ? ${GPU_SECONDS:-$1} : $1)); }
# flatgpt takes the first SIGTERM as a wish for a checkpoint, and a hung kernel does not see it at all: SIGKILL follows,
# to all processes of the part.
limited() { timeout -k "$grace" "$@"; }
smi() { timeout -k 1 "$(limit 10)" nvidia-smi "$@"; }

# shellcheck source=dev/gpu_preflight.sh
. dev/gpu_preflight.sh

# ---- parts ---------------------------------------------------------------------------------------------------------

# Clocks, power and why the device is slower than it could be. Drivers before 535 call the reasons otherwise.
choose_query() {
    local reasons fields=clocks.sm,clocks.mem,power.draw,temperature.gpu
    query=$fields
    for reasons in clocks_event_reasons.active clocks_throttle_reasons.active; do
        smi --query-gpu="$reasons" --format=csv,noheader >/dev/null 2>&1 && { query=$fields,$reasons; break; }
    done
}
state() { smi --query-gpu="$query" --format=csv,noheader 2>&1 | head -1; }
# Of the samples of a part: the clock's range while power was drawn, most watts and degrees, the reasons seen.
samples() {
    awk -F', *' -v names="gpu_idle applications_clocks sw_power_cap hw_slowdown sync_boost sw_thermal hw_thermal \
hw_power_brake display_clocks" '
        function hex(text,    i, n) {
            for (i = 3; i <= length(text); i++) n = n * 16 + index("0123456789abcdef", tolower(substr(text, i, 1))) - 1
            return n
        }
        $1 + 0 > 0 {
            n++
            if (n == 1 || $1 + 0 < low) low = $1 + 0
            if ($1 + 0 > high) high = $1 + 0
            if ($3 + 0 > watts) watts = $3 + 0
            if ($4 + 0 > degrees) degrees = $4 + 0
            bits = hex($5)
            for (i = 0; i < 9; i++) { if (bits % 2) seen[i] = 1; bits = int(bits / 2) }
        }
        END {
            if (!n) { print "no clocks seen"; exit }
            text = ""
            split(names, name, " ")
            for (i = 1; i < 9; i++) if (seen[i]) text = text (text ? "+" : "") name[i + 1]
            printf "SM %d to %d MHz, %d W, %d C, slowed by %s\n", low, high, watts, degrees, text ? text : "nothing"
        }' "$1"
}

row() {    # NAME STATUS SECONDS TEXT
    local why=
    case $2 in 124) why=", over its limit" ;; 137) why=", over its limit and killed" ;; esac
    [ "$2" = 0 ] || failed=1
    printf '%-28s exit %3d  %4d s  %s%s\n' "$1" "$2" "$3" "$4" "$why" >>"$final/summary.txt"
}
# All of it so far in one file, which is always whole.
archive() {
    tar -C "$final" -czf "$final/.results.tmp" summary.txt parts 2>/dev/null &&
        mv -f "$final/.results.tmp" "$final/results.tar.gz"
}

child='' watcher='' failed=0
end_group() { kill -KILL -- "-$1" 2>/dev/null || kill -KILL "$1" 2>/dev/null; }    # a timeout and what it started
part() {    # NAME SECONDS COMMAND...: output to parts/NAME.txt, its end to the terminal
    local name=$1 seconds during status=0 start=$SECONDS file=$final/parts/$1.txt
    case " $parts " in *" ${name%%-*} "*) ;; *) return 0 ;; esac
    seconds=$(limit "$2")
    shift 2
    printf '\n==== %s, at most %d s: %s\n' "$name" "$seconds" "$*"
    printf '%s\n%s\nbefore: %s\n\n' "$*" "$query" "$(state)" >"$file"
    timeout -k 1 $((seconds + grace + 30)) nvidia-smi --query-gpu="$query" --format=csv,noheader,nounits -lms 500 \
        >"$work/samples" 2>/dev/null &
    watcher=$!
    disown $watcher
    # In the background, so that a signal to this script need not wait for it.
    timeout -k "$grace" "$seconds" "$@" >>"$file" 2>&1 &
    child=$!    # leads its own process group
    wait $child 2>/dev/null || status=$?
    child=
    end_group "$watcher"
    during=$(samples "$work/samples")
    printf '\nduring: %s\nafter:  %s\nexit %d\n' "$during" "$(state)" $status >>"$file"
    tail -n "${TAIL:-25}" "$file"
    row "$name" $status $((SECONDS - start)) "$during"
    archive
    return $status
}

# shellcheck disable=SC2317    # a trap calls it
stop() {    # STATUS: this script is told to end
    [ -z "$child" ] || end_group "$child"
    [ -z "$watcher" ] || end_group "$watcher"
    row "cut off here" "$1" "$SECONDS" ""
    archive
    exit "$1"
}

# ---- what is run ---------------------------------------------------------------------------------------------------

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
preflight
[ "${1:-}" = preflight ] && exit 0

commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
final=${OUT:-dev/results/$(date +%F)_$(tr -cs 'A-Za-z0-9\n' - <<<"$device")_$commit}
mkdir -p "$final/parts" || exit 4
final=$(cd "$final" && pwd)
trap 'stop 130' INT
trap 'stop 143' TERM HUP
choose_query
echo "$device, $commit, ARCH=$ARCH, $(date -u +%FT%TZ), GPU_PARTS=$parts" >>"$final/summary.txt"
{
    smi
    limited 20 nvcc --version | tail -2
} >"$final/parts/machine.txt" 2>&1
archive

part build-tests 400 make build/test_cuda
attention=()    # what the parts that train ask for: the older kernels where the newest fail
for row in "${groups[@]}"; do
    group "$row"
    part "tests-$name" "$seconds" build/test_cuda "$filter"
    status=$?
    [ $status = 0 ] && continue
    [ "$name" != attention-sm90 ] || attention=(env FLATGPT_ATTENTION=sm80)
    # A hang is a barrier that somebody does not come to, all else is looked for in memory first.
    tool=memcheck
    case $status in 124 | 137) tool=synccheck ;; esac
    [ -z "$sanitizer" ] ||
        part "tests-$name-$tool" 120 "$sanitizer" --error-exitcode 9 --tool $tool build/test_cuda "$filter"
done
[ ${#attention[@]} = 0 ] || row "from here on" 0 0 "${attention[*]}: tests-attention-sm90 failed"
part build-flatgpt 300 make flatgpt

data=$work/data
mkdir -p "$data"
# 50 steps of random tokens, rare ones less often: speed does not depend on what they say. A header of 256 words (the
# magic number 20240520, version 1, 1,800,000 tokens), then 16 bits each.
tokens() {
    [ -e "$data/train.bin" ] && return
    {
        printf '\x88\xd8\x34\x01\x01\0\0\0\x40\x77\x1b\0'
        head -c 1012 /dev/zero
        LC_ALL=C awk 'BEGIN {
            srand(1)
            for (i = 0; i < 1800000; i++) { t = int(50257 * rand() ^ 3); printf "%c%c", t % 256, int(t / 256) }
        }' </dev/null
    } >"$data/train.bin"
}
train() {    # PART SECONDS RUN FLAG...; the run's checkpoints take gigabytes: only `run` stays, to be sampled from
    local name=$1 seconds=$2 run=$3
    case " $parts " in *" ${name%%-*} "*) ;; *) return 0 ;; esac
    shift 3
    tokens
    part "$name" "$seconds" "${launcher[@]}" "${attention[@]}" ./flatgpt train --data "$data/train.bin" --model gpt2 \
        --seq-len 1024 --lr 6e-4 --device cuda --out "$data/$run" "$@"
    [ -e "$data/$run/metrics.jsonl" ] && cp "$data/$run/metrics.jsonl" "$final/parts/$name-metrics.jsonl"
    [ "$run" = run ] || rm -rf "${data:?}/$run"
}
launcher=()

part first-selftest 60 ./flatgpt selftest --device cuda
part first-attention 60 "${attention[@]}" ./flatgpt bench --device cuda --filter attention --batch 32 --seq-len 1024
train first-steps 90 first --batch 32 --steps 10

part bench 200 "${attention[@]}" ./flatgpt bench --device cuda --batch 32 --seq-len 1024
part bench-expected 240 make gpu-time ARGS="--measured $final/parts/bench.txt"
train train 200 run --batch 32 --steps 50
train train-dry-run 60 dry --batch 32 --steps 50 --dry-run
# NCCL at the world's size of 1, which is what one GPU can do.
launcher=(env RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29531)
for zero in 0 1 2; do
    train ranks-zero-$zero 60 ranks --batch 32 --steps 20 --zero $zero
done
train ranks-wire 60 ranks --batch 32 --steps 20 --zero 1 --reduce-dtype bf16
launcher=()
[ -d "$data/run" ] || train sample-weights 60 run --batch 32 --steps 2
for num in 1 64; do
    part sample-$num 120 ./flatgpt sample "$data/run" --tokens 512 --num $num --ignore-end --device cuda --json
done
rm -rf "${data:?}/run"
part torch 300 python3 dev/compare_torch.py
for recompute in cheap blocks; do
    train variants-recompute-$recompute 60 variant --batch 32 --steps 10 --recompute $recompute
done
train variants-batch-auto 90 variant --batch auto --steps 5
part variants-sm80 90 env FLATGPT_ATTENTION=sm80 ./flatgpt bench --device cuda --filter attention
part variants-any-order 90 env FLATGPT_ATTENTION_ORDER=any ./flatgpt bench --device cuda --filter attention
part ladders-build 200 make ladders
for ladder in build/ladder_*; do
    [ -x "$ladder" ] && part "ladders-${ladder##*ladder_}" 60 "$ladder"
done
if [ -n "$sanitizer" ]; then
    for tool in memcheck racecheck; do
        check=("$sanitizer" --error-exitcode 9 --tool "$tool" build/test_cuda)
        part sanitizer-$tool-kernels 250 "${check[@]}" -tce='*attention*,model*,nccl*,ptx*'
        part sanitizer-$tool-attention 250 "${check[@]}" -tc='*attention*'
    done
fi

printf '\n%s, %s -> %s\n' "$device" "$commit" "$final"
cat "$final/summary.txt"
exit $failed
