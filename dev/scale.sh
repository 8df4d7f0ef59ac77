#!/bin/bash
# Prints the table of dev/scale.md, as `flatgpt train --dry-run` computes it for H100s of 80 GB: GiB
# of a rank.
set -euo pipefail
cd "$(dirname "$0")/.."
FLATGPT=${FLATGPT:-./flatgpt}

# name, layers, heads, channels
models=("124M 12 12 768" "350M 24 16 1024" "774M 36 20 1280" "1.5B 48 25 1600" "7B 32 32 4096" "13B 40 40 5120"
        "70B 86 64 8192")

printf '| model | weights alone | ranks | --zero 0 | --zero 1 | --zero 2 |\n|---|---|---|---|---|---|\n'
for m in "${models[@]}"; do
    read -r name L NH C <<<"$m"
    for ranks in 8 512; do
        row=
        for zero in 0 1 2; do
            out=$("$FLATGPT" train --dry-run --gpu h100 --dtype bf16 --seq-len 1024 --tflops 445 --batch 1 \
                --recompute blocks --layers "$L" --heads "$NH" --channels "$C" --ranks "$ranks" --zero "$zero")
            row+=" $(awk '/^  total /{gsub(/[(]/, ""); printf "%.1f", $4 / 2^30}' <<<"$out") |"
        done
        weights=$(sed -nE 's|^  parameters +([0-9.]+ [A-Z]iB).*|\1|p' <<<"$out" | head -1)
        printf '| %s | %s | %s |%s\n' "$name" "$weights" "$ranks" "$row"
    done
done
