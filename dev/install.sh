#!/bin/bash
# `make install` and `make uninstall`: the binary, and what it says of itself: manual page and shell
# completion.
# Usage: install.sh BINARY PREFIX        install.sh --remove PREFIX
set -eu
binary=$1 prefix=$2 source=$(dirname "$0")/..
files=(bin/flatgpt share/man/man1/flatgpt.1 share/bash-completion/completions/flatgpt
       share/zsh/site-functions/_flatgpt share/fish/vendor_completions.d/flatgpt.fish share/doc/flatgpt/LICENSE)
if [ "$binary" = --remove ]; then
    rm -f "${files[@]/#/$prefix/}"
    [ ! -d "$prefix/share/doc/flatgpt" ] || rmdir "$prefix/share/doc/flatgpt"
    exit
fi
text() {    # FILE COMMAND...: what the binary prints
    local printed
    printed=$("$binary" "${@:2}")
    install -D -m 644 /dev/stdin "$prefix/$1" <<<"$printed"
}
install -D -m 755 "$binary" "$prefix/${files[0]}"
text "${files[1]}" man
text "${files[2]}" completion bash
text "${files[3]}" completion zsh
text "${files[4]}" completion fish
install -D -m 644 "$source/LICENSE" "$prefix/${files[5]}"
printf 'installed %s\n' "${files[@]/#/$prefix/}"
