#!/bin/bash
# Talks with SmolLM2-135M-Instruct. Called by make chat.
# Usage: chat.sh [OPTION...]   options of flatgpt chat
set -euo pipefail
cd "$(dirname "$0")/.."
model=$(dev/smollm2.sh chat)
# Defaults for a model this small, which goes astray otherwise: the likeliest words, none too often,
# and activations that are not rounded to 8 bits. An option that is given here takes the place of
# its default.
defaults=()
for option in "--temperature 0" "--repetition-penalty 1.1" "--dtype fp32"; do
    case " $* " in *" ${option% *} "* | *" ${option% *}="*) ;; *) defaults+=($option) ;; esac
done
set -- "$model" "${defaults[@]}" "$@"
{ printf '$ ./flatgpt chat' && printf ' %q' "$@" && echo; } >&2
exec ./flatgpt chat "$@"
