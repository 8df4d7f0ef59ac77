#!/bin/bash
# Everything once, on a real text: tokenizer, tokens, training, evaluation, samples, loss curve. Called by make demo.
# Usage: demo.sh [TEXT...]   text files of yours; without any, the six novels of Jane Austen from a Debian package
set -euo pipefail
cd "$(dirname "$0")/.."
TRAIN_SECONDS=${TRAIN_SECONDS:-130}
SECONDS=0

# The novels as text files in $1. The package holds them in R's format; neither R nor root is needed to read it.
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
    python3 dev/austen.py build/austen/package/usr/lib/R/site-library/janeaustenr "$1"
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

prompts=("It is a truth universally acknowledged" "She was" "\"My dear Mr. Bennet,\"")
if [ $# = 0 ]; then
    dir=build/demo/austen
    [ -e build/austen/text/emma.txt ] || fetch_austen build/austen/text || {
        echo "demo: could not get the Debian package r-cran-janeaustenr (the novels of Jane Austen; needs apt-get and"
        echo "      a network). With a text of your own, a megabyte or more, none is needed: make demo TEXT=my.txt"
        exit 1
    }
    set -- build/austen/text/*.txt
else
    dir=build/demo/$(basename "$1")
    prompts=("The" "")
fi
run=$dir/run
mkdir -p "$dir"

flatgpt train-tokenizer --vocab 4096 --out "$dir/tok.json" "$@"
flatgpt tokenize --tokenizer "$dir/tok.json" --val-fraction 0.1 --out "$dir/tokens" --overwrite "$@"
train=(--data "$dir/tokens_train_*.bin" --val "$dir/tokens_val_*.bin" --tokenizer "$dir/tok.json"
    --layers 4 --heads 4 --channels 256 --seq-len 128 --batch 8 --lr 2e-3 --device auto)
# As many steps as this machine does in the time: a few are timed. A run that was stopped goes on; one that is complete
# starts over.
steps=$(sed -n 's/^steps = //p' "$run/run.toml" 2>/dev/null || true)
if [ -z "$steps" ] || [ -e "$run/step_$(printf %08d "$steps")" ]; then
    rm -rf "$run" "$dir/trial"
    ./flatgpt train "${train[@]}" --eval-batches 1 --steps 20 --out "$dir/trial" 2>"$dir/log" ||
        { cat "$dir/log"; exit 1; }
    ms=$(./flatgpt plot --csv "$dir/trial" | cut -d, -f7 | sort -g | sed -n 11p)
    steps=$(awk "BEGIN { n = int($TRAIN_SECONDS * 10 / $ms) * 100; print (n < 100 ? 100 : n > 6000 ? 6000 : n) }")
fi
flatgpt train "${train[@]}" --eval-every $((steps / 10)) --eval-batches 20 --sample-every $((steps / 4)) \
    --save-every $((steps / 4)) --keep 2 --steps "$steps" --resume auto --out "$run"
flatgpt eval "$run" --data "$dir/tokens_val_*.bin"
for prompt in "${prompts[@]}"; do
    flatgpt sample "$run" --prompt "$prompt" --tokens 80 --temperature 0.8 --top-k 50 --seed 1
done
flatgpt plot "$run"

cat <<END

That took $SECONDS seconds. To go on:
  ./flatgpt sample $run --prompt 'The next morning' --tokens 300        more text
  ./flatgpt train --config $run/run.toml --steps $((steps * 10)) --resume auto --out $run    longer
  ./flatgpt info $run                                                   what the checkpoint holds
  ./flatgpt train --help                                                every option
END
