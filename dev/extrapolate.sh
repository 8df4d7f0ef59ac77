#!/bin/bash
# Beyond the context: a small model for each kind of position, trained with sequences of T tokens
# and measured with 1, 2 and 4 T. Prints a table and a plot of the losses.
# Usage: extrapolate.sh [TEXT...]    default: the novels that `make demo` fetches
# Takes a few minutes on 2 idle cores. T, STEPS, TOKENS (evaluated), OUT and FLATGPT may be set.
set -euo pipefail
cd "$(dirname "$0")/.."
T=${T:-64} STEPS=${STEPS:-600} OUT=${OUT:-build/extrapolate} TOKENS=${TOKENS:-65536} FLATGPT=${FLATGPT:-./flatgpt}
[ $# != 0 ] || set -- build/austen/austen.jsonl
for text in "$@"; do
    [ -e "$text" ] || { echo "extrapolate: $text is not there; make demo fetches the novels"; exit 1; }
done
mkdir -p "$OUT"
[ -e "$OUT/tok.json" ] || "$FLATGPT" train-tokenizer --vocab 1024 --out "$OUT/tok.json" "$@"
"$FLATGPT" tokenize --tokenizer "$OUT/tok.json" --val-fraction 0.1 --out "$OUT/tokens" --overwrite "$@"

# Trains kind $1, if that is not done yet.
train() {
    [ -e "$OUT/$1/done" ] && return
    rm -rf "${OUT:?}/$1"
    "$FLATGPT" train --data "$OUT/tokens_train_*.bin" --tokenizer "$OUT/tok.json" --layers 4 --heads 4 --channels 128 \
        --position "$1" --seq-len "$T" --batch 16 --lr 2e-3 --steps "$STEPS" --out "$OUT/$1" 2>"$OUT/log" ||
        { cat "$OUT/log"; exit 1; }
    touch "$OUT/$1/done"
}
# The row of run $2, called $1, evaluated with the further options.
row() {
    local name=$1 run=$2 length loss
    shift 2
    rm -rf "$OUT/curves/$name"
    mkdir -p "$OUT/curves/$name"
    printf '%-14s' "$name"
    for length in "$T" $((2 * T)) $((4 * T)); do
        if loss=$("$FLATGPT" eval "$OUT/$run" --data "$OUT/tokens_val_*.bin" --seq-len "$length" --context "$length" \
            --eval-tokens "$TOKENS" --json "$@" 2>"$OUT/log"); then
            loss=$(sed 's/.*"loss":\([^,]*\).*/\1/' <<<"$loss")
            printf ' %8.3f' "$loss"
            echo "{\"step\":$length,\"val_loss\":$loss}" >>"$OUT/curves/$name/metrics.jsonl"
        elif grep -q 'position learned' "$OUT/log"; then
            printf ' %8s' -    # a table of T positions
        else
            cat "$OUT/log"
            exit 1
        fi
    done
    echo
}

for kind in learned none sinusoidal t5 alibi rope; do train $kind; done
printf '\nLoss by length of the sequences; trained with %d tokens, %d steps. -: no such positions.\n' "$T" "$STEPS"
printf '%-14s %8d %8d %8d\n' '' "$T" $((2 * T)) $((4 * T))
for kind in learned none sinusoidal t5 alibi rope; do row $kind $kind; done
for scaling in linear ntk dynamic yarn; do row rope+$scaling rope --rope-scaling $scaling; done
echo
cd "$OUT/curves"
"$(cd - >/dev/null && realpath "$FLATGPT")" plot --log-x --height 24 none sinusoidal t5 alibi rope rope+ntk rope+yarn
