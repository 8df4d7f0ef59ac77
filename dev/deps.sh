#!/bin/sh
# Installs what the build needs and is missing: Debian or Ubuntu packages. Called by make.
# Usage: deps.sh [quiet] [tests] [PACKAGE...]   tests: what they need, too
quiet= tests=
[ "$1" = quiet ] && { quiet=1; shift; }
[ "$1" = tests ] && { tests=1; shift; }
want= may=
# A header counts as there in the system's place or in a folder of $CPATH, where somebody without
# root may unpack it.
has() {
    for folder in /usr/include $(echo "$CPATH" | tr : ' '); do [ -e "$folder/$1" ] && return; done
    false
}
has_mpi() {
    for flag in $(mpicc -show 2>/dev/null); do [ -e "${flag#-I}/mpi.h" ] && return; done
    false
}
need() { has "$1" || want="$want $2"; }
command -v "${CXX:-g++}" >/dev/null || want="$want g++"
need CLI/CLI.hpp libcli11-dev
[ -z "$tests" ] || need doctest/doctest.h doctest-dev
need nlohmann/json.hpp nlohmann-json3-dev
need pcre2.h libpcre2-dev
need utf8proc.h libutf8proc-dev
need zlib.h zlib1g-dev
need zstd.h libzstd-dev
for p in "$@"; do dpkg -s "$p" >/dev/null 2>&1 || want="$want $p"; done
# What may be missing, and what there is without it.
without() {
    case $1 in
        libdnnl-dev) echo "make onednn has nothing to compare with" ;;
        libopenmpi-dev) echo "no ranks on CPUs" ;;
        openmpi-bin) echo "ranks under mpirun are not tested" ;;
        libedit2) echo "no editing of lines in flatgpt chat" ;;
        librsvg2-2) echo "no .png pictures" ;;
        iproute2) echo "ranks on machines apart are not tested" ;;
    esac
}
# Only to be measured against: `make deps` installs it, a build does without.
[ -n "$quiet" ] || has dnnl.hpp || has oneapi/dnnl/dnnl.hpp || may="$may libdnnl-dev"
has_mpi || may="$may libopenmpi-dev"
command -v mpirun >/dev/null || may="$may openmpi-bin"
[ -z "$tests" ] || command -v ip >/dev/null || may="$may iproute2"
ls /usr/lib/*/libedit.so.2 /usr/lib*/libedit.so.2 2>/dev/null | grep -q . || may="$may libedit2"
ls /usr/lib/*/librsvg-2.so.2 /usr/lib*/librsvg-2.so.2 2>/dev/null | grep -q . || may="$may librsvg2-2"
tried=build/deps-tried    # optional packages are asked for once; `make deps` asks again
if [ -n "$quiet" ]; then
    all=$may may=
    for p in $all; do grep -qsx "$p" $tried || may="$may $p"; done
fi
[ -z "$want$may" ] && { [ -n "$quiet" ] || echo "deps: everything is installed"; exit 0; }
sudo=
if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null; then
        sudo=sudo
    elif [ -n "$want" ]; then
        echo "deps: not root, and no sudo here. As root, run: apt-get install$want$may"
        exit 1
    else
        for p in $may; do echo "deps: no $p: $(without "$p")"; done
        mkdir -p build && printf "%s\n" $may >>$tried
        exit 0
    fi
fi
install() {
    [ $# = 0 ] && return
    echo "deps: installing $*"
    command -v apt-get >/dev/null || return
    export DEBIAN_FRONTEND=noninteractive
    { $sudo apt-get install -y --no-install-recommends "$@" ||
      { $sudo apt-get update && $sudo apt-get install -y --no-install-recommends "$@"; }; } >build-deps.log 2>&1 &&
        { rm -f build-deps.log; return; }
    tail -5 build-deps.log
    false
}
mkdir -p build && printf "%s\n" $may >>$tried
install $want $may && exit 0
install $want ||
    { echo "deps: could not install$want; install them by hand (names of Debian packages) and run make again"; exit 1; }
for p in $may; do install "$p" || echo "deps: no $p: $(without "$p")"; done
exit 0
