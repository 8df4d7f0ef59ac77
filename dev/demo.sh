#!/bin/bash
# Everything once, on a real text: tokenizer, tokens, training, evaluation, samples, loss curve.
# Usage: demo.sh [TEXT...]   your text files; default: Jane Austen's novels, a Debian package
set -euo pipefail
cd "$(dirname "$0")/.."
TRAIN_SECONDS=${TRAIN_SECONDS:-130}
SECONDS=0

# The novels' chapters as JSON lines in $1. The package holds them in R's format; neither R nor root
# is needed to read it.
fetch_austen() {
    local package=r-cran-janeaustenr fetch=(apt-get -q -o APT::Sandbox::User=root download r-cran-janeaustenr) sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    command -v python3 >/dev/null || dev/deps.sh quiet python3 || return 1
    mkdir -p build/austen
    (
        cd build/austen
        command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || exit 1
        ls $package*.deb || "${fetch[@]}" || { $sudo apt-get -q update && "${fetch[@]}"; } || exit 1
        dpkg-deb -x $package*.deb package
    ) >build/austen/log 2>&1 </dev/null || { tail -3 build/austen/log; return 1; }
    python3 dev/austen.py build/austen/package/usr/lib/R/site-library/janeaustenr build/austen/text "$1"
}
# The command as one would type it, then its output.
flatgpt() {
    local shown='$ ./flatgpt' word
    for word in "$@"; do
        case $word in
            *[!A-Za-z0-9_./=-]* | '') shown+=" '${word//\'/\'\\\'\'}'" ;;
            *) shown+=" $word" ;;
        esac
    done
    printf '\n%s\n' "$shown"
    ./flatgpt "$@"
}
# The tokens in the shards "$@"; 0 where there are none.
tokens_in() { ./flatgpt info --json "$@" 2>/dev/null | awk -F'"tokens":' '{ n += $2 } END { print n + 0 }'; }
clamp() { echo $(($1 < $2 ? $2 : $1 > $3 ? $3 : $1)); }

prompts=("It is a truth universally acknowledged" "\"My dear Mr. Bennet,\"")
if [ $# = 0 ]; then
    dir=build/demo/austen
    [ -e build/austen/austen.jsonl ] || fetch_austen build/austen/austen.jsonl || {
        echo "demo: could not get the Debian package r-cran-janeaustenr (the novels of Jane Austen; needs apt-get and"
        echo "      a network). With a text of your own, a megabyte or more, none is needed: make demo TEXT=my.txt"
        exit 1
    }
    set -- build/austen/austen.jsonl
else
    dir=build/demo/$(basename "$1")
    prompts=("The")
fi
run=$dir/run
mkdir -p "$dir"
# Another text than the last time: that run cannot go on.
cksum "$@" >"$dir/text.new"
cmp -s "$dir/text.new" "$dir/text" || rm -rf "$run" "$dir/complete"
mv "$dir/text.new" "$dir/text"

# Model and vocabulary follow the text: a token should occur hundreds of times.
bytes=$(cat "$@" | wc -c)
vocab=$(($(clamp $((bytes / 900)) 384 4096) / 64 * 64))
if [ "$bytes" -lt 400000 ]; then channels=64
elif [ "$bytes" -lt 2000000 ]; then channels=128
else channels=256
fi
flatgpt train-tokenizer --vocab "$vocab" --out "$dir/tok.json" --overwrite "$@"
flatgpt tokenize --tokenizer "$dir/tok.json" --val-fraction 0.1 --out "$dir/tokens" --overwrite "$@"
shopt -s nullglob
train_tokens=$(tokens_in "$dir"/tokens_train_*.bin) val_tokens=$(tokens_in "$dir"/tokens_val_*.bin)
seq=128 batch=8
if [ "$train_tokens" -le $seq ]; then
    echo "demo: $train_tokens tokens are no text to train on; a megabyte or more is a good one: make demo TEXT=my.txt"
    exit 1
fi
val=()
if [ "$val_tokens" -gt $seq ]; then
    val=(--val "$dir/tokens_val_*.bin")
else
    echo "demo: $val_tokens tokens for validation are fewer than one window of $((seq + 1)): the text is too small to"
    echo "      be measured on, and the model will learn it by heart"
fi
train=(--data "$dir/tokens_train_*.bin" --tokenizer "$dir/tok.json" --layers 4 --heads 4 --channels $channels
    --seq-len $seq --batch $batch --lr 2e-3 --device auto)
# As many steps as this machine does in the time, and at most 16 readings of the text: a few steps
# are timed. A run that was stopped goes on; one that is complete starts over.
steps=$(sed -n 's/^steps = //p' "$run/run.toml" 2>/dev/null || true)
if [ -z "$steps" ] || [ -e "$dir/complete" ]; then
    rm -rf "$run" "$dir/trial" "$dir/complete"
    ./flatgpt train "${train[@]}" --steps 20 --out "$dir/trial" 2>"$dir/log" || { cat "$dir/log"; exit 1; }
    ms=$(./flatgpt plot --csv "$dir/trial" | cut -d, -f7 | sort -g | sed -n 11p)
    in_time=$(awk "BEGIN { print int($TRAIN_SECONDS * 1000 / $ms) }")
    most=$((16 * train_tokens / (seq * batch)))
    steps=$(($(clamp $((in_time < most ? in_time : most)) 100 6000) / 20 * 20))
    rm -rf "$dir/trial"
fi
[ ${#val[@]} = 0 ] || val+=(--eval-every $((steps / 10)) --eval-tokens 0 --patience 3)
flatgpt train "${train[@]}" "${val[@]}" --sample-every $((steps / 4)) --save-every $((steps / 4)) --keep 2 \
    --steps "$steps" --resume auto --out "$run"
touch "$dir/complete"
which=last
if [ ${#val[@]} != 0 ]; then
    which=best
    flatgpt eval "$run" --checkpoint best --data "$dir/tokens_val_*.bin"
fi
flatgpt plot "$run"
for prompt in "${prompts[@]}"; do
    flatgpt sample "$run" --checkpoint $which --prompt "$prompt" --tokens 80 --top-k 50 --seed 1
done
flatgpt sample "$run" --checkpoint $which --tokens 120 --top-k 50 --seed 1

# Whether the last validation was the best one: then more steps help; else more text.
further="  ./flatgpt train --config $run/run.toml --steps $((steps * 4)) --resume auto --out $run    longer"
lowest=$(./flatgpt plot --csv "$run" |
    awk -F, '$2 ~ /^[0-9]+$/ && $4 != "" { if (!n++ || $4 < best) { best = $4; at = n } } END { print (at == n) }')
[ ${#val[@]} != 0 ] && [ "$lowest" = 1 ] ||
    further="  (more steps would learn this text by heart: more text helps)"
cat <<END

That took $SECONDS seconds. To go on:
  ./flatgpt sample $run --prompt 'The next morning' --tokens 300        more text
$further
  ./flatgpt info $run                                                   what the checkpoint holds
  ./flatgpt train --help all                                            every option
END
