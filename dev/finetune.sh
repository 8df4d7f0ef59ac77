#!/bin/bash
# Fine-tunes SmolLM2-135M-Instruct on fifty short conversations, and asks it the same questions
# before and after. Called by make finetune.
# Usage: finetune.sh [FILE.jsonl]   conversations; default: dev/questions.jsonl
set -euo pipefail
[ $# -eq 0 ] || set -- "$(realpath "$1")"
cd "$(dirname "$0")/.."
file=${1:-dev/questions.jsonl}
length=(--seq-len 512)
[ $# -gt 0 ] || length=(--seq-len 128)    # its conversations are short
model=$(dev/smollm2.sh finetune)
out=build/finetune
# The file has the first question alone.
questions=("What is the capital of Italy?" "What colour is the sky on a clear day?"
    "Which instrument has black and white keys?")
flatgpt() {
    { printf '\n$ ./flatgpt' && printf ' %q' "$@" && echo; } >&2
    ./flatgpt "$@"
}
ask() {    # model
    local question
    for question in "${questions[@]}"; do
        printf '\n> %s\n' "$question"
        ./flatgpt chat "$1" --temperature 0 --tokens 60 <<<"$question" 2>build/chat/log || {
            cat build/chat/log >&2
            exit 1
        }
    done
}
echo "Its answers before:"
ask "$model"
flatgpt train --from "$model" --chat "$file" --pack --preview 1 "${length[@]}"
rm -rf "$out"
flatgpt train --from "$model" --chat "$file" --pack "${length[@]}" --batch 4 --epochs 4 --lr 1e-4 --out "$out"
printf '\nIts answers after:\n'
ask "$out"
printf '\nTalk to it: ./flatgpt chat %s\n' "$out"
