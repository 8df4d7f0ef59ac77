#!/bin/bash
# Prints the tables of dev/scale.md, as `flatgpt train --dry-run` forecasts them: H100s of 80 GB, eight per machine, 400
# Gb/s each, 445 TFLOP/s achieved. Without a GPU: FLATGPT=build/emu/flatgpt (make build/emu/flatgpt), whose GPU is
# emulated; it only plans.
# Usage: scale.sh [TOKENS...]   tokens of a step (4194304 524288)
set -euo pipefail
cd "$(dirname "$0")/.."
FLATGPT=${FLATGPT:-./flatgpt}
export EMU_MEMORY_MB=80000 EMU_CC=90
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
seq 20000 >"$dir/text"
"$FLATGPT" tokenize --tokenizer gpt2 --out "$dir/toy" "$dir/text" >"$dir/log" 2>&1

# name, layers, heads, channels, largest --batch, --recompute: as much as 80 GB hold, with a little to spare
models=("124M 12 12 768 32 none" "350M 24 16 1024 32 cheap" "774M 36 20 1280 16 cheap" "1.5B 48 25 1600 8 cheap"
        "7B 32 32 4096 4 blocks" "13B 40 40 5120 1 blocks" "70B 86 64 8192 1 blocks")

dry() {
    "$FLATGPT" train --dry-run --device cuda --dtype bf16 --data "$dir/toy_train_*.bin" --seq-len 1024 --tflops 445 "$@"
}
shape() { echo "--layers $1 --heads $2 --channels $3"; }
# The value of a row: what $2 captures in $1
get() { sed -nE "s|.*$2.*|\1|p" <<<"$1" | head -1; }
gib() { awk '/^  total /{gsub(/[(]/, ""); printf "%.1f", $4 / 2^30}' <<<"$1"; }

memory() {
    printf '\nGiB of a rank, --batch 1, --recompute blocks\n\n'
    printf '| model | weights alone | ranks | --zero 0 | --zero 1 | --zero 2 |\n|---|---|---|---|---|---|\n'
    local m name L NH C B recompute ranks zero out row
    for m in "${models[@]}"; do
        read -r name L NH C B recompute <<<"$m"
        for ranks in 8 64 512 4096; do
            row=
            for zero in 0 1 2; do
                out=$(dry $(shape $L $NH $C) --batch 1 --recompute blocks --ranks $ranks --zero $zero)
                row+=" $(gib "$out") |"
            done
            printf '| %s | %s | %s |%s\n' "$name" "$(get "$out" '^  parameters +([0-9.]+ [A-Z]iB)')" "$ranks" "$row"
        done
    done
}

# The first --zero that fits, and the batch cut down to what a rank gets of the step's tokens.
steps() {
    local tokens=$1 m name L NH C B recompute ranks zero out share wire
    printf '\n%s tokens a step\n\n' "$tokens"
    printf '| model | ranks | batch x times | zero | GiB | sent | sending | work | efficiency | bf16 sums |\n'
    printf '|---|---|---|---|---|---|---|---|---|---|\n'
    for m in "${models[@]}"; do
        read -r name L NH C B recompute <<<"$m"
        for ranks in 8 64 512 4096; do
            share=$((tokens / 1024 / ranks))
            [ $share -gt 0 ] || continue
            [ $B -lt $share ] || B=$share
            for zero in 0 1 2; do
                options="$(shape $L $NH $C) --batch $B --recompute $recompute --total-batch $tokens --ranks $ranks"
                out=$(dry $options --zero $zero)
                grep -q "more than this GPU's" <<<"$out" || break
            done
            if grep -q "more than this GPU's" <<<"$out"; then
                printf '| %s | %s | | | %s | does not fit | | | | |\n' "$name" "$ranks" "$(gib "$out")"
                continue
            fi
            wire=$(dry $options --zero $zero --reduce-dtype bf16)
            printf '| %s | %s | %s x %s | %s | %s | %s | %s | %s | %s %% | %s %% |\n' "$name" "$ranks" "$B" \
                $((share / B)) "$zero" "$(gib "$out")" "$(get "$out" 'each rank sends ([0-9.]+ [kMGT]B)')" \
                "$(get "$out" '^to hide +([0-9.]+ m?s)')" "$(get "$out" 'behind ([0-9.]+ m?s)')" \
                "$(get "$out" '^efficiency +([0-9.]+)')" "$(get "$wire" '^efficiency +([0-9.]+)')"
        done
    done
}

memory
for tokens in ${*:-4194304 524288}; do steps "$tokens"; done
